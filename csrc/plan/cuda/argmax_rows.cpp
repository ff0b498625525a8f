#include "plan/cuda/argmax_rows.h"

#include <algorithm>

#include "plan/cuda/workspace.h"
#include "plan/launch.h"

namespace dflash::cuda {
namespace {

constexpr int64_t kLineChunks = kArgmaxLineBytes / kArgmaxChunkBytes;
// Four blocks of 256 threads with up to four 16-byte loads each keep more bytes in flight than an H200's SM needs to
// stream at full bandwidth (4.8 TB/s * 0.7 us / 132 = 25 KB).
constexpr int64_t kBlocksPerMultiprocessor = 4;
// Bounds the workspace without asking the device; 256 SMs get their four blocks. So many rows are not cut, and need no
// arrival counters.
constexpr int64_t kMostBlocks = 1024;
// A thread with less work than this does not pay for the meeting of the blocks.
constexpr int64_t kLeastChunksPerThread = 2;
static_assert(kMostBlocks <= kMostCounters);

}  // namespace

ArgmaxRows argmax_rows(int64_t rows, int64_t columns, DType dtype, void* workspace, const DeviceProperties& device) {
  const int64_t chunk_columns = kArgmaxChunkBytes / dtype_size(dtype);
  // A row may start anywhere inside its first line.
  const int64_t most_chunks = ceil_div(columns - 1, chunk_columns) + kLineChunks;
  const int64_t blocks = std::min(kMostBlocks, kBlocksPerMultiprocessor * device.multiprocessors);
  const int64_t most_stretches = ceil_div(most_chunks, kArgmaxThreads * kLeastChunksPerThread);
  const int64_t wanted = std::min(most_stretches, ceil_div(blocks, std::max<int64_t>(1, rows)));
  const int64_t stretch_chunks = ceil_div(ceil_div(most_chunks, wanted), kLineChunks) * kLineChunks;
  ArgmaxRows plan{};
  plan.arrivals = arrival_counters(workspace);
  plan.stretch_best = reinterpret_cast<uint64_t*>(scratch_of(workspace));
  plan.stretches = static_cast<uint32_t>(ceil_div(most_chunks, stretch_chunks));
  plan.stretch_chunks = static_cast<uint32_t>(stretch_chunks);
  return plan;
}

int64_t argmax_rows_workspace_bytes(int64_t rows) { return kCounterBytes + 8 * (rows + kMostBlocks); }

}  // namespace dflash::cuda
