// Integer arithmetic: sums and differences with carry, products, quotients, comparisons to a result, dot products.
#include <limits>

#include "lanes.h"

namespace ptxsim {
namespace {

template <typename T>
using Double =
    std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
                       std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                                          std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>>>;

template <typename T>
T quotient(T a, T b) {
  if (b == 0) return static_cast<T>(-1);  // what the hardware returns; PTX leaves it open
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return static_cast<T>(-a);
  }
  return static_cast<T>(a / b);
}

template <typename T>
T remainder(T a, T b) {
  if (b == 0) return a;
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return 0;
  }
  return static_cast<T>(a % b);
}

template <typename T>
struct Add {
  static void run(const AluArguments& x) {
    map2<T, T, T>(x, [](T a, T b) { return static_cast<T>(a + b); });
  }
};
template <typename T>
struct Sub {
  static void run(const AluArguments& x) {
    map2<T, T, T>(x, [](T a, T b) { return static_cast<T>(a - b); });
  }
};
template <typename T>
struct MulLo {
  static void run(const AluArguments& x) {
    map2<T, T, T>(x, [](T a, T b) { return static_cast<T>(static_cast<Double<T>>(a) * b); });
  }
};
template <typename T>
struct MulHi {
  static void run(const AluArguments& x) {
    map2<T, T, T>(x, [](T a, T b) { return static_cast<T>((static_cast<Double<T>>(a) * b) >> (8 * sizeof(T))); });
  }
};
template <typename T>
struct MadLo {
  static void run(const AluArguments& x) {
    map3<T, T, T, T>(x, [](T a, T b, T c) { return static_cast<T>(static_cast<Double<T>>(a) * b + c); });
  }
};
template <typename T>
struct MadHi {
  static void run(const AluArguments& x) {
    map3<T, T, T, T>(
        x, [](T a, T b, T c) { return static_cast<T>(((static_cast<Double<T>>(a) * b) >> (8 * sizeof(T))) + c); });
  }
};
template <typename T>
struct Div {
  static void run(const AluArguments& x) { map2<T, T, T>(x, quotient<T>); }
};
template <typename T>
struct Rem {
  static void run(const AluArguments& x) { map2<T, T, T>(x, remainder<T>); }
};
template <typename T>
struct Min {
  static void run(const AluArguments& x) {
    map2<T, T, T>(x, [](T a, T b) { return a < b ? a : b; });
  }
};
template <typename T>
struct Max {
  static void run(const AluArguments& x) {
    map2<T, T, T>(x, [](T a, T b) { return a > b ? a : b; });
  }
};
template <typename T>
struct Sad {
  static void run(const AluArguments& x) {
    map3<T, T, T, T>(x, [](T a, T b, T c) { return static_cast<T>(c + (a > b ? a - b : b - a)); });
  }
};
template <typename T>
struct Abs {
  static void run(const AluArguments& x) {
    map1<T, T>(x, [](T a) { return static_cast<T>(a < 0 ? -a : a); });
  }
};
template <typename T>
struct Neg {
  static void run(const AluArguments& x) {
    map1<T, T>(x, [](T a) { return static_cast<T>(-a); });
  }
};

template <template <typename> class Op>
AluFunction pick(Type type) {
  switch (type) {
    case Type::kU16:
      return Op<uint16_t>::run;
    case Type::kS16:
      return Op<int16_t>::run;
    case Type::kU32:
      return Op<uint32_t>::run;
    case Type::kS32:
      return Op<int32_t>::run;
    case Type::kU64:
      return Op<uint64_t>::run;
    case Type::kS64:
      return Op<int64_t>::run;
    default:
      throw std::invalid_argument("this integer operation does not exist for its type");
  }
}

// The product is twice as wide as its factors; mad.wide adds a value of that width.
template <typename T, bool kAdd>
void wide(const AluArguments& x) {
  using W = Double<T>;
  if constexpr (kAdd) {
    map3<W, T, T, W>(x, [](T a, T b, W c) { return static_cast<W>(static_cast<W>(a) * static_cast<W>(b) + c); });
  } else {
    map2<W, T, T>(x, [](T a, T b) { return static_cast<W>(static_cast<W>(a) * static_cast<W>(b)); });
  }
}

template <bool kAdd>
AluFunction pick_wide(Type type) {
  switch (type) {
    case Type::kU16:
      return wide<uint16_t, kAdd>;
    case Type::kS16:
      return wide<int16_t, kAdd>;
    case Type::kU32:
      return wide<uint32_t, kAdd>;
    case Type::kS32:
      return wide<int32_t, kAdd>;
    default:
      throw std::invalid_argument("`.wide` needs a 16- or 32-bit integer type");
  }
}

// add/sub with condition code: kIn reads the carry (borrow), kOut writes it.
template <typename T, bool kSubtract, bool kIn, bool kOut>
void carry_sum(const AluArguments& x) {
  const uint32_t before = *x.carry;
  uint32_t after = 0;
  for (int i = 0; i < kLanes; ++i) {
    const auto a = static_cast<unsigned __int128>(get<T>(x.src[0], i));
    const auto b = static_cast<unsigned __int128>(get<T>(x.src[1], i));
    const unsigned in = kIn ? lane_of(before, i) : 0;
    const unsigned __int128 sum = kSubtract ? a - b - in : a + b + in;
    put<T>(x.dst[0], i, static_cast<T>(sum));
    after |= static_cast<uint32_t>((sum >> (8 * sizeof(T))) & 1) << i;
  }
  if (kOut) *x.carry = after;
}

template <typename T>
AluFunction pick_carry(const Instruction& in) {
  const bool out = in.mod.carry_out;
  switch (in.opcode) {
    case Opcode::kAdd:
      return carry_sum<T, false, false, true>;
    case Opcode::kSub:
      return carry_sum<T, true, false, true>;
    case Opcode::kAddc:
      return out ? carry_sum<T, false, true, true> : carry_sum<T, false, true, false>;
    default:
      return out ? carry_sum<T, true, true, true> : carry_sum<T, true, true, false>;
  }
}

// mad.cc and madc: the low or high half of the product plus c plus the carry.
template <typename T, bool kIn>
void carry_product(const AluArguments& x) {
  using U = std::make_unsigned_t<T>;
  const bool high = x.instruction->mod.part == Part::kHi;
  const uint32_t before = *x.carry;
  uint32_t after = 0;
  for (int i = 0; i < kLanes; ++i) {
    const Double<T> product = static_cast<Double<T>>(get<T>(x.src[0], i)) * get<T>(x.src[1], i);
    const U half = static_cast<U>(high ? product >> (8 * sizeof(T)) : product);
    const unsigned __int128 sum =
        static_cast<unsigned __int128>(half) + get<U>(x.src[2], i) + (kIn ? lane_of(before, i) : 0);
    put<U>(x.dst[0], i, static_cast<U>(sum));
    after |= static_cast<uint32_t>((sum >> (8 * sizeof(T))) & 1) << i;
  }
  if (x.instruction->mod.carry_out) *x.carry = after;
}

template <bool kIn>
AluFunction pick_carry_product(Type type) {
  switch (type) {
    case Type::kU32:
      return carry_product<uint32_t, kIn>;
    case Type::kS32:
      return carry_product<int32_t, kIn>;
    case Type::kU64:
      return carry_product<uint64_t, kIn>;
    case Type::kS64:
      return carry_product<int64_t, kIn>;
    default:
      throw std::invalid_argument("expected a 32- or 64-bit integer type");
  }
}

int32_t saturated(int64_t value) {
  return static_cast<int32_t>(std::min<int64_t>(std::max<int64_t>(value, INT32_MIN), INT32_MAX));
}

void add_sat(const AluArguments& x) {
  map2<int32_t, int32_t, int32_t>(x, [](int32_t a, int32_t b) { return saturated(int64_t{a} + b); });
}

void sub_sat(const AluArguments& x) {
  map2<int32_t, int32_t, int32_t>(x, [](int32_t a, int32_t b) { return saturated(int64_t{a} - b); });
}

void mad_hi_sat(const AluArguments& x) {
  map3<int32_t, int32_t, int32_t, int32_t>(
      x, [](int32_t a, int32_t b, int32_t c) { return saturated(((int64_t{a} * b) >> 32) + c); });
}

// mul24/mad24: the 48-bit product of 24-bit factors, low or high 32 bits.
template <bool kSigned, bool kAdd>
void product24(const AluArguments& x) {
  const int shift = x.instruction->mod.part == Part::kHi ? 16 : 0;
  for (int i = 0; i < kLanes; ++i) {
    const auto a = get<uint32_t>(x.src[0], i) << 8;
    const auto b = get<uint32_t>(x.src[1], i) << 8;
    const int64_t product = kSigned ? int64_t{static_cast<int32_t>(a) >> 8} * (static_cast<int32_t>(b) >> 8)
                                    : static_cast<int64_t>(uint64_t{a >> 8} * (b >> 8));
    const auto part = static_cast<uint32_t>(product >> shift);
    put<uint32_t>(x.dst[0], i, part + (kAdd ? get<uint32_t>(x.src[2], i) : 0));
  }
}

template <bool kAdd>
AluFunction pick24(const Instruction& in) {
  if (in.type == Type::kS32) return product24<true, kAdd>;
  if (in.type == Type::kU32) return product24<false, kAdd>;
  throw std::invalid_argument("expected a 32-bit integer type");
}

int64_t byte_of(uint32_t word, int index, bool is_signed_byte) {
  const uint32_t byte = word >> (8 * index);
  return is_signed_byte ? static_cast<int8_t>(byte) : static_cast<uint8_t>(byte);
}

void dp4a(const AluArguments& x) {
  const bool sa = is_signed(x.instruction->type);
  const bool sb = is_signed(x.instruction->source_type);
  for (int i = 0; i < kLanes; ++i) {
    int64_t sum = get<uint32_t>(x.src[2], i);
    for (int j = 0; j < 4; ++j)
      sum += byte_of(get<uint32_t>(x.src[0], i), j, sa) * byte_of(get<uint32_t>(x.src[1], i), j, sb);
    put<uint32_t>(x.dst[0], i, static_cast<uint32_t>(sum));
  }
}

void dp2a(const AluArguments& x) {
  const bool sa = is_signed(x.instruction->type);
  const bool sb = is_signed(x.instruction->source_type);
  const int first = x.instruction->mod.part == Part::kHi ? 2 : 0;
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t a = get<uint32_t>(x.src[0], i);
    int64_t sum = get<uint32_t>(x.src[2], i);
    for (int j = 0; j < 2; ++j) {
      const int64_t half =
          sa ? int64_t{static_cast<int16_t>(a >> (16 * j))} : int64_t{static_cast<uint16_t>(a >> (16 * j))};
      sum += half * byte_of(get<uint32_t>(x.src[1], i), first + j, sb);
    }
    put<uint32_t>(x.dst[0], i, static_cast<uint32_t>(sum));
  }
}

AluFunction pick_sum(const Instruction& in) {
  const bool add = in.opcode == Opcode::kAdd;
  if (in.mod.carry_out) return size_of(in.type) == 8 ? pick_carry<uint64_t>(in) : pick_carry<uint32_t>(in);
  if (in.mod.sat) {
    if (in.type != Type::kS32) throw std::invalid_argument("`.sat` needs .s32");
    return add ? add_sat : sub_sat;
  }
  return add ? pick<Add>(in.type) : pick<Sub>(in.type);
}

AluFunction pick_product(const Instruction& in) {
  const bool mad = in.opcode == Opcode::kMad;
  if (mad && in.mod.carry_out) return pick_carry_product<false>(in.type);
  if (in.mod.sat) {
    if (!mad || in.mod.part != Part::kHi || in.type != Type::kS32)
      throw std::invalid_argument("`.sat` needs mad.hi.s32");
    return mad_hi_sat;
  }
  if (in.mod.part == Part::kWide) return mad ? pick_wide<true>(in.type) : pick_wide<false>(in.type);
  if (in.mod.part == Part::kHi) return mad ? pick<MadHi>(in.type) : pick<MulHi>(in.type);
  return mad ? pick<MadLo>(in.type) : pick<MulLo>(in.type);
}

}  // namespace

AluFunction integer_function(const Instruction& in) {
  if (is_float(in.type) || in.type == Type::kPred) return nullptr;
  switch (in.opcode) {
    case Opcode::kAdd:
    case Opcode::kSub:
      return pick_sum(in);
    case Opcode::kAddc:
    case Opcode::kSubc:
      return size_of(in.type) == 8 ? pick_carry<uint64_t>(in) : pick_carry<uint32_t>(in);
    case Opcode::kMul:
    case Opcode::kMad:
      return pick_product(in);
    case Opcode::kMadc:
      return pick_carry_product<true>(in.type);
    case Opcode::kMul24:
      return pick24<false>(in);
    case Opcode::kMad24:
      return pick24<true>(in);
    case Opcode::kDiv:
      return pick<Div>(in.type);
    case Opcode::kRem:
      return pick<Rem>(in.type);
    case Opcode::kMin:
      return pick<Min>(in.type);
    case Opcode::kMax:
      return pick<Max>(in.type);
    case Opcode::kSad:
      return pick<Sad>(in.type);
    case Opcode::kAbs:
      return pick<Abs>(in.type);
    case Opcode::kNeg:
      return pick<Neg>(in.type);
    case Opcode::kDp4a:
      return dp4a;
    case Opcode::kDp2a:
      return dp2a;
    default:
      return nullptr;
  }
}

}  // namespace ptxsim
