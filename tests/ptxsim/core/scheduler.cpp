// Blocks: their start, the order in which their warps run, and the barriers of a block.
#include <algorithm>

#include "execute.h"
#include "lanes.h"

namespace ptxsim {
namespace {

// Warp instructions between two switches of the round robin, and the most a greedy warp runs (it may be spinning).
constexpr uint64_t kSlice = 32;
constexpr uint64_t kGreedySlice = 200'000;
// Warp instructions a block runs before a late copy lands although nobody waits for it.
constexpr uint64_t kLatest = 400'000;

uint32_t special_value(SpecialRegister which, const Launch& launch, const Block& block, uint32_t warp, int lane) {
  using S = SpecialRegister;
  const Dimensions& size = launch.block;
  const uint32_t thread = warp * kLanes + static_cast<uint32_t>(lane);
  const auto bit = uint32_t{1} << lane;
  switch (which) {
    case S::kTidX:
      return thread % size.x;
    case S::kTidY:
      return thread / size.x % size.y;
    case S::kTidZ:
      return thread / size.x / size.y;
    case S::kNtidX:
      return size.x;
    case S::kNtidY:
      return size.y;
    case S::kNtidZ:
      return size.z;
    case S::kCtaidX:
    case S::kClusterIdX:
      return block.x;
    case S::kCtaidY:
    case S::kClusterIdY:
      return block.y;
    case S::kCtaidZ:
    case S::kClusterIdZ:
      return block.z;
    case S::kNctaidX:
    case S::kNclusterIdX:
      return launch.grid.x;
    case S::kNctaidY:
    case S::kNclusterIdY:
      return launch.grid.y;
    case S::kNctaidZ:
    case S::kNclusterIdZ:
      return launch.grid.z;
    case S::kLaneid:
      return static_cast<uint32_t>(lane);
    case S::kWarpid:
      return warp;
    case S::kNwarpid:
      return static_cast<uint32_t>(block.warps.size());
    case S::kLanemaskEq:
      return bit;
    case S::kLanemaskLt:
      return bit - 1;
    case S::kLanemaskLe:
      return bit | (bit - 1);
    case S::kLanemaskGt:
      return ~(bit | (bit - 1));
    case S::kLanemaskGe:
      return ~(bit - 1);
    case S::kDynamicSmemSize:
      return static_cast<uint32_t>(launch.dynamic_shared);
    case S::kTotalSmemSize:
      return static_cast<uint32_t>(launch.dynamic_shared + launch.kernel.static_shared);
    case S::kNsmid:
    case S::kClusterNctaidX:
    case S::kClusterNctaidY:
    case S::kClusterNctaidZ:
    case S::kClusterNctarank:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

void Executor::start(Block& block, uint32_t index) {
  const Dimensions& grid = launch_.grid;
  block.index = index;
  block.x = index % grid.x;
  block.y = index / grid.x % grid.y;
  block.z = index / grid.x / grid.y;
  block.shared.reset(kernel_.static_shared + launch_.dynamic_shared);
  block.shadow.reset(block.shared.bytes.size());
  const auto threads = static_cast<uint32_t>(launch_.block.count());
  const uint32_t warps = (threads + kLanes - 1) / kLanes;
  block.warps = std::vector<Warp>(warps);
  // Registers start with a pattern no computation expects, so that the use of an undefined one shows.
  block.registers.assign(size_t{warps} * kernel_.register_bytes + 64, 0xcd);
  block.local.assign(size_t{warps} * kLanes * kernel_.local_bytes, kPoison);
  block.barriers = {};
  block.random.seed(launch_.options.seed * 0x9e3779b97f4a7c15ull + index);
  block.finished = 0;
  block.next_warp = 0;
  block.mbarriers.clear();
  block.pending.clear();
  block.idle = 0;
  block.warpgroups.assign((warps + 3) / 4, {});
  const uint32_t agents = kernel_.bulk ? kEngines * warps + kMostMbarriers : kPlainEngines * warps;
  auto base = reinterpret_cast<uintptr_t>(block.registers.data());
  base = (base + 63) / 64 * 64;
  for (uint32_t w = 0; w < warps; ++w) {
    Warp& warp = block.warps[w];
    warp.id = w;
    warp.registers = reinterpret_cast<uint8_t*>(base) + size_t{w} * kernel_.register_bytes;
    warp.local = block.local.data() + size_t{w} * kLanes * kernel_.local_bytes;
    std::memcpy(warp.registers, kernel_.initial_registers.data(), kernel_.initial_registers.size());
    for (const auto& [which, slot] : kernel_.specials) {
      for (int lane = 0; lane < kLanes; ++lane) {
        warp.lanes32(slot)[lane] = special_value(which, launch_, block, w, lane);
      }
    }
    const uint32_t lanes = std::min<uint32_t>(threads - w * kLanes, kLanes);
    warp.live = lanes == kLanes ? kFullMask : (1u << lanes) - 1;
    warp.active = warp.live;
    warp.started = warp.live;
    warp.clock.start(index, w, warps, agents);
    if (!kernel_.wgmma) continue;
    warp.wgmma.in_flight.assign(kernel_.register_bytes / (4 * kLanes) + 1, 0);
    warp.wgmma.written_at.assign(warp.wgmma.in_flight.size(), 0);
  }
}

Warp* Executor::choose() {
  std::vector<Warp>& warps = block_->warps;
  const auto runnable = [](const Warp& warp) { return warp.live != 0 && !warp.at_barrier; };
  const size_t count = warps.size();
  size_t first = block_->next_warp;
  if (launch_.options.schedule == Schedule::kRandom) first = block_->random() % count;
  for (size_t i = 0; i < count; ++i) {
    Warp& warp = warps[(first + i) % count];
    if (!runnable(warp)) continue;
    block_->next_warp = (first + i + 1) % count;
    return &warp;
  }
  return nullptr;
}

bool Executor::run(Block& block, uint64_t budget) {
  block_ = &block;
  uint64_t spent = 0;
  while (block.finished < block.warps.size()) {
    if (spent >= budget) return false;
    if (launch_.stopped) throw LaunchAborted("stopped by another block");
    Warp* warp = choose();
    if (warp == nullptr) {
      if (!deliver_next()) deadlock();
      continue;
    }
    uint64_t slice = kSlice;
    if (launch_.options.schedule == Schedule::kGreedy) slice = kGreedySlice;
    if (launch_.options.schedule == Schedule::kRandom) slice = 1 + block.random() % (2 * kSlice);
    if (launch_.options.completion == Completion::kRandom) complete_some(*warp);
    const uint64_t before = warp->steps;
    if (kernel_.wgmma) {
      run_warp<true>(*warp, slice);
    } else {
      run_warp<false>(*warp, slice);
    }
    spent += warp->steps - before;
    // Warps that spin must not keep copies from landing for ever.
    if (!block.pending.empty() && (block.idle += warp->steps - before) > kLatest) deliver_next();
    if (launch_.instructions > launch_.options.instruction_limit) {
      const Instruction& in = kernel_.code[static_cast<size_t>(warp->pc)];
      abort(Finding::kInstructionLimit, *warp, in, -1, "the launch exceeds its instruction limit (an endless loop?)");
    }
  }
  finish_bulk();
  if (kernel_.wgmma) finish_wgmma();
  return true;
}

Executor::Next Executor::barrier(Warp& warp, const Instruction& in, uint32_t mask) {
  if (mask == 0) return Next::kAdvance;
  if (mask != warp.active) {
    abort(Finding::kDivergentBarrier, warp, in, __builtin_ctz(mask),
          "a barrier under a predicate that differs between lanes");
  }
  // The other lanes may still be on their way, in code that stands behind the barrier.
  if (warp.active != warp.live && !rendezvous(warp, in, warp.live)) return Next::kBlocked;
  mask = warp.active;
  if (warp.live != warp.started) {
    find(Finding::kExitedBarrier, warp, in, __builtin_ctz(mask), "a barrier after lanes of the warp have left");
  }
  const bool reduces =
      in.mod.bar == BarMode::kRedPopc || in.mod.bar == BarMode::kRedAnd || in.mod.bar == BarMode::kRedOr;
  const int lane = __builtin_ctz(mask);
  const uint64_t number = read_lane(warp, in.src[0], lane);
  if (number >= block_->barriers.size()) abort(Finding::kInvalidOperand, warp, in, lane, "barrier number past 15");
  Barrier& barrier = block_->barriers[number];
  const bool explicit_count = in.src.size() > (reduces ? 2u : 1u);
  uint32_t expected = 0;
  if (explicit_count) {
    expected = static_cast<uint32_t>(read_lane(warp, in.src[1], lane));
    if (expected == 0 || expected % kLanes != 0 || expected > block_->warps.size() * kLanes) {
      abort(Finding::kInvalidOperand, warp, in, lane,
            "a barrier's thread count must be a multiple of 32 within the block");
    }
  } else {
    expected = static_cast<uint32_t>(block_->warps.size() - block_->finished) * kLanes;
    if (block_->finished != 0) {
      find(Finding::kExitedBarrier, warp, in, lane, "a barrier of the whole block after warps of it have left");
    }
  }
  if (barrier.arrived != 0 &&
      (barrier.explicit_count != explicit_count || (explicit_count && barrier.expected != expected))) {
    abort(Finding::kInvalidOperand, warp, in, lane, "warps disagree about a barrier's thread count");
  }
  barrier.expected = expected;
  barrier.explicit_count = explicit_count;
  barrier.arrived += kLanes;
  barrier.instruction = index_of(in);
  if (launch_.options.races) {
    barrier.clock.join(warp.clock.now);
    barrier.fenced.join(warp.clock.fenced);
    barrier.proxied.join(warp.clock.proxied);
  }
  if (reduces) {
    barrier.votes += static_cast<uint32_t>(__builtin_popcount(read_predicate(warp, in.src.back()) & mask));
    barrier.voters += static_cast<uint32_t>(__builtin_popcount(mask));
  }
  ++counters_.instructions[static_cast<size_t>(index_of(in))].executions;
  counters_.instructions[static_cast<size_t>(index_of(in))].active_lanes +=
      static_cast<uint64_t>(__builtin_popcount(mask));
  if (in.mod.bar == BarMode::kArrive) {
    warp.clock.tick();
  } else {
    barrier.waiting |= uint64_t{1} << warp.id;
    warp.at_barrier = true;
    warp.barrier_pc = warp.pc;
  }
  ++warp.pc;
  if (barrier.arrived >= barrier.expected) complete(barrier);
  return Next::kBlocked;
}

void Executor::complete(Barrier& barrier) {
  ++counters_.barriers;
  for (uint64_t left = barrier.waiting; left != 0; left &= left - 1) {
    Warp& warp = block_->warps[static_cast<size_t>(__builtin_ctzll(left))];
    warp.at_barrier = false;
    if (launch_.options.races) {
      warp.clock.now.join(barrier.clock);
      warp.clock.fenced.join(barrier.fenced);
      warp.clock.proxied.join(barrier.proxied);
      warp.clock.tick();
    }
    const Instruction& in = kernel_.code[static_cast<size_t>(warp.barrier_pc)];
    if (in.dst.empty()) continue;
    if (in.mod.bar == BarMode::kRedPopc) {
      uint32_t values[kLanes];
      std::fill(values, values + kLanes, barrier.votes);
      write32(warp, in.dst[0], warp.active, values);
    } else {
      const bool value = in.mod.bar == BarMode::kRedAnd ? barrier.votes == barrier.voters : barrier.votes != 0;
      write_predicate(warp, in.dst[0], warp.active, value ? kFullMask : 0);
    }
  }
  barrier = {};
}

// A warp left: barriers that wait for the whole block need one warp less.
void Executor::recheck_barriers() {
  for (Barrier& barrier : block_->barriers) {
    if (barrier.arrived == 0 || barrier.explicit_count) continue;
    barrier.expected = static_cast<uint32_t>(block_->warps.size() - block_->finished) * kLanes;
    const Instruction& in = kernel_.code[static_cast<size_t>(barrier.instruction)];
    const Warp& waiting =
        block_->warps[barrier.waiting != 0 ? static_cast<size_t>(__builtin_ctzll(barrier.waiting)) : 0];
    find(Finding::kExitedBarrier, waiting, in, -1,
         "warps leave the block while others wait at a barrier of the whole block");
    if (barrier.arrived >= barrier.expected) complete(barrier);
  }
}

void Executor::deadlock() {
  std::string message = "no warp can run:";
  const Warp* stuck = nullptr;
  for (const Warp& warp : block_->warps) {
    if (warp.live == 0) continue;
    stuck = &warp;
    const Instruction& in = kernel_.code[static_cast<size_t>(warp.barrier_pc)];
    message += " warp " + std::to_string(warp.id) + " waits at line " + std::to_string(in.source.line) + " (`" +
               in.text + "`);";
  }
  message += describe_mbarriers();
  abort(Finding::kDeadlock, *stuck, kernel_.code[static_cast<size_t>(stuck->barrier_pc)], -1, message);
}

}  // namespace ptxsim
