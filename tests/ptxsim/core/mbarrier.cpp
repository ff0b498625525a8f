#include "mbarrier.h"

namespace ptxsim {

void Mbarrier::Knowledge::join(const Knowledge& other) {
  now.join(other.now);
  fenced.join(other.fenced);
  proxied.join(other.proxied);
}

void Mbarrier::initialise(uint32_t expected) {
  // An object initialised again starts with a phase of its own.
  ++phase_;
  first_phase_ = phase_;
  expected_ = expected;
  pending_ = expected;
  transactions_ = 0;
  arriving = {};
  completed = {};
  live_ = true;
}

MbarrierFault Mbarrier::arrive(uint32_t count, bool drop) {
  if (count > pending_) return MbarrierFault::kUnderflow;
  pending_ -= count;
  if (drop) expected_ -= count;
  check();
  return MbarrierFault::kNone;
}

MbarrierFault Mbarrier::expect(int64_t bytes) {
  transactions_ += bytes;
  if (transactions_ > kMostBytes || transactions_ < -kMostBytes) return MbarrierFault::kTransactionOverflow;
  check();
  return MbarrierFault::kNone;
}

MbarrierFault Mbarrier::raise(uint32_t count) {
  if (pending_ + count > kMostArrivals) return MbarrierFault::kUnderflow;
  pending_ += count;
  return MbarrierFault::kNone;
}

void Mbarrier::check() {
  if (pending_ != 0 || transactions_ != 0) return;
  ++phase_;
  pending_ = expected_;
  completed.join(arriving);
  arriving = {};
}

uint64_t Mbarrier::mirror() const {
  // Any function of the state that a stray store is unlikely to write.
  return (phase_ * 0x9e3779b97f4a7c15ull) ^ (uint64_t{pending_} << 32) ^ static_cast<uint64_t>(transactions_) ^
         0x6d62617272696572ull;
}

}  // namespace ptxsim
