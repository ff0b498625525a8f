#include "cpu/update_page_bounds.h"

#include <algorithm>

#include "cpu/parallel.h"
#include "cpu/scratch.h"

namespace dflash::cpu {
namespace {

// Starting a thread costs about as much as reading this many elements.
constexpr int64_t kElementsPerTask = 65536;

// The highest slot of every page that is named; their number is returned. `slots` holds as many as there are rows.
int64_t last_slots(const UpdatePageBoundsParams& params, int64_t rows, int64_t* slots) {
  int64_t named = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t slot = params.slot_mapping[row * params.slot_mapping_stride];
    if (slot >= 0) slots[named++] = slot;
  }
  std::sort(slots, slots + named);
  int64_t pages = 0;
  for (int64_t i = 0; i < named; ++i) {
    if (i + 1 == named || slots[i + 1] / params.page_size != slots[i] / params.page_size) slots[pages++] = slots[i];
  }
  return pages;
}

}  // namespace

void update_page_bounds(const UpdatePageBoundsParams& params) {
  const int64_t rows = params.row_count != nullptr ? *params.row_count : params.rows;
  const int64_t page_elements = params.page_size * params.kv_heads * params.head_dim;
  if (rows == 0 || page_elements == 0) return;
  auto* slots = static_cast<int64_t*>(calling_thread_workspace(rows * sizeof(int64_t)));
  const int64_t pages = last_slots(params, rows, slots);
  const auto bounds = DFLASH_KERNEL(page_bounds);
  const int64_t size = dtype_size(params.dtype);
  parallel_tasks(pages * params.layer_count, kElementsPerTask / page_elements + 1, [&](int64_t task) {
    const PageBoundsLayer& layer = params.layers[task % params.layer_count];
    const int64_t slot = slots[task / params.layer_count];
    const int64_t page = slot / params.page_size;
    bounds({static_cast<const char*>(layer.k) + page * layer.k_page_stride * size, params.dtype, layer.k_slot_stride,
            layer.k_head_stride, slot % params.page_size + 1, params.kv_heads, params.head_dim,
            static_cast<char*>(layer.bounds) + page * layer.bounds_page_stride * size, layer.bounds_head_stride,
            layer.bounds_part_stride});
  });
}

}  // namespace dflash::cpu
