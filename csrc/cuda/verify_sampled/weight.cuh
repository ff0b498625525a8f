// Values of logits as ordered integers, and their weights as integers.
//
// Weights are added up as 64-bit integers, in units of 2^-40 of the largest weight of the row: integer sums do not
// depend on their order, so the token drawn does not depend on how a row is cut, on the GPU, or on the batch. What is
// lost, below 2^-41 of the largest weight for each column, is less than float32 sums lose.
#pragma once
#include "cuda/common/argmax.cuh"
#include "params/philox.h"
#include "plan/cuda/verify_sampled.h"

namespace dflash::cuda {

// Bits of a float32 that hold nothing of a T.
template <typename T>
constexpr int kIdleBits = 0;
template <>
constexpr int kIdleBits<Float16> = 13;
template <>
constexpr int kIdleBits<BFloat16> = 16;

// Neighbouring values of T have neighbouring keys; NaN is above all.
template <typename T>
__device__ __forceinline__ uint32_t key_of(float value) {
  return ordered_bits(value) >> kIdleBits<T>;
}
template <typename T>
__device__ __forceinline__ float value_of_key(uint32_t key) {
  constexpr uint32_t kIdle = (1u << kIdleBits<T>)-1;
  const uint32_t ordered = key << kIdleBits<T>;
  return __uint_as_float((ordered >> 31) != 0 ? ordered ^ 0x80000000u : ~(ordered | kIdle));
}

// 2^x for x <= 0, by the polynomial of csrc/cpu/simd.h; 0 below -126.
__device__ __forceinline__ float exp2_below_one(float x) {
  constexpr float kMagic = 12583039.0f;  // 1.5 * 2^23 + 127: adding it rounds to an integer n, n + 127 in front
  const float shifted = __fadd_rn(x, kMagic);
  const float r = __fsub_rn(x, __fsub_rn(shifted, kMagic));
  float p = fmaf(r, 1.326472382e-03f, 9.671512991e-03f);
  p = fmaf(p, r, 5.550733581e-02f);
  p = fmaf(p, r, 2.402224243e-01f);
  p = fmaf(p, r, 6.931470037e-01f);
  p = fmaf(p, r, 1.0f);
  const float result = p * __uint_as_float(__float_as_uint(shifted) << 23);
  return x < -126.0f ? 0.0f : result;
}

// A weight, at most 1, in units of 2^-kMassBits, rounded down.
__device__ __forceinline__ uint64_t fixed_point(float weight) {
  const uint32_t bits = __float_as_uint(weight), exponent = bits >> 23;
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  return exponent == 0 ? 0 : mantissa << (kMassBits - 23) >> min(127u - exponent, 63u);
}

// The least integer that is at least fraction * mass, 0 < fraction < 1; at least 1.
__device__ __forceinline__ uint64_t share_of(float fraction, uint64_t mass) {
  const uint32_t bits = __float_as_uint(fraction), exponent = bits >> 23;
  if (!(fraction > 0.0f) || exponent == 0) return 1;
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  const int shift = 150 - static_cast<int>(exponent);  // fraction = mantissa / 2^shift, shift > 23
  const uint64_t low = mantissa * mass, high = __umul64hi(mantissa, mass);
  if (shift >= 87) return 1;  // the product is below 2^87
  uint64_t quotient, rest;
  if (shift >= 64) {
    quotient = shift == 64 ? high : high >> (shift - 64);
    rest = low | (shift == 64 ? 0 : high << (128 - shift));
  } else {
    quotient = high << (64 - shift) | low >> shift;
    rest = low << (64 - shift);
  }
  return max(quotient + (rest != 0 ? 1 : 0), uint64_t{1});
}

// floor(mass * bits / 2^53).
__device__ __forceinline__ uint64_t place_of(uint64_t bits, uint64_t mass) {
  return __umul64hi(bits, mass) << 11 | (bits * mass) >> 53;
}

// How one request samples. Values that make no sense are refused on the CPU; here they sample the nearest thing.
struct RequestSampling {
  float temperature, top_p;
  int64_t top_k;

  __device__ __forceinline__ RequestSampling(const SamplingParams& params, int64_t request)
      : temperature(params.temperature[request * params.temperature_stride]),
        top_p(params.top_p[request * params.top_p_stride]),
        top_k(params.top_k[request * params.top_k_stride]) {}

  __device__ __forceinline__ bool takes_argmax() const { return !(temperature > 0.0f) || top_k == 1; }
  __device__ __forceinline__ bool limits_count(int64_t columns) const { return top_k > 0 && top_k < columns; }
  __device__ __forceinline__ bool limits_mass() const { return top_p < 1.0f; }
};

// Masses of the logits of a row whose largest is `top`.
template <typename T>
class Weights {
 public:
  __device__ __forceinline__ Weights(const RequestSampling& sampling, int64_t columns, uint32_t top_key)
      : top_(value_of_key<T>(top_key)) {
    constexpr float kLog2E = 1.44269504f, kLeast = 1.17549435e-38f, kMost = 3.40282347e+38f;
    // The bounds keep 0 * scale and -inf * scale what they are at temperatures whose inverse float32 cannot hold.
    scale_ = fminf(fmaxf(kLog2E / sampling.temperature, kLeast), kMost);
    // Below 64 temperatures mass is 0; logits that top-k cuts at have no such bound.
    reach_ = sampling.limits_count(columns) ? 64.0f : 64.0f * sampling.temperature;
  }

  __device__ __forceinline__ bool finite_top() const { return fabsf(top_) < __builtin_inff(); }
  __device__ __forceinline__ uint64_t mass(float x) const { return fixed_point(exp2_below_one((x - top_) * scale_)); }

  // Ascending keys that reach down from the largest logit, each four times as far as the next.
  __device__ __forceinline__ void thresholds(uint32_t (&keys)[kThresholds]) const {
    constexpr float kMost = 3.40282347e+38f;
    float distance = reach_;
#pragma unroll
    for (int t = 0; t < kThresholds; ++t, distance *= 0.25f) keys[t] = key_of<T>(fmaxf(top_ - distance, -kMost));
  }

 private:
  float top_, scale_, reach_;  // weight = 2^((logit - top) * scale)
};

}  // namespace dflash::cuda
