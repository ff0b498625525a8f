// cvt: between integers, floats and halves, with every rounding, saturation and relu.
#include <cmath>
#include <limits>

#include "lanes.h"

namespace ptxsim {
namespace {

float flushed(float value) { return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value; }

// A source value, exact.
double read_float(const AluArguments& x, Type type, size_t source, int lane) {
  switch (type) {
    case Type::kF16:
      return f16_to_float(get<uint32_t>(x.src[source], lane));
    case Type::kBF16:
      return bf16_to_float(get<uint32_t>(x.src[source], lane));
    case Type::kF64:
      return get<double>(x.src[source], lane);
    default: {
      const float value = get<float>(x.src[source], lane);
      return x.instruction->mod.ftz ? flushed(value) : value;
    }
  }
}

__int128 read_integer(const AluArguments& x, Type type, int lane) {
  switch (type) {
    case Type::kU8:
    case Type::kB8:
      return get<uint8_t>(x.src[0], lane);
    case Type::kS8:
      return get<int8_t>(x.src[0], lane);
    case Type::kU16:
    case Type::kB16:
      return get<uint16_t>(x.src[0], lane);
    case Type::kS16:
      return get<int16_t>(x.src[0], lane);
    case Type::kS32:
      return get<int32_t>(x.src[0], lane);
    case Type::kU64:
    case Type::kB64:
      return get<uint64_t>(x.src[0], lane);
    case Type::kS64:
      return get<int64_t>(x.src[0], lane);
    default:
      return get<uint32_t>(x.src[0], lane);
  }
}

__int128 clamped(__int128 value, Type type) {
  const int bits = 8 * size_of(type);
  const __int128 one = 1;
  const __int128 low = is_signed(type) ? -(one << (bits - 1)) : 0;
  const __int128 high = is_signed(type) ? (one << (bits - 1)) - 1 : (one << bits) - 1;
  return value < low ? low : value > high ? high : value;
}

// Writes an integer, sign-extended over a wider destination register (PTX fills the register).
void write_integer(const AluArguments& x, Type type, int lane, __int128 value) {
  const Operand& destination = x.instruction->dst[0];
  uint64_t bits = static_cast<uint64_t>(value);
  const int width = 8 * size_of(type);
  if (width < 64) {
    bits &= (uint64_t{1} << width) - 1;
    if (is_signed(type) && (bits >> (width - 1))) bits |= ~uint64_t{0} << width;
  }
  const int register_width = 8 * size_of(destination.register_type);
  if (register_width < 64) bits &= (uint64_t{1} << register_width) - 1;
  if (register_width == 64) {
    put<uint64_t>(x.dst[0], lane, bits);
  } else {
    put<uint32_t>(x.dst[0], lane, static_cast<uint32_t>(bits));
  }
}

double to_integral(double value, Rounding rounding) {
  switch (rounding) {
    case Rounding::kRni:
      return std::nearbyint(value);
    case Rounding::kRzi:
      return std::trunc(value);
    case Rounding::kRmi:
      return std::floor(value);
    case Rounding::kRpi:
      return std::ceil(value);
    default:
      return value;
  }
}

double limited(double value, const Modifiers& mod) {
  if (mod.sat) return value > 0 ? std::min(value, 1.0) : 0.0;
  if (mod.relu && value < 0) return 0.0;
  return value;
}

uint32_t write_half(double value, Type type, Rounding rounding) {
  return type == Type::kF16 || type == Type::kF16x2 ? f16_from(value, rounding) : bf16_from(value, rounding);
}

void write_float(const AluArguments& x, Type type, int lane, double value) {
  const Modifiers& mod = x.instruction->mod;
  const Rounding rounding = mod.rounding;
  value = limited(value, mod);
  switch (type) {
    case Type::kF16:
    case Type::kBF16:
      put<uint32_t>(x.dst[0], lane, write_half(value, type, rounding));
      break;
    case Type::kTF32:
      put<uint32_t>(x.dst[0], lane, round_to_format<10, 8>(value, rounding) << 13);
      break;
    case Type::kF64:
      put<double>(x.dst[0], lane, value);
      break;
    default: {
      const float result = float_of(round_to_format<23, 8>(value, rounding));
      put<float>(x.dst[0], lane, mod.ftz ? flushed(result) : result);
    }
  }
}

void float_to_float(const AluArguments& x) {
  const Instruction& in = *x.instruction;
  for (int i = 0; i < kLanes; ++i) {
    write_float(x, in.type, i, to_integral(read_float(x, in.source_type, 0, i), in.mod.rounding));
  }
}

void float_to_integer(const AluArguments& x) {
  const Instruction& in = *x.instruction;
  for (int i = 0; i < kLanes; ++i) {
    const double value = to_integral(read_float(x, in.source_type, 0, i), in.mod.rounding);
    __int128 integer = 0;  // NaN gives 0
    if (value >= 0x1p100) {
      integer = std::numeric_limits<__int128>::max();
    } else if (value <= -0x1p100) {
      integer = std::numeric_limits<__int128>::min();
    } else if (value == value) {
      integer = static_cast<__int128>(value);
    }
    write_integer(x, in.type, i, clamped(integer, in.type));
  }
}

// Rounds an integer of up to 64 bits to a double so that a later rounding to fewer bits is right (round to odd).
double odd_double(__int128 value) {
  auto result = static_cast<double>(value);
  const __int128 back = static_cast<__int128>(result);
  if (back == value || (bits_of(result) & 1)) return result;
  const bool grow = (value > back) == (result > 0);
  return double_of(bits_of(result) + (grow ? 1 : -1));
}

void integer_to_float(const AluArguments& x) {
  const Instruction& in = *x.instruction;
  const Rounding rounding = in.mod.rounding;
  for (int i = 0; i < kLanes; ++i) {
    const __int128 value = read_integer(x, in.source_type, i);
    double rounded = odd_double(value);
    if (in.type == Type::kF64) {
      rounded = static_cast<double>(value);
      const __int128 back = static_cast<__int128>(rounded);
      const bool down = rounding == Rounding::kRm || (rounding == Rounding::kRz && value > 0);
      const bool up = rounding == Rounding::kRp || (rounding == Rounding::kRz && value < 0);
      if (down && back > value) rounded = std::nextafter(rounded, -INFINITY);
      if (up && back < value) rounded = std::nextafter(rounded, INFINITY);
    }
    write_float(x, in.type, i, rounded);
  }
}

void integer_to_integer(const AluArguments& x) {
  const Instruction& in = *x.instruction;
  for (int i = 0; i < kLanes; ++i) {
    __int128 value = read_integer(x, in.source_type, i);
    if (in.mod.sat) value = clamped(value, in.type);
    write_integer(x, in.type, i, value);
  }
}

void pack(const AluArguments& x) {
  const Instruction& in = *x.instruction;
  for (int i = 0; i < kLanes; ++i) {
    const double high = limited(read_float(x, in.source_type, 0, i), in.mod);
    const double low = limited(read_float(x, in.source_type, 1, i), in.mod);
    put<uint32_t>(x.dst[0], i,
                  write_half(high, in.type, in.mod.rounding) << 16 | write_half(low, in.type, in.mod.rounding));
  }
}

// ---- The conversions of hot loops

void pack_bf16(const AluArguments& x) {
  map2<uint32_t, float, float>(
      x, [](float high, float low) { return bf16_from_float(high) << 16 | bf16_from_float(low); });
}
void f32_to_bf16(const AluArguments& x) { map1<uint32_t, float>(x, bf16_from_float); }
void bf16_to_f32(const AluArguments& x) { map1<float, uint32_t>(x, bf16_to_float); }
void f16_to_f32(const AluArguments& x) { map1<float, uint32_t>(x, f16_to_float); }
template <typename From, typename To>
void widen(const AluArguments& x) {
  map1<To, From>(x, [](From a) { return static_cast<To>(a); });
}

AluFunction fast_function(const Instruction& in) {
  const Modifiers& mod = in.mod;
  const bool plain = !mod.sat && !mod.relu && !mod.ftz;
  const bool nearest = mod.rounding == Rounding::kRn;
  const auto is = [&](Type to, Type from) { return plain && in.type == to && in.source_type == from; };
  const bool same_width = size_of(in.dst[0].register_type) == size_of(in.type);
  if (in.opcode == Opcode::kCvtPack) return is(Type::kBF16x2, Type::kF32) && nearest ? pack_bf16 : nullptr;
  if (is(Type::kBF16, Type::kF32) && nearest) return f32_to_bf16;
  if (is(Type::kF32, Type::kBF16)) return bf16_to_f32;
  if (is(Type::kF32, Type::kF16)) return f16_to_f32;
  if (is(Type::kF32, Type::kS32) && nearest) return widen<int32_t, float>;
  if (!same_width) return nullptr;
  if (is(Type::kS64, Type::kS32)) return widen<int32_t, int64_t>;
  if (is(Type::kU64, Type::kU32)) return widen<uint32_t, uint64_t>;
  if (is(Type::kU32, Type::kU64)) return widen<uint64_t, uint32_t>;
  return nullptr;
}

}  // namespace

AluFunction convert_function(const Instruction& in) {
  if (in.opcode != Opcode::kCvt && in.opcode != Opcode::kCvtPack) return nullptr;
  const bool from_float = is_float(in.source_type);
  const bool to_float = is_float(in.type);
  const Rounding r = in.mod.rounding;
  const bool integral = r == Rounding::kRni || r == Rounding::kRzi || r == Rounding::kRmi || r == Rounding::kRpi;
  if (in.opcode == Opcode::kCvtPack) {
    if (in.source_type != Type::kF32) throw std::invalid_argument("a packed conversion takes two .f32");
    if (r == Rounding::kNone) throw std::invalid_argument("a rounding is missing");
  } else if (from_float && !to_float && !integral) {
    throw std::invalid_argument("float to integer needs .rni, .rzi, .rmi or .rpi");
  } else if (!from_float && to_float && (r == Rounding::kNone || integral)) {
    throw std::invalid_argument("integer to float needs .rn, .rz, .rm or .rp");
  } else if (from_float && to_float && r == Rounding::kNone && size_of(in.type) < size_of(in.source_type)) {
    throw std::invalid_argument("a narrowing conversion needs a rounding");
  }
  if (const AluFunction fast = fast_function(in)) return fast;
  if (in.opcode == Opcode::kCvtPack) return pack;
  if (from_float) return to_float ? float_to_float : float_to_integer;
  return to_float ? integer_to_float : integer_to_integer;
}

}  // namespace ptxsim
