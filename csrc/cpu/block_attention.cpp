#include "cpu/block_attention.h"

#include <algorithm>
#include <atomic>

#include "cpu/block_attention_scratch.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"

namespace dflash::cpu {

int64_t block_attention_scratch(int64_t head_dim) { return block_attention_scratch_layout(head_dim).bytes; }

void block_attention(const BlockAttentionParams& params, int64_t threads) {
  const plan::BlockAttentionShape shape = plan::block_attention_shape(params, threads);
  const plan::BlockAttentionWorkspace workspace = plan::block_attention_workspace(shape);
  auto* base = static_cast<char*>(params.workspace);
  auto* items = reinterpret_cast<plan::BlockAttentionItem*>(base);
  int64_t tasks = 0;
  const int64_t count = plan::plan_block_attention(params, threads, items, &tasks);
  auto* values = reinterpret_cast<float*>(base + workspace.partials_offset);
  auto* statistics = reinterpret_cast<float*>(base + workspace.statistics_offset);
  const auto partial_at = [&](int64_t row) {
    return BlockAttentionPartial{values + row * params.head_dim, statistics + row,
                                 statistics + workspace.partial_rows + row};
  };

  const auto attend = DFLASH_KERNEL(block_attention_task);
  const auto combine = DFLASH_KERNEL(block_attention_combine);
  const int64_t scratch_bytes = block_attention_scratch(params.head_dim);
  // Lengths differ, so threads draw tasks one by one instead of getting equal shares.
  std::atomic<int64_t> next{0};
  parallel_tasks(std::min(threads, tasks), 1, [&](int64_t) {
    void* scratch = thread_scratch(scratch_bytes);
    for (int64_t task = next.fetch_add(1); task < tasks; task = next.fetch_add(1)) {
      auto* item = std::upper_bound(items, items + count, task,
                                    [](int64_t value, const auto& candidate) { return value < candidate.first_task; }) -
                   1;
      const int64_t split = task - item->first_task;
      attend(params, *item, split, partial_at(item->partial_row + split * item->heads * item->rows), scratch);
      // Whoever finishes an item's last split sees the results of all the others.
      if (item->splits > 1 && __atomic_add_fetch(&item->finished_splits, 1, __ATOMIC_ACQ_REL) == item->splits) {
        combine(params, *item, partial_at(item->partial_row));
      }
    }
  });
}

}  // namespace dflash::cpu
