// The interpreter's own test kernel: each block sums a part, the block that finishes last adds the parts.
// Macros plant the faults tests/ptxsim/test_races.py expects to be found.

extern "C" __global__ void last_block_sum(const float* values, int count, float* parts, unsigned* finished,
                                          float* total) {
  __shared__ float warp_sums[4];
  __shared__ bool is_last;
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) sum += values[i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
#ifndef BUG_NO_BARRIER
  __syncthreads();
#endif
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = warp_sums[0] + warp_sums[1] + warp_sums[2] + warp_sums[3];
#ifndef BUG_NO_RELEASE
    __threadfence();
#endif
#ifdef BUG_NOT_ATOMIC
    const unsigned before = *finished;
    *finished = before + 1;
#else
    const unsigned before = atomicAdd(finished, 1);
#endif
#ifndef BUG_NO_ACQUIRE
    __threadfence();
#endif
    is_last = before == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last && threadIdx.x == 0) {
    float result = 0;
    for (int i = 0; i < gridDim.x; ++i) result += parts[i];
    *total = result;
    *finished = 0;
  }
}
