// Backward pass: one chunk of tiles. Probabilities are recomputed from lse, tile by tile (Dao, arXiv 2307.08691):
//   delta = sum_d grad_out * out,  dP = grad_out . v,  dS = P * (dP - delta) * scale,
//   grad_q = dS . k,  grad_k = dS^T . q,  grad_v = P^T . grad_out.
#include "cpu/masked_block_attention.h"
#include "cpu/masked_block_attention_rows.h"

namespace dflash {
namespace DFLASH_ISA {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kInfinity = __builtin_inff();

// target[key][d] += sum over rows of weights[key][row] * rows[row][d], for kColumns keys and kVectors vectors of d.
template <int kColumns, int kVectors>
[[gnu::always_inline]] static inline void add_key_block(const float* rows, int64_t row_stride, const float* weights,
                                                        int64_t weight_stride, int64_t steps, float* target,
                                                        int64_t target_stride) {
  Floats sums[kColumns][kVectors];
#pragma GCC unroll 12
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) sums[c][v] = load(target + c * target_stride + v * kLanes);
  }
  accumulate<SinglePrecision, kColumns, kVectors>(rows, row_stride, weights, weight_stride, 1, steps, sums);
#pragma GCC unroll 12
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) store(target + c * target_stride + v * kLanes, sums[c][v]);
  }
}

// The same for kVectors vectors of d and any number of keys.
template <int kVectors>
static inline void add_key_columns(const float* rows, int64_t row_stride, const float* weights, int64_t weight_stride,
                                   int64_t steps, int count, float* target, int64_t target_stride) {
  constexpr int kColumns = block_columns(kVectors);
  int key = 0;
  for (; key + kColumns <= count; key += kColumns) {
    add_key_block<kColumns, kVectors>(rows, row_stride, weights + key * weight_stride, weight_stride, steps,
                                      target + key * target_stride, target_stride);
  }
  for (; key + 2 <= count; key += 2) {
    add_key_block<2, kVectors>(rows, row_stride, weights + key * weight_stride, weight_stride, steps,
                               target + key * target_stride, target_stride);
  }
  if (key < count) {
    add_key_block<1, kVectors>(rows, row_stride, weights + key * weight_stride, weight_stride, steps,
                               target + key * target_stride, target_stride);
  }
}

// The same for all of a row's `width` floats.
static inline void add_keys(const float* rows, const float* weights, int64_t weight_stride, int64_t steps, int count,
                            float* target, int64_t width) {
  int64_t d = 0;
  for (; d + 2 * kLanes <= width; d += 2 * kLanes) {
    add_key_columns<2>(rows + d, width, weights, weight_stride, steps, count, target + d, width);
  }
  if (d < width) add_key_columns<1>(rows + d, width, weights, weight_stride, steps, count, target + d, width);
}

template <typename T>
class Backward {
 public:
  Backward(const MaskedBlockAttentionParams& params, const cpu::MaskedBlockAttentionTask& task,
           const plan::MaskedBlockAttentionTile& tile, void* scratch)
      : Backward(params, task, tile, static_cast<char*>(scratch),
                 cpu::masked_block_attention_scratch_layout(params.head_dim)) {}

  // `partials` holds the sums of each segment, starting with the tile's first key.
  void run(const cpu::MaskedBlockAttentionPartial (&partials)[MaskedRows<T>::kSegments]) {
    for_each_panel(rows_.count(), [&](int64_t row, auto vectors) { start_panel<decltype(vectors)::value>(row); });
    rows_.for_each_key_tile(keys_, values_, key_stride_, [&](int segment, int32_t first, int count) {
      for_each_panel(rows_.count(), [&](int64_t row, auto vectors) {
        attend_panel<decltype(vectors)::value>(segment, row, first, count, partials[segment]);
      });
    });
    for_each_panel(rows_.count(), [&](int64_t row, auto vectors) { finish_panel<decltype(vectors)::value>(row); });
  }

 private:
  Backward(const MaskedBlockAttentionParams& params, const cpu::MaskedBlockAttentionTask& task,
           const plan::MaskedBlockAttentionTile& tile, char* base, const cpu::MaskedBlockAttentionScratch& layout)
      : params_(params),
        head_dim_(params.head_dim),
        padded_dim_(cpu::masked_block_attention_padded_dim(params.head_dim)),
        key_stride_(layout.key_stride),
        lse_(reinterpret_cast<float*>(base + layout.maxima)),
        delta_(reinterpret_cast<float*>(base + layout.sums)),
        keys_(reinterpret_cast<float*>(base + layout.keys)),
        values_(reinterpret_cast<float*>(base + layout.values)),
        scores_(reinterpret_cast<float*>(base + layout.scores)),
        score_grads_(reinterpret_cast<float*>(base + layout.score_grads)),
        queries_(reinterpret_cast<float*>(base + layout.queries)),
        query_grads_(reinterpret_cast<float*>(base + layout.results)),
        out_grads_(reinterpret_cast<float*>(base + layout.out_grads)),
        query_rows_(reinterpret_cast<float*>(base + layout.query_rows)),
        out_grad_rows_(reinterpret_cast<float*>(base + layout.out_grad_rows)),
        rows_(params, task, tile, reinterpret_cast<int32_t*>(base + layout.ranges),
              reinterpret_cast<int32_t*>(base + layout.places)) {}

  // Packs queries and output gradients of a panel, both ways, and computes delta (query_grads_ holds the outputs until
  // then). Rows that see nothing count as zeros,
  // whatever they hold, and so do lanes past the last row.
  template <int kVectors>
  void start_panel(int64_t row) {
    constexpr int kRows = kVectors * kLanes;
    const float* queries[kRows] = {};
    const float* out_grads[kRows] = {};
    const T* outs[kRows] = {};
    for (int r = 0; r < kRows; ++r) {
      float* query = query_rows_ + (row + r) * padded_dim_;
      float* out_grad = out_grad_rows_ + (row + r) * padded_dim_;
      const float lse =
          row + r < rows_.count() ? *rows_.template row_of<const float>(params_.lse, row + r) : -kInfinity;
      if (lse == -kInfinity) {
        lse_[row + r] = kInfinity;  // 2^(score - infinity) = 0: no probability anywhere
        std::memset(query, 0, padded_dim_ * 4);
        std::memset(out_grad, 0, padded_dim_ * 4);
        continue;
      }
      lse_[row + r] = lse * kLog2E;
      rows_.pack_row(rows_.template row_of<const T>(params_.q, row + r), query);
      rows_.pack_row(rows_.template row_of<const T>(params_.grad_out, row + r), out_grad);
      // Whole vectors of the padding are read, and their results dropped: they must not hold what was there before.
      for (int64_t d = head_dim_; d < padded_dim_; ++d) query[d] = out_grad[d] = 0.0f;
      queries[r] = query;
      out_grads[r] = out_grad;
      outs[r] = rows_.template row_of<const T>(params_.out, row + r);
    }
    float* outs_transposed = query_grads_ + row * padded_dim_;
    rows_.template transpose_in<kVectors>(queries, queries_ + row * padded_dim_);
    rows_.template transpose_in<kVectors>(out_grads, out_grads_ + row * padded_dim_);
    rows_.template transpose_in<kVectors>(outs, outs_transposed);
    // The products of delta are summed as those of dP are: where a row sees one key alone, dS is exactly 0.
    for (int v = 0; v < kVectors; ++v) {
      Floats delta = Floats{};
      for (int64_t d = 0; d < head_dim_; ++d) {
        const int64_t at = (d * kVectors + v) * kLanes;
        delta += load(out_grads_ + row * padded_dim_ + at) * load(outs_transposed + at);
        store(outs_transposed + at, Floats{});
      }
      store(delta_ + row + v * kLanes, delta);
    }
  }

  template <int kVectors>
  void attend_panel(int segment, int64_t row, int32_t first, int count,
                    const cpu::MaskedBlockAttentionPartial& partial) {
    constexpr int kRows = kVectors * kLanes;
    KeyInterval seen, seen_by_all;
    rows_.panel_intervals(segment, row, kRows, &seen, &seen_by_all);
    const int32_t begin = seen.begin > first ? seen.begin : first;
    const int32_t end = seen.end < first + count ? seen.end : first + count;
    if (begin >= end) return;
    const float* keys = keys_ + (begin - first) * key_stride_;
    const float* values = values_ + (begin - first) * key_stride_;
    const auto nothing = [](int) {};
    score_panel<SinglePrecision, kVectors>(queries_ + row * padded_dim_, keys, key_stride_, head_dim_, end - begin,
                                           params_.scale * kLog2E, scores_, nothing);
    score_panel<SinglePrecision, kVectors>(out_grads_ + row * padded_dim_, values, key_stride_, head_dim_, end - begin,
                                           1.0f, score_grads_, nothing);
    differentiate_softmax<kVectors>(segment, row, begin, end - begin);
    Floats correction[kVectors];
    for (int v = 0; v < kVectors; ++v) correction[v] = broadcast(1.0f);
    value_panel<SinglePrecision, kVectors>(score_grads_, keys, key_stride_, end - begin, head_dim_, correction,
                                           query_grads_ + row * padded_dim_, nothing);
    const int64_t steps = rows_.count() - row < kRows ? rows_.count() - row : kRows;
    add_keys(query_rows_ + row * padded_dim_, score_grads_, kRows, steps, end - begin,
             partial.keys + begin * padded_dim_, padded_dim_);
    add_keys(out_grad_rows_ + row * padded_dim_, scores_, kRows, steps, end - begin,
             partial.values + begin * padded_dim_, padded_dim_);
  }

  // Turns scores into probabilities and gradients of probabilities into gradients of scores; both are 0 where a row
  // does not see a key, whatever the key holds.
  template <int kVectors>
  void differentiate_softmax(int segment, int64_t row, int32_t first, int count) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t lane = row + v * kLanes;
      const Ints begin = load_ints(rows_.begins(segment) + lane) - first;
      const Ints end = load_ints(rows_.ends(segment) + lane) - first;
      const Floats lse = load(lse_ + lane), delta = load(delta_ + lane);
      for (int key = 0; key < count; ++key) {
        const int64_t at = (key * kVectors + v) * kLanes;
        const Ints position = broadcast_int(key);
        const Ints visible = (position >= begin) & (position < end);
        const Floats probability = exp2(load(scores_ + at) - lse);
        const Floats gradient = probability * (load(score_grads_ + at) - delta) * params_.scale;
        store(scores_ + at, visible ? probability : Floats{});
        store(score_grads_ + at, visible ? gradient : Floats{});
      }
    }
  }

  template <int kVectors>
  void finish_panel(int64_t row) {
    constexpr int kRows = kVectors * kLanes;
    float factors[kRows];
    T* targets[kRows] = {};
    for (int r = 0; r < kRows; ++r) {
      factors[r] = 1.0f;
      if (row + r < rows_.count()) targets[r] = rows_.template row_of<T>(params_.grad_q, row + r);
    }
    rows_.template transpose_out<kVectors>(query_grads_ + row * padded_dim_, factors, targets);
  }

  const MaskedBlockAttentionParams& params_;
  const int64_t head_dim_, padded_dim_, key_stride_;
  float* const lse_;  // times log2(e)
  float* const delta_;
  float* const keys_;
  float* const values_;
  float* const scores_;
  float* const score_grads_;
  float* const queries_;
  float* const query_grads_;
  float* const out_grads_;
  float* const query_rows_;
  float* const out_grad_rows_;
  const MaskedRows<T> rows_;
};

}  // namespace

void masked_block_attention_chunk(const MaskedBlockAttentionParams& params, const cpu::MaskedBlockAttentionTask& task,
                                  const plan::MaskedBlockAttentionTile* tiles,
                                  const plan::MaskedBlockAttentionChunk& chunk,
                                  const cpu::MaskedBlockAttentionPartial& partial, void* scratch) {
  const int64_t width = cpu::masked_block_attention_padded_dim(params.head_dim);
  const int64_t context = chunk.context_end - chunk.context_begin;
  const int64_t bytes = (context + chunk.blocks * params.block_size) * width * 4;
  std::memset(partial.keys, 0, bytes);
  std::memset(partial.values, 0, bytes);
  const int64_t block_rows = params.block_size * (params.q_heads / params.kv_heads);
  for (int64_t i = chunk.first_tile; i < chunk.first_tile + chunk.tiles; ++i) {
    const plan::MaskedBlockAttentionTile& tile = tiles[i];
    const int64_t first_key = (tile.context_begin - chunk.context_begin) * width;
    const int64_t block = chunk.blocks == 0 ? 0 : tile.first_row / block_rows - chunk.first_block;
    const int64_t first_block_key = (context + block * params.block_size) * width;
    const cpu::MaskedBlockAttentionPartial partials[] = {
        {partial.keys + first_key, partial.values + first_key},
        {partial.keys + first_block_key, partial.values + first_block_key},
    };
    visit_dtype(params.dtype,
                [&](auto element) { Backward<decltype(element)>(params, task, tile, scratch).run(partials); });
  }
}

void masked_block_attention_sum(const float* const* sources, int64_t count, int64_t head_dim, DType dtype,
                                void* target) {
  visit_dtype(dtype, [&](auto element) {
    auto* to = static_cast<decltype(element)*>(target);
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      Floats sum = Floats{};
      for (int64_t i = 0; i < count; ++i) sum += load(sources[i] + d);
      if (d + kLanes <= head_dim) {
        store(to + d, sum);
      } else {
        store_partial(to + d, sum, static_cast<int>(head_dim - d));
      }
    }
  });
}

}  // namespace DFLASH_ISA
}  // namespace dflash
