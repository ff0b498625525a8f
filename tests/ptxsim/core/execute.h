// Running warps of one block: the state of a warp and of a block, and the step loop.
#pragma once

#include <functional>
#include <random>

#include "async.h"
#include "counters.h"
#include "kernel.h"
#include "mbarrier.h"
#include "race.h"
#include "report.h"

namespace ptxsim {

enum class Completion : uint8_t { kEarly, kLate, kRandom };  // when asynchronous copies land
enum class Schedule : uint8_t { kRoundRobin, kRandom, kGreedy };

struct LaunchOptions {
  Completion completion = Completion::kLate;
  Schedule schedule = Schedule::kRoundRobin;
  uint64_t seed = 0;
  bool races = true;
  bool warp_races = true;
  bool dependent = false;  // may start before the launches before it have ended (griddepcontrol)
  int threads = 1;
  uint64_t instruction_limit = 2'000'000'000;  // warp instructions of the whole launch
};

struct Dimensions {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

// What all blocks of a launch share.
struct Launch {
  Launch(const Kernel& to_run, GlobalMemory& global) : kernel(to_run), memory(global) {}

  const Kernel& kernel;
  GlobalMemory& memory;
  LaunchOptions options;
  Dimensions grid;
  Dimensions block;
  uint64_t dynamic_shared = 0;
  std::vector<uint8_t> parameters;
  FindingList findings;
  std::vector<std::unique_ptr<Shadow>> shadows;  // by buffer index
  SyncTable sync;                                // of global memory
  SpinLock atomics;                              // makes read-modify-write of global memory atomic between workers
  std::atomic<uint64_t> instructions{0};
  std::atomic<bool> stopped{false};
};

// A named barrier (bar.sync N) of a block.
struct Barrier {
  uint32_t expected = 0;  // threads; 0 = nobody arrived
  bool explicit_count = false;
  uint32_t arrived = 0;
  uint64_t waiting = 0;  // warps to release
  uint32_t votes = 0;    // predicates true (bar.red)
  uint32_t voters = 0;
  Clock clock;
  Clock fenced;
  Clock proxied;
  int32_t instruction = -1;
};

struct Warp {
  uint32_t id = 0;
  uint8_t* registers = nullptr;
  uint8_t* local = nullptr;  // kLanes times the kernel's local bytes
  uint32_t carry = 0;
  // Lanes at `pc` run; the others wait at their own pc until it is the smallest (min-PC reconvergence).
  uint32_t started = 0;  // lanes that exist
  uint32_t live = 0;     // and have not left
  uint32_t active = 0;
  uint32_t waited = 0;   // for the launches before this one (griddepcontrol.wait)
  uint32_t parked = 0;   // at a warp collective, waiting for its other lanes
  uint32_t polling = 0;  // of those: at an mbarrier, while other lanes of the warp may still go on
  int32_t pc = 0;
  int32_t next_pc = INT32_MAX;  // smallest pc of the lanes that are neither active nor parked
  std::array<int32_t, kLanes> lane_pc{};
  bool at_barrier = false;   // waits, at a barrier of the block or
  bool at_mbarrier = false;  // at an mbarrier
  int32_t barrier_pc = -1;
  uint64_t steps = 0;
  WarpClock clock;
  AsyncCopies async;
  BulkGroups bulk;
  WgmmaQueue wgmma;

  uint32_t* lanes32(uint32_t slot) { return reinterpret_cast<uint32_t*>(registers + slot); }
  uint64_t* lanes64(uint32_t slot) { return reinterpret_cast<uint64_t*>(registers + slot); }
  float* floats(uint32_t slot) { return reinterpret_cast<float*>(registers + slot); }
};

struct Block {
  uint32_t index = 0;
  uint32_t x = 0, y = 0, z = 0;
  SharedMemory shared;
  Shadow shadow;
  SyncTable sync;
  std::vector<Warp> warps;
  std::vector<uint8_t> registers;
  std::vector<uint8_t> local;
  std::array<Barrier, 16> barriers;
  std::unordered_map<uint64_t, Mbarrier> mbarriers;  // by shared address
  std::vector<PendingBulk> pending;                  // in issue order
  uint64_t idle = 0;                                 // warp instructions since something pending was delivered
  std::vector<std::vector<uint64_t>> warpgroups;     // hashes of the wgmma each has executed
  std::mt19937_64 random;
  uint32_t finished = 0;  // warps
  size_t next_warp = 0;   // round robin
};

// Executes warps of the blocks of one worker thread.
class Executor {
 public:
  Executor(Launch& launch, Counters& counters) : launch_(launch), kernel_(launch.kernel), counters_(counters) {}

  void start(Block& block, uint32_t index);
  // Runs up to `budget` warp instructions of the block; true when it has finished.
  bool run(Block& block, uint64_t budget);

 private:
  enum class Next : uint8_t { kAdvance, kJumped, kBlocked };

  // execute.cpp
  template <bool kWgmma>
  void run_warp(Warp& warp, uint64_t budget);
  uint32_t guard_mask(Warp& warp, const Instruction& in) const;
  Next control(Warp& warp, const Instruction& in, uint32_t mask);
  void arithmetic(Warp& warp, const Instruction& in, uint32_t mask);
  void arithmetic_converted(Warp& warp, const Instruction& in, uint32_t mask);
  Next branch(Warp& warp, const Instruction& in, uint32_t mask);
  Next branch_indexed(Warp& warp, const Instruction& in, uint32_t mask);
  Next leave(Warp& warp, uint32_t mask);
  void regroup(Warp& warp);
  void move_clock(Warp& warp, const Instruction& in, uint32_t mask);

  // Operands. A 64-bit view of any register or constant, and writes under a mask.
  uint64_t read_lane(Warp& warp, const Operand& operand, int lane);
  void read64(Warp& warp, const Operand& operand, uint64_t* out);
  uint32_t read_predicate(Warp& warp, const Operand& operand);
  void write32(Warp& warp, const Operand& operand, uint32_t mask, const uint32_t* values);
  void write64(Warp& warp, const Operand& operand, uint32_t mask, const uint64_t* values);
  void write_predicate(Warp& warp, const Operand& operand, uint32_t mask, uint32_t value);

  // scheduler.cpp
  Next barrier(Warp& warp, const Instruction& in, uint32_t mask);
  void complete(Barrier& barrier);
  void recheck_barriers();
  [[noreturn]] void deadlock();
  Warp* choose();

  // execute_memory.cpp: where an access goes
  struct Place {
    uint8_t* host = nullptr;
    Buffer* buffer = nullptr;  // global memory
    uint64_t offset = 0;       // in its buffer or space
    Space space = Space::kGlobal;
  };
  void addresses(Warp& warp, const Operand& operand, uint64_t* out);
  Place locate(Warp& warp, const Instruction& in, Space space, uint64_t address, uint32_t bytes, uint32_t align,
               int lane, bool write);
  void load(Warp& warp, const Instruction& in, uint32_t mask);
  void store(Warp& warp, const Instruction& in, uint32_t mask);
  void convert_address(Warp& warp, const Instruction& in, uint32_t mask);
  void map_address(Warp& warp, const Instruction& in, uint32_t mask);
  void is_space(Warp& warp, const Instruction& in, uint32_t mask);
  void check_initialised(Warp& warp, const Instruction& in, const Place& place, uint32_t bytes, int lane);
  void mark_written(const Place& place, uint32_t bytes);
  void count_access(const Instruction& in, const uint64_t* addresses, const Place* places, uint32_t mask,
                    uint32_t bytes, bool write);
  // An asynchronous engine that accesses memory for a warp.
  struct Actor {
    uint32_t index;  // agent of the block
    uint32_t time;
    bool proxy;  // through the asynchronous proxy
  };
  // Race check of one lane's access; `after` are the bytes a write is about to store, null when unknown.
  void check_race(Warp& warp, const Instruction& in, const Place& place, uint32_t bytes, int lane, bool write,
                  const uint8_t* after, const Actor* actor = nullptr);
  std::string name_of_agent(const WarpClock& clock, uint32_t agent) const;
  void strong_access(Warp& warp, const Instruction& in, const Place& place, bool reads, bool writes);

  // execute_atomics.cpp
  void atomic(Warp& warp, const Instruction& in, uint32_t mask);
  void memory_fence(Warp& warp, const Instruction& in);

  // execute_collectives.cpp
  // Gathers at a collective the lanes whose member masks (by lane) are complete; the other lanes of `mask` are parked.
  uint32_t gather(Warp& warp, const Instruction& in, uint32_t mask, const uint32_t* members);
  bool rendezvous(Warp& warp, const Instruction& in, uint32_t members);
  void collect(Warp& warp, const Instruction& in, uint32_t group);
  Next collective(Warp& warp, const Instruction& in, uint32_t mask);
  void shuffle(Warp& warp, const Instruction& in, uint32_t group);
  void vote(Warp& warp, const Instruction& in, uint32_t group);
  void match(Warp& warp, const Instruction& in, uint32_t group);
  void reduce(Warp& warp, const Instruction& in, uint32_t group);
  void elect(Warp& warp, const Instruction& in, uint32_t group);

  // execute_tensor.cpp
  Next tensor(Warp& warp, const Instruction& in, uint32_t mask);
  void load_matrix(Warp& warp, const Instruction& in);
  void store_matrix(Warp& warp, const Instruction& in);
  void multiply(Warp& warp, const Instruction& in);

  // execute_async.cpp
  void copy_async(Warp& warp, const Instruction& in, uint32_t mask);
  void wait_async(Warp& warp, const Instruction& in, uint32_t mask);
  void complete_some(Warp& warp);
  void arrive_after_copies(Warp& warp, const Instruction& in, uint32_t mask);

  // execute_mbarrier.cpp
  Next mbarrier(Warp& warp, const Instruction& in, uint32_t mask);
  Next mbarrier_wait(Warp& warp, const Instruction& in, uint32_t mask);
  Mbarrier& mbarrier_at(Warp& warp, const Instruction& in, uint64_t address, int lane);
  void mbarrier_start(Warp& warp, const Instruction& in, uint64_t address, int lane);
  void mbarrier_arrive(Warp& warp, const Instruction& in, uint64_t address, int lane);
  uint64_t shared_offset(Warp& warp, const Instruction& in, const Operand& operand, int lane);
  // Applies `change` to the barrier, reports its fault, wakes who waits when a phase completes.
  using Change = std::function<MbarrierFault(Mbarrier&)>;
  void change_mbarrier(Warp& warp, const Instruction& in, uint64_t address, int lane, const Change& change);
  void wake_mbarrier_waiters();
  std::string describe_mbarriers() const;

  // execute_bulk.cpp
  void copy_bulk(Warp& warp, const Instruction& in, uint32_t mask);
  void issue_bulk(Warp& warp, const Instruction& in, int lane);
  void check_bulk(Warp& warp, const Instruction& in, PendingBulk& copy, bool load);
  TensorMap read_tensor_map(Warp& warp, const Instruction& in, const Operand& operand, int lane);
  void count_bulk(const Instruction& in, Buffer& buffer, const std::vector<CopyRun>& runs, bool write);
  void read_bulk(PendingBulk& copy);
  void write_bulk(PendingBulk& copy);
  void deliver_bulk(PendingBulk& copy);
  bool deliver_next();  // something a waiting warp may be waiting for; false when there is nothing
  void commit_bulk(Warp& warp, uint32_t mask);
  void wait_bulk(Warp& warp, const Instruction& in, uint32_t mask);
  void finish_bulk();
  bool arrives_now();

  // execute_wgmma.cpp
  Next wgmma(Warp& warp, const Instruction& in, uint32_t mask);
  uint64_t uniform(Warp& warp, const Instruction& in, const Operand& operand);
  void issue_wgmma(Warp& warp, const Instruction& in);
  void check_matrix(Warp& warp, const Instruction& in, uint64_t descriptor, bool is_a);
  void deliver_wgmma(Warp& warp, PendingWgmma& work);
  void wait_wgmma(Warp& warp, const Instruction& in);
  void mark_in_flight(Warp& warp);
  void check_registers(Warp& warp, const Instruction& in);
  void finish_wgmma();

  int32_t index_of(const Instruction& in) const { return static_cast<int32_t>(&in - kernel_.code.data()); }
  std::string where(const Warp& warp, int lane) const;
  void find(Finding kind, const Warp& warp, const Instruction& in, int lane, const std::string& message);
  [[noreturn]] void abort(Finding kind, const Warp& warp, const Instruction& in, int lane, const std::string& message);

  Launch& launch_;
  const Kernel& kernel_;
  Counters& counters_;
  Block* block_ = nullptr;
};

}  // namespace ptxsim
