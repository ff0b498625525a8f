// cp.async on a warp: checks at issue, delivery by the launch's completion mode, waits.
#include "execute.h"
#include "lanes.h"

namespace ptxsim {

void Executor::copy_async(Warp& warp, const Instruction& in, uint32_t mask) {
  const uint32_t bytes = in.mod.bytes;
  uint64_t destination[kLanes];
  uint64_t source[kLanes];
  addresses(warp, in.src[0], destination);
  addresses(warp, in.src[1], source);
  Place to[kLanes];
  Place from[kLanes];
  uint32_t reading = 0;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    uint64_t size = bytes;
    if (in.src.size() > 2) {
      if (in.mod.ignore_source) {
        size = lane_of(read_predicate(warp, in.src[2]), lane) ? 0 : bytes;
      } else {
        size = read_lane(warp, in.src[2], lane);
      }
      if (size > bytes) abort(Finding::kInvalidOperand, warp, in, lane, "cp.async reads more bytes than it writes");
    }
    to[lane] = locate(warp, in, Space::kShared, destination[lane], bytes, bytes, lane, true);
    check_race(warp, in, to[lane], bytes, lane, true, nullptr, true);
    mark_written(to[lane], bytes);
    PendingCopy copy;
    if (size != 0) {
      from[lane] = locate(warp, in, Space::kGlobal, source[lane], static_cast<uint32_t>(size), bytes, lane, false);
      check_initialised(warp, in, from[lane], static_cast<uint32_t>(size), lane);
      check_race(warp, in, from[lane], static_cast<uint32_t>(size), lane, false, nullptr, true);
      reading |= 1u << lane;
      copy.source = from[lane].host;
    } else {
      copy.source = to[lane].host;
    }
    copy.destination = to[lane].host;
    copy.bytes = bytes;
    copy.from_source = static_cast<uint32_t>(size);
    copy.group = warp.async.group(lane);
    copy.sequence = warp.async.sequence();
    copy.lane = static_cast<uint8_t>(lane);
    const bool now = launch_.options.completion == Completion::kEarly ||
                     (launch_.options.completion == Completion::kRandom && (block_->random() & 1u));
    warp.async.issue(copy, now);
  }
  count_access(in, destination, to, mask, bytes, true);
  // Bytes that zero-fill leaves out are not counted as read; the sectors of a partial read are those of its start.
  if (reading != 0) count_access(in, source, from, reading, bytes, false);
}

void Executor::wait_async(Warp& warp, const Instruction& in, uint32_t mask) {
  const bool all = in.mod.all;
  const uint32_t left = all ? 0 : static_cast<uint32_t>(in.src[0].value);
  const uint32_t waited = warp.async.wait(mask, left, all);
  uint32_t& known = warp.clock.now.own[warp.clock.agents / 2 + warp.id];
  known = std::max(known, waited);
}

// Random completion: some pending copies arrive between two slices of their warp.
void Executor::complete_some(Warp& warp) {
  for (size_t i = 0; i < warp.async.pending(); ++i) {
    if (block_->random() % 4 == 0) warp.async.deliver(i);
  }
}

}  // namespace ptxsim
