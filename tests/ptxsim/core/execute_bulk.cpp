// Bulk copies between global and shared memory (cp.async.bulk, .tensor, cp.reduce): checks at issue, delivery by the
// launch's completion mode, bulk groups.
#include <algorithm>

#include "alu.h"
#include "execute.h"
#include "lanes.h"

namespace ptxsim {

TensorMap Executor::read_tensor_map(Warp& warp, const Instruction& in, const Operand& operand, int lane) {
  uint64_t address[kLanes];
  addresses(warp, operand, address);
  const Place place = locate(warp, in, Space::kGeneric, address[lane], TensorMap::kBytes, 64, lane, false);
  TensorMap map;
  std::memcpy(&map, place.host, sizeof map);
  const std::string fault = map.fault(in.mod.rank);
  if (!fault.empty()) abort(Finding::kInvalidOperand, warp, in, lane, fault);
  return map;
}

void Executor::copy_bulk(Warp& warp, const Instruction& in, uint32_t mask) {
  for (uint32_t left = mask; left != 0; left &= left - 1) issue_bulk(warp, in, __builtin_ctz(left));
}

void Executor::issue_bulk(Warp& warp, const Instruction& in, int lane) {
  const bool load = in.mod.bulk == BulkMode::kLoad;
  PendingBulk copy;
  copy.instruction = &in;
  copy.warp = warp.id;
  copy.lane = lane;
  copy.type = in.type;
  uint64_t shared = 0;
  if (in.mod.rank != 0) {
    shared = shared_offset(warp, in, in.src[load ? 0 : 1], lane);
    const TensorMap map = read_tensor_map(warp, in, in.src[load ? 1 : 0], lane);
    int32_t coordinates[kMostDimensions] = {};
    for (size_t d = 0; d < in.mod.rank; ++d) {
      coordinates[d] = static_cast<int32_t>(read_lane(warp, in.src[(load ? 3 : 2) + d], lane));
    }
    copy.runs = runs_of(map, coordinates, shared);
    copy.bytes = map.box_bytes();
    copy.fill_nan = map.fill_nan != 0;
    if (in.mod.bulk == BulkMode::kReduce) copy.type = map.element();
  } else {
    uint64_t global[kLanes];
    addresses(warp, in.src[load ? 1 : 0], global);
    shared = shared_offset(warp, in, in.src[load ? 0 : 1], lane);
    copy.bytes = static_cast<uint32_t>(read_lane(warp, in.src[2], lane));
    if (copy.bytes % 16 != 0)
      abort(Finding::kInvalidOperand, warp, in, lane, "a bulk copy moves multiples of 16 bytes");
    locate(warp, in, Space::kGlobal, global[lane], copy.bytes, 16, lane, !load);
    if (copy.bytes != 0) copy.runs.push_back({shared, global[lane], copy.bytes, false});
  }
  if (in.mod.bulk == BulkMode::kReduce && is_float(copy.type) && in.mod.atomic != AtomicOp::kAdd) {
    abort(Finding::kInvalidOperand, warp, in, lane, "reductions of floats other than add are not supported");
  }
  locate(warp, in, Space::kShared, shared, copy.bytes, in.mod.rank != 0 ? 128 : 16, lane, load);
  if (load) {
    copy.mbarrier = shared_offset(warp, in, in.src[in.mod.rank != 0 ? 2 : 3], lane);
    copy.phase = mbarrier_at(warp, in, copy.mbarrier, lane).phase();
  } else {
    copy.group = warp.bulk.open[static_cast<size_t>(lane)];
    copy.sequence = warp.bulk.sequence;
  }
  check_bulk(warp, in, copy, load);
  if (arrives_now()) {
    deliver_bulk(copy);
    if (load) return;
  } else if (in.mod.bulk != BulkMode::kReduce) {
    for (const CopyRun& run : copy.runs) {
      uint8_t* target = load ? block_->shared.bytes.data() + run.shared : reinterpret_cast<uint8_t*>(run.global);
      if (load || !run.outside) std::memset(target, kPoison, run.bytes);
    }
  }
  block_->pending.push_back(std::move(copy));
}

// Bounds, undefined bytes, races and counts of both sides; turns global addresses of runs into host addresses.
void Executor::check_bulk(Warp& warp, const Instruction& in, PendingBulk& copy, bool load) {
  const Mbarrier* barrier = load ? &block_->mbarriers.at(copy.mbarrier) : nullptr;
  Actor shared_side{warp.clock.index(Engine::kBulkRead), copy.sequence, true};
  Actor global_side{warp.clock.index(Engine::kBulkWrite), copy.sequence, true};
  if (load) {
    shared_side = {warp.clock.mbarrier_index(barrier->slot()), static_cast<uint32_t>(copy.phase + 1), true};
    global_side = shared_side;
  }
  Place shared;
  shared.space = Space::kShared;
  Place first;
  for (CopyRun& run : copy.runs) {
    shared.offset = run.shared;
    shared.host = block_->shared.bytes.data() + run.shared;
    if (!load) check_initialised(warp, in, shared, run.bytes, copy.lane);
    check_race(warp, in, shared, run.bytes, copy.lane, load, nullptr, &shared_side);
    if (load) mark_written(shared, run.bytes);
    if (run.outside) continue;
    const Place global = locate(warp, in, Space::kGlobal, run.global, run.bytes, 1, copy.lane, !load);
    if (load || in.mod.bulk == BulkMode::kReduce) check_initialised(warp, in, global, run.bytes, copy.lane);
    check_race(warp, in, global, run.bytes, copy.lane, !load, nullptr, &global_side);
    if (!load) mark_written(global, run.bytes);
    if (first.buffer == nullptr) first = global;
  }
  if (first.buffer == nullptr) return;
  count_bulk(in, *first.buffer, copy.runs, !load);
  for (CopyRun& run : copy.runs) {
    if (run.outside) continue;
    run.global = reinterpret_cast<uint64_t>(first.buffer->host + (run.global - first.buffer->base));
  }
}

void Executor::count_bulk(const Instruction& in, Buffer& buffer, const std::vector<CopyRun>& runs, bool write) {
  uint64_t bytes = 0;
  uint64_t sectors = 0;
  uint64_t last = ~uint64_t{0};
  for (const CopyRun& run : runs) {
    if (run.outside) continue;
    bytes += run.bytes;
    for (uint64_t sector = run.global / 32; sector <= (run.global + run.bytes - 1) / 32; ++sector) {
      sectors += sector != last;
      last = sector;
    }
  }
  InstructionCounters& counters = counters_.instructions[static_cast<size_t>(index_of(in))];
  counters.global_bytes += bytes;
  counters.sectors += sectors;
  counters.ideal_sectors += (bytes + 31) / 32;
  BufferCounters& traffic = counters_.buffers[buffer.index];
  (write ? traffic.store_bytes : traffic.load_bytes) += bytes;
  (write ? traffic.store_sectors : traffic.load_sectors) += sectors;
}

// A store's first half: what the block may overwrite after wait_group.read.
void Executor::read_bulk(PendingBulk& copy) {
  if (copy.read) return;
  copy.read = true;
  for (const CopyRun& run : copy.runs) {
    const uint8_t* from = block_->shared.bytes.data() + run.shared;
    copy.data.insert(copy.data.end(), from, from + run.bytes);
  }
}

void Executor::write_bulk(PendingBulk& copy) {
  read_bulk(copy);
  if (copy.written) return;
  copy.written = true;
  const uint8_t* from = copy.data.data();
  const bool reduce = copy.instruction->mod.bulk == BulkMode::kReduce;
  std::unique_lock<SpinLock> guard(launch_.atomics, std::defer_lock);
  if (reduce && launch_.options.threads > 1) guard.lock();
  for (const CopyRun& run : copy.runs) {
    auto* to = reinterpret_cast<uint8_t*>(run.global);
    if (!run.outside && !reduce) std::memcpy(to, from, run.bytes);
    if (!run.outside && reduce) {
      const auto size = static_cast<uint32_t>(size_of(copy.type));
      for (uint32_t at = 0; at < run.bytes; at += size) {
        uint64_t old = 0;
        uint64_t operand = 0;
        std::memcpy(&old, to + at, size);
        std::memcpy(&operand, from + at, size);
        const uint64_t result = atomic_result(copy.type, copy.instruction->mod.atomic, old, operand);
        std::memcpy(to + at, &result, size);
      }
    }
    from += run.bytes;
  }
}

void Executor::deliver_bulk(PendingBulk& copy) {
  if (copy.store()) {
    write_bulk(copy);
    return;
  }
  Warp& warp = block_->warps[copy.warp];
  Mbarrier& barrier = block_->mbarriers.at(copy.mbarrier);
  std::vector<uint32_t>& known = barrier.arriving.now.own;
  const auto learn = [&](uint32_t index, uint32_t time) {
    if (!launch_.options.races) return;
    known.resize(warp.clock.agents);
    known[index] = std::max(known[index], time);
  };
  if (copy.arrival) {
    learn(warp.clock.index(Engine::kCopies), warp.async.collect(copy.lanes, copy.sequence));
    change_mbarrier(warp, *copy.instruction, copy.mbarrier, copy.lane, [](Mbarrier& b) { return b.arrive(1, false); });
    return;
  }
  for (const CopyRun& run : copy.runs) {
    uint8_t* to = block_->shared.bytes.data() + run.shared;
    if (!run.outside) {
      std::memcpy(to, reinterpret_cast<const uint8_t*>(run.global), run.bytes);
    } else {
      std::memset(to, copy.fill_nan ? kPoison : 0, run.bytes);
    }
  }
  learn(warp.clock.mbarrier_index(barrier.slot()), static_cast<uint32_t>(copy.phase + 1));
  change_mbarrier(warp, *copy.instruction, copy.mbarrier, copy.lane,
                  [&copy](Mbarrier& b) { return b.complete(copy.bytes); });
}

bool Executor::deliver_next() {
  std::vector<PendingBulk>& pending = block_->pending;
  block_->idle = 0;
  const size_t start =
      launch_.options.completion == Completion::kRandom && !pending.empty() ? block_->random() % pending.size() : 0;
  for (size_t i = 0; i < pending.size(); ++i) {
    const size_t at = (start + i) % pending.size();
    if (pending[at].store()) continue;
    PendingBulk copy = std::move(pending[at]);
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(at));
    deliver_bulk(copy);
    return true;
  }
  return false;
}

void Executor::commit_bulk(Warp& warp, uint32_t mask) {
  for (uint32_t left = mask; left != 0; left &= left - 1) ++warp.bulk.open[static_cast<size_t>(__builtin_ctz(left))];
  ++warp.bulk.sequence;
}

void Executor::wait_bulk(Warp& warp, const Instruction& in, uint32_t mask) {
  const auto newest = static_cast<uint32_t>(in.src[0].value);
  uint32_t unread = warp.bulk.sequence;
  uint32_t unwritten = warp.bulk.sequence;
  std::vector<PendingBulk>& pending = block_->pending;
  const auto finished = [&](PendingBulk& copy) {
    if (!copy.store() || copy.warp != warp.id) return false;
    const bool awaited =
        lane_of(mask, copy.lane) && copy.group + newest < warp.bulk.open[static_cast<size_t>(copy.lane)];
    if (awaited) {
      read_bulk(copy);
      copy.read_awaited = true;
      if (!in.mod.read) write_bulk(copy);
    }
    if (!copy.read_awaited) unread = std::min(unread, copy.sequence);
    if (awaited && !in.mod.read) return true;
    unwritten = std::min(unwritten, copy.sequence);
    return false;
  };
  pending.erase(std::remove_if(pending.begin(), pending.end(), finished), pending.end());
  std::vector<uint32_t>& known = warp.clock.now.own;
  uint32_t& reads = known[warp.clock.index(Engine::kBulkRead)];
  uint32_t& writes = known[warp.clock.index(Engine::kBulkWrite)];
  reads = std::max(reads, unread - 1);
  writes = std::max(writes, unwritten - 1);
}

// The block has ended: its shared memory goes, the writes to global memory come.
void Executor::finish_bulk() {
  for (PendingBulk& copy : block_->pending) {
    Warp& warp = block_->warps[copy.warp];
    if (!copy.store() || !copy.read_awaited) {
      find(Finding::kAsync, warp, *copy.instruction, copy.lane,
           copy.store() ? "the block ends without a wait for this copy to have read its shared memory; it was issued"
                        : "the block ends before this has completed on its mbarrier; it was issued");
    }
    if (copy.store()) write_bulk(copy);
  }
  block_->pending.clear();
}

}  // namespace ptxsim
