// AVX-512 and AVX-512-BF16 on a machine that has only AVX2: the compiler lowers 64-byte vectors to pairs of 32-byte
// ones, and the few intrinsics of csrc/cpu/ are written out here, from their description in the Intel manual. Forced
// into the kernels by `make test-isa` (CMake option DFLASH_EMULATE_AVX512), never part of a shipped build.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1
#define __AVX512DQ__ 1
#ifdef DFLASH_EMULATE_BF16
#define __AVX512BF16__ 1
#endif

namespace dflash_emulated {

typedef float Lanes __attribute__((vector_size(64), aligned(1)));

static inline float from_bf16(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}

// VCVTNEPS2BF16: nearest even; denormals become zero of the same sign; NaN is quieted.
static inline uint16_t to_bf16(float value) {
  uint32_t word;
  std::memcpy(&word, &value, 4);
  if (std::isnan(value)) return static_cast<uint16_t>((word >> 16) | 0x40u);
  if ((word & 0x7f800000u) == 0) return static_cast<uint16_t>((word & 0x80000000u) >> 16);
  return static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

static inline __m512 cvtph_ps(__m256i x) {
  const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(x));
  const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1));
  __m512 result;
  std::memcpy(&result, &low, 32);
  std::memcpy(reinterpret_cast<char*>(&result) + 32, &high, 32);
  return result;
}

static inline __m512i cvtepu16_epi32(__m256i x) {
  const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(x));
  const __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1));
  __m512i result;
  std::memcpy(&result, &low, 32);
  std::memcpy(reinterpret_cast<char*>(&result) + 32, &high, 32);
  return result;
}

static inline __m256i cvtps_ph(__m512 x) {
  __m256 low, high;
  std::memcpy(&low, &x, 32);
  std::memcpy(&high, reinterpret_cast<const char*>(&x) + 32, 32);
  const __m128i a = _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT);
  const __m128i b = _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT);
  return _mm256_set_m128i(b, a);
}

static inline __m256bh cvtneps_pbh(__m512 x) {
  float lanes[16];
  uint16_t packed[16];
  std::memcpy(lanes, &x, 64);
  for (int i = 0; i < 16; ++i) packed[i] = to_bf16(lanes[i]);
  __m256bh result;
  std::memcpy(&result, packed, 32);
  return result;
}

// VDPBF16PS: two products a lane, accumulated without intermediate rounding to bf16, denormals flushed.
static inline __m512 dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
  float lanes[16];
  uint16_t left[32], right[32];
  std::memcpy(lanes, &sum, 64);
  std::memcpy(left, &a, 64);
  std::memcpy(right, &b, 64);
  for (int i = 0; i < 16; ++i) {
    lanes[i] += from_bf16(left[2 * i + 1]) * from_bf16(right[2 * i + 1]);
    lanes[i] += from_bf16(left[2 * i]) * from_bf16(right[2 * i]);
  }
  __m512 result;
  std::memcpy(&result, lanes, 64);
  return result;
}

// VMAXPS: the second operand where either is NaN or both are zeros.
static inline __m512 max_ps(__m512 a, __m512 b) { return a > b ? a : b; }

}  // namespace dflash_emulated

#define _mm512_cvtepu16_epi32(x) dflash_emulated::cvtepu16_epi32(x)
#define _mm512_max_ps(a, b) dflash_emulated::max_ps(a, b)
#define _mm512_cvtph_ps(x) dflash_emulated::cvtph_ps(x)
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(x, rounding) dflash_emulated::cvtps_ph(x)
#define _mm512_cvtneps_pbh(x) dflash_emulated::cvtneps_pbh(x)
#define _mm512_dpbf16_ps(sum, a, b) dflash_emulated::dpbf16_ps(sum, a, b)
