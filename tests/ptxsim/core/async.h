// cp.async: copies a warp has issued and not yet waited for.
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
  size_t pending() const { return copies_.size(); }
  uint32_t sequence() const { return sequence_; }
  uint32_t group(int lane) const { return groups_[static_cast<size_t>(lane)]; }

 private:
  std::vector<PendingCopy> copies_;        // not yet waited for, in issue order
  std::array<uint32_t, kLanes> groups_{};  // number of the group each lane has open
  uint32_t sequence_ = 1;
};

}  // namespace ptxsim
