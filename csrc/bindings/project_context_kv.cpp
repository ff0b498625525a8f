#include "cpu/project_context_kv.h"

#include "bindings/context_checks.h"
#include "bindings/cuda_backend.h"
#include "bindings/library_product.h"
#include "bindings/page_bounds_checks.h"
#include "cpu/update_page_bounds.h"
#include "plan/cuda/project_context_kv.h"
#include "plan/cuda/update_page_bounds.h"
#include "plan/project_context_kv.h"

namespace dflash::bindings {

template <Backend backend>
void project_context_kv(const Tensor& features, const Tensor& kv_weight, const OptionalTensor& kv_bias,
                        const OptionalTensor& k_norm_weight, const OptionalTensor& cos_sin,
                        const OptionalTensor& positions, const Tensor& slot_mapping, const OptionalTensor& row_count,
                        double eps, bool interleaved, TensorList k_caches, TensorList v_caches, TensorList k_bounds,
                        const Tensor& workspace) {
  constexpr const char* op = "project_context_kv";
  TensorCheck(op, "features", features).dim(2).floating().last_contiguous();
  const int64_t rows = features.size(0), hidden_size = features.size(1);
  TensorCheck(op, "features", features).expect(hidden_size > 0, "at least one column", to_string(features));
  check_weight(op, "kv_weight", kv_weight, features, {-1, -1, hidden_size});
  const int64_t layers = kv_weight.size(0), layer_columns = kv_weight.size(1);
  if (k_caches.empty()) raise(op, "k_caches", "at least one cache", "none");
  TensorCheck(op, "k_caches[0]", k_caches[0]).dim(4);
  const int64_t kv_heads = k_caches[0].size(2), head_dim = k_caches[0].size(3);
  TensorCheck(op, "kv_weight", kv_weight)
      .expect(layer_columns == 2 * kv_heads * head_dim && head_dim > 0,
              std::to_string(2 * kv_heads * head_dim) + " rows a layer (keys and values of all heads of the caches)",
              to_string(kv_weight));
  if (kv_bias) check_weight(op, "kv_bias", *kv_bias, features, {layers, layer_columns});
  if (k_norm_weight) check_weight(op, "k_norm_weight", *k_norm_weight, features, {layers, head_dim});

  ProjectContextKvParams params{};
  WriteContextKvParams& write = params.write;
  write.caches = check_caches(op, k_caches, v_caches, slot_mapping, features, rows, layers, kv_heads, head_dim);
  write.rope = check_rope(op, cos_sin, positions, interleaved, features, rows, head_dim);
  write.row_count = check_row_count(op, row_count, features);
  UpdatePageBoundsParams bounds{};
  if (!k_bounds.empty()) bounds = check_page_bounds(op, k_caches, k_bounds, slot_mapping, write.row_count);
  TensorCheck(op, "workspace", workspace).same_device(features);
  check_separate(op, {{"k_caches", k_caches}, {"v_caches", v_caches}, {"k_bounds", k_bounds}, {"workspace", workspace}},
                 {{"features", features},
                  {"kv_weight", kv_weight},
                  {"kv_bias", kv_bias},
                  {"k_norm_weight", k_norm_weight},
                  {"cos_sin", cos_sin},
                  {"positions", positions},
                  {"slot_mapping", slot_mapping},
                  {"row_count", row_count}});

  params.gemm.activations = single_piece(features);
  params.gemm.dtype = dtype_of(features);
  GemmWeight& weight = params.gemm.weight;
  weight.data = kv_weight.data_ptr();
  weight.layer_stride = kv_weight.stride(0);
  weight.row_stride = kv_weight.stride(1);
  weight.bias = kv_bias ? kv_bias->data_ptr() : nullptr;
  weight.bias_layer_stride = kv_bias ? kv_bias->stride(0) : 0;
  weight.layer_columns = layer_columns;
  weight.columns = layers * layer_columns;
  write.rows = rows;
  write.k_norm_weight = k_norm_weight ? k_norm_weight->data_ptr() : nullptr;
  write.weight_dtype = params.gemm.dtype;
  write.k_norm_layer_stride = k_norm_weight ? k_norm_weight->stride(0) : 0;
  write.eps = static_cast<float>(eps);
  params.workspace = workspace.data_ptr();

  if constexpr (backend == Backend::kCuda) {
    const DeviceProperties& device = cuda_device(op, features);
    TensorCheck(op, "workspace", workspace)
        .workspace(cuda::project_context_kv_workspace_bytes(rows, hidden_size, weight.columns));
    run_steps(op, features, cuda::plan_project_context_kv(params, device));
    // A launch of its own, after all rows are there: a page's rows are written by several blocks.
    cuda_launch(op, features, cuda::plan_update_page_bounds(bounds, device));
  } else {
    TensorCheck(op, "workspace", workspace)
        .workspace(plan::project_context_kv_workspace(rows, hidden_size, weight.columns).bytes);
    check_row_count_value(op, write.row_count, rows);
    check_slots_and_positions(op, write.caches, write.rope, write.row_count ? *write.row_count : rows);
    cpu::project_context_kv(params);
    cpu::update_page_bounds(bounds);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(project_context_kv)
