// Decoders of the register arithmetic: which modifiers and operand types each opcode takes.
#include "parser.h"

namespace ptxsim {
namespace {

// Modifiers an opcode of the plain shape (destination and sources of one type) may carry.
enum Allowed : uint32_t {
  kRounding = 1u << 0,
  kFtz = 1u << 1,
  kSat = 1u << 2,
  kCarry = 1u << 3,
  kApprox = 1u << 4,
  kNanFlag = 1u << 5,
  kRelu = 1u << 6,
  kFull = 1u << 7,
};

void take_allowed(Decode& d, uint32_t allowed) {
  Modifiers& mod = d.in.mod;
  if (allowed & kRounding) {
    if (d.mods.take("rn")) mod.rounding = Rounding::kRn;
    if (d.mods.take("rz")) mod.rounding = Rounding::kRz;
    if (d.mods.take("rm")) mod.rounding = Rounding::kRm;
    if (d.mods.take("rp")) mod.rounding = Rounding::kRp;
  }
  if (allowed & kFtz) mod.ftz = d.mods.take("ftz");
  if (allowed & kSat) mod.sat = d.mods.take("sat");
  if (allowed & kCarry) mod.carry_out = d.mods.take("cc");
  if (allowed & kApprox) mod.approx = d.mods.take("approx");
  if (allowed & kFull) mod.full_range = d.mods.take("full");
  if (allowed & kRelu) mod.relu = d.mods.take("relu");
  if (allowed & kNanFlag) {
    mod.nan = d.mods.take("NaN");
    mod.xorsign_abs = d.mods.take("xorsign");
    if (mod.xorsign_abs && !d.mods.take("abs")) d.fail("`.xorsign` needs `.abs`");
  }
}

void plain(Decode& d, Opcode opcode, size_t sources, uint32_t allowed = 0) {
  d.in.opcode = opcode;
  take_allowed(d, allowed);
  d.in.type = d.need_type();
  d.operands(sources + 1, sources + 1);
  d.to_dst(0, d.in.type);
  for (size_t i = 1; i <= sources; ++i) d.to_src(i, d.in.type);
}

template <Opcode kOpcode, size_t kSources, uint32_t kAllowed = 0>
void shape(Decode& d) {
  plain(d, kOpcode, kSources, kAllowed);
}

template <Opcode kOpcode>
void shift(Decode& d) {
  d.in.opcode = kOpcode;
  d.in.type = d.need_type();
  d.operands(3, 3);
  d.to_dst(0, d.in.type);
  d.to_src(1, d.in.type);
  d.to_src(2, Type::kU32);
}

Type widened(Decode& d, Type type) {
  switch (type) {
    case Type::kU16:
      return Type::kU32;
    case Type::kS16:
      return Type::kS32;
    case Type::kU32:
      return Type::kU64;
    case Type::kS32:
      return Type::kS64;
    default:
      d.fail("`.wide` needs a 16- or 32-bit integer type");
  }
}

void product(Decode& d, Opcode opcode, bool has_addend) {
  Modifiers& mod = d.in.mod;
  d.in.opcode = opcode;
  if (d.mods.take("lo")) mod.part = Part::kLo;
  if (d.mods.take("hi")) mod.part = Part::kHi;
  if (d.mods.take("wide")) mod.part = Part::kWide;
  take_allowed(d, kRounding | kFtz | kSat | kCarry);
  d.in.type = d.need_type();
  if (!is_float(d.in.type) && mod.part == Part::kNone) d.fail("an integer product needs `.lo`, `.hi` or `.wide`");
  const Type result = mod.part == Part::kWide ? widened(d, d.in.type) : d.in.type;
  d.operands(has_addend ? 4 : 3, has_addend ? 4 : 3);
  d.to_dst(0, result);
  d.to_src(1, d.in.type);
  d.to_src(2, d.in.type);
  if (has_addend) d.to_src(3, result);
  if (opcode == Opcode::kMad && is_float(d.in.type)) d.in.opcode = Opcode::kFma;  // mad.f32 is fma on every sm_20+
}

void mul(Decode& d) { product(d, Opcode::kMul, false); }
void mad(Decode& d) { product(d, Opcode::kMad, true); }
void madc(Decode& d) { product(d, Opcode::kMadc, true); }
void mul24(Decode& d) { product(d, Opcode::kMul24, false); }
void mad24(Decode& d) { product(d, Opcode::kMad24, true); }

void shf(Decode& d) {
  d.in.opcode = Opcode::kShf;
  d.in.mod.shift_left = d.mods.take("l");
  if (!d.in.mod.shift_left && !d.mods.take("r")) d.fail("`.l` or `.r` is missing");
  d.in.mod.wrap = d.mods.take("wrap");
  if (!d.in.mod.wrap && !d.mods.take("clamp")) d.fail("`.wrap` or `.clamp` is missing");
  d.in.type = d.need_type();
  d.operands(4, 4);
  d.to_dst(0, d.in.type);
  for (size_t i = 1; i < 4; ++i) d.to_src(i, Type::kB32);
}

void bfe(Decode& d) {
  d.in.opcode = Opcode::kBfe;
  d.in.type = d.need_type();
  d.operands(4, 4);
  d.to_dst(0, d.in.type);
  d.to_src(1, d.in.type);
  d.to_src(2, Type::kU32);
  d.to_src(3, Type::kU32);
}

void bfi(Decode& d) {
  d.in.opcode = Opcode::kBfi;
  d.in.type = d.need_type();
  d.operands(5, 5);
  d.to_dst(0, d.in.type);
  d.to_src(1, d.in.type);
  d.to_src(2, d.in.type);
  d.to_src(3, Type::kU32);
  d.to_src(4, Type::kU32);
}

void count_bits(Decode& d, Opcode opcode) {
  d.in.opcode = opcode;
  if (opcode == Opcode::kBfind) d.in.mod.shift_amount = d.mods.take("shiftamt");
  d.in.type = d.need_type();
  d.operands(2, 2);
  d.to_dst(0, Type::kU32);
  d.to_src(1, d.in.type);
}

template <Opcode kOpcode>
void bit_count(Decode& d) {
  count_bits(d, kOpcode);
}

void prmt(Decode& d) {
  static const std::unordered_map<std::string, PrmtMode> kModes = {
      {"f4e", PrmtMode::kF4e}, {"b4e", PrmtMode::kB4e}, {"rc8", PrmtMode::kRc8},
      {"ecl", PrmtMode::kEcl}, {"ecr", PrmtMode::kEcr}, {"rc16", PrmtMode::kRc16},
  };
  for (const auto& [name, mode] : kModes) {
    if (d.mods.take(name)) d.in.mod.prmt = mode;
  }
  plain(d, Opcode::kPrmt, 3);
}

void lop3(Decode& d) {
  plain(d, Opcode::kLop3, 4);
  if (d.in.src[3].kind != OperandKind::kImmediate) d.fail("the look-up table must be a constant");
}

void dot_product(Decode& d, Opcode opcode) {
  d.in.opcode = opcode;
  if (opcode == Opcode::kDp2a && !d.mods.take("lo")) {
    if (!d.mods.take("hi")) d.fail("`.lo` or `.hi` is missing");
    d.in.mod.part = Part::kHi;
  }
  d.in.type = d.need_type();
  d.in.source_type = d.need_type();
  d.operands(4, 4);
  const bool is_signed_sum = is_signed(d.in.type) || is_signed(d.in.source_type);
  d.to_dst(0, is_signed_sum ? Type::kS32 : Type::kU32);
  for (size_t i = 1; i < 4; ++i) d.to_src(i, Type::kB32);
}

void dp2a(Decode& d) { dot_product(d, Opcode::kDp2a); }
void dp4a(Decode& d) { dot_product(d, Opcode::kDp4a); }

void take_comparison(Decode& d) {
  using C = Compare;
  static const std::unordered_map<std::string, Compare> kCompares = {
      {"eq", C::kEq},   {"ne", C::kNe},   {"lt", C::kLt},   {"le", C::kLe},   {"gt", C::kGt},   {"ge", C::kGe},
      {"lo", C::kLo},   {"ls", C::kLs},   {"hi", C::kHi},   {"hs", C::kHs},   {"equ", C::kEqu}, {"neu", C::kNeu},
      {"ltu", C::kLtu}, {"leu", C::kLeu}, {"gtu", C::kGtu}, {"geu", C::kGeu}, {"num", C::kNum}, {"nan", C::kNan},
  };
  const auto found = kCompares.find(d.mods.take_any());
  if (found == kCompares.end()) d.fail("unknown comparison");
  d.in.mod.compare = found->second;
  if (d.mods.take("and")) d.in.mod.combine = Combine::kAnd;
  if (d.mods.take("or")) d.in.mod.combine = Combine::kOr;
  if (d.mods.take("xor")) d.in.mod.combine = Combine::kXor;
  d.in.mod.ftz = d.mods.take("ftz");
}

void setp(Decode& d) {
  d.in.opcode = Opcode::kSetp;
  take_comparison(d);
  d.in.type = d.need_type();
  const size_t count = d.in.mod.combine == Combine::kNone ? 3 : 4;
  d.operands(count, count);
  d.to_dst(0, Type::kPred);
  d.to_src(1, d.in.type);
  d.to_src(2, d.in.type);
  if (count == 4) d.to_src(3, Type::kPred);
}

void set(Decode& d) {
  d.in.opcode = Opcode::kSet;
  take_comparison(d);
  d.in.type = d.need_type();
  d.in.source_type = d.need_type();
  const size_t count = d.in.mod.combine == Combine::kNone ? 3 : 4;
  d.operands(count, count);
  d.to_dst(0, d.in.type);
  d.to_src(1, d.in.source_type);
  d.to_src(2, d.in.source_type);
  if (count == 4) d.to_src(3, Type::kPred);
}

void selp(Decode& d) {
  d.in.opcode = Opcode::kSelp;
  d.in.type = d.need_type();
  d.operands(4, 4);
  d.to_dst(0, d.in.type);
  d.to_src(1, d.in.type);
  d.to_src(2, d.in.type);
  d.to_src(3, Type::kPred);
}

void slct(Decode& d) {
  d.in.opcode = Opcode::kSlct;
  d.in.mod.ftz = d.mods.take("ftz");
  d.in.type = d.need_type();
  d.in.source_type = d.need_type();
  d.operands(4, 4);
  d.to_dst(0, d.in.type);
  d.to_src(1, d.in.type);
  d.to_src(2, d.in.type);
  d.to_src(3, d.in.source_type);
}

void testp(Decode& d) {
  static const std::unordered_map<std::string, FloatClass> kClasses = {
      {"finite", FloatClass::kFinite}, {"infinite", FloatClass::kInfinite},
      {"number", FloatClass::kNumber}, {"notanumber", FloatClass::kNotANumber},
      {"normal", FloatClass::kNormal}, {"subnormal", FloatClass::kSubnormal},
  };
  d.in.opcode = Opcode::kTestp;
  const auto found = kClasses.find(d.mods.take_any());
  if (found == kClasses.end()) d.fail("unknown class");
  d.in.mod.float_class = found->second;
  d.in.type = d.need_type();
  d.operands(2, 2);
  d.to_dst(0, Type::kPred);
  d.to_src(1, d.in.type);
}

void cvt(Decode& d) {
  static const std::unordered_map<std::string, Rounding> kRoundings = {
      {"rn", Rounding::kRn},   {"rz", Rounding::kRz},   {"rm", Rounding::kRm},
      {"rp", Rounding::kRp},   {"rna", Rounding::kRna}, {"rni", Rounding::kRni},
      {"rzi", Rounding::kRzi}, {"rmi", Rounding::kRmi}, {"rpi", Rounding::kRpi},
  };
  for (const auto& [name, rounding] : kRoundings) {
    if (d.mods.take(name)) d.in.mod.rounding = rounding;
  }
  take_allowed(d, kFtz | kSat | kRelu);
  d.in.type = d.need_type();
  d.in.source_type = d.need_type();
  const bool pack = d.in.type == Type::kF16x2 || d.in.type == Type::kBF16x2;
  d.in.opcode = pack ? Opcode::kCvtPack : Opcode::kCvt;
  d.operands(pack ? 3 : 2, pack ? 3 : 2);
  d.to_dst(0, d.in.type);
  for (size_t i = 1; i < d.groups.size(); ++i) d.to_src(i, d.in.source_type);
}

Type part_type(Decode& d, size_t parts) {
  const int bytes = size_of(d.in.type) / static_cast<int>(parts);
  if (bytes * static_cast<int>(parts) != size_of(d.in.type)) d.fail("the parts do not fill the register");
  if (bytes == 1) return Type::kB8;
  if (bytes == 2) return Type::kB16;
  if (bytes == 4) return Type::kB32;
  d.fail("expected two or four parts");
}

void mov(Decode& d) {
  d.in.type = d.need_type();
  d.operands(2, 2);
  if (d.groups[0].braces) {
    d.in.opcode = Opcode::kMovUnpack;
    d.to_dst(0, part_type(d, d.groups[0].items.size()));
    d.to_src(1, d.in.type);
  } else if (d.groups[1].braces) {
    d.in.opcode = Opcode::kMovPack;
    d.to_dst(0, d.in.type);
    d.to_src(1, part_type(d, d.groups[1].items.size()));
  } else {
    const Operand source = d.single(1);
    const bool changing =
        source.kind == OperandKind::kSpecial && source.value >= static_cast<uint64_t>(SpecialRegister::kCount);
    d.in.opcode = changing ? Opcode::kMovClock : Opcode::kMov;
    d.to_dst(0, d.in.type);
    d.to_src(1, d.in.type);
  }
}

constexpr uint32_t kFloatArithmetic = kRounding | kFtz | kSat;

}  // namespace

const DecoderTable& arithmetic_decoders() {
  using O = Opcode;
  static const DecoderTable kTable = {
      {"abs", shape<O::kAbs, 1, kFtz>},
      {"add", shape<O::kAdd, 2, kFloatArithmetic | kCarry>},
      {"addc", shape<O::kAddc, 2, kCarry>},
      {"and", shape<O::kAnd, 2>},
      {"bfe", bfe},
      {"bfi", bfi},
      {"bfind", bit_count<O::kBfind>},
      {"brev", shape<O::kBrev, 1>},
      {"clz", bit_count<O::kClz>},
      {"cnot", shape<O::kCnot, 1>},
      {"copysign", shape<O::kCopysign, 2>},
      {"cos", shape<O::kCos, 1, kApprox | kFtz>},
      {"cvt", cvt},
      {"div", shape<O::kDiv, 2, kRounding | kFtz | kApprox | kFull>},
      {"dp2a", dp2a},
      {"dp4a", dp4a},
      {"ex2", shape<O::kEx2, 1, kApprox | kFtz>},
      {"fma", shape<O::kFma, 3, kFloatArithmetic | kRelu>},
      {"lg2", shape<O::kLg2, 1, kApprox | kFtz>},
      {"lop3", lop3},
      {"mad", mad},
      {"mad24", mad24},
      {"madc", madc},
      {"max", shape<O::kMax, 2, kFtz | kNanFlag | kRelu>},
      {"min", shape<O::kMin, 2, kFtz | kNanFlag | kRelu>},
      {"mov", mov},
      {"mul", mul},
      {"mul24", mul24},
      {"neg", shape<O::kNeg, 1, kFtz>},
      {"not", shape<O::kNot, 1>},
      {"or", shape<O::kOr, 2>},
      {"popc", bit_count<O::kPopc>},
      {"prmt", prmt},
      {"rcp", shape<O::kRcp, 1, kRounding | kApprox | kFtz>},
      {"rem", shape<O::kRem, 2>},
      {"rsqrt", shape<O::kRsqrt, 1, kApprox | kFtz>},
      {"sad", shape<O::kSad, 3>},
      {"selp", selp},
      {"set", set},
      {"setp", setp},
      {"shf", shf},
      {"shl", shift<O::kShl>},
      {"shr", shift<O::kShr>},
      {"sin", shape<O::kSin, 1, kApprox | kFtz>},
      {"slct", slct},
      {"sqrt", shape<O::kSqrt, 1, kRounding | kApprox | kFtz>},
      {"sub", shape<O::kSub, 2, kFloatArithmetic | kCarry>},
      {"subc", shape<O::kSubc, 2, kCarry>},
      {"tanh", shape<O::kTanh, 1, kApprox>},
      {"testp", testp},
      {"xor", shape<O::kXor, 2>},
  };
  return kTable;
}

}  // namespace ptxsim
