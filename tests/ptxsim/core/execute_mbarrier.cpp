// mbarrier instructions: checks, the order they create, and warps that wait for a phase.
#include <algorithm>

#include "execute.h"
#include "lanes.h"

namespace ptxsim {
namespace {

// A failing mbarrier.test_wait in a loop must let late copies land in the end.
constexpr uint64_t kPollCost = 2000;

const char* text_of(MbarrierFault fault) {
  return fault == MbarrierFault::kUnderflow ? "more arrivals than the mbarrier's phase expects"
                                            : "the mbarrier's transaction count leaves its range of 20 bits";
}

}  // namespace

uint64_t Executor::shared_offset(Warp& warp, const Instruction& in, const Operand& operand, int lane) {
  uint64_t address[kLanes];
  addresses(warp, operand, address);
  if (in.opcode == Opcode::kBulkCopy || in.mod.space == Space::kShared) return address[lane];
  const uint64_t generic = address[lane];
  if (generic >> kWindowBits != kSharedWindow) {
    abort(Finding::kInvalidOperand, warp, in, lane, "the generic address of an mbarrier is not in shared memory");
  }
  return generic & (kWindowSize - 1);
}

void Executor::mbarrier_start(Warp& warp, const Instruction& in, uint64_t address, int lane) {
  const Place place = locate(warp, in, Space::kShared, address, 8, 8, lane, true);
  check_race(warp, in, place, 8, lane, true, nullptr);
  const uint64_t count = read_lane(warp, in.src[1], lane);
  if (count == 0 || count > Mbarrier::kMostArrivals) {
    abort(Finding::kMbarrier, warp, in, lane, "an mbarrier expects 1 to 2^20-1 arrivals, got " + std::to_string(count));
  }
  auto found = block_->mbarriers.find(address);
  if (found == block_->mbarriers.end()) {
    const auto slot = static_cast<uint32_t>(block_->mbarriers.size());
    if (slot >= kMostMbarriers) abort(Finding::kInvalidOperand, warp, in, lane, "more than 128 mbarriers in a block");
    found = block_->mbarriers.emplace(address, Mbarrier(slot)).first;
  } else if (found->second.live()) {
    abort(Finding::kMbarrier, warp, in, lane, "mbarrier.init of an mbarrier in use, without mbarrier.inval");
  }
  found->second.initialise(static_cast<uint32_t>(count));
  found->second.initialised_by = uint64_t{warp.clock.agent()} << 32 | warp.clock.time();
  found->second.initialised_at = index_of(in);
  const uint64_t mirror = found->second.mirror();
  std::memcpy(place.host, &mirror, 8);
  mark_written(place, 8);
}

Mbarrier& Executor::mbarrier_at(Warp& warp, const Instruction& in, uint64_t address, int lane) {
  const Place place = locate(warp, in, Space::kShared, address, 8, 8, lane, true);
  const auto found = block_->mbarriers.find(address);
  if (found == block_->mbarriers.end() || !found->second.live()) {
    abort(Finding::kMbarrier, warp, in, lane,
          "no mbarrier was initialised at shared address " + std::to_string(address));
  }
  Mbarrier& barrier = found->second;
  const uint64_t mirror = barrier.mirror();
  if (std::memcmp(place.host, &mirror, 8) != 0) {
    abort(Finding::kMbarrier, warp, in, lane, "an ordinary store has overwritten an mbarrier in use");
  }
  // Shadow memory forgets the init when its own warp goes on to use the barrier.
  const bool ordered = barrier.initialised_by >> 32 == warp.clock.agent() || warp.clock.knows(barrier.initialised_by);
  if (launch_.options.races && !ordered) {
    launch_.findings.add(Finding::kRace, index_of(in), barrier.initialised_at,
                         "the use of an mbarrier by " + where(warp, lane) + " is not ordered after its init (`" +
                             kernel_.code[static_cast<size_t>(barrier.initialised_at)].text + "`)");
  }
  if (in.opcode == Opcode::kMbarrier) {
    const bool wait = in.mod.mbarrier == MbarrierMode::kTestWait || in.mod.mbarrier == MbarrierMode::kTryWait;
    check_race(warp, in, place, 8, lane, !wait, nullptr);
  }
  return barrier;
}

void Executor::change_mbarrier(Warp& warp, const Instruction& in, uint64_t address, int lane, const Change& change) {
  Mbarrier& barrier = block_->mbarriers.at(address);
  const uint64_t phase = barrier.phase();
  const MbarrierFault fault = change(barrier);
  if (fault != MbarrierFault::kNone) abort(Finding::kMbarrier, warp, in, lane, text_of(fault));
  const uint64_t mirror = barrier.mirror();
  std::memcpy(block_->shared.bytes.data() + address, &mirror, 8);
  if (barrier.phase() == phase) return;
  for (const PendingBulk& copy : block_->pending) {
    if (!copy.load() || copy.mbarrier != address || copy.phase != phase) continue;
    find(Finding::kAsync, warp, *copy.instruction, copy.lane,
         "the mbarrier's phase completes before this copy of " + std::to_string(copy.bytes) +
             " bytes has landed: the phase expects too few bytes or arrivals; the copy was issued");
  }
  wake_mbarrier_waiters();
}

void Executor::wake_mbarrier_waiters() {
  for (Warp& warp : block_->warps) {
    for (uint32_t left = warp.polling; left != 0; left &= left - 1) {
      warp.next_pc = std::min(warp.next_pc, warp.lane_pc[static_cast<size_t>(__builtin_ctz(left))]);
    }
    warp.parked &= ~warp.polling;
    warp.polling = 0;
    if (!warp.at_mbarrier) continue;
    warp.at_barrier = false;
    warp.at_mbarrier = false;
  }
}

void Executor::mbarrier_arrive(Warp& warp, const Instruction& in, uint64_t address, int lane) {
  Mbarrier& barrier = mbarrier_at(warp, in, address, lane);
  const uint64_t state = barrier.state();
  const bool transaction = in.mod.mbarrier == MbarrierMode::kArriveExpectTx;
  const uint32_t operand = in.src.size() > 1 ? static_cast<uint32_t>(read_lane(warp, in.src[1], lane)) : 1;
  if (transaction) {
    change_mbarrier(warp, in, address, lane, [=](Mbarrier& b) { return b.expect(operand); });
  } else if (operand == 0 || operand > Mbarrier::kMostArrivals) {
    abort(Finding::kMbarrier, warp, in, lane, "an arrival counts 1 to 2^20-1, got " + std::to_string(operand));
  }
  if (launch_.options.races && in.mod.semantics != Semantics::kRelaxed) {
    barrier.arriving.now.join(warp.clock.now);
    barrier.arriving.fenced.join(warp.clock.fenced);
    barrier.arriving.proxied.join(warp.clock.proxied);
  }
  const uint32_t count = transaction ? 1 : operand;
  change_mbarrier(warp, in, address, lane, [&](Mbarrier& b) { return b.arrive(count, in.mod.drop); });
  if (in.dst.empty() || in.dst[0].kind == OperandKind::kSink) return;
  uint64_t states[kLanes];
  states[lane] = state;
  write64(warp, in.dst[0], 1u << lane, states);
}

Executor::Next Executor::mbarrier(Warp& warp, const Instruction& in, uint32_t mask) {
  const MbarrierMode mode = in.mod.mbarrier;
  if (mode == MbarrierMode::kTestWait || mode == MbarrierMode::kTryWait) return mbarrier_wait(warp, in, mask);
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    if (mode == MbarrierMode::kPendingCount) {
      uint32_t counts[kLanes];
      counts[lane] = Mbarrier::pending_of(read_lane(warp, in.src[0], lane));
      write32(warp, in.dst[0], 1u << lane, counts);
      continue;
    }
    const uint64_t address = shared_offset(warp, in, in.src[0], lane);
    if (mode == MbarrierMode::kInit) {
      mbarrier_start(warp, in, address, lane);
    } else if (mode == MbarrierMode::kInvalidate) {
      Mbarrier& barrier = mbarrier_at(warp, in, address, lane);
      for (const PendingBulk& copy : block_->pending) {
        if (copy.mbarrier != address || copy.store()) continue;
        find(Finding::kAsync, warp, in, lane,
             "mbarrier.inval while a copy that completes on the mbarrier is under way");
      }
      barrier.invalidate();
    } else if (mode == MbarrierMode::kArrive || mode == MbarrierMode::kArriveExpectTx) {
      mbarrier_arrive(warp, in, address, lane);
    } else {
      mbarrier_at(warp, in, address, lane);
      const auto bytes = static_cast<int64_t>(static_cast<uint32_t>(read_lane(warp, in.src[1], lane)));
      const bool expect = mode == MbarrierMode::kExpectTx;
      change_mbarrier(warp, in, address, lane, [=](Mbarrier& b) { return b.expect(expect ? bytes : -bytes); });
    }
  }
  const bool arrives = mode == MbarrierMode::kArrive || mode == MbarrierMode::kArriveExpectTx;
  // What the warp writes from here on is not covered by the arrival.
  if (arrives && launch_.options.races) warp.clock.tick();
  return Next::kAdvance;
}

Executor::Next Executor::mbarrier_wait(Warp& warp, const Instruction& in, uint32_t mask) {
  uint32_t passed = 0;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const uint64_t address = shared_offset(warp, in, in.src[0], lane);
    Mbarrier& barrier = mbarrier_at(warp, in, address, lane);
    const uint64_t operand = read_lane(warp, in.src[1], lane);
    if (in.mod.parity && operand > 1) {
      abort(Finding::kInvalidOperand, warp, in, lane, "a phase's parity is 0 or 1, got " + std::to_string(operand));
    }
    if (!(in.mod.parity ? barrier.passed(operand != 0) : barrier.passed_state(operand))) continue;
    passed |= 1u << lane;
    if (!launch_.options.races || in.mod.semantics == Semantics::kRelaxed) continue;
    warp.clock.now.join(barrier.completed.now);
    warp.clock.fenced.join(barrier.completed.fenced);
    warp.clock.proxied.join(barrier.completed.proxied);
  }
  if (passed == 0) {
    if (in.mod.mbarrier == MbarrierMode::kTryWait) {
      // It may suspend the thread: here, until some phase completes. Other lanes of the warp may bring that about.
      if (warp.next_pc != INT32_MAX && mask == warp.active) {
        for (uint32_t left = mask; left != 0; left &= left - 1) {
          warp.lane_pc[static_cast<size_t>(__builtin_ctz(left))] = warp.pc;
        }
        warp.parked |= mask;
        warp.polling |= mask;
        warp.active = 0;
        regroup(warp);
        return Next::kBlocked;
      }
      warp.at_barrier = true;
      warp.at_mbarrier = true;
      warp.barrier_pc = warp.pc;
      return Next::kBlocked;
    }
    block_->idle += kPollCost;
  }
  write_predicate(warp, in.dst[0], mask, passed);
  return Next::kAdvance;
}

std::string Executor::describe_mbarriers() const {
  std::string text;
  for (const auto& [address, barrier] : block_->mbarriers) {
    if (!barrier.live() || (barrier.pending() == 0 && barrier.transactions() == 0)) continue;
    text += " the mbarrier at " + std::to_string(address) + " waits for " + std::to_string(barrier.pending()) +
            " arrivals and " + std::to_string(barrier.transactions()) + " bytes;";
  }
  return text;
}

}  // namespace ptxsim
