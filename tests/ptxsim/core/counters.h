// Exact counts of what a launch did, per instruction; each worker thread counts for itself.
#pragma once

#include <cstdint>
#include <vector>

#include "ir.h"

namespace ptxsim {

struct InstructionCounters {
  uint64_t executions = 0;  // warp instructions
  uint64_t active_lanes = 0;
  uint64_t global_bytes = 0;      // requested by lanes
  uint64_t sectors = 0;           // 32-byte sectors touched
  uint64_t ideal_sectors = 0;     // distinct bytes / 32, rounded up
  uint64_t wavefronts = 0;        // passes over shared memory's 32 banks
  uint64_t ideal_wavefronts = 0;  // distinct bytes / 128, rounded up
};

struct BufferCounters {
  uint64_t load_bytes = 0;
  uint64_t store_bytes = 0;
  uint64_t load_sectors = 0;
  uint64_t store_sectors = 0;
};

struct Counters {
  std::vector<InstructionCounters> instructions;
  std::vector<BufferCounters> buffers;
  uint64_t barriers = 0;  // completed by a block

  void merge(const Counters& other);
};

struct TrafficCount {
  uint32_t units = 0;
  uint32_t ideal = 0;
};

// 32-byte sectors of a warp's access: `bytes` at addresses[lane] for the lanes in `mask`, naturally aligned.
TrafficCount count_sectors(const uint64_t* addresses, uint32_t mask, int bytes);

// Wavefronts of a warp's access to shared memory. 8-byte accesses go in half warps, 16-byte accesses in quarters.
TrafficCount count_wavefronts(const uint32_t* addresses, uint32_t mask, int bytes);

}  // namespace ptxsim
