#include "cpu/block_attention.h"

#include "cpu/block_attention_scratch.h"
#include "cpu/block_attention_stream.h"
#include "cpu/block_attention_tile.h"

namespace dflash {
namespace DFLASH_ISA {
namespace {

constexpr int kTile = plan::kBlockAttentionTile;
constexpr float kLog2E = 1.44269504088896341f;
constexpr double kLn2 = 0.69314718055994531;
constexpr int kMaxHeadDim = 256;
constexpr float kInfinity = __builtin_inff();

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// One task: the rows of an item against the keys of one split. T is the stored type, Math the arithmetic.
template <typename T, class Math>
class Attention {
  typedef typename Math::Element Element;

 public:
  Attention(const BlockAttentionParams& params, const plan::BlockAttentionItem& item, int64_t split, void* scratch)
      : Attention(params, item, cpu::block_attention_scratch_layout(params.head_dim), static_cast<char*>(scratch),
                  item.key_begin + split * item.tiles_per_split * kTile) {}

  void run(const cpu::BlockAttentionPartial& partial) {
    for_each_head_and_panel(
        [&](int64_t head, int64_t row, auto vectors) { start_panel<decltype(vectors)::value>(head, row); });
    while (keys_.next()) {
      for_each_panel(padded_rows_, [&](int64_t row, auto vectors) { attend_panel<decltype(vectors)::value>(row); });
    }
    const bool whole = item_.splits == 1;
    // The queries are no longer needed: a whole item's result takes their place on its way out.
    const cpu::BlockAttentionPartial result =
        whole ? cpu::BlockAttentionPartial{reinterpret_cast<float*>(queries_), maxima_, sums_} : partial;
    for_each_head_and_panel(
        [&](int64_t head, int64_t row, auto vectors) { finish_panel<decltype(vectors)::value>(head, row, result); });
    if (whole) block_attention_combine(params_, item_, result);
  }

 private:
  Attention(const BlockAttentionParams& params, const plan::BlockAttentionItem& item,
            const cpu::BlockAttentionScratch& layout, char* scratch, int64_t first_key)
      : params_(params),
        item_(item),
        group_(params.q_heads / params.kv_heads),
        head_dim_(params.head_dim),
        steps_(head_dim_ / Math::kPerElement),
        // Logits carry a factor log2(e), so that softmax can use powers of two.
        scale_(params.softcap > 0 ? params.scale / params.softcap : params.scale * kLog2E),
        queries_(reinterpret_cast<Element*>(scratch + layout.queries)),
        outputs_(reinterpret_cast<float*>(scratch + layout.outputs)),
        scores_(reinterpret_cast<float*>(scratch + layout.scores)),
        maxima_(reinterpret_cast<float*>(scratch + layout.maxima)),
        sums_(reinterpret_cast<float*>(scratch + layout.sums)),
        range_begin_(reinterpret_cast<int32_t*>(scratch + layout.range_begin)),
        range_end_(reinterpret_cast<int32_t*>(scratch + layout.range_end)),
        padded_rows_((item.rows + kLanes - 1) / kLanes * kLanes),
        keys_(params, item, layout, scratch, first_key, smaller(first_key + item.tiles_per_split * kTile, item.key_end),
              padded_rows_ / kLanes * (kTile + params.head_dim)) {}

  template <typename Function>
  void for_each_head_and_panel(Function&& function) const {
    for (int64_t head = 0; head < item_.heads; ++head) {
      for_each_panel(padded_rows_, [&](int64_t row, auto vectors) { function(head, row, vectors); });
    }
  }

  const T* query(int64_t head, int64_t row) const {
    const int64_t token = item_.first_token + (item_.first_row + row) / group_;
    const int64_t q_head = (item_.kv_head + head) * group_ + (item_.first_row + row) % group_;
    return static_cast<const T*>(params_.q) + token * params_.q_token_stride + q_head * params_.q_head_stride;
  }

  // Transposes the queries of a panel and resets its state. Rows past the last repeat it; they are never written.
  template <int kVectors>
  void start_panel(int64_t head, int64_t row) {
    constexpr int kRows = kVectors * kLanes;
    const int64_t panel = head * padded_rows_ + row;
    Element* queries = queries_ + panel * head_dim_;
    float* outputs = outputs_ + panel * head_dim_;
    for (int r = 0; r < kRows; ++r) {
      const int64_t source = smaller(row + r, item_.rows - 1);
      const T* values = query(head, source);
      for (int64_t step = 0; step < steps_; ++step) {
        if constexpr (Math::kPerElement == 2) {
          std::memcpy(queries + step * kRows + r, values + 2 * step, 4);
        } else {
          queries[step * kRows + r] = to_float(values[step]);
        }
      }
      const plan::KeyRange range =
          plan::visible_keys(params_, item_.context_len, item_.block_len, (item_.first_row + source) / group_);
      range_begin_[panel + r] = static_cast<int32_t>(range.begin - item_.key_begin);
      range_end_[panel + r] = static_cast<int32_t>(range.end - item_.key_begin);
      maxima_[panel + r] = -kInfinity;
      sums_[panel + r] = 0.0f;
    }
    for (int64_t i = 0; i < head_dim_ * kRows; i += kLanes) store(outputs + i, Floats{});
  }

  // Online softmax of a panel over the current tile.
  template <int kVectors>
  void attend_panel(int64_t first_row) {
    const int64_t row = keys_.head() * padded_rows_ + first_row;
    const int count = keys_.count();
    const auto offset = static_cast<int32_t>(keys_.first_key() - item_.key_begin);
    constexpr int kRows = kVectors * kLanes;
    // Ranges grow with the row, so the first and last row bound them all.
    const int32_t first_begin = range_begin_[row], last_begin = range_begin_[row + kRows - 1];
    const int32_t first_end = range_end_[row], last_end = range_end_[row + kRows - 1];
    if (offset + count <= first_begin || offset >= last_end) return;
    const auto advance = [&](int work) { keys_.advance(work); };
    score_panel<Math, kVectors>(queries_ + row * head_dim_, keys_.keys(), keys_.row_stride(), steps_, count, scale_,
                                scores_, advance);
    if (params_.softcap > 0) {
      for (int i = 0; i < count * kRows; i += kLanes) {
        store(scores_ + i, tanh(load(scores_ + i)) * (params_.softcap * kLog2E));
      }
    }
    if (offset < last_begin || offset + count > first_end) {
      mask_panel<kVectors>(range_begin_ + row, range_end_ + row, offset, count, scores_);
    }
    Floats correction[kVectors];
    softmax_panel<Math, kVectors>(scores_, count, maxima_ + row, sums_ + row, correction);
    value_panel<Math, kVectors>(reinterpret_cast<const Element*>(scores_), keys_.values(), keys_.row_stride(),
                                (count + Math::kPerElement - 1) / Math::kPerElement, head_dim_, correction,
                                outputs_ + row * head_dim_, advance);
  }

  // Transposes a panel's result to rows.
  template <int kVectors>
  void finish_panel(int64_t head, int64_t row, const cpu::BlockAttentionPartial& result) {
    constexpr int kRows = kVectors * kLanes;
    const int64_t panel = head * padded_rows_ + row;
    const float* outputs = outputs_ + panel * head_dim_;
    for (int r = 0; r < kRows && row + r < item_.rows; ++r) {
      const int64_t at = head * item_.rows + row + r;
      float* target = result.values + at * head_dim_;
      for (int64_t d = 0; d < head_dim_; ++d) target[d] = outputs[d * kRows + r];
      result.maxima[at] = maxima_[panel + r];
      result.sums[at] = sums_[panel + r];
    }
  }

  const BlockAttentionParams& params_;
  const plan::BlockAttentionItem& item_;
  const int64_t group_, head_dim_, steps_;
  const float scale_;
  Element* const queries_;
  float* const outputs_;
  float* const scores_;
  float* const maxima_;
  float* const sums_;
  int32_t* const range_begin_;
  int32_t* const range_end_;
  const int64_t padded_rows_;  // of each head in all of the above
  KeyStream<T, Math> keys_;
};

// out = sum over splits of weight * values / sum over splits of weight * sum, weight = 2^(maximum - largest maximum).
template <typename T>
void combine_row(const BlockAttentionParams& params, const plan::BlockAttentionItem& item, int64_t kv_head, int64_t row,
                 const cpu::BlockAttentionPartial& partial) {
  const int64_t group = params.q_heads / params.kv_heads;
  const int64_t token = item.first_token + (item.first_row + row) / group;
  const int64_t head = (item.kv_head + kv_head) * group + (item.first_row + row) % group;
  const int64_t first = kv_head * item.rows + row;
  const int64_t split_rows = item.heads * item.rows;
  float largest = -kInfinity;
  for (int64_t s = 0; s < item.splits; ++s) {
    const float maximum = partial.maxima[s * split_rows + first];
    largest = maximum > largest ? maximum : largest;
  }
  float sink = -kInfinity;
  if (params.sinks != nullptr) {
    sink = params.sinks[head * params.sinks_stride] * kLog2E;
    largest = sink > largest ? sink : largest;
  }
  const float origin = largest == -kInfinity ? 0.0f : largest;
  float sum = __builtin_exp2f(sink - origin);
  float total[kMaxHeadDim] = {};
  for (int64_t s = 0; s < item.splits; ++s) {
    const int64_t at = s * split_rows + first;
    const float weight = __builtin_exp2f(partial.maxima[at] - origin);
    const float* values = partial.values + at * params.head_dim;
    sum += weight * partial.sums[at];
    for (int64_t d = 0; d < params.head_dim; ++d) total[d] += weight * values[d];
  }
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  T* out = static_cast<T*>(params.out) + token * params.out_token_stride + head * params.out_head_stride;
  int64_t d = 0;
  for (; d + kLanes <= params.head_dim; d += kLanes) store(out + d, load(total + d) * inverse);
  if (d < params.head_dim) store_partial(out + d, load(total + d) * inverse, static_cast<int>(params.head_dim - d));
  if (params.lse != nullptr) {
    params.lse[token * params.lse_token_stride + head * params.lse_head_stride] =
        static_cast<float>((origin + __builtin_log2(sum)) * kLn2);
  }
}

}  // namespace

void block_attention_task(const BlockAttentionParams& params, const plan::BlockAttentionItem& item, int64_t split,
                          const cpu::BlockAttentionPartial& partial, void* scratch) {
  visit_dtype(params.dtype, [&](auto element) {
    typedef decltype(element) T;
    Attention<T, typename MathOf<T>::Type>(params, item, split, scratch).run(partial);
  });
}

void block_attention_combine(const BlockAttentionParams& params, const plan::BlockAttentionItem& item,
                             const cpu::BlockAttentionPartial& partial) {
  visit_dtype(params.dtype, [&](auto element) {
    for (int64_t head = 0; head < item.heads; ++head) {
      for (int64_t row = 0; row < item.rows; ++row) combine_row<decltype(element)>(params, item, head, row, partial);
    }
  });
}

}  // namespace DFLASH_ISA
}  // namespace dflash
