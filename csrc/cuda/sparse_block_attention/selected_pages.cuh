// The pages of a selection, and all after the last of them, in place of the whole context.
#pragma once
#include "cuda/common/reduce.cuh"
#include "plan/cuda/sparse_block_attention.h"

namespace dflash::cuda {

class SelectedPages {
 public:
  __device__ __forceinline__ explicit SelectedPages(const SparseBlockAttentionLaunch& launch)
      : selection_(launch.selection), width_(launch.width), max_pages_(launch.max_pages) {}

  // The last selected page that lies in the context decides which pages are seen without being selected. It is among
  // the last 32 unless the context was cut a lot, so that one load finds it.
  __device__ __forceinline__ int find(const BlockAttentionLaunch& launch, int request, int context_len) {
    const uint32_t pages = (static_cast<uint32_t>(context_len) + (1u << launch.page_shift) - 1) >> launch.page_shift;
    const int64_t head = blockIdx.y;
    selected_ = selection_.selected + request * selection_.batch_stride + head * selection_.head_stride;
    table_ = launch.op.page_table + request * launch.op.page_table_stride;
    const int32_t* count = selection_.counts + request * selection_.counts_batch_stride;
    const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
    found_ = after_ = 0;
    // Counts and pages that no one could check lead to no entry that is not there.
    for (int end = min(max(0, count[head * selection_.counts_head_stride]), width_); end > 0; end -= kWarpLanes) {
      const int index = end - 1 - lane;
      const int page = index >= 0 ? selected_[index] : -1;
      const uint32_t in_context = __ballot_sync(kAllLanes, static_cast<uint32_t>(page) < pages);
      if (in_context != 0) {
        const int last = __ffs(static_cast<int>(in_context)) - 1;
        after_ = __shfl_sync(kAllLanes, page, last) + 1;
        found_ = min(end - last, after_);
        break;
      }
    }
    return context_len - ((after_ - found_) << launch.page_shift);
  }

  __device__ __forceinline__ int page(int index) const {
    const uint32_t of_request =
        index < found_ ? min(static_cast<uint32_t>(__ldg(selected_ + index)), max_pages_ - 1) : after_ + index - found_;
    return __ldg(table_ + of_request);
  }

 private:
  const PageSelection& selection_;
  int width_;
  uint32_t max_pages_;
  const int32_t *selected_, *table_;
  int found_, after_;  // selected pages in the context; the first page of the context after them
};

}  // namespace dflash::cuda
