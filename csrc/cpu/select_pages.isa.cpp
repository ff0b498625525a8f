#include "cpu/select_pages.h"

#include "cpu/block_attention_tile.h"
#include "cpu/select_pages_scratch.h"

namespace dflash {
namespace DFLASH_ISA {
namespace {

constexpr int kTile = plan::kBlockAttentionTile;
static_assert(kTile % kLanes == 0, "the pages of a tile are reduced in whole groups");

// Steps of the products that run at a time: the queries' share stays in the first-level cache for all pages of a tile.
constexpr int64_t kSteps = 64;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Lane i of the result: the greatest lane of x[i], NaN if there is one. x is used up.
inline Floats reduce_max_each(Floats (&x)[kLanes]) {
  transpose(x);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x[i] = maximum_or_nan(x[i], x[i + width]);
  }
  return x[0];
}

// Orders as the score does, NaN above all.
inline uint32_t ordered_bits(float score) {
  if (score != score) return 0xffffffffu;
  const float positive_zero = score + 0.0f;
  uint32_t word;
  std::memcpy(&word, &positive_zero, 4);
  return (word & 0x80000000u) != 0 ? ~word : word | 0x80000000u;
}

// scores[page][row] (+)= sum over steps of queries[step][row] * bounds[page][step], for kColumns pages.
template <class Math, int kColumns, int kVectors>
inline void add_products(const typename Math::Element* queries, const typename Math::Element* bounds,
                         int64_t bounds_stride, int64_t steps, bool first, float* scores) {
  Floats sums[kColumns][kVectors] = {};
  if (!first) {
#pragma GCC unroll 12
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sums[c][v] = load(scores + (c * kVectors + v) * kLanes);
    }
  }
  accumulate<Math, kColumns, kVectors>(queries, kVectors * kLanes, bounds, bounds_stride, 1, steps, sums);
#pragma GCC unroll 12
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) store(scores + (c * kVectors + v) * kLanes, sums[c][v]);
  }
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
    if (task_.rows == 0) return all_equal();
    for (int64_t row = 0; row < task_.rows; row += plan::kBlockAttentionRows) {
      rows_ = smaller(task_.rows - row, plan::kBlockAttentionRows);
      head_queries_ = (rows_ + kLanes - 1) / kLanes * kLanes * 2 * half_;
      for (int64_t head = 0; head < task_.heads; ++head) {
        for_each_panel(rows_,
                       [&](int64_t panel, auto vectors) { pack_queries<decltype(vectors)::value>(head, row, panel); });
      }
      for (int64_t page = 0; page < task_.count; page += kTile) {
        for (int64_t head = 0; head < task_.heads; ++head) score_tile(head, page, row > 0);
      }
    }
  }

 private:
  const T* bounds_of(int64_t head, int64_t page) const {
    return static_cast<const T*>(params_.bounds) + task_.pages[page] * params_.bounds_page_stride +
           (task_.kv_head + head) * params_.bounds_head_stride;
  }

  uint64_t* key_of(int64_t head, int64_t page) const { return task_.keys + head * task_.key_stride + page; }

  int64_t index_of(int64_t page) const {
    return task_.indices == nullptr ? task_.first_page + page : task_.indices[page];
  }

  static uint64_t key(uint32_t ordered_score, int64_t page) {
    return static_cast<uint64_t>(ordered_score) << 32 | (~static_cast<uint64_t>(page) & 0xffffffffu);
  }

  void all_equal() {
    for (int64_t head = 0; head < task_.heads; ++head) {
      for (int64_t page = 0; page < task_.count; ++page) *key_of(head, page) = key(0, index_of(page));
    }
  }

  // Rows past the last repeat it: they do not change the maximum.
  template <int kVectors>
  void pack_queries(int64_t head, int64_t first_row, int64_t panel) {
    constexpr int kRows = kVectors * kLanes;
    Element* negative = queries_ + head * head_queries_ + panel * 2 * half_;
    Element* positive = negative + half_ * kRows;
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first_row + smaller(panel + r, rows_ - 1);
      const T* q = static_cast<const T*>(params_.q) + (task_.first_token + row / group_) * params_.q_token_stride +
                   ((task_.kv_head + head) * group_ + row % group_) * params_.q_head_stride;
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

  void pack_bounds(int64_t head, int64_t first_page, int count) {
    for (int i = 0; i < count; ++i) {
      for (int part = 0; part < 2; ++part) {
        const T* source = bounds_of(head, first_page + i) + part * params_.bounds_part_stride;
        Element* target = bounds_ + i * layout_.row_stride + part * half_;
        if constexpr (Math::kPerElement == 2) {
          const auto* pairs = reinterpret_cast<const uint32_t*>(source);
          int64_t step = 0;
          for (; step + kLanes <= half_; step += kLanes) store_words(target + step, load_words(pairs + step));
          std::memcpy(target + step, pairs + step, (half_ - step) * 4);
        } else {
          int64_t d = 0;
#pragma GCC unroll 4
          for (; d + kLanes <= params_.head_dim; d += kLanes) store(target + d, load(source + d));
          for (; d < params_.head_dim; ++d) target[d] = to_float(source[d]);
        }
      }
    }
  }

  // Bounds of the next head, or of the first one of the next tile, are fetched while the products on these run: they
  // lie a page apart, where the machine's own prefetchers do not follow. Inlined by force: GCC drops calls of functions
  // that only prefetch.
  [[gnu::always_inline]] void prefetch(int64_t head, int64_t first_page, int64_t end) const {
    for (int64_t page = first_page; page < smaller(end, task_.count); ++page) {
      const auto* minima = reinterpret_cast<const char*>(bounds_of(head, page));
      const char* maxima = minima + params_.bounds_part_stride * static_cast<int64_t>(sizeof(T));
      const int64_t bytes = params_.head_dim * static_cast<int64_t>(sizeof(T));
      for (int64_t b = 0; b < bytes; b += 64) {
        __builtin_prefetch(minima + b, 0, 2);
        __builtin_prefetch(maxima + b, 0, 2);
      }
    }
  }

  // Pages first_page .. of the task against a head's packed rows. `continued`: earlier rows have left their scores.
  void score_tile(int64_t head, int64_t first_page, bool continued) {
    const auto count = static_cast<int>(smaller(kTile, task_.count - first_page));
    const bool last_head = head + 1 == task_.heads;
    const int64_t next_head = last_head ? 0 : head + 1;
    pack_bounds(head, first_page, count);
    Floats best[kTile];
    for (Floats& each : best) each = broadcast(-__builtin_inff());
    const int64_t fetch_begin = last_head ? first_page + count : first_page;
    const int64_t steps = 2 * half_, page_work = (rows_ + kLanes - 1) / kLanes * steps;
    int64_t fetched = fetch_begin, work = 0;
    for_each_panel(rows_, [&](int64_t panel, auto vectors) {
      constexpr int kVectors = decltype(vectors)::value;
      constexpr int kColumns = block_columns(kVectors);
      const Element* queries = queries_ + head * head_queries_ + panel * steps;
      for (int64_t step = 0; step < steps; step += kSteps) {
        const int64_t taken = smaller(kSteps, steps - step);
        for (int i = 0; i < count; i += kColumns) {
          add_products<Math, kColumns, kVectors>(queries + step * kVectors * kLanes,
                                                 bounds_ + i * layout_.row_stride + step, layout_.row_stride, taken,
                                                 step == 0, scores_ + i * kVectors * kLanes);
          work += taken * kColumns * kVectors;
          const int64_t due = smaller(fetch_begin + work / page_work, fetch_begin + kTile);
          prefetch(next_head, fetched, due);
          fetched = due;
        }
      }
      for (int i = 0; i < count; ++i) {
        for (int v = 0; v < kVectors; ++v) {
          best[i] = maximum_or_nan(best[i], load(scores_ + (i * kVectors + v) * kLanes));
        }
      }
    });
    for (int i = 0; i < count; i += kLanes) {
      Floats group[kLanes];
      for (int j = 0; j < kLanes; ++j) group[j] = best[i + j];
      float scores[kLanes];
      store(scores, reduce_max_each(group));
      for (int j = 0; j < kLanes && i + j < count; ++j) {
        const uint64_t found = key(ordered_bits(scores[j]), index_of(first_page + i + j));
        uint64_t& stored = *key_of(head, first_page + i + j);
        if (!continued || found > stored) stored = found;
      }
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
  int64_t rows_ = 0;          // packed, of each head
  int64_t head_queries_ = 0;  // elements
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
