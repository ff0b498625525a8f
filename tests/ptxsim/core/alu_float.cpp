// f32 and f64 arithmetic. Every f32 NaN result is PTX's canonical NaN; `.ftz` flushes subnormal inputs and results.
//
// Compiled without contraction and with -frounding-math: a product and a sum stay two roundings, and the directed
// roundings switch the processor's mode around a whole vector.
#include <cfenv>
#include <cmath>

#include "lanes.h"

namespace ptxsim {
namespace {

inline float flushed(float value) {
  const uint32_t bits = bits_of(value);
  return float_of((bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits);
}
inline double flushed(double value) { return value; }

inline float canonical(float value) { return value != value ? float_of(kNanF32) : value; }
inline double canonical(double value) { return value != value ? double_of(kNanF64) : value; }

template <typename T>
inline T saturated(T value) {
  // NaN fails both comparisons of the first test and becomes 0.
  return value > T{0} ? (value < T{1} ? value : T{1}) : T{0};
}

template <typename T, bool kFtz>
inline T input(T value) {
  return kFtz ? flushed(value) : value;
}

template <typename T, bool kFtz, bool kSat>
inline T output(T value) {
  value = canonical(value);
  if (kFtz) value = flushed(value);
  return kSat ? saturated(value) : value;
}

struct Add {
  template <typename T>
  static T apply(T a, T b) {
    return a + b;
  }
};
struct Sub {
  template <typename T>
  static T apply(T a, T b) {
    return a - b;
  }
};
struct Mul {
  template <typename T>
  static T apply(T a, T b) {
    return a * b;
  }
};
struct Div {
  template <typename T>
  static T apply(T a, T b) {
    return a / b;
  }
};
struct Fma {
  template <typename T>
  static T apply(T a, T b, T c) {
    return std::fma(a, b, c);
  }
};
struct Copysign {
  // The result has the magnitude of b and the sign of a.
  template <typename T>
  static T apply(T a, T b) {
    return std::copysign(b, a);
  }
};
struct Rcp {
  template <typename T>
  static T apply(T a) {
    return T{1} / a;
  }
};
struct Sqrt {
  template <typename T>
  static T apply(T a) {
    return std::sqrt(a);
  }
};
struct Rsqrt {
  template <typename T>
  static T apply(T a) {
    return T{1} / std::sqrt(a);
  }
};
struct Ex2 {
  template <typename T>
  static T apply(T a) {
    return std::exp2(a);
  }
};
struct Lg2 {
  template <typename T>
  static T apply(T a) {
    return std::log2(a);
  }
};
struct Sin {
  template <typename T>
  static T apply(T a) {
    return std::sin(a);
  }
};
struct Cos {
  template <typename T>
  static T apply(T a) {
    return std::cos(a);
  }
};
struct Tanh {
  template <typename T>
  static T apply(T a) {
    return std::tanh(a);
  }
};

template <typename T, typename Op, bool kFtz, bool kSat>
void unary(const AluArguments& x) {
  map1<T, T>(x, [](T a) { return output<T, kFtz, kSat>(Op::apply(input<T, kFtz>(a))); });
}
template <typename T, typename Op, bool kFtz, bool kSat>
void binary(const AluArguments& x) {
  map2<T, T, T>(x, [](T a, T b) { return output<T, kFtz, kSat>(Op::apply(input<T, kFtz>(a), input<T, kFtz>(b))); });
}
template <typename T, typename Op, bool kFtz, bool kSat>
void ternary(const AluArguments& x) {
  map3<T, T, T, T>(x, [](T a, T b, T c) {
    return output<T, kFtz, kSat>(Op::apply(input<T, kFtz>(a), input<T, kFtz>(b), input<T, kFtz>(c)));
  });
}

// Runs `kFunction` with the processor's rounding mode set to the instruction's.
template <AluFunction kFunction>
void rounded(const AluArguments& x) {
  const Rounding rounding = x.instruction->mod.rounding;
  std::fesetround(rounding == Rounding::kRz ? FE_TOWARDZERO : rounding == Rounding::kRm ? FE_DOWNWARD : FE_UPWARD);
  kFunction(x);
  std::fesetround(FE_TONEAREST);
}

template <AluFunction kFunction>
AluFunction with_rounding(const Instruction& in) {
  const Rounding r = in.mod.rounding;
  return r == Rounding::kNone || r == Rounding::kRn ? kFunction : rounded<kFunction>;
}

template <typename T, typename Op, template <typename, typename, bool, bool> class Shape>
AluFunction pick(const Instruction& in) {
  if (in.mod.ftz) {
    return in.mod.sat ? with_rounding<Shape<T, Op, true, true>::run>(in)
                      : with_rounding<Shape<T, Op, true, false>::run>(in);
  }
  return in.mod.sat ? with_rounding<Shape<T, Op, false, true>::run>(in)
                    : with_rounding<Shape<T, Op, false, false>::run>(in);
}

template <typename T, typename Op, bool kFtz, bool kSat>
struct Unary {
  static void run(const AluArguments& x) { unary<T, Op, kFtz, kSat>(x); }
};
template <typename T, typename Op, bool kFtz, bool kSat>
struct Binary {
  static void run(const AluArguments& x) { binary<T, Op, kFtz, kSat>(x); }
};
template <typename T, typename Op, bool kFtz, bool kSat>
struct Ternary {
  static void run(const AluArguments& x) { ternary<T, Op, kFtz, kSat>(x); }
};

// A NaN loses against a number unless `.NaN` is given; -0 is less than +0.
template <typename T, bool kMax>
void extremum(const AluArguments& x) {
  const Modifiers& mod = x.instruction->mod;
  map2<T, T, T>(x, [&mod](T a, T b) {
    if (mod.ftz) {
      a = flushed(a);
      b = flushed(b);
    }
    const bool negative = std::signbit(a) != std::signbit(b);
    if (mod.xorsign_abs) {
      a = std::fabs(a);
      b = std::fabs(b);
    }
    T result;
    if (a != a || b != b) {
      result = mod.nan || (a != a && b != b) ? canonical(a + b) : a != a ? b : a;
    } else if (a == b) {
      result = std::signbit(a) == kMax ? b : a;
    } else {
      result = (a < b) == kMax ? b : a;
    }
    if (mod.xorsign_abs && result == result) result = std::copysign(result, negative ? T{-1} : T{1});
    return result;
  });
}

// The common max.f32/min.f32, without branches.
template <bool kMax>
void plain_extremum(const AluArguments& x) {
  map2<float, float, float>(x, [](float a, float b) {
    const bool zeros = a == b;
    const uint32_t bits = kMax ? bits_of(a) & bits_of(b) : bits_of(a) | bits_of(b);
    const float number = zeros ? float_of(bits) : ((a < b) == kMax ? b : a);
    const float one_nan = a != a ? b : number;
    return canonical(b != b ? a : one_nan);
  });
}

template <typename T>
void negated(const AluArguments& x) {
  const bool ftz = x.instruction->mod.ftz;
  map1<T, T>(x, [ftz](T a) { return -(ftz ? flushed(a) : a); });
}
template <typename T>
void absolute(const AluArguments& x) {
  const bool ftz = x.instruction->mod.ftz;
  map1<T, T>(x, [ftz](T a) { return std::fabs(ftz ? flushed(a) : a); });
}

template <typename T>
AluFunction pick_extremum(const Instruction& in) {
  const bool max = in.opcode == Opcode::kMax;
  if (std::is_same_v<T, float> && !in.mod.ftz && !in.mod.nan && !in.mod.xorsign_abs) {
    return max ? plain_extremum<true> : plain_extremum<false>;
  }
  return max ? extremum<T, true> : extremum<T, false>;
}

void check_rounding(const Instruction& in) {
  const bool needs =
      in.opcode == Opcode::kFma || in.opcode == Opcode::kDiv || in.opcode == Opcode::kRcp || in.opcode == Opcode::kSqrt;
  if (needs && in.mod.rounding == Rounding::kNone && !in.mod.approx && !in.mod.full_range) {
    throw std::invalid_argument("a rounding (or .approx) is missing");
  }
}

template <typename T>
AluFunction function(const Instruction& in) {
  check_rounding(in);
  switch (in.opcode) {
    case Opcode::kAdd:
      return pick<T, Add, Binary>(in);
    case Opcode::kSub:
      return pick<T, Sub, Binary>(in);
    case Opcode::kMul:
      return pick<T, Mul, Binary>(in);
    case Opcode::kDiv:
      return pick<T, Div, Binary>(in);
    case Opcode::kFma:
      return pick<T, Fma, Ternary>(in);
    case Opcode::kCopysign:
      return pick<T, Copysign, Binary>(in);
    case Opcode::kRcp:
      return pick<T, Rcp, Unary>(in);
    case Opcode::kSqrt:
      return pick<T, Sqrt, Unary>(in);
    case Opcode::kRsqrt:
      return pick<T, Rsqrt, Unary>(in);
    case Opcode::kEx2:
      return pick<T, Ex2, Unary>(in);
    case Opcode::kLg2:
      return pick<T, Lg2, Unary>(in);
    case Opcode::kSin:
      return pick<T, Sin, Unary>(in);
    case Opcode::kCos:
      return pick<T, Cos, Unary>(in);
    case Opcode::kTanh:
      return pick<T, Tanh, Unary>(in);
    case Opcode::kMin:
    case Opcode::kMax:
      return pick_extremum<T>(in);
    case Opcode::kNeg:
      return negated<T>;
    case Opcode::kAbs:
      return absolute<T>;
    default:
      return nullptr;
  }
}

}  // namespace

AluFunction float_function(const Instruction& in) {
  if (in.opcode == Opcode::kCvt || in.opcode == Opcode::kCvtPack) return nullptr;
  if (in.type == Type::kF32) return function<float>(in);
  if (in.type == Type::kF64) return function<double>(in);
  return nullptr;
}

}  // namespace ptxsim
