// Register-blocked products and the online softmax of the attention ops. Included by `*.isa.cpp` files only (see
// isa.h).
//
// Rows (block position x head of the group) lie in vector lanes: queries, scores, probabilities and outputs are stored
// transposed, [..][rows of a panel]. So both products are the same outer-product loop, softmax needs no reduction
// across lanes, and keys and values are read one broadcast scalar at a time, in the layout the cache has them.
#pragma once
#include "cpu/multiply_add.h"

namespace dflash {
namespace DFLASH_ISA {

// The arithmetic of a stored type.
template <typename T>
struct MathOf {
  typedef SinglePrecision Type;
};
#if DFLASH_BFLOAT16_IN_PAIRS
template <>
struct MathOf<BFloat16> {
  typedef BFloat16Pairs Type;
};
#endif

// Columns of a register block beside `vectors` vectors of rows: as many accumulators as the registers hold, and at
// least 8, which hide the latency of the multiply-add.
constexpr int block_columns(int vectors) {
#if defined(__AVX512F__)
  return vectors == 3 ? 8 : 12;
#else
  return vectors == 1 ? 12 : vectors == 2 ? 6 : 4;
#endif
}

// sums[c][v] += sum over steps of rows[step * row_stride][v] * scalars[c * column_stride + step * step_stride]
template <class Math, int kColumns, int kVectors>
[[gnu::always_inline]] static inline void accumulate(const typename Math::Element* rows, int64_t row_stride,
                                                     const typename Math::Element* scalars, int64_t column_stride,
                                                     int64_t step_stride, int64_t steps,
                                                     Floats (&sums)[kColumns][kVectors]) {
  for (int64_t step = 0; step < steps; ++step) {
    typename Math::Vector x[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) x[v] = Math::load(rows + step * row_stride + v * kLanes);
#pragma GCC unroll 12
    for (int c = 0; c < kColumns; ++c) {
      const auto scalar = scalars[c * column_stride + step * step_stride];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sums[c][v] = Math::multiply_add(sums[c][v], x[v], scalar);
    }
  }
}

// scores[key][row] = scale * sum over channels of queries[channel][row] * keys[key][channel], for kColumns keys.
template <class Math, int kColumns, int kVectors>
static inline void score_block(const typename Math::Element* queries, const typename Math::Element* keys,
                               int64_t key_stride, int64_t steps, float scale, float* scores) {
  Floats sums[kColumns][kVectors] = {};
  accumulate<Math, kColumns, kVectors>(queries, kVectors * kLanes, keys, key_stride, 1, steps, sums);
#pragma GCC unroll 12
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) store(scores + (c * kVectors + v) * kLanes, sums[c][v] * scale);
  }
}

// outputs[channel][row] = correction[row] * outputs[channel][row] + sum over keys of
// probabilities[key][row] * values[key][channel], for kColumns channels.
template <class Math, int kColumns, int kVectors>
static inline void value_block(const typename Math::Element* probabilities, const typename Math::Element* values,
                               int64_t value_stride, int64_t steps, const Floats* correction, float* outputs) {
  Floats sums[kColumns][kVectors];
#pragma GCC unroll 12
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) sums[c][v] = load(outputs + (c * kVectors + v) * kLanes) * correction[v];
  }
  accumulate<Math, kColumns, kVectors>(probabilities, kVectors * kLanes, values, 1, value_stride, steps, sums);
#pragma GCC unroll 12
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) store(outputs + (c * kVectors + v) * kLanes, sums[c][v]);
  }
}

// A number as a type, for arguments that choose a template instance.
template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

// Cuts `rows` into panels of up to three vectors and calls function(first row, Constant<vectors>).
template <typename Function>
static inline void for_each_panel(int64_t rows, Function&& function) {
  int64_t vectors = (rows + kLanes - 1) / kLanes;
  int64_t row = 0;
  while (vectors > 0) {
    const int64_t taken = vectors == 1 ? 1 : vectors == 2 || vectors == 4 ? 2 : 3;
    if (taken == 1) function(row, Constant<1>{});
    if (taken == 2) function(row, Constant<2>{});
    if (taken == 3) function(row, Constant<3>{});
    row += taken * kLanes;
    vectors -= taken;
  }
}

// Scores of `count` keys with a panel of queries. Register blocks are whole: up to 11 keys and scores past the last
// must be there, whatever they hold. before_block(vector operations a step) is called before each register block.
template <class Math, int kVectors, typename BeforeBlock>
static inline void score_panel(const typename Math::Element* queries, const typename Math::Element* keys,
                               int64_t key_stride, int64_t steps, int count, float scale, float* scores,
                               BeforeBlock&& before_block) {
  constexpr int kColumns = block_columns(kVectors);
  for (int key = 0; key < count; key += kColumns) {
    before_block(kColumns * kVectors);
    score_block<Math, kColumns, kVectors>(queries, keys + key * key_stride, key_stride, steps, scale,
                                          scores + key * kVectors * kLanes);
  }
}

// outputs[channel][row] = correction[row] * outputs[channel][row] + sum over keys of
// probabilities[key][row] * values[key][channel]; the number of channels is a multiple of 4.
template <class Math, int kVectors, typename BeforeBlock>
static inline void value_panel(const typename Math::Element* probabilities, const typename Math::Element* values,
                               int64_t value_stride, int64_t steps, int64_t channels, const Floats* correction,
                               float* outputs, BeforeBlock&& before_block) {
  constexpr int kRows = kVectors * kLanes;
  constexpr int kColumns = block_columns(kVectors);
  int64_t d = 0;
  // Blocks of 4 channels take what the wide ones leave, which must be a multiple of 4.
  const int64_t spare = channels % kColumns % 4 == 0 ? 0 : kColumns;
  const int64_t wide = (channels - spare) / kColumns * kColumns;
  for (; d < wide; d += kColumns) {
    before_block(kColumns * kVectors);
    value_block<Math, kColumns, kVectors>(probabilities, values + d, value_stride, steps, correction,
                                          outputs + d * kRows);
  }
  for (; d < channels; d += 4) {
    value_block<Math, 4, kVectors>(probabilities, values + d, value_stride, steps, correction, outputs + d * kRows);
  }
}

// Scores of keys first .. first+count that lie outside a row's [begin, end) become -inf.
template <int kVectors>
static inline void mask_panel(const int32_t* begins, const int32_t* ends, int32_t first, int count, float* scores) {
  for (int v = 0; v < kVectors; ++v) {
    const Ints begin = load_ints(begins + v * kLanes) - first;
    const Ints end = load_ints(ends + v * kLanes) - first;
    for (int key = 0; key < count; ++key) {
      float* score = scores + (key * kVectors + v) * kLanes;
      const Ints position = broadcast_int(key);
      store(score, ((position >= begin) & (position < end)) ? load(score) : broadcast(-__builtin_inff()));
    }
  }
}

// One step of the online softmax (Milakov and Gimelshein, arXiv 1805.02867) over `count` keys: turns scores, which
// carry a factor log2(e), into probabilities in place and updates the rows' maxima and sums; `correction` is the factor
// that earlier outputs need.
template <class Math, int kVectors>
static inline void softmax_panel(float* panel_scores, int count, float* maxima, float* sums, Floats* correction) {
  constexpr int kRows = kVectors * kLanes;
  for (int v = 0; v < kVectors; ++v) {
    float* scores = panel_scores + v * kLanes;
    const Floats old_maximum = load(maxima + v * kLanes);
    constexpr int kChains = 4;  // hide the latency of the maximum
    Floats highest[kChains] = {old_maximum, old_maximum, old_maximum, old_maximum};
    int key = 0;
    for (; key + kChains <= count; key += kChains) {
      for (int c = 0; c < kChains; ++c) highest[c] = maximum(highest[c], load(scores + (key + c) * kRows));
    }
    for (; key < count; ++key) highest[0] = maximum(highest[0], load(scores + key * kRows));
    const Floats top = maximum(maximum(highest[0], highest[1]), maximum(highest[2], highest[3]));
    // A row that has seen nothing yet: any finite origin gives zeros instead of NaN.
    const Floats origin = top == -__builtin_inff() ? Floats{} : top;
    correction[v] = exp2(old_maximum - origin);
    Floats sum = load(sums + v * kLanes) * correction[v];
    if constexpr (Math::kPerElement == 2) {
      auto* pairs = reinterpret_cast<uint32_t*>(panel_scores) + v * kLanes;
      for (key = 0; key < count; key += 2) {
        const Floats first = exp2(load(scores + key * kRows) - origin);
        const Floats second = key + 1 < count ? exp2(load(scores + (key + 1) * kRows) - origin) : Floats{};
        sum += first + second;
        store_words(pairs + key / 2 * kRows,
                    round_to_bfloat16(first) >> 16 | (round_to_bfloat16(second) & 0xffff0000u));
      }
    } else {
      for (key = 0; key < count; ++key) {
        const Floats probability = exp2(load(scores + key * kRows) - origin);
        sum += probability;
        store(scores + key * kRows, probability);
      }
    }
    store(maxima + v * kLanes, top);
    store(sums + v * kLanes, sum);
  }
}

}  // namespace DFLASH_ISA
}  // namespace dflash
