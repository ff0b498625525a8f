// Decoders of the tensor instructions: ldmatrix, stmatrix, movmatrix, mma.sync.
#include <cstdio>

#include "parser.h"

namespace ptxsim {

void need(Decode& d, const char* modifier) {
  if (!d.mods.take(modifier)) d.fail(std::string("`.") + modifier + "` is missing");
}

namespace {

void matrix_access(Decode& d, bool load) {
  d.in.opcode = load ? Opcode::kLdmatrix : Opcode::kStmatrix;
  need(d, "sync");
  need(d, "aligned");
  need(d, "m8n8");
  d.in.mod.vector = d.mods.take("x4") ? 4 : d.mods.take("x2") ? 2 : 1;
  if (d.in.mod.vector == 1) need(d, "x1");
  d.in.mod.trans = d.mods.take("trans");
  if (!d.mods.take("shared") && !d.mods.take("shared::cta")) d.fail("`.shared` is missing");
  d.in.mod.space = Space::kShared;
  d.in.type = d.need_type();
  if (d.in.type != Type::kB16) d.fail("expected type .b16");
  d.operands(2, 2);
  const size_t registers = load ? 0 : 1;
  if (d.groups[registers].items.size() != d.in.mod.vector) d.fail("the number of registers does not fit the matrices");
  if (load) {
    d.to_dst(0, Type::kB32);
    d.address(1);
  } else {
    d.address(0);
    d.to_src(1, Type::kB32);
  }
}

void ldmatrix(Decode& d) { matrix_access(d, true); }
void stmatrix(Decode& d) { matrix_access(d, false); }

void movmatrix(Decode& d) {
  d.in.opcode = Opcode::kMovmatrix;
  for (const char* modifier : {"sync", "aligned", "m8n8", "trans"}) need(d, modifier);
  d.in.type = d.need_type();
  d.operands(2, 2);
  d.to_dst(0, Type::kB32);
  d.to_src(1, Type::kB32);
}

Type register_of(Type element) { return element == Type::kF32 || element == Type::kF64 ? element : Type::kB32; }

// 32-bit registers of a fragment with `elements` values a lane.
size_t registers_of(int elements, Type type) {
  int bits = 8 * size_of(type);
  if (type == Type::kF64) bits = 32;  // one register holds one value
  return static_cast<size_t>(elements * bits / 32);
}

void mma(Decode& d) {
  d.in.opcode = Opcode::kMma;
  if (d.mods.take("sp") || d.mods.take("sp::ordered_metadata")) d.fail("sparse mma is not supported");
  need(d, "sync");
  need(d, "aligned");
  const std::string shape = d.mods.take_any();
  unsigned m = 0;
  unsigned n = 0;
  unsigned k = 0;
  if (std::sscanf(shape.c_str(), "m%un%uk%u", &m, &n, &k) != 3) d.fail("a shape is missing");
  Modifiers& mod = d.in.mod;
  mod.m = static_cast<uint16_t>(m);
  mod.n = static_cast<uint16_t>(n);
  mod.k = static_cast<uint16_t>(k);
  need(d, "row");
  need(d, "col");
  mod.sat = d.mods.take("satfinite");
  d.in.type = d.need_type();
  d.in.source_type = d.need_type();
  d.in.type_b = d.need_type();
  d.in.type_c = d.need_type();
  const Type a = d.in.source_type;
  const bool half = a == Type::kF16 || a == Type::kBF16;
  const bool bytes = a == Type::kS8 || a == Type::kU8;
  const bool known =
      m == 16 && n == 8 &&
      ((half && (k == 8 || k == 16)) || (a == Type::kTF32 && (k == 4 || k == 8)) || (bytes && (k == 16 || k == 32)));
  if (!known) d.fail("this mma shape and type is not supported");
  const bool b_fits = bytes ? d.in.type_b == Type::kS8 || d.in.type_b == Type::kU8 : d.in.type_b == a;
  const bool accumulator_fits = bytes             ? d.in.type == Type::kS32
                                : a == Type::kF16 ? d.in.type == Type::kF32 || d.in.type == Type::kF16
                                                  : d.in.type == Type::kF32;
  if (!b_fits || !accumulator_fits || d.in.type_c != d.in.type) d.fail("these mma types do not go together");
  d.operands(4, 4);
  const size_t sizes[4] = {registers_of(4, d.in.type), registers_of(static_cast<int>(16 * k / 32), a),
                           registers_of(static_cast<int>(8 * k / 32), d.in.type_b), registers_of(4, d.in.type_c)};
  for (size_t i = 0; i < 4; ++i) {
    if (d.groups[i].items.size() != sizes[i])
      d.fail("fragment " + std::to_string(i) + " has the wrong number of registers");
  }
  d.to_dst(0, register_of(d.in.type));
  d.to_src(1, Type::kB32);
  d.to_src(2, Type::kB32);
  d.to_src(3, register_of(d.in.type_c));
}

void tensor_memory(Decode& d) { d.fail("`" + d.name + "` is not supported: tensor memory (sm_100) is out of scope"); }

}  // namespace

const DecoderTable& tensor_decoders() {
  static const DecoderTable kTable = {
      {"ldmatrix", ldmatrix},   {"mma", mma},
      {"movmatrix", movmatrix}, {"stmatrix", stmatrix},
      {"wgmma", decode_wgmma},  {"tcgen05", tensor_memory},
  };
  return kTable;
}

}  // namespace ptxsim
