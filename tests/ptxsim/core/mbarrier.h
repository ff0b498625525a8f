// mbarrier objects (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier") as plain state: a
// phase completes when no arrivals and no transaction bytes are pending.
//
// The object's 8 bytes in shared memory mirror the state, so that a store over a live barrier is noticed.
#pragma once

#include <cstdint>

#include "race.h"

namespace ptxsim {

enum class MbarrierFault : uint8_t {
  kNone,
  kUnderflow,            // more arrivals than the phase expects
  kTransactionOverflow,  // the transaction count leaves its range
};

class Mbarrier {
 public:
  static constexpr uint32_t kMostArrivals = (1u << 20) - 1;
  static constexpr int64_t kMostBytes = (1 << 20) - 1;

  // `slot` is the barrier's agent of the race detector; phases go on counting when an address is initialised again.
  explicit Mbarrier(uint32_t slot) : slot_(slot) {}
  void initialise(uint32_t expected);
  // Who initialised it: a race detector's epoch (agent << 32 | time) and the instruction.
  uint64_t initialised_by = 0;
  int32_t initialised_at = -1;

  // Each returns a fault, and completes the phase when nothing is pending any more.
  MbarrierFault arrive(uint32_t count, bool drop);
  MbarrierFault expect(int64_t bytes);
  MbarrierFault complete(int64_t bytes) { return expect(-bytes); }
  // cp.async.mbarrier.arrive without .noinc: one more arrival of this phase.
  MbarrierFault raise(uint32_t count);

  // Waits: has the phase with this parity (of the two last ones), or the phase a state was taken in, completed?
  bool passed(bool parity) const { return ((phase_ - first_phase_) & 1) != static_cast<uint64_t>(parity); }
  bool passed_state(uint64_t state) const { return phase_ != state >> 20; }
  uint64_t state() const { return phase_ << 20 | pending_; }
  static uint32_t pending_of(uint64_t state) { return static_cast<uint32_t>(state) & kMostArrivals; }

  uint64_t mirror() const;
  uint32_t slot() const { return slot_; }
  uint64_t phase() const { return phase_; }
  uint32_t pending() const { return pending_; }
  int64_t transactions() const { return transactions_; }
  bool live() const { return live_; }
  void invalidate() { live_ = false; }

  // What arrivals of the open phase and all completed phases know; `proxied` and `fenced` as in WarpClock.
  struct Knowledge {
    Clock now;
    Clock fenced;
    Clock proxied;
    void join(const Knowledge& other);
  };
  Knowledge arriving;
  Knowledge completed;

 private:
  void check();

  uint32_t slot_;
  uint64_t phase_ = 0;
  uint64_t first_phase_ = 0;
  uint32_t expected_ = 0;
  uint32_t pending_ = 0;
  int64_t transactions_ = 0;
  bool live_ = false;
};

}  // namespace ptxsim
