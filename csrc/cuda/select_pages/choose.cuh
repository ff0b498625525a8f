// From keys of pages to the selection: the `chosen` greatest keys, equal ones by page.
#pragma once
#include "cuda/common/reduce.cuh"
#include "plan/cuda/select_pages.h"

namespace dflash::cuda {

// Keys above `key` are chosen, and the first `equal` of those like it.
struct KeyCut {
  uint32_t key, equal;
};

// Radix select from the highest digit on: the digit that the last chosen key has is where the count from the top
// reaches `chosen`. For the whole block, which waits for the keys here; `histogram`: kDigits counts in shared memory.
// 0 < chosen <= count.
template <int kThreads>
__device__ __forceinline__ KeyCut find_cut(const uint32_t* keys, int count, uint32_t chosen, uint32_t* histogram) {
  constexpr int kOwnDigits = kDigits / kThreads;
  static_assert(kOwnDigits * kThreads == kDigits, "each thread has as many digits");
  __shared__ KeyCut found;
  KeyCut cut{0, chosen};
  uint32_t known = 0;  // bits of the cut's key
#pragma unroll 1
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) histogram[i] = 0;
    __syncthreads();
    // Scores have few different exponents: runs of equal digits are counted before they are added.
    uint32_t digit = 0, run = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      const uint32_t key = keys[i];
      if ((key & known) != cut.key) continue;
      const uint32_t own = key >> shift & (kDigits - 1);
      if (own != digit && run > 0) {
        atomicAdd(histogram + digit, run);
        run = 0;
      }
      digit = own;
      ++run;
    }
    if (run > 0) atomicAdd(histogram + digit, run);
    __syncthreads();
    const int top = kDigits - 1 - static_cast<int>(threadIdx.x) * kOwnDigits;
    uint32_t own_count = 0;
#pragma unroll
    for (int i = 0; i < kOwnDigits; ++i) own_count += histogram[top - i];
    uint64_t total;
    uint32_t above = static_cast<uint32_t>(block_sum_before<kThreads>(own_count, &total));
    if (above < cut.equal && cut.equal <= above + own_count) {
      int own = top;
      while (above + histogram[own] < cut.equal) above += histogram[own--];
      found = {static_cast<uint32_t>(own), cut.equal - above};
    }
    __syncthreads();
    cut.key |= found.key << shift;
    cut.equal = found.equal;
    known |= static_cast<uint32_t>(kDigits - 1) << shift;
  }
  return cut;
}

// Writes the chosen of pages first .. first + count - 1, whose keys these are, in ascending order.
template <int kThreads>
__device__ __forceinline__ void write_chosen(const uint32_t* keys, int count, int first, const KeyCut& cut,
                                             int32_t* chosen) {
  // Odd, so that threads read from different banks.
  const int each = (count + kThreads - 1) / kThreads | 1;
  const int begin = min(static_cast<int>(threadIdx.x) * each, count), end = min(begin + each, count);
  uint32_t greater = 0, equal = 0;
  for (int i = begin; i < end; ++i) {
    greater += keys[i] > cut.key ? 1 : 0;
    equal += keys[i] == cut.key ? 1 : 0;
  }
  uint64_t total;
  const uint64_t before = block_sum_before<kThreads>(static_cast<uint64_t>(equal) << 32 | greater, &total);
  uint32_t equal_before = static_cast<uint32_t>(before >> 32);
  int32_t* out = chosen + static_cast<uint32_t>(before) + min(equal_before, cut.equal);
  for (int i = begin; i < end; ++i) {
    const bool is_equal = keys[i] == cut.key;
    if (keys[i] > cut.key || (is_equal && equal_before < cut.equal)) *out++ = first + i;
    equal_before += is_equal ? 1 : 0;
  }
}

}  // namespace dflash::cuda
