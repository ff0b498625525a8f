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

}  // namespace dflash::cpu
