// Data races by vector clocks, byte exact, over shared and global memory.
//
// An agent is a warp, one of its asynchronous engines (Engine), or the copies that complete on one mbarrier. Each
// agent's clock ticks where it synchronises; a warp knows of every other agent the clock up to which that agent's
// accesses happened before its own next one. Barriers join the clocks of a block's warps. A fence followed by an atomic
// (or another strong write) publishes a warp's knowledge at that address; reading it by an atomic (or strong load)
// followed by a fence takes it over: the "last block done" pattern. Two accesses conflict when one writes, neither
// happened before the other, and not both are strong; two weak writes of the same value do not. Within a warp, lanes
// are ordered by bar.warp.sync and barriers only.
//
// Blocks may run on several threads: each 4 KiB page of shadow memory has its own lock, and whether two unordered
// accesses race does not depend on which came first.
//
// Bulk copies and wgmma reach memory through the asynchronous proxy. What a warp or cp.async wrote must besides be
// behind a fence.proxy.async, on the way from the write to the asynchronous access (`proxied`).
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "report.h"

namespace ptxsim {

// Who accesses memory for a warp: itself, its cp.async, its bulk copies out of shared memory (their reads complete
// before their writes), its wgmma. Copies into shared memory belong to the mbarrier they complete on.
enum class Engine : uint8_t { kWarp, kCopies, kBulkRead, kBulkWrite, kTensor };
constexpr uint32_t kEngines = 5;
constexpr uint32_t kPlainEngines = 2;     // of a kernel without bulk copies, mbarriers and wgmma; both generic
constexpr uint32_t kMostMbarriers = 128;  // addresses of one block used as mbarriers

// What one warp knows. `own` has an entry for each agent of its block: kEngines groups of its warps, then mbarriers.
struct Clock {
  std::vector<uint32_t> own;
  std::unordered_map<uint32_t, std::vector<uint32_t>> others;  // block -> the same for its agents

  void join(const Clock& other);
  bool empty() const { return own.empty(); }
};

// Published knowledge, which may come from any block: block -> clocks.
using Published = std::unordered_map<uint32_t, std::vector<uint32_t>>;

struct WarpClock {
  uint32_t block = 0;
  uint32_t warp = 0;
  uint32_t warps = 0;   // of a block
  uint32_t agents = 0;  // of a block
  Clock now;
  Clock fenced;        // `now` at the last fence, joined over barriers: what a relaxed atomic publishes
  Clock fenced_block;  // the same at the last fence of any scope: published to the own block only, in shared memory
  Clock unacquired;    // read by relaxed atomics, taken over at the next fence
  Clock proxied;       // `now` at the last fence.proxy.async, joined over barriers and mbarriers

  void start(uint32_t block_index, uint32_t warp_index, uint32_t warps_of_block, uint32_t agents_of_block);
  uint32_t tick() { return ++now.own[warp]; }
  uint32_t time() const { return now.own[warp]; }
  uint32_t index(Engine engine) const { return static_cast<uint32_t>(engine) * warps + warp; }
  uint32_t mbarrier_index(uint32_t slot) const { return kEngines * warps + slot; }
  uint32_t agent() const { return block * agents + warp; }
  bool knows(uint64_t epoch) const {
    const auto who = static_cast<uint32_t>(epoch >> 32);
    const auto when = static_cast<uint32_t>(epoch);
    const uint32_t index = who - block * agents;
    if (index < agents) return now.own[index] >= when;
    return knows_other(who, when);
  }
  // Whether a write through the generic proxy still needs a fence.proxy.async. Only writes of the own block are judged.
  bool needs_proxy_fence(uint64_t epoch) const {
    const uint32_t index = static_cast<uint32_t>(epoch >> 32) - block * agents;
    if (index >= kPlainEngines * warps) return false;
    return proxied.own.empty() || proxied.own[index] < static_cast<uint32_t>(epoch);
  }
  void fence(bool whole_device);
  void proxy_fence();

 private:
  bool knows_other(uint32_t who, uint32_t when) const;
};

// One access of one lane as the detector sees it.
struct Access {
  WarpClock* clock = nullptr;
  uint64_t epoch = 0;  // recorded: agent << 32 | time
  uint32_t site = 0;   // instruction << 6 | strong << 5 | lane
  bool write = false;
  bool async = false;  // by an asynchronous engine of the warp
  bool proxy = false;  // through the asynchronous proxy
};

constexpr uint32_t site_of(uint32_t instruction, bool strong, int lane) {
  return instruction << 6 | static_cast<uint32_t>(strong) << 5 | static_cast<uint32_t>(lane);
}

class SpinLock {
 public:
  void lock() {
    while (flag_.test_and_set(std::memory_order_acquire)) {
    }
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

// The last accesses of a 4-byte word, or, once a part of it was accessed alone, of its bytes.
struct Cell {
  uint64_t write = 0;  // epoch, kSplit, or 0
  uint64_t read = 0;   // epoch, kMany | index of a reader set, or 0; for a split cell the index of its bytes
  uint32_t write_site = 0;
  uint32_t read_site = 0;
};

// A conflict found: the sites of both accesses.
struct Conflict {
  uint32_t here;
  uint32_t there;
  uint32_t there_agent;
  uint32_t offset;  // in the page
  uint32_t size;
  bool same_warp;
  bool unfenced;  // ordered, but a fence.proxy.async is missing
  bool here_writes;
  bool there_writes;
};

class ShadowPage {
 public:
  static constexpr uint64_t kBytes = 4096;

  // Checks and records bytes [offset, offset + size) of the page; `report` is called with each Conflict.
  template <typename Report>
  void access(uint32_t offset, uint32_t size, const Access& access, const Report& report);

  SpinLock lock;

 private:
  static constexpr uint64_t kSplit = ~uint64_t{0};
  static constexpr uint64_t kMany = uint64_t{1} << 63;
  struct Reader {
    uint64_t epoch;
    uint32_t site;
  };
  using Readers = std::vector<Reader>;

  template <typename Report>
  void touch(Cell& cell, const Access& access, uint32_t offset, uint32_t size, const Report& report);
  template <typename Report>
  void check(uint64_t epoch, uint32_t site, bool other_writes, const Access& access, uint32_t offset, uint32_t size,
             const Report& report);
  void add_reader(Cell& cell, const Access& access);
  void split(Cell& cell);

  std::array<Cell, kBytes / 4> cells_{};
  std::vector<std::array<Cell, 4>> bytes_;
  std::vector<Readers> readers_;
  std::vector<uint32_t> free_readers_;
};

// Shadow memory of one buffer or of a block's shared memory.
class Shadow {
 public:
  explicit Shadow(uint64_t size = 0) { reset(size); }
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;
  void reset(uint64_t size);
  ShadowPage& page(uint64_t offset);

 private:
  std::unique_ptr<std::atomic<ShadowPage*>[]> pages_;
  uint64_t count_ = 0;
};

// Knowledge published at addresses by atomics.
class SyncTable {
 public:
  void publish(uint64_t address, const WarpClock& clock, const Clock& knowledge);
  void acquire(uint64_t address, Clock& into, const WarpClock& clock);

 private:
  SpinLock lock_;
  std::unordered_map<uint64_t, Published> places_;
};

// ---- The hot path

template <typename Report>
void ShadowPage::access(uint32_t offset, uint32_t size, const Access& access, const Report& report) {
  const uint32_t end = offset + size;
  if (((offset | size) & 3u) == 0) {
    for (; offset < end; offset += 4) {
      Cell& cell = cells_[offset / 4];
      if (cell.write == kSplit) {
        std::array<Cell, 4>& bytes = bytes_[cell.read];
        for (uint32_t b = 0; b < 4; ++b) touch(bytes[b], access, offset + b, 1, report);
      } else {
        touch(cell, access, offset, 4, report);
      }
    }
    return;
  }
  for (; offset < end; ++offset) {
    Cell& cell = cells_[offset / 4];
    if (cell.write != kSplit) split(cell);
    // `bytes_` may have moved in split(): look the cell up afterwards.
    touch(bytes_[cell.read][offset % 4], access, offset, 1, report);
  }
}

template <typename Report>
inline void ShadowPage::touch(Cell& cell, const Access& access, uint32_t offset, uint32_t size, const Report& report) {
  if (!access.write) {
    if (cell.read == access.epoch && ((cell.read_site ^ access.site) & 31u) == 0) return;
    if (cell.write != 0) check(cell.write, cell.write_site, true, access, offset, size, report);
    if (cell.read == 0 || cell.read == access.epoch) {
      cell.read = access.epoch;
      cell.read_site = access.site;
    } else {
      add_reader(cell, access);
    }
    return;
  }
  if (cell.write != 0) check(cell.write, cell.write_site, true, access, offset, size, report);
  if (cell.read != 0) {
    if (cell.read & kMany) {
      const auto index = static_cast<uint32_t>(cell.read);
      for (const Reader& reader : readers_[index])
        check(reader.epoch, reader.site, false, access, offset, size, report);
      readers_[index].clear();
      free_readers_.push_back(index);
    } else {
      check(cell.read, cell.read_site, false, access, offset, size, report);
    }
    cell.read = 0;
  }
  cell.write = access.epoch;
  cell.write_site = access.site;
}

template <typename Report>
inline void ShadowPage::check(uint64_t epoch, uint32_t site, bool other_writes, const Access& access, uint32_t offset,
                              uint32_t size, const Report& report) {
  const bool both_strong = (site & access.site & 32u) != 0;
  const auto who = static_cast<uint32_t>(epoch >> 32);
  bool same_warp = false;
  bool unfenced = false;
  if (who == access.clock->agent()) {
    // The warp's own earlier access: lanes that differ need a bar.warp.sync in between.
    const bool same_time = static_cast<uint32_t>(epoch) == access.clock->time();
    if (!access.async && (!same_time || both_strong || ((site ^ access.site) & 31u) == 0)) return;
    same_warp = !access.async;
    unfenced = access.async;
  } else if (both_strong) {
    return;
  } else if (access.clock->knows(epoch)) {
    unfenced = true;
  }
  if (unfenced && !(access.proxy && other_writes && access.clock->needs_proxy_fence(epoch))) return;
  report(Conflict{access.site, site, who, offset, size, same_warp, unfenced, access.write, other_writes});
}

}  // namespace ptxsim
