#include "cpu/masked_block_attention.h"

#include <algorithm>
#include <atomic>

#include "cpu/masked_block_attention_scratch.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "plan/masked_block_attention.h"

namespace dflash::cpu {
namespace {

// Runs task(i, scratch) for i = count-1 .. 0. Costs differ, so threads draw tasks one by one; the last ones, which see
// the longest contexts, come first.
template <typename Task>
void draw_tasks(int64_t count, int64_t scratch_bytes, const Task& task) {
  std::atomic<int64_t> left{count};
  parallel_tasks(std::min(thread_count(), count), 1, [&](int64_t) {
    void* scratch = thread_scratch(scratch_bytes);
    for (int64_t i = left.fetch_sub(1) - 1; i >= 0; i = left.fetch_sub(1) - 1) task(i, scratch);
  });
}

// Kept per calling thread, like thread_scratch, so that the steady state allocates nothing.
plan::MaskedBlockAttentionPlan& calling_thread_plan() {
  thread_local plan::MaskedBlockAttentionPlan plan;
  return plan;
}

const int32_t* order_or_null(const plan::MaskedBlockAttentionPlan& plan) {
  return plan.order.empty() ? nullptr : plan.order.data();
}

// Adds up the partial sums of one kv head's keys and values, in the order of the chunks.
class Reduction {
 public:
  Reduction(const MaskedBlockAttentionParams& params, const plan::MaskedBlockAttentionPlan& plan, int64_t kv_head,
            const MaskedBlockAttentionPartial& partial)
      : params_(params), plan_(plan), kv_head_(kv_head), partial_(partial) {}

  void context_key(int64_t key, const float** sources) const {
    int64_t count = 0;
    for (const auto& chunk : plan_.chunks) {
      if (key < chunk.context_begin || key >= chunk.context_end) continue;
      sources[count++] = partial_.keys + offset(chunk.first_partial + key - chunk.context_begin);
    }
    write(key, sources, count);
  }

  // The keys of an ordered block were seen by one chunk only.
  void block_keys(const plan::MaskedBlockAttentionChunk& chunk, int64_t ordered, const float** sources) const {
    const int64_t context = chunk.context_end - chunk.context_begin;
    const int64_t first = chunk.first_partial + context + (ordered - chunk.first_block) * params_.block_size;
    for (int64_t row = 0; row < params_.block_size; ++row) {
      sources[0] = partial_.keys + offset(first + row);
      write(context_tokens(params_) + plan_.order[ordered] * params_.block_size + row, sources, 1);
    }
  }

 private:
  int64_t offset(int64_t partial_key) const {
    return partial_key * masked_block_attention_padded_dim(params_.head_dim);
  }

  void write(int64_t key, const float** sources, int64_t count) const {
    const auto sum = DFLASH_KERNEL(masked_block_attention_sum);
    sum(sources, count, params_.head_dim, params_.dtype, target(params_.grad_k, key));
    for (int64_t i = 0; i < count; ++i) sources[i] += partial_.values - partial_.keys;
    sum(sources, count, params_.head_dim, params_.dtype, target(params_.grad_v, key));
  }

  void* target(const HeadRows& tensor, int64_t key) const {
    const int64_t element = key * tensor.row_stride + kv_head_ * tensor.head_stride;
    return static_cast<char*>(tensor.data) + element * dtype_size(params_.dtype);
  }

  const MaskedBlockAttentionParams& params_;
  const plan::MaskedBlockAttentionPlan& plan_;
  const int64_t kv_head_;
  const MaskedBlockAttentionPartial partial_;
};

}  // namespace

void masked_block_attention_forward(const MaskedBlockAttentionParams& params) {
  plan::MaskedBlockAttentionPlan& plan = calling_thread_plan();
  plan::plan_masked_block_attention(params, false, &plan);
  const auto kernel = DFLASH_KERNEL(masked_block_attention_tile);
  const int64_t tiles = static_cast<int64_t>(plan.tiles.size());
  draw_tasks(tiles * params.kv_heads, masked_block_attention_scratch_layout(params.head_dim).forward_bytes,
             [&](int64_t i, void* scratch) {
               const MaskedBlockAttentionTask task{order_or_null(plan), i % params.kv_heads};
               kernel(params, task, plan.tiles[i / params.kv_heads], scratch);
             });
}

void masked_block_attention_backward(const MaskedBlockAttentionParams& params) {
  plan::MaskedBlockAttentionPlan& plan = calling_thread_plan();
  plan::plan_masked_block_attention(params, true, &plan);
  const int64_t half = plan.partial_keys * masked_block_attention_padded_dim(params.head_dim);
  auto* partials = static_cast<float*>(calling_thread_workspace(2 * params.kv_heads * half * 4));
  const auto partial_of = [&](int64_t kv_head) {
    float* keys = partials + 2 * kv_head * half;
    return MaskedBlockAttentionPartial{keys, keys + half};
  };
  const auto kernel = DFLASH_KERNEL(masked_block_attention_chunk);
  const int64_t chunks = static_cast<int64_t>(plan.chunks.size());
  draw_tasks(chunks * params.kv_heads, masked_block_attention_scratch_layout(params.head_dim).backward_bytes,
             [&](int64_t i, void* scratch) {
               const MaskedBlockAttentionTask task{order_or_null(plan), i % params.kv_heads};
               const auto& chunk = plan.chunks[i / params.kv_heads];
               const int64_t shift = chunk.first_partial * masked_block_attention_padded_dim(params.head_dim);
               MaskedBlockAttentionPartial partial = partial_of(task.kv_head);
               partial.keys += shift;
               partial.values += shift;
               kernel(params, task, plan.tiles.data(), chunk, partial, scratch);
             });

  constexpr int64_t kStretch = 64;  // context keys of a task
  const int64_t context = context_tokens(params);
  const int64_t stretches = (context + kStretch - 1) / kStretch;
  const int64_t tasks_per_head = stretches + chunks;
  const int64_t sources_bytes = std::max<int64_t>(1, chunks) * static_cast<int64_t>(sizeof(float*));
  draw_tasks(tasks_per_head * params.kv_heads, sources_bytes, [&](int64_t i, void* scratch) {
    const int64_t kv_head = i / tasks_per_head, part = i % tasks_per_head;
    const Reduction reduction(params, plan, kv_head, partial_of(kv_head));
    auto** sources = static_cast<const float**>(scratch);
    if (part < stretches) {
      const int64_t end = std::min(context, (part + 1) * kStretch);
      for (int64_t key = part * kStretch; key < end; ++key) reduction.context_key(key, sources);
    } else {
      const auto& chunk = plan.chunks[part - stretches];
      for (int64_t block = 0; block < chunk.blocks; ++block) {
        reduction.block_keys(chunk, chunk.first_block + block, sources);
      }
    }
  });
}

}  // namespace dflash::cpu
