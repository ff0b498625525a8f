// Decoders of mbarrier and of bulk copies (cp.async.bulk, cp.reduce.async.bulk).
#include "parser.h"

namespace ptxsim {
namespace {

// Without clusters a shared::cluster address is one of the block's own (mapa knows no other).
void take_own_shared(Decode& d) {
  d.in.mod.space = d.mods.take("shared::cluster") || d.mods.take("shared::cta") || d.mods.take("shared")
                       ? Space::kShared
                       : Space::kGeneric;
}

void arrive(Decode& d) {
  Modifiers& mod = d.in.mod;
  mod.mbarrier = d.mods.take("expect_tx") ? MbarrierMode::kArriveExpectTx : MbarrierMode::kArrive;
  d.mods.take("noComplete");  // a promise: completing a phase is checked where it happens
  const bool transaction = mod.mbarrier == MbarrierMode::kArriveExpectTx;
  // Forms of the first operand: a state, `_`, or none at all.
  const bool has_state = !d.groups.empty() && d.single(0).kind != OperandKind::kAddress;
  const size_t at = has_state ? 1 : 0;
  d.operands(at + (transaction ? 2 : 1), at + 2);
  if (has_state) d.to_dst(0, Type::kB64);
  d.address(at);
  if (d.groups.size() > at + 1) d.to_src(at + 1, Type::kU32);
}

void wait(Decode& d, MbarrierMode mode) {
  d.in.mod.mbarrier = mode;
  d.in.mod.parity = d.mods.take("parity");
  d.operands(3, mode == MbarrierMode::kTryWait ? 4 : 3);  // a fourth operand limits how long a wait may suspend
  d.to_dst(0, Type::kPred);
  d.address(1);
  d.to_src(2, d.in.mod.parity ? Type::kU32 : Type::kB64);
}

void mbarrier(Decode& d) {
  Modifiers& mod = d.in.mod;
  d.in.opcode = Opcode::kMbarrier;
  const std::string operation = d.mods.take_any();
  if (operation == "pending_count") {
    need(d, "b64");
    mod.mbarrier = MbarrierMode::kPendingCount;
    d.operands(2, 2);
    d.to_dst(0, Type::kB32);
    d.to_src(1, Type::kB64);
    return;
  }
  take_own_shared(d);
  take_semantics(d);
  need(d, "b64");
  // Operations on an mbarrier are ordered among themselves; init and inval are plain writes.
  const bool plain = operation == "init" || operation == "inval";
  if (!plain && mod.semantics == Semantics::kWeak) mod.semantics = Semantics::kAcqRel;
  if (operation == "init") {
    mod.mbarrier = MbarrierMode::kInit;
    d.operands(2, 2);
    d.address(0);
    d.to_src(1, Type::kU32);
  } else if (operation == "inval") {
    mod.mbarrier = MbarrierMode::kInvalidate;
    d.operands(1, 1);
    d.address(0);
  } else if (operation == "expect_tx" || operation == "complete_tx") {
    mod.mbarrier = operation == "expect_tx" ? MbarrierMode::kExpectTx : MbarrierMode::kCompleteTx;
    d.operands(2, 2);
    d.address(0);
    d.to_src(1, Type::kU32);
  } else if (operation == "arrive" || operation == "arrive_drop") {
    arrive(d);
    mod.drop = operation == "arrive_drop";
  } else if (operation == "test_wait" || operation == "try_wait") {
    wait(d, operation == "test_wait" ? MbarrierMode::kTestWait : MbarrierMode::kTryWait);
  } else {
    d.fail("unknown mbarrier operation");
  }
}

// [map, {coordinates}] is one group: the address first.
void tensor_address(Decode& d, size_t group, std::vector<Operand>& coordinates) {
  std::vector<Operand>& items = d.groups.at(group).items;
  if (items.size() != size_t{d.in.mod.rank} + 1) d.fail("the number of coordinates does not fit the tensor");
  coordinates.assign(items.begin() + 1, items.end());
  items.resize(1);
  d.address(group);
  for (Operand& coordinate : coordinates) set_type(coordinate, Type::kS32);
}

void tensor_copy(Decode& d) {
  Modifiers& mod = d.in.mod;
  const std::string rank = d.mods.take_any();
  if (rank.size() != 2 || rank[0] < '1' || rank[0] > '5' || rank[1] != 'd') d.fail("expected .1d to .5d");
  mod.rank = static_cast<uint8_t>(rank[0] - '0');
  d.mods.take("tile");
  std::vector<Operand> coordinates;
  if (mod.bulk == BulkMode::kLoad) {
    d.operands(3, 3);
    d.address(0);
    tensor_address(d, 1, coordinates);
    d.address(2);
  } else {
    d.operands(2, 2);
    tensor_address(d, 0, coordinates);
    d.address(1);
  }
  d.in.src.insert(d.in.src.end(), coordinates.begin(), coordinates.end());
}

}  // namespace

void decode_bulk(Decode& d, bool reduce) {
  Modifiers& mod = d.in.mod;
  if (d.mods.take("prefetch")) {
    d.in.opcode = Opcode::kNop;
    while (!d.mods.take_any().empty()) {
    }
    return;
  }
  if (d.mods.take("commit_group")) {
    d.in.opcode = Opcode::kBulkCommit;
    d.operands(0, 0);
    return;
  }
  if (d.mods.take("wait_group")) {
    d.in.opcode = Opcode::kBulkWait;
    mod.read = d.mods.take("read");
    d.operands(1, 1);
    d.to_src(0, Type::kU32);
    if (d.in.src[0].kind != OperandKind::kImmediate) d.fail("the number of groups must be a constant");
    return;
  }
  d.in.opcode = Opcode::kBulkCopy;
  if (d.mods.take("multicast::cluster")) d.fail("multicast is not supported (stage 3)");
  const bool load = d.mods.take("mbarrier::complete_tx::bytes");
  if (!load && !d.mods.take("bulk_group")) d.fail("`.mbarrier::complete_tx::bytes` or `.bulk_group` is missing");
  if (!d.mods.take("global")) d.fail("copies between blocks' shared memories are not supported (stage 3)");
  if (!d.mods.take("shared::cta") && !d.mods.take("shared::cluster")) d.fail("`.shared::cta` is missing");
  if (load && reduce) d.fail("reductions into shared memory are not supported (stage 3)");
  mod.bulk = load ? BulkMode::kLoad : reduce ? BulkMode::kReduce : BulkMode::kStore;
  if (reduce) {
    mod.atomic = take_atomic_op(d);
    mod.semantics = Semantics::kRelaxed;
  }
  const bool tensor = d.mods.take("tensor");
  if (take_cache_hints(d)) d.groups.pop_back();
  if (tensor) {
    tensor_copy(d);
    return;
  }
  if (reduce) {
    d.mods.take("noftz");
    d.in.type = d.need_type();
  }
  d.operands(load ? 4 : 3, load ? 4 : 3);
  d.address(0);
  d.address(1);
  d.to_src(2, Type::kU32);
  if (load) d.address(3);
}

const DecoderTable& async_decoders() {
  static const DecoderTable kTable = {{"mbarrier", mbarrier}};
  return kTable;
}

}  // namespace ptxsim
