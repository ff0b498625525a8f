// Decoder of wgmma: the warpgroup's matrix multiply and its fence, commit and wait.
#include <cstdio>

#include "parser.h"

namespace ptxsim {
namespace {

// A scale of a factor: 1 or -1.
bool negative_scale(Decode& d, size_t group) {
  const Operand scale = d.single(group);
  const auto value = static_cast<int32_t>(scale.value);
  if (scale.kind != OperandKind::kImmediate || (value != 1 && value != -1)) d.fail("a scale must be 1 or -1");
  return value == -1;
}

bool transposed(Decode& d, size_t group) {
  const Operand flag = d.single(group);
  if (flag.kind != OperandKind::kImmediate || flag.value > 1) d.fail("a transposition must be 0 or 1");
  return flag.value == 1;
}

void shape(Decode& d) {
  Modifiers& mod = d.in.mod;
  unsigned m = 0;
  unsigned n = 0;
  unsigned k = 0;
  if (std::sscanf(d.mods.take_any().c_str(), "m%un%uk%u", &m, &n, &k) != 3) d.fail("a shape is missing");
  d.in.type = d.need_type();
  d.in.source_type = d.need_type();
  d.in.type_b = d.need_type();
  const Type a = d.in.source_type;
  const bool bytes = a == Type::kS8 || a == Type::kU8;
  const bool half = a == Type::kF16 || a == Type::kBF16;
  if (!bytes && !half && a != Type::kTF32) d.fail("this type of A is not supported");
  const unsigned steps = bytes ? 32 : half ? 16 : 8;
  const unsigned unit = bytes && n > 32 ? 16 : 8;
  if (m != 64 || k != steps || n < 8 || n > 256 || n % unit != 0) {
    if (!(bytes && n == 24)) d.fail("this wgmma shape does not exist");
  }
  const bool b_fits = bytes ? d.in.type_b == Type::kS8 || d.in.type_b == Type::kU8 : d.in.type_b == a;
  const bool accumulator_fits = bytes             ? d.in.type == Type::kS32
                                : a == Type::kF16 ? d.in.type == Type::kF32 || d.in.type == Type::kF16
                                                  : d.in.type == Type::kF32;
  if (!b_fits || !accumulator_fits) d.fail("these wgmma types do not go together");
  mod.m = static_cast<uint16_t>(m);
  mod.n = static_cast<uint16_t>(n);
  mod.k = static_cast<uint16_t>(k);
}

// d, a or its descriptor, b's descriptor, scale-d, then for floats scale-a, scale-b, and for 16-bit types trans-a (when
// A is in shared memory) and trans-b.
void multiply(Decode& d) {
  Modifiers& mod = d.in.mod;
  if (d.mods.take("sp")) d.fail("sparse wgmma is not supported");
  shape(d);
  mod.sat = d.mods.take("satfinite");
  const bool half_result = d.in.type == Type::kF16;
  mod.a_registers = d.groups.size() > 1 && d.groups[1].braces;
  const bool integer = d.in.type == Type::kS32;
  const bool half = size_of(d.in.source_type) == 2;
  const size_t expected = integer ? 4 : 6 + (half ? (mod.a_registers ? 1 : 2) : 0);
  d.operands(integer ? 4 : std::min<size_t>(expected, 6), expected);
  if (d.groups[0].items.size() != size_t{mod.n} / (half_result ? 4 : 2)) {
    d.fail("the number of accumulator registers does not fit the shape");
  }
  const size_t registers_a = mod.a_registers ? 4 : 1;
  if (d.groups[1].items.size() != registers_a) d.fail("expected 4 registers or a descriptor of A");
  d.to_dst(0, d.in.type == Type::kF32 ? Type::kF32 : Type::kB32);
  d.to_src(1, mod.a_registers ? Type::kB32 : Type::kB64);
  d.to_src(2, Type::kB64);
  d.to_src(3, Type::kPred);
  if (integer) return;
  mod.negate_a = negative_scale(d, 4);
  mod.negate_b = negative_scale(d, 5);
  size_t next = 6;
  if (!mod.a_registers && next < d.groups.size()) mod.trans_a = transposed(d, next++);
  if (next < d.groups.size()) mod.trans_b = transposed(d, next);
}

}  // namespace

void decode_wgmma(Decode& d) {
  const std::string operation = d.mods.take_any();
  need(d, "sync");
  need(d, "aligned");
  if (operation == "mma_async") {
    d.in.opcode = Opcode::kWgmma;
    multiply(d);
    return;
  }
  if (operation == "fence") {
    d.in.opcode = Opcode::kWgmmaFence;
  } else if (operation == "commit_group") {
    d.in.opcode = Opcode::kWgmmaCommit;
  } else if (operation == "wait_group") {
    d.in.opcode = Opcode::kWgmmaWait;
    d.operands(1, 1);
    d.to_src(0, Type::kU32);
    if (d.in.src[0].kind != OperandKind::kImmediate) d.fail("the number of groups must be a constant");
    return;
  } else {
    d.fail("unknown wgmma operation");
  }
  d.operands(0, 0);
}

}  // namespace ptxsim
