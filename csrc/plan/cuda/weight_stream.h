// How a matrix product of few rows with a large weight is spread over a GPU (docs/kernels/weight_streaming.md).
//
// Output columns (rows of the weight) are cut into tiles, the inner dimension of a tile into units. All units in a row,
// tile after tile, are cut into equal shares, one a block: a block streams a contiguous stretch of the weight and may
// end, or begin, in the middle of a tile. Blocks that have computed a tile only in part leave their sums in the
// workspace; the last one of the tile to arrive adds them in the order of the units.
//
// The cut follows from the weight's shape and the GPU alone, not from the number of rows: up to kStreamRows rows, a
// row's result is the same bits whatever rows come with it. More rows take a block for each tile and kStreamRows rows;
// so does a weight with more tiles than a workspace has counters.
#pragma once
#include <cstdint>

#include "params/skinny_gemm.h"
#include "plan/cuda/product_ways.h"
#include "plan/device.h"
#include "plan/launch.h"

namespace dflash::cuda {

constexpr int kStreamWarps = 4;
constexpr int kStreamThreads = 32 * kStreamWarps;
constexpr int kStreamWarpColumns = 32;
constexpr int kStreamColumns = kStreamWarps * kStreamWarpColumns;  // most of a tile
constexpr int kStreamInner = 64;                                   // elements of a unit: 128 bytes of a weight row
constexpr int kStreamRowGroup = 16;                                // rows of one matrix instruction
constexpr int kStreamBlocks = 2;                                   // resident on a multiprocessor
constexpr int64_t kMostStreamShares = 320;  // bounds the workspace without asking the device; B200 has 148 SMs

// What the kernels need of it.
struct WeightStream {
  uint32_t tiles;
  uint32_t tile_columns;     // at most kStreamColumns
  uint32_t section_columns;  // tiles do not cross the border of a section, nor sections that of a layer
  uint32_t section_tiles;
  uint32_t tile_units;
  uint32_t piece_units;  // units do not cross the border of a piece of the activations
  uint32_t shares;
  uint32_t stages;         // of the ring of units in shared memory, 2 to kMostStreamStages
  bool wide;               // operands can be copied 16 bytes at a time
  uint32_t* arrivals;      // [arrival_count], of the workspace's counters
  uint32_t arrival_count;  // one for each tile, none where shares are whole tiles
  float* partials;         // [2 * shares][slot_floats]: of the tile a share begins in, of the tile it ends in
  uint32_t slot_floats;
};

constexpr int64_t kMostStreamStages = 6;

// What the cut depends on, besides the GPU.
struct StreamShape {
  int64_t pieces, piece_columns;  // of the inner dimension
  int64_t columns, section_columns, tile_columns;
};

int64_t stream_tiles(const StreamShape& shape);

// Bytes of the partials, which every op's scratch begins with, whatever the GPU.
int64_t stream_partials_bytes(const StreamShape& shape, int64_t rows);

// static_bytes: shared memory of a block besides the ring.
WeightStream weight_stream(const SkinnyGemm& gemm, const StreamShape& shape, int64_t static_bytes, void* workspace,
                           const DeviceProperties& device);

constexpr int64_t stream_row_tiles(int64_t rows) { return ceil_div(rows, kStreamRows); }

// Shared memory of the ring, and how much of it the copies under way fill.
int64_t stream_ring_bytes(const WeightStream& stream, int64_t rows);
int64_t stream_bytes_in_flight(const WeightStream& stream, int64_t rows);

// Blocks (share, row tile) of `launch`, the kernel's parameters.
template <typename Launch>
LaunchPlan stream_launch(const char* entry, const Launch& launch, const WeightStream& stream, int64_t rows,
                         int64_t workspace_bytes) {
  const int64_t shares = rows == 0 || stream.tiles == 0 ? 0 : stream.shares;
  LaunchPlan plan = make_launch(entry, {shares, stream_row_tiles(rows)}, {kStreamThreads},
                                stream_ring_bytes(stream, rows), launch, workspace_bytes);
  plan.bytes_in_flight = stream_bytes_in_flight(stream, rows);
  plan.overlaps = true;
  return plan;
}

}  // namespace dflash::cuda
