// Decoders of loads, stores, atomics, address conversions and asynchronous copies.
#include "parser.h"

namespace ptxsim {

Space take_space(Decode& d, Space otherwise) {
  if (d.mods.take("shared::cluster")) d.fail("distributed shared memory (shared::cluster) is not supported (stage 3)");
  if (d.mods.take("shared") || d.mods.take("shared::cta")) return Space::kShared;
  if (d.mods.take("global")) return Space::kGlobal;
  if (d.mods.take("local")) return Space::kLocal;
  if (d.mods.take("const")) return Space::kConst;
  if (d.mods.take("param") || d.mods.take("param::entry") || d.mods.take("param::func")) return Space::kParam;
  return otherwise;
}

void take_scope(Decode& d) {
  if (d.mods.take("cta")) d.in.mod.scope = Scope::kCta;
  if (d.mods.take("cluster")) d.in.mod.scope = Scope::kCluster;
  if (d.mods.take("gpu")) d.in.mod.scope = Scope::kGpu;
  if (d.mods.take("sys")) d.in.mod.scope = Scope::kSys;
}

void take_semantics(Decode& d) {
  Semantics& semantics = d.in.mod.semantics;
  d.mods.take("weak");
  if (d.mods.take("volatile")) semantics = Semantics::kVolatile;
  if (d.mods.take("relaxed") || d.mods.take("mmio")) semantics = Semantics::kRelaxed;
  if (d.mods.take("acquire")) semantics = Semantics::kAcquire;
  if (d.mods.take("release")) semantics = Semantics::kRelease;
  if (d.mods.take("acq_rel")) semantics = Semantics::kAcqRel;
  if (d.mods.take("sc")) semantics = Semantics::kSeqCst;
  take_scope(d);
}

// Cache hints change time, not results. Returns whether a cache policy operand follows.
bool take_cache_hints(Decode& d) {
  for (const char* name : {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"}) d.mods.take(name);
  const bool policy = d.mods.take("L2::cache_hint");
  d.mods.take_prefix("L1::");
  d.mods.take_prefix("L2::");
  d.mods.take("unified");
  return policy;
}

AtomicOp take_atomic_op(Decode& d) {
  using A = AtomicOp;
  static const std::unordered_map<std::string, AtomicOp> kOps = {
      {"add", A::kAdd}, {"min", A::kMin}, {"max", A::kMax}, {"inc", A::kInc},   {"dec", A::kDec},
      {"and", A::kAnd}, {"or", A::kOr},   {"xor", A::kXor}, {"exch", A::kExch}, {"cas", A::kCas},
  };
  for (const auto& [name, op] : kOps) {
    if (d.mods.take(name)) return op;
  }
  d.fail("unknown atomic operation");
}

namespace {

void take_vector(Decode& d) {
  if (d.mods.take("v2")) d.in.mod.vector = 2;
  if (d.mods.take("v4")) d.in.mod.vector = 4;
  if (d.mods.take("v8")) d.in.mod.vector = 8;
}

void load(Decode& d) {
  d.in.opcode = Opcode::kLd;
  d.in.mod.space = take_space(d, Space::kGeneric);
  take_semantics(d);
  const bool policy = take_cache_hints(d);
  take_vector(d);
  d.in.type = d.need_type();
  d.operands(2, policy ? 3 : 2);
  if (d.groups[0].items.size() != d.in.mod.vector) d.fail("the number of registers does not fit the vector");
  d.to_dst(0, d.in.type);
  d.address(1);
}

void store(Decode& d) {
  if (d.mods.take("async")) d.fail("st.async is not supported (stage 3)");
  if (d.mods.take("bulk")) d.fail("st.bulk is not supported");
  d.in.opcode = Opcode::kSt;
  d.in.mod.space = take_space(d, Space::kGeneric);
  take_semantics(d);
  const bool policy = take_cache_hints(d);
  take_vector(d);
  d.in.type = d.need_type();
  d.operands(2, policy ? 3 : 2);
  if (d.groups[1].items.size() != d.in.mod.vector) d.fail("the number of registers does not fit the vector");
  d.address(0);
  d.to_src(1, d.in.type);
}

void take_atomic(Decode& d) {
  if (d.mods.take("async")) d.fail("red.async is not supported (stage 3)");
  d.in.mod.space = take_space(d, Space::kGeneric);
  take_semantics(d);
  // An atomic without a qualifier is relaxed.
  if (d.in.mod.semantics == Semantics::kWeak) d.in.mod.semantics = Semantics::kRelaxed;
  d.in.mod.atomic = take_atomic_op(d);
  d.mods.take("noftz");
  const bool policy = take_cache_hints(d);
  if (policy) d.groups.pop_back();
  take_vector(d);
  if (d.in.mod.vector != 1) d.fail("vector atomics are not supported");
  d.in.type = d.need_type();
}

void atom(Decode& d) {
  d.in.opcode = Opcode::kAtom;
  take_atomic(d);
  const bool cas = d.in.mod.atomic == AtomicOp::kCas;
  d.operands(cas ? 4 : 3, cas ? 4 : 3);
  d.to_dst(0, d.in.type);
  d.address(1);
  d.to_src(2, d.in.type);
  if (cas) d.to_src(3, d.in.type);
}

void red(Decode& d) {
  d.in.opcode = Opcode::kRed;
  take_atomic(d);
  d.operands(2, 2);
  d.address(0);
  d.to_src(1, d.in.type);
}

void cvta(Decode& d) {
  d.in.opcode = Opcode::kCvta;
  d.in.mod.to = d.mods.take("to");
  d.in.mod.space = take_space(d, Space::kGeneric);
  if (d.in.mod.space == Space::kGeneric) d.fail("a state space is missing");
  d.in.type = d.need_type();
  d.operands(2, 2);
  d.to_dst(0, d.in.type);
  d.to_src(1, d.in.type);
}

// mapa.shared::cluster: the address is one of the window of shared memory.
void mapa(Decode& d) {
  d.in.opcode = Opcode::kMapa;
  if (!d.mods.take("shared::cluster")) d.fail("`.shared::cluster` is missing");
  d.in.type = d.need_type();
  d.operands(3, 3);
  d.to_dst(0, d.in.type);
  d.to_src(1, d.in.type);
  d.to_src(2, Type::kU32);
}

void isspacep(Decode& d) {
  d.in.opcode = Opcode::kIsspacep;
  d.in.mod.space = take_space(d, Space::kGeneric);
  if (d.in.mod.space == Space::kGeneric) d.fail("a state space is missing");
  d.operands(2, 2);
  d.to_dst(0, Type::kPred);
  d.to_src(1, Type::kU64);
}

void prefetch(Decode& d) {
  d.in.opcode = Opcode::kNop;
  take_space(d, Space::kGeneric);
  take_cache_hints(d);
  d.mods.take("L1");
  d.mods.take("L2");
  d.mods.take("tensormap");
}

// A cache policy is an opaque number here.
void create_policy(Decode& d) {
  d.mods.take("fractional");
  d.mods.take_prefix("L2::");
  d.in.type = d.need_type();
  d.in.opcode = Opcode::kMov;
  d.to_dst(0, d.in.type);
  Operand zero;
  zero.kind = OperandKind::kImmediate;
  zero.type = d.in.type;
  d.in.src.push_back(zero);
}

void cp_async(Decode& d) {
  const bool reduce = d.mods.take("reduce");
  const bool asynchronous = d.mods.take("async");
  if (!asynchronous) d.fail("unknown opcode");
  if (d.mods.take("bulk")) {
    decode_bulk(d, reduce);
    return;
  }
  if (d.mods.take("commit_group")) {
    d.in.opcode = Opcode::kCpAsyncCommit;
    d.operands(0, 0);
    return;
  }
  if (d.mods.take("wait_group") || d.mods.take("wait_all")) {
    d.in.opcode = Opcode::kCpAsyncWait;
    d.in.mod.all = d.groups.empty();
    d.operands(0, 1);
    if (d.groups.empty()) return;
    d.to_src(0, Type::kU32);
    if (d.in.src[0].kind != OperandKind::kImmediate) d.fail("the number of groups must be a constant");
    return;
  }
  if (d.mods.take("mbarrier")) {
    d.in.opcode = Opcode::kCpAsyncMbarrier;
    need(d, "arrive");
    d.in.mod.noinc = d.mods.take("noinc");
    d.in.mod.space = take_space(d, Space::kGeneric);
    need(d, "b64");
    d.operands(1, 1);
    d.address(0);
    return;
  }
  d.in.opcode = Opcode::kCpAsync;
  const bool cg = d.mods.take("cg");
  if (!cg && !d.mods.take("ca")) d.fail("`.ca` or `.cg` is missing");
  if (take_space(d, Space::kGeneric) != Space::kShared) d.fail("the destination must be shared memory");
  if (take_space(d, Space::kGeneric) != Space::kGlobal) d.fail("the source must be global memory");
  const bool policy = take_cache_hints(d);
  if (policy) d.groups.pop_back();
  d.operands(3, 4);
  d.address(0);
  d.address(1);
  const Operand size = d.single(2);
  if (size.kind != OperandKind::kImmediate) d.fail("cp-size must be a constant");
  d.in.mod.bytes = static_cast<uint8_t>(size.value);
  const bool valid = size.value == 16 || (!cg && (size.value == 4 || size.value == 8));
  if (!valid) d.fail("cp-size must be 16 (`.cg`) or 4, 8, 16 (`.ca`)");
  if (d.groups.size() == 4) {
    const Operand last = d.single(3);
    d.in.mod.ignore_source = last.kind == OperandKind::kRegister && last.register_type == Type::kPred;
    d.to_src(3, d.in.mod.ignore_source ? Type::kPred : Type::kU32);
  }
}

void stage_three(Decode& d) {
  d.fail("`" + d.name + "` is not supported: it belongs to stage 3 (clusters, tensor maps changed on the device)");
}

}  // namespace

const DecoderTable& memory_decoders() {
  static const DecoderTable kTable = {
      {"applypriority", prefetch},
      {"atom", atom},
      {"cp", cp_async},
      {"createpolicy", create_policy},
      {"cvta", cvta},
      {"discard", prefetch},
      {"getctarank", stage_three},
      {"isspacep", isspacep},
      {"ld", load},
      {"ldu", load},
      {"mapa", mapa},
      {"multimem", stage_three},
      {"prefetch", prefetch},
      {"prefetchu", prefetch},
      {"red", red},
      {"st", store},
      {"tensormap", stage_three},
  };
  return kTable;
}

}  // namespace ptxsim
