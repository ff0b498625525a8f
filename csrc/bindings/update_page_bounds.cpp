#include "cpu/update_page_bounds.h"

#include "bindings/cuda_backend.h"
#include "bindings/page_bounds_checks.h"
#include "plan/cuda/update_page_bounds.h"

namespace dflash::bindings {

template <Backend backend>
void update_page_bounds(TensorList k_caches, const Tensor& slot_mapping, const OptionalTensor& row_count,
                        TensorList k_bounds) {
  constexpr const char* op = "update_page_bounds";
  const UpdatePageBoundsParams params =
      check_page_bounds(op, k_caches, k_bounds, slot_mapping, check_row_count(op, row_count, slot_mapping));
  check_separate(op, {{"k_bounds", k_bounds}},
                 {{"k_caches", k_caches}, {"slot_mapping", slot_mapping}, {"row_count", row_count}});
  if constexpr (backend == Backend::kCuda) {
    const DeviceProperties& device = cuda_device(op, slot_mapping);
    cuda_launch(op, slot_mapping, cuda::plan_update_page_bounds(params, device));
  } else {
    check_row_count_value(op, params.row_count, params.rows);
    const int64_t rows = params.row_count ? *params.row_count : params.rows;
    for (int64_t row = 0; row < rows; ++row) {
      check_slot(op, params.slot_mapping[row * params.slot_mapping_stride], params.pages * params.page_size, row);
    }
    cpu::update_page_bounds(params);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(update_page_bounds)
