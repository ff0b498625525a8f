// How verify_sampled cuts rows of logits, and its workspace. Three launches: the largest logit of every stretch of
// every row; the weight of every stretch, and of what lies above some thresholds; the choice, one block for each row,
// the last of a request to arrive comparing and committing. The first two spread each row over many blocks.
#pragma once
#include <array>

#include "params/verify.h"
#include "plan/device.h"
#include "plan/launch.h"

namespace dflash::cuda {

// Blocks of the first, second and third launch that the registers of a multiprocessor hold. Unless told that one is
// enough, ptxas makes room for more blocks of the third, and spills.
constexpr int kMaximaBlocks = 3, kMassesBlocks = 2, kChooseBlocks = 1;
constexpr int kScanThreads = 256;    // of a block of the first two launches
constexpr int kChooseThreads = 512;  // of a block of the third
constexpr int kThresholds = 7;

// Sums of weights are 64-bit integers in units of 2^-40 of the largest weight (csrc/cuda/verify_sampled/weight.cuh).
constexpr int kMassBits = 40;
constexpr int64_t kMostSampledColumns = int64_t{1} << (63 - kMassBits);

// Mass and number of the columns at or above each threshold.
struct MassAbove {
  uint64_t mass[kThresholds], count[kThresholds];
};

struct SampledRows {
  uint32_t* arrivals;    // [batch], zero before a launch and after it
  uint64_t* masses;      // [rows][stretches]
  MassAbove* above;      // [rows][parts]
  uint32_t* maxima;      // [rows][stretches]
  uint32_t stretches;    // of a row
  uint32_t lane_chunks;  // 16-byte chunks that each lane of a warp takes of a stretch
  uint32_t parts;        // of a row: a block of the first two launches each
  uint32_t part_stretches;
};

struct VerifySampledLaunch {
  VerifyParams op;
  SamplingParams sampling;
  SampledRows rows;
};

std::array<LaunchPlan, 3> plan_verify_sampled(const VerifyParams& params, const SamplingParams& sampling,
                                              void* workspace, const DeviceProperties& device);

// On any device, for any dtype.
int64_t verify_sampled_workspace_bytes(int64_t batch, int64_t drafts, int64_t vocabulary);

}  // namespace dflash::cuda
