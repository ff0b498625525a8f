#include "cuda/common/entries.h"
#include "cuda/verify_sampled/choose.cuh"

using namespace dflash;
using cuda::VerifySampledLaunch;

#define ENTRY(name, bounds, function)                                                                            \
  extern "C" __global__ void __launch_bounds__ bounds name(const __grid_constant__ VerifySampledLaunch launch) { \
    cuda::function(launch);                                                                                      \
  }
ENTRY(sample_maxima_float32, (cuda::kScanThreads, cuda::kMaximaBlocks), sample_maxima<float>)
ENTRY(sample_maxima_float16, (cuda::kScanThreads, cuda::kMaximaBlocks), sample_maxima<Float16>)
ENTRY(sample_maxima_bfloat16, (cuda::kScanThreads, cuda::kMaximaBlocks), sample_maxima<BFloat16>)
ENTRY(sample_masses_float32, (cuda::kScanThreads, cuda::kMassesBlocks), sample_masses<float>)
ENTRY(sample_masses_float16, (cuda::kScanThreads, cuda::kMassesBlocks), sample_masses<Float16>)
ENTRY(sample_masses_bfloat16, (cuda::kScanThreads, cuda::kMassesBlocks), sample_masses<BFloat16>)
ENTRY(verify_sampled_float32, (cuda::kChooseThreads, cuda::kChooseBlocks), verify_sampled<float>)
ENTRY(verify_sampled_float16, (cuda::kChooseThreads, cuda::kChooseBlocks), verify_sampled<Float16>)
ENTRY(verify_sampled_bfloat16, (cuda::kChooseThreads, cuda::kChooseBlocks), verify_sampled<BFloat16>)

static const cuda::EntryTable entries("verify_sampled",
                                      {DFLASH_ENTRY(sample_maxima_float32), DFLASH_ENTRY(sample_maxima_float16),
                                       DFLASH_ENTRY(sample_maxima_bfloat16), DFLASH_ENTRY(sample_masses_float32),
                                       DFLASH_ENTRY(sample_masses_float16), DFLASH_ENTRY(sample_masses_bfloat16),
                                       DFLASH_ENTRY(verify_sampled_float32), DFLASH_ENTRY(verify_sampled_float16),
                                       DFLASH_ENTRY(verify_sampled_bfloat16)});
