#include "cpu/fuse_features.h"

#include "bindings/context_checks.h"
#include "bindings/cuda_backend.h"
#include "bindings/library_product.h"
#include "plan/cuda/fuse_features.h"
#include "plan/fuse_features.h"

namespace dflash::bindings {

template <Backend backend>
void fuse_features(TensorList hidden_states, const Tensor& weight, const OptionalTensor& norm_weight, double eps,
                   const OptionalTensor& row_count, const Tensor& out, const Tensor& workspace) {
  constexpr const char* op = "fuse_features";
  const int64_t taps = static_cast<int64_t>(hidden_states.size());
  if (taps < 1 || taps > kMaxGemmPieces) {
    raise(op, "hidden_states", "1 to " + std::to_string(kMaxGemmPieces) + " tensors", std::to_string(taps));
  }
  const Tensor& first = hidden_states[0];
  TensorCheck(op, "hidden_states[0]", first)
      .dim(2)
      .floating()
      .expect(first.size(1) > 0, "at least one column", to_string(first));
  const int64_t rows = first.size(0), tap_columns = first.size(1);

  FuseFeaturesParams params{};
  GemmActivations& activations = params.gemm.activations;
  activations.piece_count = taps;
  activations.piece_columns = tap_columns;
  activations.rows = rows;
  for (int64_t tap = 0; tap < taps; ++tap) {
    const Tensor& states = hidden_states[tap];
    TensorCheck(op, "hidden_states[" + std::to_string(tap) + "]", states)
        .same_device(first)
        .same_dtype(first)
        .shape({rows, tap_columns})
        .last_contiguous();
    activations.pieces[tap] = states.data_ptr();
    activations.row_strides[tap] = states.stride(0);
  }
  check_weight(op, "weight", weight, first, {-1, taps * tap_columns});
  const int64_t columns = weight.size(0);
  if (norm_weight) check_weight(op, "norm_weight", *norm_weight, first, {columns});
  TensorCheck(op, "out", out).same_device(first).same_dtype(first).shape({rows, columns}).last_contiguous().writable();
  params.row_count = check_row_count(op, row_count, first);
  TensorCheck(op, "workspace", workspace).same_device(first);

  check_separate(
      op, {{"out", out}, {"workspace", workspace}},
      {{"hidden_states", hidden_states}, {"weight", weight}, {"norm_weight", norm_weight}, {"row_count", row_count}});

  params.gemm.dtype = dtype_of(first);
  params.gemm.weight = single_layer_weight(weight);
  params.norm_weight = norm_weight ? norm_weight->data_ptr() : nullptr;
  params.eps = static_cast<float>(eps);
  params.out = out.data_ptr();
  params.out_row_stride = out.stride(0);
  params.workspace = workspace.data_ptr();
  if constexpr (backend == Backend::kCuda) {
    const DeviceProperties& device = cuda_device(op, first);
    TensorCheck(op, "workspace", workspace)
        .workspace(cuda::fuse_features_workspace_bytes(rows, taps, tap_columns, columns));
    run_steps(op, first, cuda::plan_fuse_features(params, device));
  } else {
    TensorCheck(op, "workspace", workspace)
        .workspace(plan::fuse_features_workspace(rows, taps, tap_columns, columns).bytes);
    check_row_count_value(op, params.row_count, rows);
    cpu::fuse_features(params);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(fuse_features)
