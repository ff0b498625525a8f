#include "plan/cuda/weight_stream.h"

#include <algorithm>

#include "plan/cuda/workspace.h"

namespace dflash::cuda {
namespace {

// A share with fewer units does not pay for the meeting of the blocks.
constexpr int64_t kLeastShareUnits = 4;
// Where two blocks do not fit with rings of two stages, one has the multiprocessor for itself.
constexpr int64_t kSharedOfTwoBlocks = 128 * 1024;

constexpr int64_t kElementBytes = 2;
constexpr int64_t kSystemSharedBytes = 1024;  // of each block
constexpr int64_t kArrivalSharedBytes = 16;   // of last_to_arrive

int64_t tile_units(const StreamShape& shape) { return shape.pieces * ceil_div(shape.piece_columns, kStreamInner); }

// Past the rows of one pass, or where there are more tiles than counters besides the one of a row tile.
bool whole_tiles(const StreamShape& shape, int64_t rows) {
  return product_way(rows) != ProductWay::kShares || stream_tiles(shape) >= kMostCounters;
}

int64_t most_shares(const StreamShape& shape) {
  const int64_t units = stream_tiles(shape) * tile_units(shape);
  return std::min(kMostStreamShares, std::max<int64_t>(1, units / kLeastShareUnits));
}

int64_t padded_rows(int64_t rows) {
  return ceil_div(std::min<int64_t>(rows, kStreamRows), kStreamRowGroup) * kStreamRowGroup;
}

int64_t stage_bytes(int64_t rows) { return (kStreamColumns + padded_rows(rows)) * kStreamInner * kElementBytes; }

int64_t slot_floats(int64_t rows) { return padded_rows(rows) * kStreamColumns; }

int64_t blocks_of(const DeviceProperties& device) {
  return device.shared_bytes_per_multiprocessor >= kSharedOfTwoBlocks ? kStreamBlocks : 1;
}

bool aligned(const void* data, int64_t stride) {
  constexpr int64_t kCopyBytes = 16;
  return reinterpret_cast<uintptr_t>(data) % kCopyBytes == 0 && stride % (kCopyBytes / kElementBytes) == 0;
}

// A piece of a row begins and ends between 16-byte chunks, in the weight as in the activations.
bool copies_whole_chunks(const SkinnyGemm& gemm) {
  const GemmActivations& activations = gemm.activations;
  if (!aligned(gemm.weight.data, gemm.weight.row_stride) || !aligned(gemm.weight.data, gemm.weight.layer_stride) ||
      !aligned(gemm.weight.data, activations.piece_columns)) {
    return false;
  }
  for (int64_t piece = 0; piece < activations.piece_count; ++piece) {
    if (!aligned(activations.pieces[piece], activations.row_strides[piece])) return false;
  }
  return true;
}

int64_t stages_that_fit(int64_t rows, int64_t static_bytes, const DeviceProperties& device) {
  const auto fit = [&](int64_t blocks) {
    const int64_t share = device.shared_bytes_per_multiprocessor / blocks - kSystemSharedBytes;
    return (std::min(share, device.shared_bytes_per_block) - static_bytes - kArrivalSharedBytes) / stage_bytes(rows);
  };
  const int64_t stages = fit(blocks_of(device));
  return std::min(kMostStreamStages, stages >= 2 ? stages : fit(1));
}

}  // namespace

int64_t stream_tiles(const StreamShape& shape) {
  return shape.section_columns == 0
             ? 0
             : shape.columns / shape.section_columns * ceil_div(shape.section_columns, shape.tile_columns);
}

int64_t stream_partials_bytes(const StreamShape& shape, int64_t rows) {
  return whole_tiles(shape, rows) ? 0 : 2 * most_shares(shape) * slot_floats(rows) * 4;
}

WeightStream weight_stream(const SkinnyGemm& gemm, const StreamShape& shape, int64_t static_bytes, void* workspace,
                           const DeviceProperties& device) {
  const int64_t rows = gemm.activations.rows;
  const bool whole = whole_tiles(shape, rows);
  const int64_t split = std::min(most_shares(shape), blocks_of(device) * device.multiprocessors);
  WeightStream stream{};
  stream.tiles = static_cast<uint32_t>(stream_tiles(shape));
  stream.tile_columns = static_cast<uint32_t>(shape.tile_columns);
  stream.section_columns = static_cast<uint32_t>(shape.section_columns);
  stream.section_tiles = static_cast<uint32_t>(ceil_div(shape.section_columns, shape.tile_columns));
  stream.tile_units = static_cast<uint32_t>(tile_units(shape));
  stream.piece_units = static_cast<uint32_t>(ceil_div(shape.piece_columns, kStreamInner));
  stream.shares = whole ? stream.tiles : static_cast<uint32_t>(split);
  stream.stages = static_cast<uint32_t>(stages_that_fit(rows, static_bytes, device));
  stream.wide = copies_whole_chunks(gemm);
  stream.arrivals = arrival_counters(workspace);
  stream.arrival_count = whole ? 0 : stream.tiles;
  stream.partials = reinterpret_cast<float*>(scratch_of(workspace));
  stream.slot_floats = static_cast<uint32_t>(slot_floats(rows));
  return stream;
}

int64_t stream_ring_bytes(const WeightStream& stream, int64_t rows) { return stream.stages * stage_bytes(rows); }

int64_t stream_bytes_in_flight(const WeightStream& stream, int64_t rows) {
  return (stream.stages - 1) * stage_bytes(rows);
}

}  // namespace dflash::cuda
