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
  const Actor actor{warp.clock.index(Engine::kCopies), warp.async.sequence(), false};
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
    check_race(warp, in, to[lane], bytes, lane, true, nullptr, &actor);
    mark_written(to[lane], bytes);
    PendingCopy copy;
    if (size != 0) {
      from[lane] = locate(warp, in, Space::kGlobal, source[lane], static_cast<uint32_t>(size), bytes, lane, false);
      check_initialised(warp, in, from[lane], static_cast<uint32_t>(size), lane);
      check_race(warp, in, from[lane], static_cast<uint32_t>(size), lane, false, nullptr, &actor);
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
    warp.async.issue(copy, arrives_now());
  }
  count_access(in, destination, to, mask, bytes, true);
  // Bytes that zero-fill leaves out are not counted as read; the sectors of a partial read are those of its start.
  if (reading != 0) count_access(in, source, from, reading, bytes, false);
}

void Executor::wait_async(Warp& warp, const Instruction& in, uint32_t mask) {
  const bool all = in.mod.all;
  const uint32_t left = all ? 0 : static_cast<uint32_t>(in.src[0].value);
  const uint32_t waited = warp.async.wait(mask, left, all);
  uint32_t& known = warp.clock.now.own[warp.clock.index(Engine::kCopies)];
  known = std::max(known, waited);
}

// Whether asynchronous work issued now is done at once.
bool Executor::arrives_now() {
  const Completion completion = launch_.options.completion;
  return completion == Completion::kEarly || (completion == Completion::kRandom && (block_->random() & 1u));
}

// cp.async.mbarrier.arrive: the lanes' arrivals come when their copies issued so far have landed.
void Executor::arrive_after_copies(Warp& warp, const Instruction& in, uint32_t mask) {
  const uint32_t sequence = warp.async.mark();
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    PendingBulk arrival;
    arrival.instruction = &in;
    arrival.arrival = true;
    arrival.warp = warp.id;
    arrival.lane = lane;
    arrival.lanes = 1u << lane;
    arrival.sequence = sequence;
    arrival.mbarrier = shared_offset(warp, in, in.src[0], lane);
    arrival.phase = mbarrier_at(warp, in, arrival.mbarrier, lane).phase();
    if (!in.mod.noinc) {
      change_mbarrier(warp, in, arrival.mbarrier, lane, [](Mbarrier& barrier) { return barrier.raise(1); });
    }
    block_->pending.push_back(std::move(arrival));
    if (arrives_now()) {
      PendingBulk now = std::move(block_->pending.back());
      block_->pending.pop_back();
      deliver_bulk(now);
    }
  }
}

// Random completion: some of what is pending arrives between two slices of a warp.
void Executor::complete_some(Warp& warp) {
  for (size_t i = 0; i < warp.async.pending(); ++i) {
    if (block_->random() % 4 == 0) warp.async.deliver(i);
  }
  if (!block_->pending.empty() && block_->random() % 4 == 0) deliver_next();
  for (PendingWgmma& work : warp.wgmma.pending) {
    if (work.delivered) continue;
    if (block_->random() % 4 != 0) break;  // in order: one may need the accumulators of the one before
    deliver_wgmma(warp, work);
  }
}

}  // namespace ptxsim
