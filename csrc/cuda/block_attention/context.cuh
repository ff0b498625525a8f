// Which pages of its context a kv head sees: the kernel walks them as if they were the whole context.
#pragma once
#include <cstdint>

namespace dflash::cuda {

// All of them, in the order of the page table. What stands in for it elsewhere has the same two functions.
class WholeContext {
 public:
  // Of the request's `context_len` rows, those that the kv head of blockIdx.y sees. For a whole warp.
  template <typename Launch>
  __device__ __forceinline__ int find(const Launch& launch, int request, int context_len) {
    table_ = launch.op.page_table + request * launch.op.page_table_stride;
    return context_len;
  }
  // The page of the cache that holds the `index`th page of what is seen.
  __device__ __forceinline__ int page(int index) const { return __ldg(table_ + index); }

 private:
  const int32_t* table_;
};

}  // namespace dflash::cuda
