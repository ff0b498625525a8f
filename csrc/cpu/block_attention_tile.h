// Register-blocked products of block_attention. Included by `*.isa.cpp` files only (see isa.h).
//
// Rows (block position x head of the group) lie in vector lanes: queries, scores, probabilities and outputs are stored
// transposed, [..][rows of a panel]. So both products are the same outer-product loop, softmax needs no reduction
// across lanes, and keys and values are read one broadcast scalar at a time, in the layout the cache has them.
#pragma once
#include "cpu/simd.h"

namespace dflash {
namespace DFLASH_ISA {

// The two arithmetics: a step of a product takes one 4-byte element of each operand.
struct SinglePrecision {
  typedef float Element;
  typedef Floats Vector;
  static constexpr int kPerElement = 1;  // values in an element

  static inline Vector load(const float* p) { return DFLASH_ISA::load(p); }
  static inline Floats multiply_add(Floats sum, Vector rows, float scalar) { return sum + rows * broadcast(scalar); }
};

// Two bfloat16 an element, the first in the lower half.
struct BFloat16Pairs {
  typedef uint32_t Element;
  typedef Words Vector;
  static constexpr int kPerElement = 2;

  static inline Vector load(const uint32_t* p) { return load_words(p); }
  static inline Floats multiply_add(Floats sum, Vector rows, uint32_t scalar) {
    const Words other = broadcast_word(scalar);
#if defined(__AVX512BF16__)
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(rows),
                                                     reinterpret_cast<__m512bh>(other)));
#else
    sum += as_floats(rows << 16) * as_floats(other << 16);
    return sum + as_floats(rows & 0xffff0000u) * as_floats(other & 0xffff0000u);
#endif
  }
};

// bfloat16 data uses the pair instruction where there is one. The portable build on x86 emulates it, so that every
// machine's tests cover the packing; no x86 machine without AVX2 is one to be fast on.
#if defined(__AVX512BF16__) || (defined(DFLASH_X86) && !defined(__AVX2__))
#define DFLASH_BFLOAT16_IN_PAIRS 1
#else
#define DFLASH_BFLOAT16_IN_PAIRS 0
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

// sums[c][v] += sum over steps of rows[step][v] * scalars[c * column_stride + step * step_stride]
template <class Math, int kColumns, int kVectors>
[[gnu::always_inline]] static inline void accumulate(const typename Math::Element* rows,
                                                     const typename Math::Element* scalars, int64_t column_stride,
                                                     int64_t step_stride, int64_t steps,
                                                     Floats (&sums)[kColumns][kVectors]) {
  for (int64_t step = 0; step < steps; ++step) {
    typename Math::Vector x[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) x[v] = Math::load(rows + (step * kVectors + v) * kLanes);
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
  accumulate<Math, kColumns, kVectors>(queries, keys, key_stride, 1, steps, sums);
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
  accumulate<Math, kColumns, kVectors>(probabilities, values, 1, value_stride, steps, sums);
#pragma GCC unroll 12
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) store(outputs + (c * kVectors + v) * kLanes, sums[c][v]);
  }
}

}  // namespace DFLASH_ISA
}  // namespace dflash
