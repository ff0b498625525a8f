#include "cpu/select_pages.h"

#include "cpu/block_attention_tile.h"
#include "cpu/select_pages_scratch.h"

namespace dflash {
namespace DFLASH_ISA {
namespace {

constexpr int kTile = plan::kBlockAttentionTile;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The greatest element; NaN if there is one.
inline float reduce_max_or_nan(Floats x) {
  float result = x[0];
  for (int i = 1; i < kLanes; ++i) result = (x[i] > result) | (x[i] != x[i]) ? x[i] : result;
  return result;
}

// Orders as the score does, NaN above all.
inline uint32_t ordered_bits(float score) {
  if (score != score) return 0xffffffffu;
  const float positive_zero = score + 0.0f;
  uint32_t word;
  std::memcpy(&word, &positive_zero, 4);
  return (word & 0x80000000u) != 0 ? ~word : word | 0x80000000u;
}

// The bound of a page, max(q * min, q * max) summed over channels, is a matrix product of inner size 2 * head_dim:
// min(q, 0) times the minima plus max(q, 0) times the maxima. So it runs on the attention's own register blocks.
template <typename T, class Math>
class PageScores {
  typedef typename Math::Element Element;

 public:
  PageScores(const SelectPagesParams& params, const cpu::PageScoreTask& task, char* scratch)
      : params_(params),
        task_(task),
        group_(params.q_heads / params.kv_heads),
        half_(params.head_dim / Math::kPerElement),
        layout_(cpu::page_score_scratch_layout(params.head_dim)),
        queries_(reinterpret_cast<Element*>(scratch + layout_.queries)),
        bounds_(reinterpret_cast<Element*>(scratch + layout_.bounds)),
        scores_(reinterpret_cast<float*>(scratch + layout_.scores)) {}

  void run() {
    for (int64_t row = 0; row < task_.rows; row += plan::kBlockAttentionRows) {
      const int64_t rows = smaller(task_.rows - row, plan::kBlockAttentionRows);
      for_each_panel(rows,
                     [&](int64_t first, auto vectors) { pack_queries<decltype(vectors)::value>(row, first, rows); });
      for (int64_t page = 0; page < task_.count; page += kTile) score_tile(page, row > 0, rows);
    }
  }

 private:
  const T* bounds_of(int64_t page) const {
    return static_cast<const T*>(params_.bounds) + task_.pages[page] * params_.bounds_page_stride +
           task_.kv_head * params_.bounds_head_stride;
  }

  // Rows past the last repeat it: they do not change the maximum.
  template <int kVectors>
  void pack_queries(int64_t first_row, int64_t panel, int64_t rows) {
    constexpr int kRows = kVectors * kLanes;
    Element* negative = queries_ + panel * 2 * half_;
    Element* positive = negative + half_ * kRows;
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first_row + smaller(panel + r, rows - 1);
      const T* q = static_cast<const T*>(params_.q) + (task_.first_token + row / group_) * params_.q_token_stride +
                   (task_.kv_head * group_ + row % group_) * params_.q_head_stride;
      for (int64_t step = 0; step < half_; ++step) {
        if constexpr (Math::kPerElement == 2) {
          uint32_t pair;
          std::memcpy(&pair, q + 2 * step, 4);
          const uint32_t below = ((pair & 0x8000u) != 0 ? 0xffffu : 0) | ((pair & 0x80000000u) != 0 ? 0xffff0000u : 0);
          negative[step * kRows + r] = pair & below;
          positive[step * kRows + r] = pair & ~below;
        } else {
          const float x = to_float(q[step]);
          negative[step * kRows + r] = x < 0.0f ? x : 0.0f;
          positive[step * kRows + r] = x < 0.0f ? 0.0f : x;
        }
      }
    }
  }

  void pack_bounds(int64_t first_page, int count) {
    for (int i = 0; i < count; ++i) {
      for (int part = 0; part < 2; ++part) {
        const T* source = bounds_of(first_page + i) + part * params_.bounds_part_stride;
        Element* target = bounds_ + i * layout_.row_stride + part * half_;
        if constexpr (Math::kPerElement == 2) {
          std::memcpy(target, source, params_.head_dim * 2);
        } else {
          int64_t d = 0;
#pragma GCC unroll 4
          for (; d + kLanes <= params_.head_dim; d += kLanes) store(target + d, load(source + d));
          for (; d < params_.head_dim; ++d) target[d] = to_float(source[d]);
        }
      }
    }
  }

  // Bounds of the next tile are fetched while this one's products run: they lie a page apart, where the machine's own
  // prefetchers do not follow.
  void prefetch(int64_t first_page, int count) const {
    for (int64_t page = first_page; page < smaller(first_page + count, task_.count); ++page) {
      const auto* minima = reinterpret_cast<const char*>(bounds_of(page));
      const char* maxima = minima + params_.bounds_part_stride * static_cast<int64_t>(sizeof(T));
      const int64_t bytes = params_.head_dim * static_cast<int64_t>(sizeof(T));
      for (int64_t b = 0; b < bytes; b += 64) {
        __builtin_prefetch(minima + b, 0, 2);
        __builtin_prefetch(maxima + b, 0, 2);
      }
    }
  }

  // Pages first_page .. of the task against the packed rows. `continued`: earlier rows have left their scores.
  void score_tile(int64_t first_page, bool continued, int64_t rows) {
    const auto count = static_cast<int>(smaller(kTile, task_.count - first_page));
    pack_bounds(first_page, count);
    Floats best[kTile];
    for (int i = 0; i < count; ++i) best[i] = broadcast(-__builtin_inff());
    int64_t fetched = first_page + count;
    for_each_panel(rows, [&](int64_t panel, auto vectors) {
      constexpr int kVectors = decltype(vectors)::value;
      constexpr int kColumns = block_columns(kVectors);
      // The share of the next tile that one register block of this panel stands for.
      const int64_t share = (kVectors * kLanes * kColumns + rows - 1) / rows;
      score_panel<Math, kVectors>(queries_ + panel * 2 * half_, bounds_, layout_.row_stride, 2 * half_, count, 1.0f,
                                  scores_, [&](int) {
                                    prefetch(fetched, static_cast<int>(share));
                                    fetched += share;
                                  });
      for (int i = 0; i < count; ++i) {
        for (int v = 0; v < kVectors; ++v) {
          best[i] = maximum_or_nan(best[i], load(scores_ + (i * kVectors + v) * kLanes));
        }
      }
    });
    for (int i = 0; i < count; ++i) {
      const uint64_t page = task_.first_page + first_page + i;
      const uint64_t key =
          static_cast<uint64_t>(ordered_bits(reduce_max_or_nan(best[i]))) << 32 | (~page & 0xffffffffu);
      uint64_t& stored = task_.keys[first_page + i];
      if (!continued || key > stored) stored = key;
    }
  }

  const SelectPagesParams& params_;
  const cpu::PageScoreTask& task_;
  const int64_t group_;
  const int64_t half_;  // elements of the minima, and of the maxima
  const cpu::PageScoreScratch layout_;
  Element* const queries_;
  Element* const bounds_;
  float* const scores_;
};

}  // namespace

void score_pages(const SelectPagesParams& params, const cpu::PageScoreTask& task, void* scratch) {
  visit_dtype(params.dtype, [&](auto element) {
    typedef decltype(element) T;
    PageScores<T, typename MathOf<T>::Type>(params, task, static_cast<char*>(scratch)).run();
  });
}

}  // namespace DFLASH_ISA
}  // namespace dflash
