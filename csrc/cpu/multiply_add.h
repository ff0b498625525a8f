// The arithmetics of matrix products. Included by `*.isa.cpp` files only (see isa.h).
#pragma once
#include "cpu/simd.h"

namespace dflash {
namespace DFLASH_ISA {

// A step of a product takes one 4-byte element of each operand: a float32 value ...
struct SinglePrecision {
  typedef float Element;
  typedef Floats Vector;
  static constexpr int kPerElement = 1;  // values in an element

  static inline Vector load(const float* p) { return DFLASH_ISA::load(p); }
  static inline void store(float* p, Vector x) { DFLASH_ISA::store(p, x); }
  static inline Floats multiply_add(Floats sum, Vector a, Vector b) { return sum + a * b; }
  static inline Floats multiply_add(Floats sum, Vector a, float scalar) { return sum + a * broadcast(scalar); }
};

// ... or two bfloat16, the first in the lower half.
struct BFloat16Pairs {
  typedef uint32_t Element;
  typedef Words Vector;
  static constexpr int kPerElement = 2;

  static inline Vector load(const uint32_t* p) { return load_words(p); }
  static inline void store(uint32_t* p, Vector x) { store_words(p, x); }
  static inline Floats multiply_add(Floats sum, Vector a, Vector b) {
#if defined(__AVX512BF16__)
    return reinterpret_cast<Floats>(
        _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
#else
    sum += as_floats(a << 16) * as_floats(b << 16);
    return sum + as_floats(a & 0xffff0000u) * as_floats(b & 0xffff0000u);
#endif
  }
  static inline Floats multiply_add(Floats sum, Vector a, uint32_t scalar) {
    return multiply_add(sum, a, broadcast_word(scalar));
  }
};

// bfloat16 data uses the pair instruction where there is one. The portable build on x86 emulates it, so that every
// machine's tests cover the packing; no x86 machine without AVX2 is one to be fast on.
#if defined(__AVX512BF16__) || (defined(DFLASH_X86) && !defined(__AVX2__))
#define DFLASH_BFLOAT16_IN_PAIRS 1
#else
#define DFLASH_BFLOAT16_IN_PAIRS 0
#endif

}  // namespace DFLASH_ISA
}  // namespace dflash
