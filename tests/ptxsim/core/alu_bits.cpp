// Moves, logic, shifts, bit fields and byte permutations.
#include <algorithm>

#include "lanes.h"

namespace ptxsim {
namespace {

template <typename T>
struct Mov {
  static void run(const AluArguments& x) {
    map1<T, T>(x, [](T a) { return a; });
  }
};
template <typename T>
struct And {
  static void run(const AluArguments& x) {
    map2<T, T, T>(x, [](T a, T b) { return static_cast<T>(a & b); });
  }
};
template <typename T>
struct Or {
  static void run(const AluArguments& x) {
    map2<T, T, T>(x, [](T a, T b) { return static_cast<T>(a | b); });
  }
};
template <typename T>
struct Xor {
  static void run(const AluArguments& x) {
    map2<T, T, T>(x, [](T a, T b) { return static_cast<T>(a ^ b); });
  }
};
template <typename T>
struct Not {
  static void run(const AluArguments& x) {
    map1<T, T>(x, [](T a) { return static_cast<T>(~a); });
  }
};
template <typename T>
struct Cnot {
  static void run(const AluArguments& x) {
    map1<T, T>(x, [](T a) { return static_cast<T>(a == 0); });
  }
};
template <typename T>
struct Selp {
  static void run(const AluArguments& x) {
    const uint32_t mask = predicate(x.src[2]);
    void* d = x.dst[0];
    const void* a = x.src[0];
    const void* b = x.src[1];
#pragma GCC ivdep
    for (int i = 0; i < kLanes; ++i) put<T>(d, i, lane_of(mask, i) ? get<T>(a, i) : get<T>(b, i));
  }
};
// Shifts by at least the width give 0, or the sign of a signed value.
template <typename T>
struct Shl {
  static void run(const AluArguments& x) {
    constexpr uint32_t kBits = 8 * sizeof(T);
    map2<T, T, uint32_t>(x, [](T a, uint32_t n) {
      return n < kBits ? static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << n) : T{0};
    });
  }
};
template <typename T>
struct Shr {
  static void run(const AluArguments& x) {
    constexpr uint32_t kBits = 8 * sizeof(T);
    map2<T, T, uint32_t>(x, [](T a, uint32_t n) {
      if constexpr (std::is_signed_v<T>) {
        return static_cast<T>(a >> std::min(n, kBits - 1));
      } else {
        return n < kBits ? static_cast<T>(a >> n) : T{0};
      }
    });
  }
};
template <typename T>
struct Bfe {
  static void run(const AluArguments& x) {
    constexpr uint32_t kBits = 8 * sizeof(T);
    map3<T, T, uint32_t, uint32_t>(x, [](T a, uint32_t start, uint32_t size) {
      using U = std::make_unsigned_t<T>;
      const uint32_t position = start & 0xffu;
      const uint32_t length = size & 0xffu;
      const bool fill = std::is_signed_v<T> && length != 0 &&
                        ((static_cast<U>(a) >> std::min(position + length - 1, kBits - 1)) & 1u);
      U result = position < kBits ? static_cast<U>(a) >> position : 0;
      if (length < kBits) result &= (U{1} << length) - 1;
      // Bits beyond the field, or beyond the value, repeat the sign.
      const uint32_t valid = position < kBits ? std::min(length, kBits - position) : 0;
      if (fill && valid < kBits) result |= ~U{0} << valid;
      return static_cast<T>(result);
    });
  }
};
template <typename T>
struct Bfi {
  static void run(const AluArguments& x) {
    using U = std::make_unsigned_t<T>;
    constexpr uint32_t kBits = 8 * sizeof(T);
    for (int i = 0; i < kLanes; ++i) {
      const uint32_t position = get<uint32_t>(x.src[2], i) & 0xffu;
      const uint32_t length = get<uint32_t>(x.src[3], i) & 0xffu;
      const U b = get<U>(x.src[1], i);
      U mask = length >= kBits ? ~U{0} : (U{1} << length) - 1;
      mask = position >= kBits ? 0 : mask << position;
      const U inserted = position >= kBits ? 0 : get<U>(x.src[0], i) << position;
      put<U>(x.dst[0], i, (b & ~mask) | (inserted & mask));
    }
  }
};
template <typename T>
struct Popc {
  static void run(const AluArguments& x) {
    map1<uint32_t, T>(
        x, [](T a) { return static_cast<uint32_t>(__builtin_popcountll(static_cast<std::make_unsigned_t<T>>(a))); });
  }
};
template <typename T>
uint32_t leading_zeros(T a) {
  if (a == 0) return 8 * sizeof(T);
  return static_cast<uint32_t>(__builtin_clzll(a)) - (64 - 8 * sizeof(T));
}
template <typename T>
struct Clz {
  static void run(const AluArguments& x) {
    using U = std::make_unsigned_t<T>;
    map1<uint32_t, U>(x, leading_zeros<U>);
  }
};
template <typename T>
struct Bfind {
  static void run(const AluArguments& x) {
    using U = std::make_unsigned_t<T>;
    const bool shift_amount = x.instruction->mod.shift_amount;
    map1<uint32_t, T>(x, [shift_amount](T a) {
      U value = static_cast<U>(a);
      if (std::is_signed_v<T> && a < 0) value = ~value;
      if (value == 0) return 0xffffffffu;
      const uint32_t zeros = leading_zeros<U>(value);
      return shift_amount ? zeros : static_cast<uint32_t>(8 * sizeof(T)) - 1 - zeros;
    });
  }
};
template <typename T>
struct Brev {
  static void run(const AluArguments& x) {
    using U = std::make_unsigned_t<T>;
    map1<U, U>(x, [](U a) {
      U result = 0;
      for (unsigned bit = 0; bit < 8 * sizeof(T); ++bit) {
        result = static_cast<U>(result << 1) | static_cast<U>((a >> bit) & 1u);
      }
      return result;
    });
  }
};

// Operations on untyped bits; signed types matter to shifts, bfe and bfind.
template <template <typename> class Op>
AluFunction pick(Type type, bool sixteen = true) {
  if (size_of(type) == 8) return is_signed(type) ? Op<int64_t>::run : Op<uint64_t>::run;
  if (size_of(type) == 4) return is_signed(type) ? Op<int32_t>::run : Op<uint32_t>::run;
  if (size_of(type) == 2 && sixteen) return is_signed(type) ? Op<int16_t>::run : Op<uint16_t>::run;
  throw std::invalid_argument("this operation does not exist for its type");
}

template <int kOperation>
void predicate_logic(const AluArguments& x) {
  const uint32_t a = predicate(x.src[0]);
  auto* d = static_cast<uint32_t*>(x.dst[0]);
  if constexpr (kOperation == 0) *d = a & predicate(x.src[1]);
  if constexpr (kOperation == 1) *d = a | predicate(x.src[1]);
  if constexpr (kOperation == 2) *d = a ^ predicate(x.src[1]);
  if constexpr (kOperation == 3) *d = ~a;
  if constexpr (kOperation == 4) *d = a;
}

void mov_pack(const AluArguments& x) {
  const Instruction& in = *x.instruction;
  const size_t parts = in.src.size();
  const unsigned bits = static_cast<unsigned>(8 * size_of(in.type)) / static_cast<unsigned>(parts);
  for (int i = 0; i < kLanes; ++i) {
    uint64_t value = 0;
    for (size_t p = 0; p < parts; ++p) {
      const uint64_t part = get<uint32_t>(x.src[p], i);
      value |= (bits == 32 ? part : part & ((uint64_t{1} << bits) - 1)) << (bits * p);
    }
    if (size_of(in.type) == 8) {
      put<uint64_t>(x.dst[0], i, value);
    } else {
      put<uint32_t>(x.dst[0], i, static_cast<uint32_t>(value));
    }
  }
}

void mov_unpack(const AluArguments& x) {
  const Instruction& in = *x.instruction;
  const size_t parts = in.dst.size();
  const unsigned bits = static_cast<unsigned>(8 * size_of(in.type)) / static_cast<unsigned>(parts);
  for (int i = 0; i < kLanes; ++i) {
    const uint64_t value = size_of(in.type) == 8 ? get<uint64_t>(x.src[0], i) : get<uint32_t>(x.src[0], i);
    for (size_t p = 0; p < parts; ++p) {
      if (x.dst[p] == nullptr) continue;
      const uint64_t part = value >> (bits * p);
      put<uint32_t>(x.dst[p], i, static_cast<uint32_t>(bits == 32 ? part : part & ((uint64_t{1} << bits) - 1)));
    }
  }
}

template <bool kWrap, bool kLeft>
void funnel_shift(const AluArguments& x) {
  map3<uint32_t, uint32_t, uint32_t, uint32_t>(x, [](uint32_t low, uint32_t high, uint32_t shift) {
    const uint32_t n = kWrap ? shift & 31u : std::min(shift, 32u);
    const uint64_t value = uint64_t{high} << 32 | low;
    return kLeft ? static_cast<uint32_t>((value << n) >> 32) : static_cast<uint32_t>(value >> n);
  });
}

void lop3(const AluArguments& x) {
  const auto table = static_cast<uint32_t>(x.instruction->src[3].value);
  uint32_t select[8];
  for (int j = 0; j < 8; ++j) select[j] = (table >> j) & 1u ? kFullMask : 0;
  map3<uint32_t, uint32_t, uint32_t, uint32_t>(x, [&select](uint32_t a, uint32_t b, uint32_t c) {
    return (select[0] & ~a & ~b & ~c) | (select[1] & ~a & ~b & c) | (select[2] & ~a & b & ~c) |
           (select[3] & ~a & b & c) | (select[4] & a & ~b & ~c) | (select[5] & a & ~b & c) | (select[6] & a & b & ~c) |
           (select[7] & a & b & c);
  });
}

uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector, PrmtMode mode) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  const uint32_t s = selector & 3u;
  uint32_t result = 0;
  for (uint32_t j = 0; j < 4; ++j) {
    uint32_t index = 0;
    switch (mode) {
      case PrmtMode::kIndex:
        index = (selector >> (4 * j)) & 15u;
        break;
      case PrmtMode::kF4e:
        index = (s + j) & 7u;
        break;
      case PrmtMode::kB4e:
        index = (s + 8 - j) & 7u;
        break;
      case PrmtMode::kRc8:
        index = s;
        break;
      case PrmtMode::kEcl:
        index = std::max(j, s);
        break;
      case PrmtMode::kEcr:
        index = std::min(j, s);
        break;
      case PrmtMode::kRc16:
        index = (s & 1u) * 2 + (j & 1u);
        break;
    }
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (index & 7u))) & 0xffu;
    if (index & 8u) byte = byte & 0x80u ? 0xffu : 0;
    result |= byte << (8 * j);
  }
  return result;
}

void prmt(const AluArguments& x) {
  const PrmtMode mode = x.instruction->mod.prmt;
  map3<uint32_t, uint32_t, uint32_t, uint32_t>(
      x, [mode](uint32_t a, uint32_t b, uint32_t c) { return permuted(a, b, c, mode); });
}

template <typename T>
struct Slct {
  static void run(const AluArguments& x) {
    const bool is_integer = x.instruction->source_type == Type::kS32;
    for (int i = 0; i < kLanes; ++i) {
      const bool take_a = is_integer ? get<int32_t>(x.src[2], i) >= 0 : get<float>(x.src[2], i) >= 0.0f;
      put<T>(x.dst[0], i, take_a ? get<T>(x.src[0], i) : get<T>(x.src[1], i));
    }
  }
};

AluFunction predicate_function(Opcode opcode) {
  switch (opcode) {
    case Opcode::kAnd:
      return predicate_logic<0>;
    case Opcode::kOr:
      return predicate_logic<1>;
    case Opcode::kXor:
      return predicate_logic<2>;
    case Opcode::kNot:
      return predicate_logic<3>;
    case Opcode::kMov:
      return predicate_logic<4>;
    default:
      throw std::invalid_argument("this operation does not exist for predicates");
  }
}

AluFunction funnel(const Modifiers& mod) {
  if (mod.wrap) return mod.shift_left ? funnel_shift<true, true> : funnel_shift<true, false>;
  return mod.shift_left ? funnel_shift<false, true> : funnel_shift<false, false>;
}

}  // namespace

AluFunction bit_function(const Instruction& in) {
  switch (in.opcode) {
    case Opcode::kMov:
    case Opcode::kAnd:
    case Opcode::kOr:
    case Opcode::kXor:
    case Opcode::kNot:
      if (in.type == Type::kPred) return predicate_function(in.opcode);
      break;
    default:
      break;
  }
  switch (in.opcode) {
    case Opcode::kMov:
      return pick<Mov>(in.type);
    case Opcode::kMovPack:
      return mov_pack;
    case Opcode::kMovUnpack:
      return mov_unpack;
    case Opcode::kAnd:
      return pick<And>(in.type);
    case Opcode::kOr:
      return pick<Or>(in.type);
    case Opcode::kXor:
      return pick<Xor>(in.type);
    case Opcode::kNot:
      return pick<Not>(in.type);
    case Opcode::kCnot:
      return pick<Cnot>(in.type);
    case Opcode::kSelp:
      return pick<Selp>(in.type);
    case Opcode::kSlct:
      return pick<Slct>(in.type);
    case Opcode::kShl:
      return pick<Shl>(in.type);
    case Opcode::kShr:
      return pick<Shr>(in.type);
    case Opcode::kShf:
      return funnel(in.mod);
    case Opcode::kBfe:
      return pick<Bfe>(in.type, false);
    case Opcode::kBfi:
      return pick<Bfi>(in.type, false);
    case Opcode::kPopc:
      return pick<Popc>(in.type, false);
    case Opcode::kClz:
      return pick<Clz>(in.type, false);
    case Opcode::kBfind:
      return pick<Bfind>(in.type, false);
    case Opcode::kBrev:
      return pick<Brev>(in.type, false);
    case Opcode::kLop3:
      return lop3;
    case Opcode::kPrmt:
      return prmt;
    default:
      return nullptr;
  }
}

}  // namespace ptxsim
