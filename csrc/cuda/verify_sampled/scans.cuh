// The first two launches of verify_sampled: block (row of all requests, part of the row).
#pragma once
#include "cuda/verify_greedy/kernel.cuh"
#include "cuda/verify_sampled/row.cuh"

namespace dflash::cuda {

// Stretches that a warp loads together.
constexpr int kMaximaInFlight = 2, kMassesInFlight = 2;

struct SampledPlace {
  uint32_t request, row;  // of the request
  int64_t index;          // of all rows

  __device__ __forceinline__ SampledPlace(const VerifyParams& op, uint32_t block)
      : request(block / (static_cast<uint32_t>(op.drafts) + 1)),
        row(block % (static_cast<uint32_t>(op.drafts) + 1)),
        index(block) {}
};

template <typename T>
__device__ __forceinline__ StretchedRow<T> sampled_row(const VerifySampledLaunch& launch, const SampledPlace& place) {
  const VerifyParams& op = launch.op;
  const int64_t offset = place.request * op.logits_batch_stride + place.row * op.logits_row_stride;
  return StretchedRow<T>(static_cast<const T*>(op.logits) + offset, op.vocabulary, launch.rows);
}

// The key of the largest logit of every stretch.
template <typename T>
__device__ __forceinline__ void sample_maxima(const VerifySampledLaunch& launch) {
  const SampledRows& rows = launch.rows;
  const SampledPlace place(launch.op, blockIdx.x);
  if (place.row > draft_len_of(launch.op, place.request)) return;
  uint32_t* maxima = rows.maxima + place.index * rows.stretches;
  const uint32_t begin = blockIdx.y * rows.part_stretches, end = min(begin + rows.part_stretches, rows.stretches);
  uint32_t largest[kMaximaInFlight] = {};
  sampled_row<T>(launch, place)
      .template walk<kMaximaInFlight>(
          begin + threadIdx.x / kWarpLanes, end, kScanThreads / kWarpLanes, [](uint32_t) { return true; },
          [&](int i, float x, int64_t) { largest[i] = max(largest[i], key_of<T>(x)); },
          [&](int i, uint32_t stretch) {
            const uint32_t of_warp = __reduce_max_sync(kAllLanes, largest[i]);
            if (threadIdx.x % kWarpLanes == 0) maxima[stretch] = of_warp;
            largest[i] = 0;
          });
}

// The mass of every stretch, and what lies above the first thresholds.
template <typename T>
__device__ __forceinline__ void sample_masses(const VerifySampledLaunch& launch) {
  const SampledRows& rows = launch.rows;
  const VerifyParams& op = launch.op;
  const SampledPlace place(op, blockIdx.x);
  if (place.row > draft_len_of(op, place.request)) return;
  const RequestSampling sampling(launch.sampling, place.request);
  if (sampling.takes_argmax()) return;
  const uint32_t* maxima = rows.maxima + place.index * rows.stretches;
  const Weights<T> weights(sampling, op.vocabulary, top_key_of<kScanThreads>(maxima, rows.stretches));
  if (!weights.finite_top()) return;

  const bool is_cut = sampling.limits_count(op.vocabulary) || sampling.limits_mass();
  uint32_t thresholds[kThresholds];
  weights.thresholds(thresholds);
  uint64_t* masses = rows.masses + place.index * rows.stretches;
  const uint32_t begin = blockIdx.y * rows.part_stretches, end = min(begin + rows.part_stretches, rows.stretches);
  uint64_t gathered[kMassesInFlight] = {};
  ThreadAbove above;
  sampled_row<T>(launch, place)
      .template walk<kMassesInFlight>(
          begin + threadIdx.x / kWarpLanes, end, kScanThreads / kWarpLanes, [](uint32_t) { return true; },
          [&](int i, float x, int64_t) {
            const uint64_t mass = weights.mass(x);
            gathered[i] += mass;
            if (is_cut) above.add(key_of<T>(x), mass, thresholds);
          },
          [&](int i, uint32_t stretch) {
            const uint64_t of_warp = warp_reduce(gathered[i], [](uint64_t a, uint64_t b) { return a + b; });
            if (threadIdx.x % kWarpLanes == 0) masses[stretch] = of_warp;
            gathered[i] = 0;
          });
  if (!is_cut) return;
  const MassAbove& of_block = above.over_block<kScanThreads>();
  if (threadIdx.x >= kThresholds) return;
  MassAbove& out = rows.above[place.index * rows.parts + blockIdx.y];
  out.mass[threadIdx.x] = of_block.mass[threadIdx.x];
  out.count[threadIdx.x] = of_block.count[threadIdx.x];
}

}  // namespace dflash::cuda
