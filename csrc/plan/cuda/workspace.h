// What the workspaces of all CUDA ops have in common: they begin with arrival counters, at the same place in every call
// of every op. Each launch leaves the counters it used as it found them, at zero, and writes nothing else there, so
// that one workspace, zeroed once, serves any ops with any sizes one after another.
#pragma once
#include <cstdint>

namespace dflash::cuda {

constexpr int64_t kCounterBytes = 65536;
constexpr int64_t kMostCounters = kCounterBytes / 4;

inline uint32_t* arrival_counters(void* workspace) { return static_cast<uint32_t*>(workspace); }

// Where the rest of the workspace begins.
inline unsigned char* scratch_of(void* workspace) { return static_cast<unsigned char*>(workspace) + kCounterBytes; }

}  // namespace dflash::cuda
