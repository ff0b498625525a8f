// wgmma on the warps of a warpgroup: each warp computes its 16 rows. Checks at issue, delivery by the launch's
// completion mode, and the rules for registers in flight.
#include <algorithm>

#include "execute.h"
#include "lanes.h"
#include "wgmma.h"

namespace ptxsim {
namespace {

constexpr uint32_t kRowBytes = 32;        // of a matrix's row along K, for every type
constexpr uint32_t kMostRows = 256;       // of B
constexpr uint32_t kRegisterBytes = 128;  // a 32-bit register of a warp
constexpr int kWarpsOfGroup = 4;

// Where the operands of an instruction are in `src`.
const Operand& descriptor_of(const Instruction& in, bool is_a) { return in.src[is_a ? 0 : in.mod.a_registers ? 4 : 1]; }
const Operand& scale_of(const Instruction& in) { return in.src[in.mod.a_registers ? 5 : 2]; }

// Calls f(address, row, chunk) for each 16 bytes of a warp's 16 rows of A, or of B. For MN-major, `row` runs along K.
template <typename F>
void for_chunks(const Instruction& in, uint32_t warp, uint64_t bits, bool is_a, const F& f) {
  const MatrixDescriptor descriptor(bits);
  const uint32_t rows = is_a ? 16 : in.mod.n;
  const uint32_t first = is_a ? warp % kWarpsOfGroup * 16 : 0;
  if (!(is_a ? in.mod.trans_a : in.mod.trans_b)) {
    for (uint32_t row = 0; row < rows; ++row) {
      for (uint32_t chunk = 0; chunk < 2; ++chunk) f(descriptor.k_major(first + row, chunk), row, chunk);
    }
    return;
  }
  for (uint32_t row = 0; row < in.mod.k; ++row) {
    for (uint32_t chunk = 0; chunk < rows / 8; ++chunk) f(descriptor.mn_major(row, first / 8 + chunk), row, chunk);
  }
}

// Rows of kRowBytes along K, whatever the layout in shared memory.
void load_rows(const Instruction& in, uint32_t warp, uint64_t bits, bool is_a, const uint8_t* shared, uint8_t* rows) {
  const bool trans = is_a ? in.mod.trans_a : in.mod.trans_b;
  for_chunks(in, warp, bits, is_a, [&](uint64_t address, uint32_t row, uint32_t chunk) {
    const uint8_t* from = shared + address;
    if (!trans) {
      std::memcpy(rows + row * kRowBytes + chunk * 16, from, 16);
      return;
    }
    for (uint32_t i = 0; i < 8; ++i) std::memcpy(rows + (chunk * 8 + i) * kRowBytes + row * 2, from + 2 * i, 2);
  });
}

uint64_t hash_of(int32_t instruction, uint64_t a, uint64_t b, bool accumulate) {
  uint64_t hash = static_cast<uint64_t>(instruction) * 2 + static_cast<uint64_t>(accumulate);
  for (const uint64_t part : {a, b}) hash = (hash ^ part) * 0x9e3779b97f4a7c15ull;
  return hash;
}

}  // namespace

Executor::Next Executor::wgmma(Warp& warp, const Instruction& in, uint32_t mask) {
  if (mask != kFullMask && mask == warp.active && warp.live == kFullMask) {
    if (!rendezvous(warp, in, kFullMask)) return Next::kBlocked;
    mask = kFullMask;
  }
  if (mask != kFullMask) {
    abort(Finding::kDivergentCollective, warp, in, __builtin_ctz(mask), "wgmma needs all 32 lanes of its warp");
  }
  switch (in.opcode) {
    case Opcode::kWgmmaFence:
      warp.wgmma.fence_at = warp.steps;
      break;
    case Opcode::kWgmmaCommit:
      ++warp.wgmma.sequence;
      break;
    case Opcode::kWgmmaWait:
      wait_wgmma(warp, in);
      break;
    default:
      issue_wgmma(warp, in);
  }
  return Next::kAdvance;
}

uint64_t Executor::uniform(Warp& warp, const Instruction& in, const Operand& operand) {
  uint64_t values[kLanes];
  read64(warp, operand, values);
  for (int lane = 1; lane < kLanes; ++lane) {
    if (values[lane] == values[0]) continue;
    abort(Finding::kInvalidOperand, warp, in, lane, "a matrix descriptor differs between lanes");
  }
  return values[0];
}

void Executor::check_matrix(Warp& warp, const Instruction& in, uint64_t bits, bool is_a) {
  const std::string name = is_a ? "A" : "B";
  if (MatrixDescriptor(bits).base_offset != 0) {
    abort(Finding::kInvalidOperand, warp, in, 0, "a base offset in the descriptor of " + name + " is not supported");
  }
  const Actor actor{warp.clock.index(Engine::kTensor), warp.wgmma.sequence, true};
  Place place;
  place.space = Space::kShared;
  for_chunks(in, warp.id, bits, is_a, [&](uint64_t address, uint32_t, uint32_t) {
    if (address + 16 > block_->shared.bytes.size()) {
      abort(Finding::kOutOfBounds, warp, in, 0,
            "matrix " + name + " reads 16 bytes at offset " + std::to_string(address) +
                " of shared memory, which has " + std::to_string(block_->shared.bytes.size()) + " bytes");
    }
    place.offset = address;
    place.host = block_->shared.bytes.data() + address;
    check_initialised(warp, in, place, 16, 0);
    check_race(warp, in, place, 16, 0, false, nullptr, &actor);
  });
}

void Executor::issue_wgmma(Warp& warp, const Instruction& in) {
  WgmmaQueue& queue = warp.wgmma;
  if (warp.id / kWarpsOfGroup * kWarpsOfGroup + kWarpsOfGroup > block_->warps.size()) {
    abort(Finding::kInvalidOperand, warp, in, 0, "wgmma needs a warpgroup of four whole warps");
  }
  PendingWgmma work;
  work.instruction = &in;
  work.sequence = queue.sequence;
  if (!in.mod.a_registers) work.descriptor_a = uniform(warp, in, descriptor_of(in, true));
  work.descriptor_b = uniform(warp, in, descriptor_of(in, false));
  const uint32_t scale = read_predicate(warp, scale_of(in));
  if (scale != 0 && scale != kFullMask) abort(Finding::kInvalidOperand, warp, in, 0, "scale-d differs between lanes");
  work.accumulate = scale != 0;
  std::vector<uint64_t>& log = block_->warpgroups[warp.id / kWarpsOfGroup];
  const uint64_t hash = hash_of(index_of(in), work.descriptor_a, work.descriptor_b, work.accumulate);
  if (queue.issued == log.size()) log.push_back(hash);
  if (log[queue.issued++] != hash) {
    abort(Finding::kDivergentCollective, warp, in, 0, "the warps of a warpgroup execute different wgmma");
  }
  if (!in.mod.a_registers) check_matrix(warp, in, work.descriptor_a, true);
  check_matrix(warp, in, work.descriptor_b, false);

  const auto append = [&warp](std::vector<uint32_t>& to, const Operand& operand) {
    const uint32_t* lanes = warp.lanes32(operand.slot);
    to.insert(to.end(), lanes, lanes + kLanes);
  };
  if (in.mod.a_registers) {
    for (size_t r = 0; r < 4; ++r) append(work.fragments, in.src[r]);
  }
  const bool now = arrives_now();
  if (now) {
    // Earlier ones may produce the accumulators.
    for (PendingWgmma& earlier : queue.pending) deliver_wgmma(warp, earlier);
    deliver_wgmma(warp, work);
  } else if (!(queue.in_flight[in.dst[0].slot / kRegisterBytes] & WgmmaQueue::kAccumulator)) {
    for (const Operand& d : in.dst) {
      append(work.accumulators, d);
      std::memset(warp.lanes32(d.slot), kPoison, kRegisterBytes);
    }
  }
  queue.pending.push_back(std::move(work));
  mark_in_flight(warp);
}

void Executor::deliver_wgmma(Warp& warp, PendingWgmma& work) {
  if (work.delivered) return;
  work.delivered = true;
  const Instruction& in = *work.instruction;
  uint32_t* d[kMostRows / 2];
  for (size_t r = 0; r < in.dst.size(); ++r) {
    d[r] = warp.lanes32(in.dst[r].slot);
    if (!work.accumulators.empty()) std::memcpy(d[r], &work.accumulators[r * kLanes], kRegisterBytes);
  }
  uint8_t a[16 * kRowBytes];
  static thread_local uint8_t b[kMostRows * kRowBytes];
  const uint8_t* shared = block_->shared.bytes.data();
  if (in.mod.a_registers) {
    const uint32_t* fragments[4];
    for (size_t r = 0; r < 4; ++r) fragments[r] = &work.fragments[r * kLanes];
    fragments_to_rows(in, fragments, a);
  } else {
    load_rows(in, warp.id, work.descriptor_a, true, shared, a);
  }
  load_rows(in, warp.id, work.descriptor_b, false, shared, b);
  multiply_warpgroup(in, {a, b, d, work.accumulate});
}

void Executor::wait_wgmma(Warp& warp, const Instruction& in) {
  WgmmaQueue& queue = warp.wgmma;
  const auto newest = static_cast<uint32_t>(in.src[0].value);
  const auto finished = [&](const PendingWgmma& work) { return work.sequence + newest < queue.sequence; };
  for (PendingWgmma& work : queue.pending) {
    if (finished(work)) deliver_wgmma(warp, work);
  }
  queue.pending.erase(std::remove_if(queue.pending.begin(), queue.pending.end(), finished), queue.pending.end());
  const uint32_t oldest = queue.pending.empty() ? queue.sequence : queue.pending.front().sequence;
  uint32_t& known = warp.clock.now.own[warp.clock.index(Engine::kTensor)];
  known = std::max(known, oldest - 1);
  mark_in_flight(warp);
}

void Executor::mark_in_flight(Warp& warp) {
  std::vector<uint8_t>& flags = warp.wgmma.in_flight;
  std::fill(flags.begin(), flags.end(), uint8_t{0});
  for (const PendingWgmma& work : warp.wgmma.pending) {
    for (const Operand& d : work.instruction->dst) flags[d.slot / kRegisterBytes] |= WgmmaQueue::kAccumulator;
    if (!work.instruction->mod.a_registers) continue;
    for (size_t r = 0; r < 4; ++r) {
      flags[work.instruction->src[r].slot / kRegisterBytes] |= WgmmaQueue::kFragment;
    }
  }
}

// Before each instruction of a kernel with wgmma: nobody touches registers in flight but further wgmma, which
// accumulate in order; and what was written otherwise is behind a wgmma.fence.
void Executor::check_registers(Warp& warp, const Instruction& in) {
  WgmmaQueue& queue = warp.wgmma;
  const bool wgmma = in.opcode == Opcode::kWgmma;
  const auto flags = [&queue](const Operand& operand) {
    const bool value = (operand.kind == OperandKind::kRegister && operand.register_type != Type::kPred) ||
                       (operand.kind == OperandKind::kAddress && operand.has_register);
    return value ? queue.in_flight[operand.slot / kRegisterBytes] : uint8_t{0};
  };
  const auto complain = [&](const Operand& operand, const char* what) {
    if (operand.kind == OperandKind::kSink) return;
    find(Finding::kWgmmaRegisters, warp, in, -1, what);
  };
  if (!queue.pending.empty()) {
    for (const Operand& s : in.src) {
      if (flags(s) & WgmmaQueue::kAccumulator) complain(s, "a read of a register that a wgmma in flight writes");
    }
    for (const Operand& d : in.dst) {
      const uint8_t found = flags(d);
      if (found & WgmmaQueue::kFragment) complain(d, "a write of a register that a wgmma in flight reads");
      if ((found & WgmmaQueue::kAccumulator) && !wgmma) {
        complain(d, "a write of a register that a wgmma in flight writes");
      }
    }
  }
  const auto ordinary = [](const Operand& operand) {
    return operand.kind == OperandKind::kRegister && operand.register_type != Type::kPred;
  };
  if (!wgmma) {
    for (const Operand& d : in.dst) {
      if (ordinary(d)) queue.written_at[d.slot / kRegisterBytes] = warp.steps;
    }
    return;
  }
  const auto fenced = [&](const Operand& operand) {
    return !ordinary(operand) || queue.written_at[operand.slot / kRegisterBytes] <= queue.fence_at;
  };
  const size_t fragments = in.mod.a_registers ? 4 : 0;
  const bool behind = std::all_of(in.dst.begin(), in.dst.end(), fenced) &&
                      std::all_of(in.src.begin(), in.src.begin() + static_cast<std::ptrdiff_t>(fragments), fenced);
  if (!behind) {
    find(Finding::kWgmmaRegisters, warp, in, -1, "registers were written after the last wgmma.fence before this");
  }
}

void Executor::finish_wgmma() {
  for (Warp& warp : block_->warps) {
    const auto total = block_->warpgroups[warp.id / kWarpsOfGroup].size();
    const std::vector<PendingWgmma>& pending = warp.wgmma.pending;
    if (!pending.empty()) {
      find(Finding::kAsync, warp, *pending.front().instruction, -1,
           "the block ends without a wait for this wgmma; it was issued");
    }
    if (warp.wgmma.issued == total) continue;
    const Instruction& end = kernel_.code.back();
    find(Finding::kDivergentCollective, warp, end, -1,
         "the warps of a warpgroup have executed different numbers of wgmma");
  }
}

}  // namespace ptxsim
