// Forward pass: one tile of rows against all keys it sees, with an online softmax.
#include "cpu/masked_block_attention.h"

#include "cpu/masked_block_attention_rows.h"

namespace dflash {
namespace DFLASH_ISA {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr double kLn2 = 0.69314718055994531;
constexpr float kInfinity = __builtin_inff();

template <typename T>
class Forward {
 public:
  Forward(const MaskedBlockAttentionParams& params, const cpu::MaskedBlockAttentionTask& task,
          const plan::MaskedBlockAttentionTile& tile, void* scratch)
      : Forward(params, task, tile, static_cast<char*>(scratch),
                cpu::masked_block_attention_scratch_layout(params.head_dim)) {}

  void run() {
    for_each_panel(rows_.count(), [&](int64_t row, auto vectors) { start_panel<decltype(vectors)::value>(row); });
    rows_.for_each_key_tile(keys_, values_, key_stride_, [&](int segment, int32_t first, int count) {
      for_each_panel(rows_.count(), [&](int64_t row, auto vectors) {
        attend_panel<decltype(vectors)::value>(segment, row, first, count);
      });
    });
    for_each_panel(rows_.count(), [&](int64_t row, auto vectors) { finish_panel<decltype(vectors)::value>(row); });
  }

 private:
  Forward(const MaskedBlockAttentionParams& params, const cpu::MaskedBlockAttentionTask& task,
          const plan::MaskedBlockAttentionTile& tile, char* base, const cpu::MaskedBlockAttentionScratch& layout)
      : params_(params),
        head_dim_(params.head_dim),
        padded_dim_(cpu::masked_block_attention_padded_dim(params.head_dim)),
        key_stride_(layout.key_stride),
        maxima_(reinterpret_cast<float*>(base + layout.maxima)),
        sums_(reinterpret_cast<float*>(base + layout.sums)),
        keys_(reinterpret_cast<float*>(base + layout.keys)),
        values_(reinterpret_cast<float*>(base + layout.values)),
        scores_(reinterpret_cast<float*>(base + layout.scores)),
        queries_(reinterpret_cast<float*>(base + layout.queries)),
        outputs_(reinterpret_cast<float*>(base + layout.results)),
        rows_(params, task, tile, reinterpret_cast<int32_t*>(base + layout.ranges),
              reinterpret_cast<int32_t*>(base + layout.places)) {}

  // Transposes the queries of a panel and resets its state. Lanes past the last row see nothing.
  template <int kVectors>
  void start_panel(int64_t row) {
    constexpr int kRows = kVectors * kLanes;
    const T* sources[kRows];
    for (int r = 0; r < kRows; ++r) {
      maxima_[row + r] = -kInfinity;
      sums_[row + r] = 0.0f;
      sources[r] = row + r < rows_.count() ? rows_.template row_of<const T>(params_.q, row + r) : nullptr;
    }
    rows_.template transpose_in<kVectors>(sources, queries_ + row * padded_dim_);
    float* outputs = outputs_ + row * padded_dim_;
    for (int64_t i = 0; i < head_dim_ * kRows; i += kLanes) store(outputs + i, Floats{});
  }

  // Online softmax of a panel over what it sees of keys first .. first+count of a segment.
  template <int kVectors>
  void attend_panel(int segment, int64_t row, int32_t first, int count) {
    KeyInterval seen, seen_by_all;
    rows_.panel_intervals(segment, row, kVectors * kLanes, &seen, &seen_by_all);
    const int32_t begin = seen.begin > first ? seen.begin : first;
    const int32_t end = seen.end < first + count ? seen.end : first + count;
    if (begin >= end) return;
    const float* keys = keys_ + (begin - first) * key_stride_;
    const float* values = values_ + (begin - first) * key_stride_;
    const auto nothing = [](int) {};
    score_panel<SinglePrecision, kVectors>(queries_ + row * padded_dim_, keys, key_stride_, head_dim_, end - begin,
                                           params_.scale * kLog2E, scores_, nothing);
    if (begin < seen_by_all.begin || end > seen_by_all.end) {
      mask_panel<kVectors>(rows_.begins(segment) + row, rows_.ends(segment) + row, begin, end - begin, scores_);
    }
    Floats correction[kVectors];
    softmax_panel<SinglePrecision, kVectors>(scores_, end - begin, maxima_ + row, sums_ + row, correction);
    value_panel<SinglePrecision, kVectors>(scores_, values, key_stride_, end - begin, head_dim_, correction,
                                           outputs_ + row * padded_dim_, nothing);
  }

  template <int kVectors>
  void finish_panel(int64_t row) {
    constexpr int kRows = kVectors * kLanes;
    float factors[kRows] = {};
    T* targets[kRows] = {};
    for (int r = 0; r < kRows && row + r < rows_.count(); ++r) {
      const float sum = sums_[row + r];
      const bool nothing = maxima_[row + r] == -kInfinity;
      factors[r] = nothing ? 0.0f : 1.0f / sum;
      targets[r] = rows_.template row_of<T>(params_.out, row + r);
      *rows_.template row_of<float>(params_.lse, row + r) =
          nothing ? -kInfinity : static_cast<float>((maxima_[row + r] + __builtin_log2(sum)) * kLn2);
    }
    rows_.template transpose_out<kVectors>(outputs_ + row * padded_dim_, factors, targets);
  }

  const MaskedBlockAttentionParams& params_;
  const int64_t head_dim_, padded_dim_, key_stride_;
  float* const maxima_;
  float* const sums_;
  float* const keys_;
  float* const values_;
  float* const scores_;
  float* const queries_;
  float* const outputs_;
  const MaskedRows<T> rows_;
};

}  // namespace

void masked_block_attention_tile(const MaskedBlockAttentionParams& params, const cpu::MaskedBlockAttentionTask& task,
                                 const plan::MaskedBlockAttentionTile& tile, void* scratch) {
  visit_dtype(params.dtype, [&](auto element) { Forward<decltype(element)>(params, task, tile, scratch).run(); });
}

}  // namespace DFLASH_ISA
}  // namespace dflash
