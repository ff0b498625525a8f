#include "plan/cuda/verify_sampled.h"

#include <algorithm>

#include "plan/cuda/argmax_rows.h"
#include "plan/cuda/workspace.h"

namespace dflash::cuda {
namespace {

constexpr int64_t kWarpLanes = 32;
constexpr int64_t kMostStretches = 2048, kMostParts = 64;
constexpr int64_t kStretchesInFlight = 4;  // of a warp

// A row may start anywhere in its first line of memory.
int64_t most_chunks(int64_t columns, int64_t element_bytes) {
  return ceil_div(kArgmaxLineBytes + (columns - 1) * element_bytes, kArgmaxChunkBytes);
}

int64_t most_stretches(int64_t columns) {
  return std::min(kMostStretches, ceil_div(most_chunks(columns, 4), kWarpLanes));
}

struct Layout {
  Layout(int64_t rows, int64_t columns)
      : above(masses + 8 * rows * most_stretches(columns)),
        maxima(above + static_cast<int64_t>(sizeof(MassAbove)) * rows * kMostParts),
        bytes(maxima + 4 * rows * most_stretches(columns)) {}
  int64_t masses = kCounterBytes, above, maxima, bytes;  // offsets
};

}  // namespace

std::array<LaunchPlan, 3> plan_verify_sampled(const VerifyParams& params, const SamplingParams& sampling,
                                              void* workspace, const DeviceProperties& device) {
  constexpr const char* kMaxima[] = {"sample_maxima_float32", "sample_maxima_float16", "sample_maxima_bfloat16"};
  constexpr const char* kMasses[] = {"sample_masses_float32", "sample_masses_float16", "sample_masses_bfloat16"};
  constexpr const char* kChoose[] = {"verify_sampled_float32", "verify_sampled_float16", "verify_sampled_bfloat16"};
  const int64_t rows = params.batch * (params.drafts + 1);
  const int64_t warp_chunks = ceil_div(most_chunks(params.vocabulary, dtype_size(params.dtype)), kWarpLanes);
  const int64_t lane_chunks = std::max<int64_t>(1, ceil_div(warp_chunks, kMostStretches));
  const int64_t stretches = ceil_div(warp_chunks, lane_chunks);
  const int64_t blocks_fill = ceil_div(kMassesBlocks * device.multiprocessors, std::max<int64_t>(1, rows));
  const int64_t parts_busy = ceil_div(stretches, kScanThreads / kWarpLanes * kStretchesInFlight);
  const int64_t parts_wanted = std::max<int64_t>(1, std::min({blocks_fill, parts_busy, kMostParts}));
  const int64_t part_stretches = std::max<int64_t>(1, ceil_div(stretches, parts_wanted));

  const Layout layout(rows, params.vocabulary);
  auto* bytes = static_cast<unsigned char*>(workspace);
  VerifySampledLaunch launch{params, sampling, {}};
  launch.rows.arrivals = arrival_counters(workspace);
  launch.rows.masses = reinterpret_cast<uint64_t*>(bytes + layout.masses);
  launch.rows.above = reinterpret_cast<MassAbove*>(bytes + layout.above);
  launch.rows.maxima = reinterpret_cast<uint32_t*>(bytes + layout.maxima);
  launch.rows.stretches = static_cast<uint32_t>(stretches);
  launch.rows.lane_chunks = static_cast<uint32_t>(lane_chunks);
  launch.rows.part_stretches = static_cast<uint32_t>(part_stretches);
  launch.rows.parts = static_cast<uint32_t>(ceil_div(stretches, part_stretches));
  const int type = static_cast<int>(params.dtype);
  const Dim3 scan_grid{rows, launch.rows.parts};
  return {make_launch(kMaxima[type], scan_grid, {kScanThreads}, 0, launch, layout.bytes),
          make_launch(kMasses[type], scan_grid, {kScanThreads}, 0, launch, layout.bytes),
          make_launch(kChoose[type], {rows}, {kChooseThreads}, 0, launch, layout.bytes)};
}

int64_t verify_sampled_workspace_bytes(int64_t batch, int64_t drafts, int64_t vocabulary) {
  return Layout(batch * (drafts + 1), vocabulary).bytes;
}

}  // namespace dflash::cuda
