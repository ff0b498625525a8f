// Exact conversions between the 16-bit float formats and float/double, with PTX's roundings.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "ir.h"

namespace ptxsim {

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline double double_of(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}
inline uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, 8);
  return bits;
}

constexpr uint32_t kNanF32 = 0x7fffffffu;  // PTX's canonical NaNs
constexpr uint16_t kNan16 = 0x7fffu;
constexpr uint64_t kNanF64 = 0xfff8000000000000ull;

inline float bf16_to_float(uint32_t bits) { return float_of(bits << 16); }

inline float f16_to_float(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // The shifted bits are the value scaled by 2^-112; the product restores it exactly, subnormals too.
  return float_of(sign | bits_of(float_of(magnitude << 13) * 0x1p112f));
}

// Rounds a double to a format with `Mantissa` stored bits and `Exponent` exponent bits. One rounding.
template <int Mantissa, int Exponent>
inline uint32_t round_to_format(double value, Rounding rounding) {
  constexpr int kBias = (1 << (Exponent - 1)) - 1;
  constexpr uint32_t kInfinity = ((1u << Exponent) - 1u) << Mantissa;
  const uint64_t bits = bits_of(value);
  const uint32_t sign = static_cast<uint32_t>(bits >> 63) << (Mantissa + Exponent);
  const bool negative = sign != 0;
  const uint64_t magnitude = bits & 0x7fffffffffffffffull;
  if (magnitude > 0x7ff0000000000000ull) return (1u << (Mantissa + Exponent)) - 1u;
  if (magnitude == 0x7ff0000000000000ull) return sign | kInfinity;
  if (magnitude == 0) return sign;
  int exponent = static_cast<int>(magnitude >> 52) - 1023;
  if (exponent < -1000) exponent = -1000;  // a double subnormal is far below every target's smallest
  uint64_t significand = (magnitude & 0xfffffffffffffull) | 0x10000000000000ull;
  int drop = 52 - Mantissa;
  uint64_t result;
  if (exponent < 1 - kBias) {
    drop += 1 - kBias - exponent;
    exponent = 0;
    result = 0;
  } else {
    result = static_cast<uint64_t>(exponent + kBias - 1) << Mantissa;  // the hidden bit adds the last one
  }
  if (drop > 62) {
    significand = 1;
    drop = 62;
  }
  const uint64_t kept = significand >> drop;
  const uint64_t rest = significand & ((uint64_t{1} << drop) - 1);
  const uint64_t half = uint64_t{1} << (drop - 1);
  bool up = false;
  switch (rounding) {
    case Rounding::kRz:
      break;
    case Rounding::kRm:
      up = negative && rest != 0;
      break;
    case Rounding::kRp:
      up = !negative && rest != 0;
      break;
    case Rounding::kRna:
      up = rest >= half;
      break;
    default:
      up = rest > half || (rest == half && (kept & 1));
  }
  result += kept + up;
  if (result >= kInfinity) {
    const bool to_infinity = rounding == Rounding::kRm   ? negative
                             : rounding == Rounding::kRp ? !negative
                                                         : rounding != Rounding::kRz;
    result = to_infinity ? kInfinity : kInfinity - 1;
  }
  return sign | static_cast<uint32_t>(result);
}

inline uint16_t f16_from(double value, Rounding rounding = Rounding::kRn) {
  return static_cast<uint16_t>(round_to_format<10, 5>(value, rounding));
}

inline uint16_t bf16_from(double value, Rounding rounding = Rounding::kRn) {
  return static_cast<uint16_t>(round_to_format<7, 8>(value, rounding));
}

// The common conversion, branch-free so that loops over it vectorise.
inline uint32_t bf16_from_float(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? kNan16 : rounded;
}

// a * b + c with one rounding into any format of at most 24 bits: the double sum is rounded to odd.
inline double fma_round_to_odd(double a, double b, double c) {
  const double product = a * b;  // exact: both factors have at most 11 bits
  const double sum = product + c;
  const double rest = sum - product;
  const double error = (product - (sum - rest)) + (c - rest);
  if (error == 0 || !std::isfinite(sum)) return sum;
  uint64_t bits = bits_of(sum);
  if (bits & 1) return sum;
  // The exact value lies strictly between sum and its neighbour in the direction of the error.
  bits += (error > 0) == (sum > 0) ? 1 : -1;
  return double_of(bits);
}

}  // namespace ptxsim
