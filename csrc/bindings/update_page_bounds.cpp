#include "cpu/update_page_bounds.h"

#include "bindings/block_attention_checks.h"
#include "bindings/cuda_backend.h"
#include "bindings/page_bounds_checks.h"
#include "plan/cuda/update_page_bounds.h"

namespace dflash::bindings {
namespace {

constexpr const char* kOp = "update_page_bounds";

GroupBoundsParams check_group_bounds(const UpdatePageBoundsParams& params, const Tensor& data,
                                     const OptionalTensor& page_table, const OptionalTensor& context_lens,
                                     int64_t group_pages, const TensorList& group_bounds) {
  if (static_cast<int64_t>(group_bounds.size()) != params.layer_count) {
    raise(kOp, "group_bounds", "one tensor for each of " + std::to_string(params.layer_count) + " layers",
          std::to_string(group_bounds.size()));
  }
  if (!page_table || !context_lens) raise(kOp, "page_table, context_lens", "both with group_bounds", "none");
  if (group_pages <= 0) raise(kOp, "group_pages", "1 or more", std::to_string(group_pages));
  TensorCheck(kOp, "context_lens", *context_lens).same_device(data).dtype(ScalarType::Int).dim(1);
  GroupBoundsParams groups{};
  groups.batch = context_lens->size(0);
  TensorCheck(kOp, "page_table", *page_table)
      .same_device(data)
      .dtype(ScalarType::Int)
      .shape({groups.batch, -1})
      .last_contiguous();
  groups.group_pages = group_pages;
  groups.groups = (page_table->size(1) + group_pages - 1) / group_pages;
  groups.page_table = static_cast<const int32_t*>(page_table->data_ptr());
  groups.page_table_stride = page_table->stride(0);
  groups.context_lens = static_cast<const int32_t*>(context_lens->data_ptr());
  groups.context_lens_stride = context_lens->stride(0);
  for (int64_t layer = 0; layer < params.layer_count; ++layer) {
    const Tensor& bounds = group_bounds[layer];
    TensorCheck(kOp, "group_bounds[" + std::to_string(layer) + "]", bounds)
        .same_device(data)
        .same_dtype(data)
        .shape({groups.batch, groups.groups, params.kv_heads, 2, params.head_dim})
        .last_contiguous()
        .writable();
    groups.layers[layer] = {bounds.data_ptr(), bounds.stride(0), bounds.stride(1), bounds.stride(2), bounds.stride(3)};
  }
  return groups;
}

void check_pages(const UpdatePageBoundsParams& params, const GroupBoundsParams& groups, int64_t max_pages) {
  check_context_lens(kOp, groups.context_lens, groups.context_lens_stride, groups.batch, max_pages * params.page_size);
  for (int64_t request = 0; request < groups.batch; ++request) {
    const int64_t context_len = groups.context_lens[request * groups.context_lens_stride];
    const int32_t* table = groups.page_table + request * groups.page_table_stride;
    for (int64_t page = 0; page * params.page_size < context_len; ++page) {
      check_page(kOp, table, request, page, params.pages);
    }
  }
}

}  // namespace

template <Backend backend>
void update_page_bounds(TensorList k_caches, const Tensor& slot_mapping, const OptionalTensor& row_count,
                        const OptionalTensor& page_table, const OptionalTensor& context_lens, int64_t group_pages,
                        TensorList k_bounds, TensorList group_bounds) {
  TensorCheck(kOp, "slot_mapping", slot_mapping);  // that there is one, which row_count is compared with
  const UpdatePageBoundsParams params =
      check_page_bounds(kOp, k_caches, k_bounds, slot_mapping, check_row_count(kOp, row_count, slot_mapping));
  GroupBoundsParams groups{};
  if (!group_bounds.empty()) {
    groups = check_group_bounds(params, k_caches[0], page_table, context_lens, group_pages, group_bounds);
  }
  check_separate(kOp, {{"k_bounds", k_bounds}, {"group_bounds", group_bounds}},
                 {{"k_caches", k_caches},
                  {"slot_mapping", slot_mapping},
                  {"row_count", row_count},
                  {"page_table", page_table},
                  {"context_lens", context_lens}});
  if constexpr (backend == Backend::kCuda) {
    if (!group_bounds.empty()) raise(kOp, "group_bounds", "none on CUDA", to_string(group_bounds[0]));
    const DeviceProperties& device = cuda_device(kOp, slot_mapping);
    cuda_launch(kOp, slot_mapping, cuda::plan_update_page_bounds(params, device));
  } else {
    check_row_count_value(kOp, params.row_count, params.rows);
    const int64_t rows = params.row_count ? *params.row_count : params.rows;
    for (int64_t row = 0; row < rows; ++row) {
      check_slot(kOp, params.slot_mapping[row * params.slot_mapping_stride], params.pages * params.page_size, row);
    }
    if (!group_bounds.empty()) check_pages(params, groups, page_table->size(1));
    cpu::update_page_bounds(params);
    if (!group_bounds.empty()) cpu::update_group_bounds(params, groups);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(update_page_bounds)
