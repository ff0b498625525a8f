// What every instruction decoder uses: modifiers, operand checks, immediates, names of special registers.
#include <cstring>

#include "half.h"
#include "parser.h"

namespace ptxsim {

bool ModifierList::take(const std::string& name) {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (!taken_[i] && names_[i] == name) {
      taken_[i] = true;
      return true;
    }
  }
  return false;
}

bool ModifierList::take_prefix(const std::string& prefix) {
  bool any = false;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (!taken_[i] && names_[i].compare(0, prefix.size(), prefix) == 0) taken_[i] = any = true;
  }
  return any;
}

Type ModifierList::take_type() {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (!taken_[i] && type_named(names_[i]) != Type::kNone) {
      taken_[i] = true;
      return type_named(names_[i]);
    }
  }
  return Type::kNone;
}

std::string ModifierList::take_any() {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (!taken_[i]) {
      taken_[i] = true;
      return names_[i];
    }
  }
  return "";
}

const std::string* ModifierList::first_left() const {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (!taken_[i]) return &names_[i];
  }
  return nullptr;
}

void Decode::fail(const std::string& message) const {
  TokenStream::fail_at(in.source.ptx_line, "`" + in.text + "`: " + message);
}

Type Decode::need_type() {
  const Type type = mods.take_type();
  if (type == Type::kNone) fail("a type is missing");
  return type;
}

void Decode::operands(size_t least, size_t most) const {
  if (groups.size() < least || groups.size() > most) {
    fail("expected " + std::to_string(least) + (most > least ? " to " + std::to_string(most) : "") + " operands, got " +
         std::to_string(groups.size()));
  }
}

void Decode::to_dst(size_t group, Type type) {
  for (Operand& operand : groups.at(group).items) {
    if (operand.kind != OperandKind::kRegister && operand.kind != OperandKind::kSink)
      fail("a destination must be a register");
    if (operand.kind == OperandKind::kRegister && (operand.register_type == Type::kPred) != (type == Type::kPred)) {
      fail("predicate and value registers do not mix");
    }
    operand.type = type;
    in.dst.push_back(operand);
  }
}

void Decode::to_src(size_t group, Type type) {
  for (Operand& operand : groups.at(group).items) {
    if (operand.kind == OperandKind::kAddress) fail("a memory operand is not allowed here");
    if (operand.kind == OperandKind::kRegister && (operand.register_type == Type::kPred) != (type == Type::kPred)) {
      fail("predicate and value registers do not mix");
    }
    if (operand.negate && type != Type::kPred) fail("`!` needs a predicate");
    set_type(operand, type);
    in.src.push_back(operand);
  }
}

Operand Decode::single(size_t group) const {
  if (group >= groups.size() || groups[group].items.size() != 1) fail("expected a single operand");
  return groups[group].items[0];
}

void Decode::address(size_t group) {
  Operand operand = single(group);
  if (operand.kind != OperandKind::kAddress) fail("expected an address in brackets");
  in.src.push_back(operand);
}

void set_type(Operand& operand, Type type) {
  operand.type = type;
  if (operand.kind != OperandKind::kImmediate) return;
  if (operand.literal == Literal::kInteger) {
    const int bits = 8 * size_of(type);
    if (type == Type::kPred) operand.value = operand.value ? kFullMask : 0;
    if (bits > 0 && bits < 64) operand.value &= (uint64_t{1} << bits) - 1;
    return;
  }
  double value = 0;
  if (operand.literal == Literal::kF32) {
    const auto bits = static_cast<uint32_t>(operand.value);
    // Bits of a literal of the operation's own width pass unchanged, NaN payloads too.
    if (size_of(type) == 4) return;
    float single = 0;
    std::memcpy(&single, &bits, 4);
    value = single;
  } else {
    std::memcpy(&value, &operand.value, 8);
  }
  operand.literal = Literal::kInteger;
  if (size_of(type) == 8) {
    std::memcpy(&operand.value, &value, 8);
  } else if (type == Type::kF16 || type == Type::kBF16) {
    operand.value = type == Type::kF16 ? f16_from(value) : bf16_from(value);
  } else {
    const auto single = static_cast<float>(value);
    uint32_t bits = 0;
    std::memcpy(&bits, &single, 4);
    operand.value = bits;
  }
}

const std::unordered_map<std::string, SpecialRegister>& special_registers() {
  using S = SpecialRegister;
  static const std::unordered_map<std::string, SpecialRegister> kNames = {
      {"%tid.x", S::kTidX},
      {"%tid.y", S::kTidY},
      {"%tid.z", S::kTidZ},
      {"%ntid.x", S::kNtidX},
      {"%ntid.y", S::kNtidY},
      {"%ntid.z", S::kNtidZ},
      {"%ctaid.x", S::kCtaidX},
      {"%ctaid.y", S::kCtaidY},
      {"%ctaid.z", S::kCtaidZ},
      {"%nctaid.x", S::kNctaidX},
      {"%nctaid.y", S::kNctaidY},
      {"%nctaid.z", S::kNctaidZ},
      {"%laneid", S::kLaneid},
      {"%warpid", S::kWarpid},
      {"%nwarpid", S::kNwarpid},
      {"%smid", S::kSmid},
      {"%nsmid", S::kNsmid},
      {"%gridid", S::kGridid},
      {"%lanemask_eq", S::kLanemaskEq},
      {"%lanemask_lt", S::kLanemaskLt},
      {"%lanemask_le", S::kLanemaskLe},
      {"%lanemask_gt", S::kLanemaskGt},
      {"%lanemask_ge", S::kLanemaskGe},
      {"%dynamic_smem_size", S::kDynamicSmemSize},
      {"%total_smem_size", S::kTotalSmemSize},
      {"%clusterid.x", S::kClusterIdX},
      {"%clusterid.y", S::kClusterIdY},
      {"%clusterid.z", S::kClusterIdZ},
      {"%nclusterid.x", S::kNclusterIdX},
      {"%nclusterid.y", S::kNclusterIdY},
      {"%nclusterid.z", S::kNclusterIdZ},
      {"%cluster_ctaid.x", S::kClusterCtaidX},
      {"%cluster_ctaid.y", S::kClusterCtaidY},
      {"%cluster_ctaid.z", S::kClusterCtaidZ},
      {"%cluster_nctaid.x", S::kClusterNctaidX},
      {"%cluster_nctaid.y", S::kClusterNctaidY},
      {"%cluster_nctaid.z", S::kClusterNctaidZ},
      {"%cluster_ctarank", S::kClusterCtarank},
      {"%cluster_nctarank", S::kClusterNctarank},
      {"%clock", S::kClock},
      {"%clock_hi", S::kClockHi},
      {"%clock64", S::kClock64},
      {"%globaltimer", S::kGlobaltimer},
      {"%globaltimer_lo", S::kGlobaltimerLo},
      {"%globaltimer_hi", S::kGlobaltimerHi},
  };
  return kNames;
}

}  // namespace ptxsim
