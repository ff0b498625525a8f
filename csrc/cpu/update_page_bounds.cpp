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

void update_group_bounds(const UpdatePageBoundsParams& params, const GroupBoundsParams& groups) {
  const int64_t rows = params.row_count != nullptr ? *params.row_count : params.rows;
  if (rows == 0 || params.kv_heads * params.head_dim == 0) return;
  struct Group {
    int64_t request, index;
    const int32_t* pages;
    int64_t count;
  };
  const size_t named_bytes = (static_cast<size_t>(params.pages) + 63) / 64 * 64;
  auto* named =
      static_cast<unsigned char*>(calling_thread_workspace(named_bytes + groups.batch * groups.groups * sizeof(Group)));
  auto* changed = reinterpret_cast<Group*>(named + named_bytes);
  std::fill(named, named + params.pages, 0);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t slot = params.slot_mapping[row * params.slot_mapping_stride];
    if (slot >= 0) named[slot / params.page_size] = 1;
  }
  int64_t count = 0;
  for (int64_t request = 0; request < groups.batch; ++request) {
    const int64_t context_len = groups.context_lens[request * groups.context_lens_stride];
    const int64_t pages = (context_len + params.page_size - 1) / params.page_size;
    const int32_t* table = groups.page_table + request * groups.page_table_stride;
    for (int64_t first = 0; first < pages; first += groups.group_pages) {
      const int32_t* end = table + std::min(first + groups.group_pages, pages);
      if (std::any_of(table + first, end, [&](int32_t page) { return named[page] != 0; })) {
        changed[count++] = {request, first / groups.group_pages, table + first, end - (table + first)};
      }
    }
  }
  const auto bounds = DFLASH_KERNEL(group_bounds);
  const int64_t size = dtype_size(params.dtype);
  const int64_t group_elements = 2 * groups.group_pages * params.kv_heads * params.head_dim;
  parallel_tasks(count * params.layer_count, kElementsPerTask / group_elements + 1, [&](int64_t task) {
    const Group& group = changed[task / params.layer_count];
    const PageBoundsLayer& layer = params.layers[task % params.layer_count];
    const GroupBoundsLayer& to = groups.layers[task % params.layer_count];
    bounds({layer.bounds, params.dtype, layer.bounds_page_stride, layer.bounds_head_stride, layer.bounds_part_stride,
            group.pages, group.count, params.kv_heads, params.head_dim,
            static_cast<char*>(to.bounds) + (group.request * to.batch_stride + group.index * to.group_stride) * size,
            to.head_stride, to.part_stride});
  });
}

}  // namespace dflash::cpu
