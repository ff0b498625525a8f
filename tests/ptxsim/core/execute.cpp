// The step loop: arithmetic, branches, exits, and the reconvergence of diverged lanes.
#include "execute.h"

#include <algorithm>

#include "lanes.h"

namespace ptxsim {

std::string Executor::where(const Warp& warp, int lane) const {
  const uint32_t thread = warp.id * kLanes + static_cast<uint32_t>(std::max(lane, 0));
  return "block (" + std::to_string(block_->x) + "," + std::to_string(block_->y) + "," + std::to_string(block_->z) +
         ") warp " + std::to_string(warp.id) + (lane >= 0 ? " thread " + std::to_string(thread) : "");
}

void Executor::find(Finding kind, const Warp& warp, const Instruction& in, int lane, const std::string& message) {
  const int32_t index = index_of(in);
  if (launch_.findings.known(kind, index, -1)) return;
  launch_.findings.add(kind, index, -1, message + " at " + where(warp, lane));
}

void Executor::abort(Finding kind, const Warp& warp, const Instruction& in, int lane, const std::string& message) {
  find(kind, warp, in, lane, message);
  throw LaunchAborted(message);
}

uint32_t Executor::guard_mask(Warp& warp, const Instruction& in) const {
  const uint32_t value = *warp.lanes32(in.guard.slot);
  return in.guard_negate ? ~value : value;
}

template <bool kWgmma>
void Executor::run_warp(Warp& warp, uint64_t budget) {
  const Instruction* code = kernel_.code.data();
  InstructionCounters* counters = counters_.instructions.data();
  const uint64_t first = warp.steps;
  while (warp.steps - first < budget && warp.live != 0 && !warp.at_barrier) {
    if (warp.pc >= warp.next_pc) regroup(warp);
    const int32_t pc = warp.pc;
    const Instruction& in = code[pc];
    uint32_t mask = warp.active;
    if (in.guarded) mask &= guard_mask(warp, in);
    ++warp.steps;
    if (kWgmma && mask != 0) check_registers(warp, in);
    Next next = Next::kAdvance;
    if (in.alu != nullptr) {
      if (mask != 0) arithmetic(warp, in, mask);
    } else {
      next = control(warp, in, mask);
    }
    if (next == Next::kBlocked) continue;
    counters[pc].executions += 1;
    counters[pc].active_lanes += static_cast<uint64_t>(__builtin_popcount(mask));
    if (next == Next::kAdvance) ++warp.pc;
  }
  launch_.instructions += warp.steps - first;
}

template void Executor::run_warp<false>(Warp& warp, uint64_t budget);
template void Executor::run_warp<true>(Warp& warp, uint64_t budget);

Executor::Next Executor::control(Warp& warp, const Instruction& in, uint32_t mask) {
  switch (in.opcode) {
    case Opcode::kBra:
      return branch(warp, in, mask);
    case Opcode::kBrx:
      return branch_indexed(warp, in, mask);
    case Opcode::kExit:
      if (const uint32_t unwaited = mask & ~warp.waited; launch_.options.dependent && unwaited != 0) {
        find(Finding::kDependency, warp, in, __builtin_ctz(unwaited),
             "the end without griddepcontrol.wait: the next launch would not wait for the ones before this");
      }
      return leave(warp, mask);
    case Opcode::kBar:
      return barrier(warp, in, mask);
    default:
      break;
  }
  // A predicated-off instruction does nothing, whichever it is.
  if (mask == 0) return Next::kAdvance;
  switch (in.opcode) {
    case Opcode::kLd:
      load(warp, in, mask);
      return Next::kAdvance;
    case Opcode::kSt:
      store(warp, in, mask);
      return Next::kAdvance;
    case Opcode::kAtom:
    case Opcode::kRed:
      atomic(warp, in, mask);
      return Next::kAdvance;
    case Opcode::kCvta:
      convert_address(warp, in, mask);
      return Next::kAdvance;
    case Opcode::kMapa:
      map_address(warp, in, mask);
      return Next::kAdvance;
    case Opcode::kIsspacep:
      is_space(warp, in, mask);
      return Next::kAdvance;
    case Opcode::kMembar:
    case Opcode::kFenceProxy:
      memory_fence(warp, in);
      return Next::kAdvance;
    case Opcode::kCpAsync:
      copy_async(warp, in, mask);
      return Next::kAdvance;
    case Opcode::kCpAsyncCommit:
      warp.async.commit(mask);
      return Next::kAdvance;
    case Opcode::kCpAsyncWait:
      wait_async(warp, in, mask);
      return Next::kAdvance;
    case Opcode::kCpAsyncMbarrier:
      arrive_after_copies(warp, in, mask);
      return Next::kAdvance;
    case Opcode::kMbarrier:
      return mbarrier(warp, in, mask);
    case Opcode::kBulkCopy:
      copy_bulk(warp, in, mask);
      return Next::kAdvance;
    case Opcode::kBulkCommit:
      commit_bulk(warp, mask);
      return Next::kAdvance;
    case Opcode::kBulkWait:
      wait_bulk(warp, in, mask);
      return Next::kAdvance;
    case Opcode::kWgmma:
    case Opcode::kWgmmaFence:
    case Opcode::kWgmmaCommit:
    case Opcode::kWgmmaWait:
      return wgmma(warp, in, mask);
    case Opcode::kMovClock:
      move_clock(warp, in, mask);
      return Next::kAdvance;
    case Opcode::kDependencyWait:
      warp.waited |= mask;
      return Next::kAdvance;
    case Opcode::kNop:
      return Next::kAdvance;
    case Opcode::kTrap:
      abort(Finding::kTrap, warp, in, __builtin_ctz(mask), "the kernel stopped itself (trap or failed assert)");
    case Opcode::kLdmatrix:
    case Opcode::kStmatrix:
    case Opcode::kMovmatrix:
    case Opcode::kMma:
      return tensor(warp, in, mask);
    default:
      return collective(warp, in, mask);
  }
}

// ---- Arithmetic

void Executor::arithmetic(Warp& warp, const Instruction& in, uint32_t mask) {
  if (!in.alu_direct) {
    arithmetic_converted(warp, in, mask);
    return;
  }
  AluArguments x;
  x.instruction = &in;
  x.carry = &warp.carry;
  const size_t sources = in.src.size();
  for (size_t i = 0; i < sources; ++i) x.src[i] = warp.registers + in.src[i].slot;
  const size_t destinations = in.dst.size();
  // Lanes that have left may hold anything, so a write for all live lanes needs no mask.
  if (mask == warp.live) {
    for (size_t i = 0; i < destinations; ++i) {
      x.dst[i] = in.dst[i].kind == OperandKind::kSink ? nullptr : warp.registers + in.dst[i].slot;
    }
    if (x.dst[0] == nullptr) {
      alignas(64) uint64_t unused[kLanes];
      x.dst[0] = unused;
      in.alu(x);
    } else {
      in.alu(x);
    }
    return;
  }
  alignas(64) uint64_t scratch[4][kLanes];
  const uint32_t carry = warp.carry;
  for (size_t i = 0; i < destinations; ++i) x.dst[i] = scratch[i];
  in.alu(x);
  warp.carry = (warp.carry & mask) | (carry & ~mask);
  for (size_t i = 0; i < destinations; ++i) {
    const Operand& d = in.dst[i];
    if (d.kind == OperandKind::kSink) continue;
    if (d.register_type == Type::kPred) {
      write_predicate(warp, d, mask, *reinterpret_cast<const uint32_t*>(scratch[i]));
    } else if (is_wide(d.register_type)) {
      write64(warp, d, mask, scratch[i]);
    } else {
      write32(warp, d, mask, reinterpret_cast<const uint32_t*>(scratch[i]));
    }
  }
}

// Operands whose registers are wider or narrower than the operation reads them, and negated predicates.
void Executor::arithmetic_converted(Warp& warp, const Instruction& in, uint32_t mask) {
  alignas(64) uint64_t sources[5][kLanes];
  alignas(64) uint64_t results[4][kLanes];
  AluArguments x;
  x.instruction = &in;
  x.carry = &warp.carry;
  const uint32_t carry = warp.carry;
  for (size_t i = 0; i < in.src.size(); ++i) {
    const Operand& s = in.src[i];
    x.src[i] = sources[i];
    if (s.type == Type::kPred) {
      *reinterpret_cast<uint32_t*>(sources[i]) = read_predicate(warp, s);
      continue;
    }
    read64(warp, s, sources[i]);
    if (!is_wide(s.type)) {
      auto* narrow = reinterpret_cast<uint32_t*>(sources[i]);
      for (int lane = 0; lane < kLanes; ++lane) narrow[lane] = static_cast<uint32_t>(sources[i][lane]);
    }
  }
  for (size_t i = 0; i < in.dst.size(); ++i) x.dst[i] = results[i];
  in.alu(x);
  warp.carry = (warp.carry & mask) | (carry & ~mask);
  for (size_t i = 0; i < in.dst.size(); ++i) {
    const Operand& d = in.dst[i];
    if (d.kind == OperandKind::kSink) continue;
    auto* narrow = reinterpret_cast<uint32_t*>(results[i]);
    if (d.register_type == Type::kPred) {
      write_predicate(warp, d, mask, *narrow);
      continue;
    }
    const bool result_wide =
        in.opcode == Opcode::kCvt && !is_float(in.type) ? is_wide(d.register_type) : is_wide(d.type);
    if (is_wide(d.register_type) && !result_wide) {
      for (int lane = kLanes - 1; lane >= 0; --lane) {
        const uint32_t value = narrow[lane];
        results[i][lane] = is_signed(d.type) ? static_cast<uint64_t>(int64_t{static_cast<int32_t>(value)}) : value;
      }
    } else if (!is_wide(d.register_type) && result_wide) {
      for (int lane = 0; lane < kLanes; ++lane) narrow[lane] = static_cast<uint32_t>(results[i][lane]);
    }
    if (is_wide(d.register_type)) {
      write64(warp, d, mask, results[i]);
    } else {
      write32(warp, d, mask, narrow);
    }
  }
}

uint64_t Executor::read_lane(Warp& warp, const Operand& operand, int lane) {
  const bool wide = operand.kind == OperandKind::kImmediate ? is_wide(operand.type) : is_wide(operand.register_type);
  return wide ? warp.lanes64(operand.slot)[lane] : warp.lanes32(operand.slot)[lane];
}

void Executor::read64(Warp& warp, const Operand& operand, uint64_t* out) {
  const bool wide = operand.kind == OperandKind::kImmediate ? is_wide(operand.type) : is_wide(operand.register_type);
  if (wide) {
    std::memcpy(out, warp.lanes64(operand.slot), 8 * kLanes);
  } else {
    const uint32_t* values = warp.lanes32(operand.slot);
    for (int lane = 0; lane < kLanes; ++lane) out[lane] = values[lane];
  }
}

uint32_t Executor::read_predicate(Warp& warp, const Operand& operand) {
  const uint32_t value = *warp.lanes32(operand.slot);
  return operand.negate ? ~value : value;
}

void Executor::write32(Warp& warp, const Operand& operand, uint32_t mask, const uint32_t* values) {
  uint32_t* to = warp.lanes32(operand.slot);
  for (int lane = 0; lane < kLanes; ++lane) to[lane] = lane_of(mask, lane) ? values[lane] : to[lane];
}

void Executor::write64(Warp& warp, const Operand& operand, uint32_t mask, const uint64_t* values) {
  uint64_t* to = warp.lanes64(operand.slot);
  for (int lane = 0; lane < kLanes; ++lane) to[lane] = lane_of(mask, lane) ? values[lane] : to[lane];
}

void Executor::write_predicate(Warp& warp, const Operand& operand, uint32_t mask, uint32_t value) {
  uint32_t* to = warp.lanes32(operand.slot);
  *to = (*to & ~mask) | (value & mask);
}

void Executor::move_clock(Warp& warp, const Instruction& in, uint32_t mask) {
  const auto which = static_cast<SpecialRegister>(in.src[0].value);
  const bool high = which == SpecialRegister::kClockHi || which == SpecialRegister::kGlobaltimerHi;
  const uint64_t value = high ? warp.steps >> 32 : warp.steps;
  uint64_t wide[kLanes];
  uint32_t narrow[kLanes];
  std::fill(wide, wide + kLanes, value);
  std::fill(narrow, narrow + kLanes, static_cast<uint32_t>(value));
  if (is_wide(in.dst[0].register_type)) {
    write64(warp, in.dst[0], mask, wide);
  } else {
    write32(warp, in.dst[0], mask, narrow);
  }
}

// ---- Control flow

Executor::Next Executor::branch(Warp& warp, const Instruction& in, uint32_t mask) {
  if (mask == warp.active) {
    warp.pc = in.target;
    return Next::kJumped;
  }
  if (mask == 0) return Next::kAdvance;
  for (uint32_t left = warp.active; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    warp.lane_pc[static_cast<size_t>(lane)] = lane_of(mask, lane) ? in.target : warp.pc + 1;
  }
  warp.active = 0;
  regroup(warp);
  return Next::kJumped;
}

Executor::Next Executor::branch_indexed(Warp& warp, const Instruction& in, uint32_t mask) {
  for (uint32_t left = warp.active; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    int32_t& pc = warp.lane_pc[static_cast<size_t>(lane)];
    pc = warp.pc + 1;
    if (!lane_of(mask, lane)) continue;
    const uint64_t index = read_lane(warp, in.src[0], lane);
    if (index >= in.targets.size()) abort(Finding::kInvalidOperand, warp, in, lane, "branch index past its table");
    pc = in.targets[index];
  }
  warp.active = 0;
  regroup(warp);
  return Next::kJumped;
}

Executor::Next Executor::leave(Warp& warp, uint32_t mask) {
  if (mask == 0) return Next::kAdvance;
  warp.live &= ~mask;
  warp.active &= ~mask;
  if (warp.live == 0) {
    ++block_->finished;
    recheck_barriers();
    return Next::kJumped;
  }
  if (warp.active != 0) return Next::kAdvance;
  regroup(warp);
  return Next::kJumped;
}

// Chooses the lanes with the smallest pc; they run until they meet the next group.
void Executor::regroup(Warp& warp) {
  for (uint32_t left = warp.active; left != 0; left &= left - 1) {
    warp.lane_pc[static_cast<size_t>(__builtin_ctz(left))] = warp.pc;
  }
  uint32_t candidates = warp.live & ~warp.parked;
  if (candidates == 0 && warp.polling != 0) {
    // Nothing else to do: these look again, and then the warp waits.
    candidates = warp.polling;
    warp.parked &= ~warp.polling;
    warp.polling = 0;
  }
  if (candidates == 0) {
    const int lane = __builtin_ctz(warp.parked);
    const Instruction& in = kernel_.code[static_cast<size_t>(warp.lane_pc[static_cast<size_t>(lane)])];
    if (in.opcode == Opcode::kBar) {
      abort(Finding::kDivergentBarrier, warp, in, lane, "a barrier reached by only some lanes of a warp");
    }
    abort(Finding::kDivergentCollective, warp, in, lane,
          "lanes that belong to this instruction never arrive: every lane of the warp waits or has left");
  }
  int32_t smallest = INT32_MAX;
  for (uint32_t left = candidates; left != 0; left &= left - 1) {
    smallest = std::min(smallest, warp.lane_pc[static_cast<size_t>(__builtin_ctz(left))]);
  }
  warp.pc = smallest;
  warp.active = 0;
  warp.next_pc = INT32_MAX;
  for (uint32_t left = candidates; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const int32_t pc = warp.lane_pc[static_cast<size_t>(lane)];
    if (pc == smallest) {
      warp.active |= 1u << lane;
    } else {
      warp.next_pc = std::min(warp.next_pc, pc);
    }
  }
}

}  // namespace ptxsim
