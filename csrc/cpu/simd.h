// Vectors of float for one instruction set. Included by `*.isa.cpp` files only (see isa.h).
//
// Arithmetic uses the compiler's vector extension, so one source serves SSE2, AVX2 and AVX-512 and is contracted to
// fused multiply-add where the instruction set has it (-ffp-contract=fast). Only conversions need intrinsics.
#pragma once
#include <cstdint>
#include <cstring>

#include "params/dtype.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef DFLASH_ISA
#error "simd.h is for files compiled once per instruction set (DFLASH_ISA names the namespace)"
#endif

namespace dflash {
namespace DFLASH_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t HalfWords __attribute__((vector_size(2 * kLanes)));

static inline Floats broadcast(float value) { return value - Floats{}; }
static inline Ints broadcast_int(int32_t value) { return value - Ints{}; }
static inline Words broadcast_word(uint32_t value) { return value - Words{}; }
static inline Words as_words(Floats x) { return reinterpret_cast<Words>(x); }
static inline Floats as_floats(Words x) { return reinterpret_cast<Floats>(x); }

// ---- loads: kLanes elements, any alignment, converted to float32
static inline Floats load(const float* p) {
  Floats x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

static inline Ints load_ints(const int32_t* p) {
  Ints x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

static inline Words load_words(const uint32_t* p) {
  Words x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

static inline void store_words(uint32_t* p, Words x) { std::memcpy(p, &x, sizeof(x)); }

static inline Floats load(const BFloat16* p) {
#if defined(__AVX512F__)
  return as_floats(
      reinterpret_cast<Words>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))) << 16);
#elif defined(__AVX2__)
  // The compiler makes five instructions of the generic conversion below.
  return as_floats(reinterpret_cast<Words>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))
                   << 16);
#else
  HalfWords x;
  std::memcpy(&x, p, sizeof(x));
  return as_floats(__builtin_convertvector(x, Words) << 16);
#endif
}

static inline float half_to_float(uint16_t bits) {
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  float value;
  if (magnitude >= 0x7c00u << 13) {  // inf and NaN keep an all-ones exponent
    const uint32_t word = sign | (magnitude + (112u << 23)) | 0x7f800000u;
    std::memcpy(&value, &word, 4);
    return value;
  }
  // Scaling by 2^112 moves the exponent bias from 15 to 127 and is exact for denormals too.
  std::memcpy(&value, &magnitude, 4);
  value *= 5192296858534827628530496329220096.0f;
  uint32_t word;
  std::memcpy(&word, &value, 4);
  word |= sign;
  std::memcpy(&value, &word, 4);
  return value;
#endif
}

static inline uint16_t float_to_half(float value) {  // round to nearest even
#if defined(__F16C__)
  return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
  uint32_t word;
  std::memcpy(&word, &value, 4);
  const uint16_t sign = static_cast<uint16_t>((word >> 16) & 0x8000u);
  word &= 0x7fffffffu;
  if (word > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (word >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds past 65504
  if (word < 0x38800000u) {                                               // denormal: let the adder round
    float magnitude;
    std::memcpy(&magnitude, &word, 4);
    magnitude += 0.5f;
    uint32_t rounded;
    std::memcpy(&rounded, &magnitude, 4);
    return static_cast<uint16_t>(sign | (rounded - 0x3f000000u));
  }
  word += 0xc8000fffu + ((word >> 13) & 1u);
  return static_cast<uint16_t>(sign | (word >> 13));
#endif
}

static inline Floats load(const Float16* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__AVX2__)
  return reinterpret_cast<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  Floats x;
  for (int i = 0; i < kLanes; ++i) x[i] = half_to_float(p[i].bits);
  return x;
#endif
}

// ---- stores: kLanes elements, rounded to nearest even
static inline void store(float* p, Floats x) { std::memcpy(p, &x, sizeof(x)); }

// x rounded to bfloat16, in the upper half of each word; the lower half is undefined.
static inline Words round_to_bfloat16(Floats x) {
  const Words word = as_words(x);
  const Words rounded = word + 0x7fffu + ((word >> 16) & 1u);
  const Words quiet = word | 0x00400000u;  // rounding could turn a NaN into infinity
  return (x != x) ? quiet : rounded;
}

static inline void store(BFloat16* p, Floats x) {
#if defined(__AVX512BF16__)
  const __m256bh packed = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(x));
  std::memcpy(p, &packed, sizeof(packed));
#else
  const HalfWords packed = __builtin_convertvector(round_to_bfloat16(x) >> 16, HalfWords);
  std::memcpy(p, &packed, sizeof(packed));
#endif
}

static inline void store(Float16* p, Floats x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(reinterpret_cast<__m512>(x), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(reinterpret_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) p[i].bits = float_to_half(x[i]);
#endif
}

// ---- single elements
static inline float to_float(float x) { return x; }
static inline float to_float(BFloat16 x) {
  const uint32_t word = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}
static inline float to_float(Float16 x) { return half_to_float(x.bits); }

static inline void store_one(float* p, float x) { *p = x; }
static inline void store_one(BFloat16* p, float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  p->bits = static_cast<uint16_t>((x != x ? (word | 0x00400000u) : word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}
static inline void store_one(Float16* p, float x) { p->bits = float_to_half(x); }

// ---- partial vectors: the first `count` (< kLanes) elements, `fill` elsewhere; memory past them is not touched
template <typename T>
static inline Floats load_partial(const T* p, int count, float fill = 0.0f) {
  Floats x = broadcast(fill);
  for (int i = 0; i < count; ++i) x[i] = to_float(p[i]);
  return x;
}

template <typename T>
static inline void store_partial(T* p, Floats x, int count) {
  for (int i = 0; i < count; ++i) store_one(p + i, x[i]);
}

// ---- arithmetic
static inline Floats maximum(Floats a, Floats b) {  // b where either is NaN
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Floats>(_mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
  return a > b ? a : b;
#endif
}
static inline Floats minimum(Floats a, Floats b) { return a < b ? a : b; }
// NaN where either is NaN.
static inline Floats minimum_or_nan(Floats a, Floats b) { return ((b < a) | (b != b)) ? b : a; }
static inline Floats maximum_or_nan(Floats a, Floats b) { return ((b > a) | (b != b)) ? b : a; }

static inline float reduce_add(Floats x) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x[i] += x[i + width];
  }
  return x[0];
}

// Every four lanes of the result hold lanes i, j, k, l (4 to 7: of b) of the same four lanes of a and b.
#define DFLASH_QUAD_LANE(lane, quad) ((lane) < 4 ? (lane) + 4 * (quad) : kLanes + (lane) - 4 + 4 * (quad))
#define DFLASH_QUAD_LANES(quad) \
  DFLASH_QUAD_LANE(i, quad), DFLASH_QUAD_LANE(j, quad), DFLASH_QUAD_LANE(k, quad), DFLASH_QUAD_LANE(l, quad)
#if defined(__AVX512F__)
#define DFLASH_ALL_LANES DFLASH_QUAD_LANES(0), DFLASH_QUAD_LANES(1), DFLASH_QUAD_LANES(2), DFLASH_QUAD_LANES(3)
#elif defined(__AVX2__)
#define DFLASH_ALL_LANES DFLASH_QUAD_LANES(0), DFLASH_QUAD_LANES(1)
#else
#define DFLASH_ALL_LANES DFLASH_QUAD_LANES(0)
#endif
template <int i, int j, int k, int l>
static inline Floats shuffle_quads(Floats a, Floats b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, DFLASH_ALL_LANES);
#else
  return __builtin_shuffle(a, b, Ints{DFLASH_ALL_LANES});
#endif
}

// Quads (four lanes) of a and b in turn: of their lower half (half 0) or of their upper half (half 1).
#define DFLASH_TURN_LANE(lane) ((lane) / 4 % 2 * kLanes + half * (kLanes / 2) + (lane) / 8 * 4 + (lane) % 4)
#define DFLASH_TURN_LANES(lane) \
  DFLASH_TURN_LANE(lane), DFLASH_TURN_LANE(lane + 1), DFLASH_TURN_LANE(lane + 2), DFLASH_TURN_LANE(lane + 3)
#if defined(__AVX512F__)
#define DFLASH_ALL_TURN_LANES DFLASH_TURN_LANES(0), DFLASH_TURN_LANES(4), DFLASH_TURN_LANES(8), DFLASH_TURN_LANES(12)
#elif defined(__AVX2__)
#define DFLASH_ALL_TURN_LANES DFLASH_TURN_LANES(0), DFLASH_TURN_LANES(4)
#else
#define DFLASH_ALL_TURN_LANES DFLASH_TURN_LANES(0)
#endif
template <int half>
static inline Floats interleave_quads(Floats a, Floats b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, DFLASH_ALL_TURN_LANES);
#else
  return __builtin_shuffle(a, b, Ints{DFLASH_ALL_TURN_LANES});
#endif
}

// Transposes a square of floats: first every 4 x 4 square within its quads, then the quads.
static inline void transpose(Floats (&x)[kLanes]) {
#pragma GCC unroll 4
  for (int row = 0; row < kLanes; row += 4) {
    const Floats ab_low = shuffle_quads<0, 4, 1, 5>(x[row], x[row + 1]);
    const Floats ab_high = shuffle_quads<2, 6, 3, 7>(x[row], x[row + 1]);
    const Floats cd_low = shuffle_quads<0, 4, 1, 5>(x[row + 2], x[row + 3]);
    const Floats cd_high = shuffle_quads<2, 6, 3, 7>(x[row + 2], x[row + 3]);
    x[row] = shuffle_quads<0, 1, 4, 5>(ab_low, cd_low);
    x[row + 1] = shuffle_quads<2, 3, 6, 7>(ab_low, cd_low);
    x[row + 2] = shuffle_quads<0, 1, 4, 5>(ab_high, cd_high);
    x[row + 3] = shuffle_quads<2, 3, 6, 7>(ab_high, cd_high);
  }
  // Each round is a perfect shuffle of the quads that stand below one another; log2 of their number restores the order.
#pragma GCC unroll 2
  for (int round = 4; round < kLanes; round *= 2) {
    Floats y[kLanes];
#pragma GCC unroll 4
    for (int column = 0; column < 4; ++column) {
#pragma GCC unroll 2
      for (int quad = 0; quad < kLanes / 8; ++quad) {
        const Floats upper = x[4 * quad + column], lower = x[kLanes / 2 + 4 * quad + column];
        y[8 * quad + column] = interleave_quads<0>(upper, lower);
        y[8 * quad + 4 + column] = interleave_quads<1>(upper, lower);
      }
    }
    for (int i = 0; i < kLanes; ++i) x[i] = y[i];
  }
}

// Lane i of the result is the sum of x[i]'s lanes, each added up in the same order; lanes from `count` on are
// undefined.
template <int count>
static inline Floats reduce_add_each(const Floats* x) {
  static_assert(count <= kLanes, "one lane a sum");
  Floats sums[kLanes / 4];  // of each four vectors, four partial sums a quad
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    if (i >= count) {
      sums[i / 4] = sums[i / 4 - 1];
      continue;
    }
    const Floats a = x[i], b = x[i + 1 < count ? i + 1 : i];
    const Floats c = x[i + 2 < count ? i + 2 : i], d = x[i + 3 < count ? i + 3 : i];
    const Floats ab = shuffle_quads<0, 4, 1, 5>(a, b) + shuffle_quads<2, 6, 3, 7>(a, b);
    const Floats cd = shuffle_quads<0, 4, 1, 5>(c, d) + shuffle_quads<2, 6, 3, 7>(c, d);
    sums[i / 4] = shuffle_quads<0, 1, 4, 5>(ab, cd) + shuffle_quads<2, 3, 6, 7>(ab, cd);
  }
#pragma GCC unroll 2
  for (int half = kLanes / 8; half > 0; half /= 2) {
#pragma GCC unroll 2
    for (int i = 0; i < half; ++i) {
      sums[i] = interleave_quads<0>(sums[i], sums[i + half]) + interleave_quads<1>(sums[i], sums[i + half]);
    }
  }
  return sums[0];
}

static inline float reduce_max(Floats x) {
  float result = x[0];
  for (int i = 1; i < kLanes; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// exp(x) for x <= 0 (and moderately positive x), error below 2 ulp; exp(-inf) = 0 exactly, NaN in gives NaN out.
// Range reduction by ln2 in two parts, then the degree-6 Taylor-like minimax polynomial of Cephes' expf.
static inline Floats exp(Floats x) {
  const Floats clamped = x < -87.3f ? broadcast(-87.3f) : (x > 88.0f ? broadcast(88.0f) : x);
  const Floats magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Floats shifted = clamped * 1.44269504088896341f + magic;
  const Floats n = shifted - magic;
  const Floats r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Words exponent = (as_words(shifted) - as_words(magic)) << 23;  // n as an integer, moved to the exponent field
  const Floats result = as_floats(as_words(p) + exponent);
  return x < -87.3f ? Floats{} : result;
}

// 2^x for x <= 127, error below 2 ulp; 0 exactly below -126, NaN in gives NaN out.
// x = n + r with |r| <= 1/2; 2^r = 1 + r * (a minimax polynomial of degree 4, relative error 1e-7).
static inline Floats exp2(Floats x) {
  const Floats magic = broadcast(12583039.0f);  // 1.5 * 2^23 + 127: adding it rounds to an integer n, n + 127 in front
  const Floats shifted = x + magic;
  const Floats r = x - (shifted - magic);
  Floats p = r * 1.326472382e-03f + 9.671512991e-03f;
  p = p * r + 5.550733581e-02f;
  p = p * r + 2.402224243e-01f;
  p = p * r + 6.931470037e-01f;
  p = p * r + 1.0f;
  const Floats result = p * as_floats(as_words(shifted) << 23);
  return x < -126.0f ? Floats{} : result;
}

// Error below 3 ulp. Near zero x + x^3 * (a minimax polynomial in x^2), else 1 - 2 / (1 + e^(2|x|)) with x's sign.
static inline Floats tanh(Floats x) {
  const Words sign = as_words(x) & 0x80000000u;
  const Floats magnitude = as_floats(as_words(x) ^ sign);
  const Floats square = x * x;
  Floats p = square * -5.704974290e-03f + 2.063907497e-02f;
  p = p * square - 5.373971164e-02f;
  p = p * square + 1.333144158e-01f;
  p = p * square - 3.333328068e-01f;
  const Floats near = x + x * square * p;
  const Floats far = 1.0f - 2.0f / (1.0f + exp(magnitude + magnitude));
  return magnitude < 0.625f ? near : as_floats(as_words(far) | sign);
}

}  // namespace DFLASH_ISA
}  // namespace dflash
