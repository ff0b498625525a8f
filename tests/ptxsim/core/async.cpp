#include "async.h"

#include <algorithm>
#include <cstring>

namespace ptxsim {
namespace {

void perform(PendingCopy& copy) {
  if (copy.delivered) return;
  std::memcpy(copy.destination, copy.source, copy.from_source);
  std::memset(copy.destination + copy.from_source, 0, copy.bytes - copy.from_source);
  copy.delivered = true;
}

}  // namespace

void AsyncCopies::issue(const PendingCopy& copy, bool deliver_now) {
  copies_.push_back(copy);
  if (deliver_now) {
    perform(copies_.back());
  } else {
    std::memset(copy.destination, kPoison, copy.bytes);
  }
}

void AsyncCopies::commit(uint32_t lanes) {
  for (uint32_t left = lanes; left != 0; left &= left - 1) ++groups_[static_cast<size_t>(__builtin_ctz(left))];
  ++sequence_;
}

// Performs and forgets the copies that are complete; returns the sequence number up to which none is left.
template <typename Complete>
uint32_t AsyncCopies::finish(const Complete& complete) {
  uint32_t oldest_pending = sequence_;  // copies of the open group count as pending
  const auto done = [&](PendingCopy& copy) {
    const bool now = complete(copy);
    if (now) {
      perform(copy);
    } else {
      oldest_pending = std::min(oldest_pending, copy.sequence);
    }
    return now;
  };
  copies_.erase(std::remove_if(copies_.begin(), copies_.end(), done), copies_.end());
  return oldest_pending - 1;
}

uint32_t AsyncCopies::wait(uint32_t lanes, uint32_t left, bool all) {
  // cp.async.wait_all closes the open group first.
  if (all) ++sequence_;
  return finish([&](const PendingCopy& copy) {
    const bool mine = (lanes >> copy.lane) & 1u;
    // Groups are numbered from 0; the open one is groups_[lane], the newest committed one groups_[lane] - 1.
    return mine && (all || copy.group + left < groups_[copy.lane]);
  });
}

uint32_t AsyncCopies::collect(uint32_t lanes, uint32_t sequence) {
  return finish([&](const PendingCopy& copy) { return ((lanes >> copy.lane) & 1u) && copy.sequence <= sequence; });
}

void AsyncCopies::deliver(size_t index) { perform(copies_[index]); }

}  // namespace ptxsim
