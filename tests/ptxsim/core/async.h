// Asynchronous work issued and not yet waited for: cp.async of a warp, bulk copies of a block, wgmma of a warp.
//
// Under late completion the bytes arrive when a wait demands them; until then the destination holds poison, written at
// issue. Under early completion they arrive at issue. Random completion decides copy by copy, and delivers late ones at
// random moments. Whoever reads the destination without the wait is a race in all three (race.h), and under late
// completion reads poison.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ir.h"
#include "tensor_map.h"

namespace ptxsim {

constexpr uint8_t kPoison = 0xff;  // a NaN in every float format

struct PendingCopy {
  uint8_t* destination = nullptr;
  const uint8_t* source = nullptr;
  uint32_t bytes = 0;        // of the destination
  uint32_t from_source = 0;  // the rest is zero
  uint32_t group = 0;        // of its lane
  uint32_t sequence = 0;     // the warp's clock for its copies
  uint8_t lane = 0;
  bool delivered = false;
};

class AsyncCopies {
 public:
  void issue(const PendingCopy& copy, bool deliver_now);
  void commit(uint32_t lanes);
  // Delivers what the lanes must see when at most `left` of their newest groups may be pending; `all` includes copies
  // not committed yet. Returns the sequence number up to which every copy has been waited for.
  uint32_t wait(uint32_t lanes, uint32_t left, bool all);
  void deliver(size_t index);
  // cp.async.mbarrier.arrive: closes a sequence number and returns it; later, delivers the lanes' copies up to it and
  // returns as wait() does.
  uint32_t mark() { return sequence_++; }
  uint32_t collect(uint32_t lanes, uint32_t sequence);
  size_t pending() const { return copies_.size(); }
  uint32_t sequence() const { return sequence_; }
  uint32_t group(int lane) const { return groups_[static_cast<size_t>(lane)]; }

 private:
  template <typename Complete>
  uint32_t finish(const Complete& complete);

  std::vector<PendingCopy> copies_;        // not yet waited for, in issue order
  std::array<uint32_t, kLanes> groups_{};  // number of the group each lane has open
  uint32_t sequence_ = 1;
};

// A bulk copy, or the arrival that follows a lane's cp.async copies (cp.async.mbarrier.arrive).
struct PendingBulk {
  const Instruction* instruction = nullptr;
  uint32_t warp = 0;
  int lane = 0;
  std::vector<CopyRun> runs;  // `global` is a host address here
  uint32_t bytes = 0;
  Type type = Type::kNone;  // of a reduction
  bool fill_nan = false;
  bool arrival = false;
  // Loads and arrivals: the mbarrier they complete on, and its phase at issue.
  uint64_t mbarrier = 0;
  uint64_t phase = 0;
  uint32_t lanes = 0;  // of an arrival
  // Stores: their bulk group; the reads of shared memory come first, the writes to global memory later.
  uint32_t group = 0;
  uint32_t sequence = 0;  // of a store, or the last cp.async of an arrival
  bool read = false;
  bool written = false;
  bool read_awaited = false;
  std::vector<uint8_t> data;

  bool load() const { return !arrival && instruction->mod.bulk == BulkMode::kLoad; }
  bool store() const { return !arrival && instruction->mod.bulk != BulkMode::kLoad; }
};

// Bulk groups of a warp's lanes, numbered from 0; the newest one is open.
struct BulkGroups {
  std::array<uint32_t, kLanes> open{};
  uint32_t sequence = 1;
};

// A wgmma in flight: A from registers and the accumulators are kept as they were at issue.
struct PendingWgmma {
  const Instruction* instruction = nullptr;
  uint64_t descriptor_a = 0;
  uint64_t descriptor_b = 0;
  bool accumulate = false;
  bool delivered = false;
  uint32_t sequence = 0;
  std::vector<uint32_t> fragments;     // A, when it comes from registers
  std::vector<uint32_t> accumulators;  // empty when an earlier one in flight produces them
};

// What a warp's wgmma need: work in flight, and for each 128 bytes of its register file who may touch them.
struct WgmmaQueue {
  std::vector<PendingWgmma> pending;
  uint32_t sequence = 1;  // one a commit group
  static constexpr uint8_t kAccumulator = 1;
  static constexpr uint8_t kFragment = 2;
  std::vector<uint8_t> in_flight;
  std::vector<uint64_t> written_at;  // step of the last ordinary write of a register
  uint64_t fence_at = 0;             // step of the last wgmma.fence
  size_t issued = 0;                 // how many wgmma of its warpgroup this warp has executed
};

}  // namespace ptxsim
