#include "race.h"

#include <algorithm>

namespace ptxsim {
namespace {

constexpr size_t kMostReaders = 16;

void join_clocks(std::vector<uint32_t>& into, const std::vector<uint32_t>& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

}  // namespace

void Clock::join(const Clock& other) {
  join_clocks(own, other.own);
  for (const auto& [block, clocks] : other.others) join_clocks(others[block], clocks);
}

void WarpClock::start(uint32_t block_index, uint32_t warp_index, uint32_t warps_of_block, uint32_t agents_of_block) {
  block = block_index;
  warp = warp_index;
  warps = warps_of_block;
  agents = agents_of_block;
  now.own.assign(agents, 0);
  now.own[warp] = 1;
}

bool WarpClock::knows_other(uint32_t who, uint32_t when) const {
  const auto found = now.others.find(who / agents);
  return found != now.others.end() && found->second[who % agents] >= when;
}

void WarpClock::fence(bool whole_device) {
  now.join(unacquired);
  unacquired = {};
  fenced_block = now;
  if (whole_device) fenced = now;
  tick();
}

void WarpClock::proxy_fence() {
  proxied.join(now);
  tick();
}

void ShadowPage::split(Cell& cell) {
  std::array<Cell, 4> parts;
  parts.fill(cell);
  if (cell.write != kSplit && (cell.read & kMany)) {
    // Each byte needs a reader set of its own.
    const Readers readers = readers_[static_cast<uint32_t>(cell.read)];
    for (size_t i = 1; i < parts.size(); ++i) {
      parts[i].read = kMany | readers_.size();
      readers_.push_back(readers);
    }
  }
  bytes_.push_back(parts);
  cell = {kSplit, bytes_.size() - 1, 0, 0};
}

void ShadowPage::add_reader(Cell& cell, const Access& access) {
  const auto implied = [&access](const Reader& reader) {
    // What happened before this read needs no entry, unless it is weak and this read is strong.
    if ((access.site & 32u) && !(reader.site & 32u)) return false;
    return reader.epoch >> 32 == access.epoch >> 32 || access.clock->knows(reader.epoch);
  };
  const Reader self{access.epoch, access.site};
  if (!(cell.read & kMany)) {
    const Reader first{cell.read, cell.read_site};
    if (implied(first)) {
      cell.read = access.epoch;
      cell.read_site = access.site;
      return;
    }
    uint32_t index = 0;
    if (free_readers_.empty()) {
      index = static_cast<uint32_t>(readers_.size());
      readers_.emplace_back();
    } else {
      index = free_readers_.back();
      free_readers_.pop_back();
    }
    readers_[index] = {first, self};
    cell.read = kMany | index;
    return;
  }
  Readers& readers = readers_[static_cast<uint32_t>(cell.read)];
  for (Reader& reader : readers) {
    if (reader.epoch == access.epoch && ((reader.site ^ access.site) & 63u) == 0) return;
  }
  for (Reader& reader : readers) {
    if (implied(reader)) {
      reader = self;
      return;
    }
  }
  if (readers.size() < kMostReaders) {
    readers.push_back(self);
  } else {
    // Enough unordered readers are known to find any writer that none of them is ordered with.
    readers[(access.epoch >> 32) % kMostReaders] = self;
  }
}

Shadow::~Shadow() { reset(0); }

void Shadow::reset(uint64_t size) {
  for (uint64_t i = 0; i < count_; ++i) delete pages_[i].load();
  count_ = (size + ShadowPage::kBytes - 1) / ShadowPage::kBytes;
  pages_ = std::make_unique<std::atomic<ShadowPage*>[]>(count_);
}

ShadowPage& Shadow::page(uint64_t offset) {
  std::atomic<ShadowPage*>& place = pages_[offset / ShadowPage::kBytes];
  ShadowPage* page = place.load(std::memory_order_acquire);
  if (page != nullptr) return *page;
  auto fresh = std::make_unique<ShadowPage>();
  if (place.compare_exchange_strong(page, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  return *page;
}

void SyncTable::publish(uint64_t address, const WarpClock& clock, const Clock& knowledge) {
  if (knowledge.empty()) return;
  const std::lock_guard<SpinLock> guard(lock_);
  Published& place = places_[address];
  join_clocks(place[clock.block], knowledge.own);
  for (const auto& [block, clocks] : knowledge.others) join_clocks(place[block], clocks);
}

void SyncTable::acquire(uint64_t address, Clock& into, const WarpClock& clock) {
  const std::lock_guard<SpinLock> guard(lock_);
  const auto found = places_.find(address);
  if (found == places_.end()) return;
  for (const auto& [block, clocks] : found->second) {
    join_clocks(block == clock.block ? into.own : into.others[block], clocks);
  }
}

}  // namespace ptxsim
