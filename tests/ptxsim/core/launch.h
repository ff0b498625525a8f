// A launch: all blocks of a grid over one or several worker threads.
#pragma once

#include "execute.h"

namespace ptxsim {

struct LaunchResult {
  std::vector<FindingRecord> findings;
  bool completed = false;  // false: a finding ended the launch
  Counters counters;
  uint64_t instructions = 0;
};

LaunchResult run_launch(Program& program, const std::string& entry, GlobalMemory& memory, Dimensions grid,
                        Dimensions block, uint64_t dynamic_shared, std::vector<uint8_t> parameters,
                        const LaunchOptions& options);

}  // namespace ptxsim
