#include "cpu/write_context_kv.h"

#include "bindings/cuda_backend.h"
#include "bindings/page_bounds_checks.h"
#include "cpu/update_page_bounds.h"
#include "plan/cuda/update_page_bounds.h"
#include "plan/cuda/write_context_kv.h"

namespace dflash::bindings {

template <Backend backend>
void write_context_kv(const Tensor& kv, const OptionalTensor& k_norm_weight, const OptionalTensor& cos_sin,
                      const OptionalTensor& positions, const Tensor& slot_mapping, const OptionalTensor& row_count,
                      double eps, bool interleaved, TensorList k_caches, TensorList v_caches, TensorList k_bounds) {
  constexpr const char* op = "write_context_kv";
  TensorCheck(op, "kv", kv).dim(5).floating().size(2, 2).last_contiguous();
  const int64_t rows = kv.size(0), layers = kv.size(1), head_dim = kv.size(4);
  TensorCheck(op, "kv", kv).expect(head_dim > 0, "a head_dim above 0", to_string(kv));
  if (k_norm_weight) check_weight(op, "k_norm_weight", *k_norm_weight, kv, {layers, head_dim});

  WriteContextKvParams params{};
  params.caches = check_caches(op, k_caches, v_caches, slot_mapping, kv, rows, layers, kv.size(3), head_dim);
  params.rope = check_rope(op, cos_sin, positions, interleaved, kv, rows, head_dim);
  params.row_count = check_row_count(op, row_count, kv);
  params.kv = kv.data_ptr();
  params.dtype = dtype_of(kv);
  params.row_stride = kv.stride(0);
  params.layer_stride = kv.stride(1);
  params.part_stride = kv.stride(2);
  params.head_stride = kv.stride(3);
  params.rows = rows;
  params.k_norm_weight = k_norm_weight ? k_norm_weight->data_ptr() : nullptr;
  params.weight_dtype = params.dtype;
  params.k_norm_layer_stride = k_norm_weight ? k_norm_weight->stride(0) : 0;
  params.eps = static_cast<float>(eps);
  UpdatePageBoundsParams bounds{};
  if (!k_bounds.empty()) bounds = check_page_bounds(op, k_caches, k_bounds, slot_mapping, params.row_count);
  check_separate(op, {{"k_caches", k_caches}, {"v_caches", v_caches}, {"k_bounds", k_bounds}},
                 {{"kv", kv},
                  {"k_norm_weight", k_norm_weight},
                  {"cos_sin", cos_sin},
                  {"positions", positions},
                  {"slot_mapping", slot_mapping},
                  {"row_count", row_count}});

  if constexpr (backend == Backend::kCuda) {
    const DeviceProperties& device = cuda_device(op, kv);
    cuda_launch(op, kv, cuda::plan_write_context_kv(params, device));
    // A launch of its own, after all rows are there: a page's rows are written by several blocks.
    cuda_launch(op, kv, cuda::plan_update_page_bounds(bounds, device));
  } else {
    check_row_count_value(op, params.row_count, rows);
    check_slots_and_positions(op, params.caches, params.rope, params.row_count ? *params.row_count : rows);
    cpu::write_context_kv(params);
    cpu::update_page_bounds(bounds);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(write_context_kv)
