// f16, bf16 and their packed pairs: each operation rounds once, as the hardware's half-precision units do.
#include <cmath>

#include "lanes.h"

namespace ptxsim {
namespace {

struct F16 {
  static double read(uint32_t bits) { return f16_to_float(bits); }
  static uint32_t write(double value, Rounding rounding) { return f16_from(value, rounding); }
  static constexpr uint32_t kExponent = 0x7c00u;
};
struct BF16 {
  static double read(uint32_t bits) { return bf16_to_float(bits); }
  static uint32_t write(double value, Rounding rounding) { return bf16_from(value, rounding); }
  static constexpr uint32_t kExponent = 0x7f80u;
};

template <typename F>
bool is_nan(uint32_t bits) {
  return (bits & 0x7fffu) > F::kExponent;
}

template <typename F>
uint32_t flushed(uint32_t bits) {
  return (bits & F::kExponent) == 0 ? bits & 0x8000u : bits;
}

template <typename F>
uint32_t finished(uint32_t bits, const Modifiers& mod) {
  if (mod.ftz) bits = flushed<F>(bits);
  if (mod.sat) {
    const double value = F::read(bits);
    if (!(value > 0)) return 0;
    if (value > 1) return F::write(1.0, Rounding::kRn);
  }
  if (mod.relu && !is_nan<F>(bits) && (bits & 0x8000u)) return 0;
  return bits;
}

template <typename F>
uint32_t extremum(uint32_t a, uint32_t b, const Modifiers& mod, bool max) {
  const uint32_t sign = (a ^ b) & 0x8000u;
  if (mod.xorsign_abs) {
    a &= 0x7fffu;
    b &= 0x7fffu;
  }
  uint32_t result;
  if (is_nan<F>(a) || is_nan<F>(b)) {
    if (mod.nan || (is_nan<F>(a) && is_nan<F>(b))) return kNan16;
    result = is_nan<F>(a) ? b : a;
  } else {
    const double x = F::read(a);
    const double y = F::read(b);
    if (x == y) {
      result = ((a & 0x8000u) != 0) == max ? b : a;
    } else {
      result = (x < y) == max ? b : a;
    }
  }
  return mod.xorsign_abs ? result | sign : result;
}

// One half of the result.
template <typename F>
uint32_t compute(const Instruction& in, uint32_t a, uint32_t b, uint32_t c) {
  const Modifiers& mod = in.mod;
  if (mod.ftz) {
    a = flushed<F>(a);
    b = flushed<F>(b);
    c = flushed<F>(c);
  }
  const Rounding rounding = mod.rounding == Rounding::kNone ? Rounding::kRn : mod.rounding;
  const auto exact = [&](double x, double y, double z) {
    return finished<F>(F::write(fma_round_to_odd(x, y, z), rounding), mod);
  };
  const auto approximate = [&](double value) { return finished<F>(F::write(value, rounding), mod); };
  switch (in.opcode) {
    case Opcode::kAdd:
      return exact(F::read(a), 1.0, F::read(b));
    case Opcode::kSub:
      return exact(F::read(a), 1.0, -F::read(b));
    case Opcode::kMul:
      return approximate(F::read(a) * F::read(b));  // exact in double
    case Opcode::kFma:
      return exact(F::read(a), F::read(b), F::read(c));
    case Opcode::kMin:
      return finished<F>(extremum<F>(a, b, mod, false), mod);
    case Opcode::kMax:
      return finished<F>(extremum<F>(a, b, mod, true), mod);
    case Opcode::kNeg:
      return a ^ 0x8000u;
    case Opcode::kAbs:
      return a & 0x7fffu;
    case Opcode::kEx2:
      return approximate(std::exp2(F::read(a)));
    case Opcode::kTanh:
      return approximate(std::tanh(F::read(a)));
    default:
      return 0;
  }
}

template <typename F, bool kPacked>
void run(const AluArguments& x) {
  const Instruction& in = *x.instruction;
  const size_t sources = in.src.size();
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t a = get<uint32_t>(x.src[0], i);
    const uint32_t b = sources > 1 ? get<uint32_t>(x.src[1], i) : 0;
    const uint32_t c = sources > 2 ? get<uint32_t>(x.src[2], i) : 0;
    uint32_t result = compute<F>(in, a & 0xffffu, b & 0xffffu, c & 0xffffu);
    if (kPacked) result |= compute<F>(in, a >> 16, b >> 16, c >> 16) << 16;
    put<uint32_t>(x.dst[0], i, result);
  }
}

}  // namespace

AluFunction half_function(const Instruction& in) {
  switch (in.opcode) {
    case Opcode::kAdd:
    case Opcode::kSub:
    case Opcode::kMul:
    case Opcode::kFma:
    case Opcode::kMin:
    case Opcode::kMax:
    case Opcode::kNeg:
    case Opcode::kAbs:
    case Opcode::kEx2:
    case Opcode::kTanh:
      break;
    default:
      return nullptr;
  }
  switch (in.type) {
    case Type::kF16:
      return run<F16, false>;
    case Type::kF16x2:
      return run<F16, true>;
    case Type::kBF16:
      return run<BF16, false>;
    case Type::kBF16x2:
      return run<BF16, true>;
    default:
      return nullptr;
  }
}

}  // namespace ptxsim
