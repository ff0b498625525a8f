// setp, set and testp.
#include <cmath>

#include "lanes.h"

namespace ptxsim {
namespace {

struct F16Value {
  static float read(const void* slots, int lane) { return f16_to_float(get<uint32_t>(slots, lane) & 0xffffu); }
};
struct BF16Value {
  static float read(const void* slots, int lane) { return bf16_to_float(get<uint32_t>(slots, lane) & 0xffffu); }
};
template <typename T>
struct Value {
  static T read(const void* slots, int lane) { return get<T>(slots, lane); }
};

template <typename T>
inline T prepared(T value, bool) {
  return value;
}
template <>
inline float prepared(float value, bool ftz) {
  const uint32_t bits = bits_of(value);
  return ftz && (bits & 0x7f800000u) == 0 ? float_of(bits & 0x80000000u) : value;
}

template <Compare kCompare, typename T>
inline bool holds(T a, T b) {
  switch (kCompare) {
    case Compare::kEq:
      return a == b;
    case Compare::kNe:
      return a < b || a > b;  // false for NaN, unlike !=
    case Compare::kLt:
    case Compare::kLo:
      return a < b;
    case Compare::kLe:
    case Compare::kLs:
      return a <= b;
    case Compare::kGt:
    case Compare::kHi:
      return a > b;
    case Compare::kGe:
    case Compare::kHs:
      return a >= b;
    case Compare::kEqu:
      return !(a < b || a > b);
    case Compare::kNeu:
      return !(a == b);
    case Compare::kLtu:
      return !(a >= b);
    case Compare::kLeu:
      return !(a > b);
    case Compare::kGtu:
      return !(a <= b);
    case Compare::kGeu:
      return !(a < b);
    case Compare::kNum:
      return a == a && b == b;
    default:
      return a != a || b != b;
  }
}

template <typename Reader, Compare kCompare>
uint32_t compare_lanes(const AluArguments& x) {
  const bool ftz = x.instruction->mod.ftz;
  const void* a = x.src[0];
  const void* b = x.src[1];
  uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) {
    mask |= static_cast<uint32_t>(holds<kCompare>(prepared(Reader::read(a, i), ftz), prepared(Reader::read(b, i), ftz)))
            << i;
  }
  return mask;
}

uint32_t combined(const AluArguments& x, uint32_t mask) {
  switch (x.instruction->mod.combine) {
    case Combine::kAnd:
      return mask & predicate(x.src[2]);
    case Combine::kOr:
      return mask | predicate(x.src[2]);
    case Combine::kXor:
      return mask ^ predicate(x.src[2]);
    default:
      return mask;
  }
}

// setp p|q: q is the negated comparison, combined likewise.
template <typename Reader, Compare kCompare>
void setp(const AluArguments& x) {
  const uint32_t mask = compare_lanes<Reader, kCompare>(x);
  const uint32_t second = combined(x, ~mask);
  *static_cast<uint32_t*>(x.dst[0]) = combined(x, mask);
  if (x.dst[1] != nullptr) *static_cast<uint32_t*>(x.dst[1]) = second;
}

template <typename Reader, Compare kCompare>
void set(const AluArguments& x) {
  const uint32_t mask = combined(x, compare_lanes<Reader, kCompare>(x));
  const Type type = x.instruction->type;
  const uint32_t truth = type == Type::kF32    ? 0x3f800000u
                         : type == Type::kF16  ? 0x3c00u
                         : type == Type::kBF16 ? 0x3f80u
                                               : kFullMask;
  for (int i = 0; i < kLanes; ++i) put<uint32_t>(x.dst[0], i, lane_of(mask, i) ? truth : 0);
}

// set on packed halves gives one result a half: all ones or zeros (u32) or 1.0/0.0 in the type itself.
template <bool kBf16>
void set_packed(const AluArguments& x) {
  const Instruction& in = *x.instruction;
  const uint32_t truth = in.type == Type::kF16x2 ? 0x3c00u : in.type == Type::kBF16x2 ? 0x3f80u : 0xffffu;
  const auto test = [&](float a, float b) {
    const bool less = a < b;
    const bool more = a > b;
    const bool equal = a == b;
    const bool unordered = !less && !more && !equal;
    switch (in.mod.compare) {
      case Compare::kEq:
        return equal;
      case Compare::kNe:
        return less || more;
      case Compare::kLt:
        return less;
      case Compare::kLe:
        return less || equal;
      case Compare::kGt:
        return more;
      case Compare::kGe:
        return more || equal;
      case Compare::kEqu:
        return equal || unordered;
      case Compare::kNeu:
        return !equal;
      case Compare::kLtu:
        return less || unordered;
      case Compare::kLeu:
        return !more;
      case Compare::kGtu:
        return more || unordered;
      case Compare::kGeu:
        return !less;
      case Compare::kNum:
        return !unordered;
      default:
        return unordered;
    }
  };
  const auto value = [](uint32_t bits) { return kBf16 ? bf16_to_float(bits) : f16_to_float(bits); };
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t a = get<uint32_t>(x.src[0], i);
    const uint32_t b = get<uint32_t>(x.src[1], i);
    const uint32_t low = test(value(a & 0xffffu), value(b & 0xffffu)) ? truth : 0;
    const uint32_t high = test(value(a >> 16), value(b >> 16)) ? truth : 0;
    put<uint32_t>(x.dst[0], i, high << 16 | low);
  }
}

template <typename Reader, Compare kCompare>
AluFunction pick(Opcode opcode) {
  return opcode == Opcode::kSet ? set<Reader, kCompare> : setp<Reader, kCompare>;
}

template <typename Reader>
AluFunction with_compare(const Instruction& in, bool floating) {
  const Opcode o = in.opcode;
  switch (in.mod.compare) {
    case Compare::kEq:
      return pick<Reader, Compare::kEq>(o);
    case Compare::kNe:
      return pick<Reader, Compare::kNe>(o);
    case Compare::kLt:
    case Compare::kLo:
      return pick<Reader, Compare::kLt>(o);
    case Compare::kLe:
    case Compare::kLs:
      return pick<Reader, Compare::kLe>(o);
    case Compare::kGt:
    case Compare::kHi:
      return pick<Reader, Compare::kGt>(o);
    case Compare::kGe:
    case Compare::kHs:
      return pick<Reader, Compare::kGe>(o);
    default:
      break;
  }
  if (!floating) throw std::invalid_argument("this comparison needs a float type");
  switch (in.mod.compare) {
    case Compare::kEqu:
      return pick<Reader, Compare::kEqu>(o);
    case Compare::kNeu:
      return pick<Reader, Compare::kNeu>(o);
    case Compare::kLtu:
      return pick<Reader, Compare::kLtu>(o);
    case Compare::kLeu:
      return pick<Reader, Compare::kLeu>(o);
    case Compare::kGtu:
      return pick<Reader, Compare::kGtu>(o);
    case Compare::kGeu:
      return pick<Reader, Compare::kGeu>(o);
    case Compare::kNum:
      return pick<Reader, Compare::kNum>(o);
    default:
      return pick<Reader, Compare::kNan>(o);
  }
}

AluFunction by_type(const Instruction& in, Type type) {
  switch (type) {
    case Type::kB16:
    case Type::kU16:
      return with_compare<Value<uint16_t>>(in, false);
    case Type::kS16:
      return with_compare<Value<int16_t>>(in, false);
    case Type::kB32:
    case Type::kU32:
      return with_compare<Value<uint32_t>>(in, false);
    case Type::kS32:
      return with_compare<Value<int32_t>>(in, false);
    case Type::kB64:
    case Type::kU64:
      return with_compare<Value<uint64_t>>(in, false);
    case Type::kS64:
      return with_compare<Value<int64_t>>(in, false);
    case Type::kF32:
      return with_compare<Value<float>>(in, true);
    case Type::kF64:
      return with_compare<Value<double>>(in, true);
    case Type::kF16:
      return with_compare<F16Value>(in, true);
    case Type::kBF16:
      return with_compare<BF16Value>(in, true);
    default:
      throw std::invalid_argument("this type cannot be compared");
  }
}

template <typename T>
void testp(const AluArguments& x) {
  const FloatClass wanted = x.instruction->mod.float_class;
  uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) {
    const int kind = std::fpclassify(get<T>(x.src[0], i));
    bool result = false;
    switch (wanted) {
      case FloatClass::kFinite:
        result = kind != FP_NAN && kind != FP_INFINITE;
        break;
      case FloatClass::kInfinite:
        result = kind == FP_INFINITE;
        break;
      case FloatClass::kNumber:
        result = kind != FP_NAN;
        break;
      case FloatClass::kNotANumber:
        result = kind == FP_NAN;
        break;
      case FloatClass::kNormal:
        result = kind == FP_NORMAL;
        break;
      case FloatClass::kSubnormal:
        result = kind == FP_SUBNORMAL;
        break;
    }
    mask |= static_cast<uint32_t>(result) << i;
  }
  *static_cast<uint32_t*>(x.dst[0]) = mask;
}

}  // namespace

AluFunction compare_function(const Instruction& in) {
  switch (in.opcode) {
    case Opcode::kSetp:
      return by_type(in, in.type);
    case Opcode::kSet:
      if (in.source_type == Type::kF16x2) return set_packed<false>;
      if (in.source_type == Type::kBF16x2) return set_packed<true>;
      return by_type(in, in.source_type);
    case Opcode::kTestp:
      return in.type == Type::kF64 ? testp<double> : testp<float>;
    default:
      return nullptr;
  }
}

AluFunction alu_function(const Instruction& in) {
  for (const auto family :
       {integer_function, bit_function, float_function, half_function, convert_function, compare_function}) {
    if (const AluFunction function = family(in)) return function;
  }
  // The arithmetic opcodes come first in the enumeration.
  if (in.opcode <= Opcode::kXor) throw std::invalid_argument("this operation does not exist for its type");
  return nullptr;
}

}  // namespace ptxsim
