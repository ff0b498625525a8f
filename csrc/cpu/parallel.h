// Threads for CPU drivers (files compiled once; kernels themselves never start threads).
#pragma once
#include <torch/csrc/stable/ops.h>

#include <cstdint>

namespace dflash::cpu {

inline int64_t thread_count() { return torch::stable::get_num_threads(); }

// Runs task(0) .. task(count-1) on torch's threads, at least `grain` tasks a thread.
template <typename Task>
inline void parallel_tasks(int64_t count, int64_t grain, const Task& task) {
  if (count <= 0) return;
  if (count <= grain || thread_count() == 1) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) task(i);
  });
}

// Runs range(begin, end) over pieces of [0, count) on torch's threads, each of at least `grain` where there is more
// than one: for work that sets something up once a thread.
template <typename Range>
inline void parallel_ranges(int64_t count, int64_t grain, const Range& range) {
  if (count <= 0) return;
  if (count <= grain || thread_count() == 1) {
    range(int64_t{0}, count);
    return;
  }
  torch::stable::parallel_for(0, count, grain, range);
}

}  // namespace dflash::cpu
