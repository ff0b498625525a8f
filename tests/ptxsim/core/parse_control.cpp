// Decoders of control flow, barriers, fences and warp collectives.
#include "parser.h"

namespace ptxsim {
namespace {

void bra(Decode& d) {
  d.in.opcode = Opcode::kBra;
  d.mods.take("uni");
  d.operands(1, 1);
  const Operand label = d.single(0);
  if (label.kind != OperandKind::kSymbol) d.fail("expected a label");
  d.in.src.push_back(label);  // taken off again by the body parser
}

void brx(Decode& d) {
  d.in.opcode = Opcode::kBrx;
  if (!d.mods.take("idx")) d.fail("`.idx` is missing");
  d.mods.take("uni");
  d.operands(2, 2);
  d.to_src(0, Type::kU32);
  d.in.src.push_back(d.single(1));
}

// call{.uni} (returns), name, (arguments);
void call(Decode& d) {
  d.in.opcode = Opcode::kCall;
  d.mods.take("uni");
  size_t group = 0;
  if (!d.groups.empty() && d.groups[0].braces) {
    d.in.dst = d.groups[0].items;
    group = 1;
  }
  const Operand name = d.single(group);
  if (name.kind != OperandKind::kSymbol) d.fail("indirect calls are not supported");
  d.in.src.push_back(name);
  if (group + 1 < d.groups.size()) {
    for (const Operand& operand : d.groups[group + 1].items) d.in.src.push_back(operand);
  }
  d.operands(group + 1, group + 2);
}

template <Opcode kOpcode>
void no_operands(Decode& d) {
  d.in.opcode = kOpcode;
  if (kOpcode == Opcode::kRet) d.mods.take("uni");
  d.operands(0, 0);
}

// Hints about time: nothing to compute.
void hint(Decode& d) {
  d.in.opcode = Opcode::kNop;
  d.mods.take("u32");
  d.mods.take("mask");
}

void grid_dependency(Decode& d) {
  if (d.mods.take("wait")) {
    d.in.opcode = Opcode::kDependencyWait;
  } else if (d.mods.take("launch_dependents")) {
    d.in.opcode = Opcode::kNop;
  } else {
    d.fail("`.wait` or `.launch_dependents` is missing");
  }
  d.operands(0, 0);
}

void bar_reduction(Decode& d) {
  const bool popc = d.mods.take("popc");
  if (popc) {
    d.in.mod.bar = BarMode::kRedPopc;
  } else if (d.mods.take("and")) {
    d.in.mod.bar = BarMode::kRedAnd;
  } else if (d.mods.take("or")) {
    d.in.mod.bar = BarMode::kRedOr;
  } else {
    d.fail("unknown reduction");
  }
  const Type type = d.need_type();
  d.operands(3, 4);
  d.to_dst(0, type);
  for (size_t i = 1; i + 1 < d.groups.size(); ++i) d.to_src(i, Type::kU32);
  d.to_src(d.groups.size() - 1, Type::kPred);
}

void barrier(Decode& d) {
  if (d.mods.take("cluster")) d.fail("cluster barriers are not supported (stage 3)");
  d.mods.take("cta");
  if (d.mods.take("warp")) {
    if (!d.mods.take("sync")) d.fail("`.sync` is missing");
    d.in.opcode = Opcode::kWarpSync;
    d.operands(1, 1);
    d.to_src(0, Type::kB32);
    return;
  }
  d.in.opcode = Opcode::kBar;
  d.mods.take("aligned");
  if (d.mods.take("red")) {
    d.mods.take("aligned");
    bar_reduction(d);
    return;
  }
  const bool arrive = d.mods.take("arrive");
  if (!arrive && !d.mods.take("sync")) d.fail("`.sync`, `.arrive` or `.red` is missing");
  d.mods.take("aligned");
  d.in.mod.bar = arrive ? BarMode::kArrive : BarMode::kSync;
  d.operands(arrive ? 2 : 1, 2);
  for (size_t i = 0; i < d.groups.size(); ++i) d.to_src(i, Type::kU32);
}

void membar(Decode& d) {
  d.in.opcode = Opcode::kMembar;
  d.in.mod.semantics = Semantics::kSeqCst;
  if (d.mods.take("cta")) d.in.mod.scope = Scope::kCta;
  if (d.mods.take("gl")) d.in.mod.scope = Scope::kGpu;
  if (d.mods.take("sys")) d.in.mod.scope = Scope::kSys;
  d.operands(0, 0);
}

void fence(Decode& d) {
  if (d.mods.take("proxy")) {
    d.in.opcode = Opcode::kFenceProxy;
    d.in.mod.async_proxy = d.mods.take("async");
    if (!d.in.mod.async_proxy && !d.mods.take("alias")) d.fail("this proxy fence is not supported (stage 3)");
    for (const char* name : {"global", "shared::cta", "shared::cluster"}) d.mods.take(name);
    return;
  }
  if (d.mods.take("mbarrier_init")) {
    d.in.opcode = Opcode::kFenceProxy;
    d.mods.take("release");
    d.mods.take("cluster");
    return;
  }
  d.in.opcode = Opcode::kMembar;
  d.in.mod.semantics = Semantics::kAcqRel;
  if (d.mods.take("sc")) d.in.mod.semantics = Semantics::kSeqCst;
  if (d.mods.take("acquire")) d.in.mod.semantics = Semantics::kAcquire;
  if (d.mods.take("release")) d.in.mod.semantics = Semantics::kRelease;
  d.mods.take("acq_rel");
  if (d.mods.take("cta")) d.in.mod.scope = Scope::kCta;
  if (d.mods.take("cluster")) d.in.mod.scope = Scope::kCluster;
  if (d.mods.take("gpu")) d.in.mod.scope = Scope::kGpu;
  if (d.mods.take("sys")) d.in.mod.scope = Scope::kSys;
  d.operands(0, 0);
}

void need_sync(Decode& d) {
  if (!d.mods.take("sync")) d.fail("only the `.sync` form exists on the supported targets");
}

void shfl(Decode& d) {
  d.in.opcode = Opcode::kShfl;
  need_sync(d);
  const std::string mode = d.mods.take_any();
  if (mode == "up") {
    d.in.mod.shuffle = ShuffleMode::kUp;
  } else if (mode == "down") {
    d.in.mod.shuffle = ShuffleMode::kDown;
  } else if (mode == "bfly") {
    d.in.mod.shuffle = ShuffleMode::kBfly;
  } else if (mode == "idx") {
    d.in.mod.shuffle = ShuffleMode::kIdx;
  } else {
    d.fail("unknown shuffle mode");
  }
  d.in.type = d.need_type();
  d.operands(5, 5);
  auto& results = d.groups[0].items;
  if (results.size() > 2) d.fail("expected `d` or `d|p`");
  const bool has_predicate = results.size() == 2;
  Operand predicate;
  if (has_predicate) {
    predicate = results[1];
    results.pop_back();
  }
  d.to_dst(0, d.in.type);
  if (has_predicate) {
    predicate.type = Type::kPred;
    d.in.dst.push_back(predicate);
  }
  d.to_src(1, d.in.type);
  for (size_t i = 2; i < 5; ++i) d.to_src(i, Type::kU32);
}

void vote(Decode& d) {
  d.in.opcode = Opcode::kVote;
  need_sync(d);
  const std::string mode = d.mods.take_any();
  if (mode == "all") {
    d.in.mod.vote = VoteMode::kAll;
  } else if (mode == "any") {
    d.in.mod.vote = VoteMode::kAny;
  } else if (mode == "uni") {
    d.in.mod.vote = VoteMode::kUni;
  } else if (mode == "ballot") {
    d.in.mod.vote = VoteMode::kBallot;
  } else {
    d.fail("unknown vote mode");
  }
  d.in.type = d.need_type();
  d.operands(3, 3);
  d.to_dst(0, d.in.type);
  d.to_src(1, Type::kPred);
  d.to_src(2, Type::kU32);
}

void match(Decode& d) {
  d.in.opcode = Opcode::kMatch;
  d.in.mod.match = d.mods.take("all") ? MatchMode::kAll : MatchMode::kAny;
  d.mods.take("any");
  need_sync(d);
  d.in.type = d.need_type();
  d.operands(3, 3);
  auto& results = d.groups[0].items;
  Operand predicate;
  const bool has_predicate = results.size() == 2;
  if (has_predicate) {
    predicate = results[1];
    predicate.type = Type::kPred;
    results.pop_back();
  }
  d.to_dst(0, Type::kB32);
  if (has_predicate) d.in.dst.push_back(predicate);
  d.to_src(1, d.in.type);
  d.to_src(2, Type::kU32);
}

void redux(Decode& d) {
  using A = AtomicOp;
  static const std::unordered_map<std::string, AtomicOp> kOps = {{"add", A::kAdd}, {"min", A::kMin}, {"max", A::kMax},
                                                                 {"and", A::kAnd}, {"or", A::kOr},   {"xor", A::kXor}};
  d.in.opcode = Opcode::kRedux;
  need_sync(d);
  const auto found = kOps.find(d.mods.take_any());
  if (found == kOps.end()) d.fail("unknown reduction");
  d.in.mod.atomic = found->second;
  d.in.type = d.need_type();
  if (is_float(d.in.type) || size_of(d.in.type) != 4) d.fail("only 32-bit integer types are supported");
  d.operands(3, 3);
  d.to_dst(0, d.in.type);
  d.to_src(1, d.in.type);
  d.to_src(2, Type::kU32);
}

void activemask(Decode& d) {
  d.in.opcode = Opcode::kActivemask;
  d.in.type = d.need_type();
  d.operands(1, 1);
  d.to_dst(0, d.in.type);
}

void elect(Decode& d) {
  d.in.opcode = Opcode::kElect;
  need_sync(d);
  d.operands(2, 2);
  auto& results = d.groups[0].items;
  if (results.size() != 2) d.fail("expected `d|p`");
  results[0].type = Type::kU32;
  results[1].type = Type::kPred;
  d.in.dst = results;
  d.to_src(1, Type::kU32);
}

// The register count is ptxas's business; what can be checked is the constant.
void setmaxnreg(Decode& d) {
  d.in.opcode = Opcode::kNop;
  if (!d.mods.take("inc") && !d.mods.take("dec")) d.fail("`.inc` or `.dec` is missing");
  for (const char* name : {"sync", "aligned", "u32"}) need(d, name);
  d.operands(1, 1);
  const Operand count = d.single(0);
  if (count.kind != OperandKind::kImmediate || count.value < 24 || count.value > 256 || count.value % 8 != 0) {
    d.fail("the register count must be a constant multiple of 8 from 24 to 256");
  }
}

void stage_three(Decode& d) { d.fail("`" + d.name + "` is not supported (stage 3)"); }

}  // namespace

const DecoderTable& control_decoders() {
  static const DecoderTable kTable = {
      {"activemask", activemask},
      {"bar", barrier},
      {"barrier", barrier},
      {"bra", bra},
      {"brkpt", no_operands<Opcode::kNop>},
      {"brx", brx},
      {"call", call},
      {"clusterlaunchcontrol", stage_three},
      {"elect", elect},
      {"exit", no_operands<Opcode::kExit>},
      {"fence", fence},
      {"griddepcontrol", grid_dependency},
      {"match", match},
      {"membar", membar},
      {"nanosleep", hint},
      {"pmevent", hint},
      {"redux", redux},
      {"ret", no_operands<Opcode::kRet>},
      {"setmaxnreg", setmaxnreg},
      {"shfl", shfl},
      {"trap", no_operands<Opcode::kTrap>},
      {"vote", vote},
  };
  return kTable;
}

}  // namespace ptxsim
