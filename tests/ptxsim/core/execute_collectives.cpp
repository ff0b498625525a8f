// Instructions lanes of a warp execute together: shuffles, votes, matches, reductions, bar.warp.sync, elect.
#include <algorithm>

#include "execute.h"
#include "lanes.h"

namespace ptxsim {

uint32_t Executor::gather(Warp& warp, const Instruction& in, uint32_t mask, const uint32_t* members) {
  // Lanes parked here earlier take part; a bar.warp.sync may also be met by lanes at another one.
  uint32_t present = mask;
  for (uint32_t left = warp.parked; left != 0; left &= left - 1) {
    const auto lane = static_cast<size_t>(__builtin_ctz(left));
    const int32_t at = warp.lane_pc[lane];
    const bool same =
        at == warp.pc || (in.opcode == Opcode::kWarpSync && kernel_.code[static_cast<size_t>(at)].opcode == in.opcode);
    if (same) present |= 1u << lane;
  }
  uint32_t ready = 0;
  for (uint32_t left = present; left != 0;) {
    const int first = __builtin_ctz(left);
    const uint32_t wanted = members[first];
    uint32_t together = 0;
    for (uint32_t rest = left; rest != 0; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      if (members[lane] == wanted) together |= 1u << lane;
    }
    left &= ~together;
    if ((together & ~wanted) != 0) {
      abort(Finding::kInvalidOperand, warp, in, first,
            "a lane executes a collective whose member mask does not name it");
    }
    if ((wanted & ~warp.live) != 0) {
      abort(Finding::kDivergentCollective, warp, in, first,
            "the member mask names lanes that have left the kernel or never were");
    }
    if (together == wanted) ready |= together;
  }
  return ready;
}

// For instructions of the whole warp: waits until all of `members`, which are all live lanes, are here.
bool Executor::rendezvous(Warp& warp, const Instruction& in, uint32_t members) {
  uint32_t wanted[kLanes];
  std::fill(wanted, wanted + kLanes, members);
  const uint32_t ready = gather(warp, in, warp.active, wanted);
  if (ready == members) {
    warp.parked &= ~ready;
    warp.active = ready;
    warp.next_pc = INT32_MAX;
    return true;
  }
  for (uint32_t left = warp.active; left != 0; left &= left - 1)
    warp.lane_pc[static_cast<size_t>(__builtin_ctz(left))] = warp.pc;
  warp.parked |= warp.active;
  warp.active = 0;
  regroup(warp);
  return false;
}

Executor::Next Executor::collective(Warp& warp, const Instruction& in, uint32_t mask) {
  if (in.opcode == Opcode::kActivemask) {
    uint32_t values[kLanes];
    std::fill(values, values + kLanes, mask);
    write32(warp, in.dst[0], mask, values);
    return Next::kAdvance;
  }
  const Operand& operand = in.src.back();
  if (mask == kFullMask && operand.kind == OperandKind::kImmediate &&
      static_cast<uint32_t>(operand.value) == kFullMask) {
    collect(warp, in, mask);
    return Next::kAdvance;
  }
  uint64_t wide[kLanes];
  read64(warp, operand, wide);
  uint32_t members[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) members[lane] = static_cast<uint32_t>(wide[lane]);
  for (uint32_t left = warp.parked; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const Instruction& there = kernel_.code[static_cast<size_t>(warp.lane_pc[static_cast<size_t>(lane)])];
    members[lane] = static_cast<uint32_t>(read_lane(warp, there.src.back(), lane));
  }
  const uint32_t ready = gather(warp, in, mask, members);
  for (uint32_t left = ready; left != 0;) {
    const uint32_t group = members[__builtin_ctz(left)];
    collect(warp, in, group);
    left &= ~group;
  }
  for (uint32_t left = warp.parked & ready; left != 0; left &= left - 1) {
    const auto lane = static_cast<size_t>(__builtin_ctz(left));
    // Lanes that waited here go on with the others; those at another bar.warp.sync go on from there.
    if (warp.lane_pc[lane] == warp.pc) {
      warp.active |= 1u << lane;
    } else {
      ++warp.lane_pc[lane];
    }
  }
  warp.parked &= ~ready;
  const uint32_t waiting = mask & ~ready;
  for (uint32_t left = waiting; left != 0; left &= left - 1)
    warp.lane_pc[static_cast<size_t>(__builtin_ctz(left))] = warp.pc;
  warp.parked |= waiting;
  warp.active &= ~waiting;
  ++warp.pc;
  regroup(warp);
  return waiting == mask ? Next::kBlocked : Next::kJumped;
}

void Executor::collect(Warp& warp, const Instruction& in, uint32_t group) {
  switch (in.opcode) {
    case Opcode::kShfl:
      shuffle(warp, in, group);
      break;
    case Opcode::kVote:
      vote(warp, in, group);
      break;
    case Opcode::kMatch:
      match(warp, in, group);
      break;
    case Opcode::kRedux:
      reduce(warp, in, group);
      break;
    case Opcode::kElect:
      elect(warp, in, group);
      break;
    case Opcode::kWarpSync:
      if (launch_.options.races) warp.clock.tick();
      break;
    default:
      abort(Finding::kInvalidOperand, warp, in, __builtin_ctz(group), "this instruction cannot be executed");
  }
}

void Executor::shuffle(Warp& warp, const Instruction& in, uint32_t group) {
  uint64_t value[kLanes];
  uint64_t b[kLanes];
  uint64_t c[kLanes];
  read64(warp, in.src[0], value);
  read64(warp, in.src[1], b);
  read64(warp, in.src[2], c);
  uint32_t result[kLanes] = {};
  uint32_t in_range = 0;
  for (uint32_t left = group; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const int shift = static_cast<int>(b[lane] & 31u);
    const int clamp = static_cast<int>(c[lane] & 31u);
    const int segment = static_cast<int>((c[lane] >> 8) & 31u);
    const int most = (lane & segment) | (clamp & ~segment);
    const int least = lane & segment;
    int source = lane;
    bool valid = false;
    switch (in.mod.shuffle) {
      case ShuffleMode::kUp:
        source = lane - shift;
        valid = source >= most;
        break;
      case ShuffleMode::kDown:
        source = lane + shift;
        valid = source <= most;
        break;
      case ShuffleMode::kBfly:
        source = lane ^ shift;
        valid = source <= most;
        break;
      case ShuffleMode::kIdx:
        source = least | (shift & ~segment);
        valid = source <= most;
        break;
    }
    if (!valid) source = lane;
    if (!lane_of(group, source)) {
      find(Finding::kInvalidOperand, warp, in, lane,
           "a shuffle reads lane " + std::to_string(source) + ", which takes no part in it");
    }
    result[lane] = static_cast<uint32_t>(value[source]);
    in_range |= static_cast<uint32_t>(valid) << lane;
  }
  if (in.dst[0].kind != OperandKind::kSink) write32(warp, in.dst[0], group, result);
  if (in.dst.size() > 1 && in.dst[1].kind != OperandKind::kSink) write_predicate(warp, in.dst[1], group, in_range);
}

void Executor::vote(Warp& warp, const Instruction& in, uint32_t group) {
  const uint32_t votes = read_predicate(warp, in.src[0]) & group;
  if (in.mod.vote == VoteMode::kBallot) {
    uint32_t values[kLanes];
    std::fill(values, values + kLanes, votes);
    write32(warp, in.dst[0], group, values);
    return;
  }
  bool result = votes == group;
  if (in.mod.vote == VoteMode::kAny) result = votes != 0;
  if (in.mod.vote == VoteMode::kUni) result = votes == group || votes == 0;
  write_predicate(warp, in.dst[0], group, result ? kFullMask : 0);
}

void Executor::match(Warp& warp, const Instruction& in, uint32_t group) {
  uint64_t value[kLanes];
  read64(warp, in.src[0], value);
  uint32_t result[kLanes] = {};
  bool all = true;
  for (uint32_t left = group; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    for (uint32_t other = group; other != 0; other &= other - 1) {
      const int i = __builtin_ctz(other);
      if (value[i] == value[lane]) result[lane] |= 1u << i;
    }
    all = all && result[lane] == group;
  }
  if (in.mod.match == MatchMode::kAll) std::fill(result, result + kLanes, all ? group : 0);
  write32(warp, in.dst[0], group, result);
  if (in.dst.size() > 1) write_predicate(warp, in.dst[1], group, all ? kFullMask : 0);
}

void Executor::reduce(Warp& warp, const Instruction& in, uint32_t group) {
  const uint32_t* value = warp.lanes32(in.src[0].slot);
  uint32_t total = value[__builtin_ctz(group)];
  for (uint32_t left = group & (group - 1); left != 0; left &= left - 1) {
    const uint32_t x = value[__builtin_ctz(left)];
    const bool less = is_signed(in.type) ? static_cast<int32_t>(x) < static_cast<int32_t>(total) : x < total;
    switch (in.mod.atomic) {
      case AtomicOp::kAdd:
        total += x;
        break;
      case AtomicOp::kMin:
        total = less ? x : total;
        break;
      case AtomicOp::kMax:
        total = less ? total : x;
        break;
      case AtomicOp::kAnd:
        total &= x;
        break;
      case AtomicOp::kOr:
        total |= x;
        break;
      default:
        total ^= x;
    }
  }
  uint32_t values[kLanes];
  std::fill(values, values + kLanes, total);
  write32(warp, in.dst[0], group, values);
}

void Executor::elect(Warp& warp, const Instruction& in, uint32_t group) {
  const auto leader = static_cast<uint32_t>(__builtin_ctz(group));
  uint32_t values[kLanes];
  std::fill(values, values + kLanes, leader);
  if (in.dst[0].kind != OperandKind::kSink) write32(warp, in.dst[0], group, values);
  write_predicate(warp, in.dst[1], group, 1u << leader);
}

}  // namespace ptxsim
