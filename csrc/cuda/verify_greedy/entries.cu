#include "cuda/common/entries.h"
#include "cuda/verify_greedy/kernel.cuh"

using namespace dflash;
using cuda::VerifyGreedyLaunch;

#define LOGITS_ENTRY(name, T)                                        \
  extern "C" __global__ void __launch_bounds__(cuda::kArgmaxThreads) \
      name(const __grid_constant__ VerifyGreedyLaunch launch) {      \
    cuda::verify_greedy_logits<T>(launch);                           \
  }
LOGITS_ENTRY(verify_greedy_float32, float)
LOGITS_ENTRY(verify_greedy_float16, Float16)
LOGITS_ENTRY(verify_greedy_bfloat16, BFloat16)

extern "C" __global__ void verify_greedy_ids(const __grid_constant__ VerifyGreedyLaunch launch) {
  cuda::verify_greedy_ids(launch.op);
}

static const cuda::EntryTable entries("verify_greedy",
                                      {DFLASH_ENTRY(verify_greedy_float32), DFLASH_ENTRY(verify_greedy_float16),
                                       DFLASH_ENTRY(verify_greedy_bfloat16), DFLASH_ENTRY(verify_greedy_ids)});
