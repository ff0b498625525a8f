// Products of few rows with a large weight: every byte of the weight is read once, through a ring of stages in shared
// memory. plan/cuda/weight_stream.h says how the work is cut, docs/kernels/weight_streaming.md why.
#pragma once
#include <type_traits>

#include "cuda/common/arrival.cuh"
#include "cuda/common/convert.cuh"
#include "cuda/common/reduce.cuh"
#include "plan/cuda/weight_stream.h"

namespace dflash::cuda {

constexpr uint32_t kStreamChunk = 8;                              // elements of 16 bytes
constexpr uint32_t kStreamRowBytes = 2 * kStreamInner;            // of a stage's row
constexpr uint32_t kStreamChunks = kStreamInner / kStreamChunk;   // of a stage's row
constexpr uint32_t kStreamPass = kStreamThreads / kStreamChunks;  // rows that all threads copy at once
constexpr uint32_t kStreamRowGroups = kStreamRows / kStreamRowGroup;
static_assert(kStreamPass == kStreamRowGroup, "a pass of the threads copies a group of rows");

template <typename T>
__device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, Float16>) {
    multiply_f16(sums, a, b0, b1);
  } else {
    multiply_bf16(sums, a, b0, b1);
  }
}

__device__ __forceinline__ void wait_for_all_but(uint32_t newest) {
  static_assert(kMostStreamStages == 6, "a case for each");
  switch (newest) {
    case 0:
      return wait_for_copy_groups<0>();
    case 1:
      return wait_for_copy_groups<1>();
    case 2:
      return wait_for_copy_groups<2>();
    case 3:
      return wait_for_copy_groups<3>();
    default:
      return wait_for_copy_groups<4>();
  }
}

// Rows of 128 bytes whose 16-byte chunks change places, so that eight rows of a column lie in eight groups of banks.
__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t chunk) {
  return row * kStreamRowBytes + ((chunk ^ (row % kStreamChunks)) * 16);
}

// A tile of output columns: `columns` of them from `first` on, both counted within a section.
struct StreamTile {
  uint32_t section, first, columns;

  __device__ __forceinline__ StreamTile(const WeightStream& stream, uint32_t tile) {
    section = tile / stream.section_tiles;
    first = tile % stream.section_tiles * stream.tile_columns;
    columns = min(stream.tile_columns, stream.section_columns - first);
  }
};

// Where the weight row of a tile's column begins.
__device__ __forceinline__ const uint16_t* weight_row(const GemmWeight& weight, const WeightStream& stream,
                                                      const StreamTile& tile, uint32_t column) {
  const int64_t layer_sections = weight.layer_columns / stream.section_columns;
  const int64_t layer_column = tile.section % layer_sections * stream.section_columns + tile.first + column;
  return static_cast<const uint16_t*>(weight.data) + tile.section / layer_sections * weight.layer_stride +
         layer_column * weight.row_stride;
}

// A thread's sums of a tile: element [g][j][i] is row 16 g + lane / 4 + 8 (i / 2), column
// 32 warp + 8 j + 2 (lane % 4) + i % 2.
struct StreamSums {
  float value[kStreamRowGroups][kStreamWarpColumns / 8][4];

  static __device__ __forceinline__ uint32_t row(uint32_t g, uint32_t i) {
    return g * kStreamRowGroup + threadIdx.x % kWarpLanes / 4 + i / 2 * 8;
  }
  static __device__ __forceinline__ uint32_t column(uint32_t j, uint32_t i) {
    return threadIdx.x / kWarpLanes * kStreamWarpColumns + j * 8 + threadIdx.x % 4 * 2 + i % 2;
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (uint32_t g = 0; g < kStreamRowGroups; ++g) {
#pragma unroll
      for (uint32_t j = 0; j < kStreamWarpColumns / 8; ++j) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) value[g][j][i] = 0.0f;
      }
    }
  }
};

// Copies units of the weight and of the activations, one after the other, into stages. Thread t copies chunk t % 8 of
// rows t / 8, t / 8 + 16, ...
class StreamCopies {
 public:
  // Rows [first_row, first_row + rows) of the activations.
  __device__ __forceinline__ StreamCopies(const SkinnyGemm& gemm, const WeightStream& stream, int64_t first_row,
                                          uint32_t rows, uint32_t tile, uint32_t unit)
      : gemm_(gemm), stream_(stream), first_row_(first_row), rows_(rows), tile_(tile) {
    piece_ = unit / stream.piece_units;
    unit_ = unit % stream.piece_units;
    find_weight();
    find_activations();
  }

  // Copies the unit it stands at and goes on to the next.
  __device__ __forceinline__ void copy(uint32_t stage) {
    const uint32_t row = threadIdx.x / kStreamChunks, chunk = threadIdx.x % kStreamChunks;
    const int64_t inner = static_cast<int64_t>(unit_) * kStreamInner + chunk * kStreamChunk;
    const int64_t left = gemm_.activations.piece_columns - inner;
    const uint16_t* weight = weight_ + inner;
    const uint16_t* activations = activations_ + inner;
    const int64_t weight_step = kStreamPass * gemm_.weight.row_stride;
    const int64_t activations_step = kStreamPass * gemm_.activations.row_strides[piece_];
    const uint32_t to_weight = stage + swizzled(row, chunk);
    const uint32_t to_activations = to_weight + kStreamColumns * kStreamRowBytes;
    if (stream_.wide) {
#pragma unroll
      for (uint32_t pass = 0; pass < kStreamColumns / kStreamPass; ++pass) {
        copy_16_bytes_async(to_weight + pass * kStreamPass * kStreamRowBytes, weight + pass * weight_step,
                            left > 0 && row + pass * kStreamPass < columns_);
      }
#pragma unroll
      for (uint32_t pass = 0; pass < kStreamRowGroups; ++pass) {
        if (pass * kStreamPass >= rows_) break;
        copy_16_bytes_async(to_activations + pass * kStreamPass * kStreamRowBytes,
                            activations + pass * activations_step, left > 0 && row + pass * kStreamPass < rows_);
      }
    } else {
#pragma unroll 1
      for (uint32_t pass = 0; pass < kStreamColumns / kStreamPass; ++pass) {
        copy_elements(to_weight + pass * kStreamPass * kStreamRowBytes, weight + pass * weight_step,
                      row + pass * kStreamPass < columns_ ? left : 0);
      }
#pragma unroll 1
      for (uint32_t pass = 0; pass * kStreamPass < rows_; ++pass) {
        copy_elements(to_activations + pass * kStreamPass * kStreamRowBytes, activations + pass * activations_step,
                      row + pass * kStreamPass < rows_ ? left : 0);
      }
    }
    advance();
  }

 private:
  // The same as copy_16_bytes_async without its demands: `count` elements at any address, zeros after them.
  static __device__ __forceinline__ void copy_elements(uint32_t shared, const uint16_t* global, int64_t count) {
    uint32_t words[kStreamChunk / 2];
#pragma unroll
    for (uint32_t i = 0; i < kStreamChunk / 2; ++i) {
      const uint32_t low = 2 * i < count ? global[2 * i] : 0, high = 2 * i + 1 < count ? global[2 * i + 1] : 0;
      words[i] = low | high << 16;
    }
    store_16_bytes(shared, make_uint4(words[0], words[1], words[2], words[3]));
  }

  __device__ __forceinline__ void advance() {
    if (++unit_ < stream_.piece_units) return;
    unit_ = 0;
    if (++piece_ == gemm_.activations.piece_count) {
      piece_ = 0;
      ++tile_;
    }
    // Past the last tile there is nothing to point at, and nothing is copied.
    if (tile_ < stream_.tiles) {
      find_weight();
      find_activations();
    }
  }

  __device__ __forceinline__ void find_weight() {
    const StreamTile tile(stream_, tile_);
    columns_ = tile.columns;
    weight_ =
        weight_row(gemm_.weight, stream_, tile, threadIdx.x / kStreamChunks) + piece_ * gemm_.activations.piece_columns;
  }

  __device__ __forceinline__ void find_activations() {
    const GemmActivations& activations = gemm_.activations;
    activations_ = static_cast<const uint16_t*>(activations.pieces[piece_]) +
                   (first_row_ + threadIdx.x / kStreamChunks) * activations.row_strides[piece_];
  }

  const SkinnyGemm& gemm_;
  const WeightStream& stream_;
  int64_t first_row_;
  uint32_t rows_, tile_, piece_, unit_, columns_;
  const uint16_t* weight_;       // this thread's first row, of the piece
  const uint16_t* activations_;  // the same
};

// Adds a stage's product to the sums.
template <typename T>
__device__ __forceinline__ void multiply_stage(uint32_t stage, uint32_t rows, StreamSums& sums) {
  constexpr uint32_t kSteps = kStreamInner / 16;
  const uint32_t lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  uint32_t weights[kSteps][kStreamWarpColumns / 16][4];
#pragma unroll
  for (uint32_t k = 0; k < kSteps; ++k) {
#pragma unroll
    for (uint32_t j = 0; j < kStreamWarpColumns / 16; ++j) {
      const uint32_t column = warp * kStreamWarpColumns + j * 16 + lane / 16 * 8 + lane % 8;
      load_matrices(weights[k][j], stage + swizzled(column, 2 * k + lane / 8 % 2));
    }
  }
  const uint32_t activations = stage + kStreamColumns * kStreamRowBytes;
#pragma unroll
  for (uint32_t g = 0; g < kStreamRowGroups; ++g) {
    if (g * kStreamRowGroup >= rows) break;
#pragma unroll
    for (uint32_t k = 0; k < kSteps; ++k) {
      uint32_t x[4];
      load_matrices(x, activations + swizzled(g * kStreamRowGroup + lane % 16, 2 * k + lane / 16));
#pragma unroll
      for (uint32_t j = 0; j < kStreamWarpColumns / 16; ++j) {
        multiply<T>(sums.value[g][2 * j], x, weights[k][j][0], weights[k][j][1]);
        multiply<T>(sums.value[g][2 * j + 1], x, weights[k][j][2], weights[k][j][3]);
      }
    }
  }
}

// The unit that a share begins with.
__device__ __forceinline__ uint64_t first_unit_of(const WeightStream& stream, uint32_t share) {
  return static_cast<uint64_t>(share) * stream.tiles * stream.tile_units / stream.shares;
}

// First of all in a kernel that streams weights, which no launch writes: while the launches before this one end, the
// weights of the first units are on their way to the second-level cache. Nothing else may be read before.
__device__ __forceinline__ void overlap_earlier_launches(const SkinnyGemm& gemm, const WeightStream& stream) {
  let_next_launch_start();
#if __CUDA_ARCH__ >= 900
  const uint64_t begin = first_unit_of(stream, blockIdx.x);
  const uint32_t unit = static_cast<uint32_t>(begin % stream.tile_units);
  const StreamTile tile(stream, static_cast<uint32_t>(begin / stream.tile_units));
  if (threadIdx.x < tile.columns && blockIdx.y == 0) {
    const uint32_t piece = unit / stream.piece_units, first = unit % stream.piece_units;
    const uint16_t* const row =
        weight_row(gemm.weight, stream, tile, threadIdx.x) + piece * gemm.activations.piece_columns;
    const uint32_t end = min(stream.piece_units, first + stream.stages - 1);
    for (uint32_t u = first; u < end; ++u) prefetch_line(row + static_cast<int64_t>(u) * kStreamInner);
  }
#endif
  wait_for_earlier_launches();
}

// Where the blocks of a tile meet. A share has two slots: for the tile it begins in, and for the tile it ends in.
class StreamPartials {
 public:
  __device__ __forceinline__ StreamPartials(const WeightStream& stream, uint32_t rows) : stream_(stream), rows_(rows) {}

  __device__ __forceinline__ uint64_t first_unit(uint32_t share) const { return first_unit_of(stream_, share); }

  // A block computed part of a tile. True in the last one of that tile, whose sums are then those of the whole tile:
  // the parts added in the order of the units, whichever block arrived when.
  __device__ __forceinline__ bool complete(uint32_t tile, StreamSums& sums) const {
    const uint32_t share = blockIdx.x;
    each_vector(slot(share, tile), [&](float4* at, float (&x)[4]) { *at = make_float4(x[0], x[1], x[2], x[3]); }, sums);
    const uint64_t begin = static_cast<uint64_t>(tile) * stream_.tile_units;
    const uint32_t first = share_of(begin), last = share_of(begin + stream_.tile_units - 1);
    __syncthreads();
    if (!last_to_arrive(stream_.arrivals + tile, last - first + 1)) return false;
    sums.clear();
    for (uint32_t part = first; part <= last; ++part) {
      const auto add = [&](const float4* at, float (&x)[4]) {
        const float4 y = *at;
        x[0] += y.x, x[1] += y.y, x[2] += y.z, x[3] += y.w;
      };
      each_vector(slot(part, tile), add, sums);
    }
    return true;
  }

 private:
  __device__ __forceinline__ uint64_t units() const {
    return static_cast<uint64_t>(stream_.tiles) * stream_.tile_units;
  }
  __device__ __forceinline__ uint32_t share_of(uint64_t unit) const {
    return static_cast<uint32_t>(((unit + 1) * stream_.shares - 1) / units());
  }
  __device__ __forceinline__ float4* slot(uint32_t share, uint32_t tile) const {
    const bool begins = first_unit(share) / stream_.tile_units == tile;
    return reinterpret_cast<float4*>(stream_.partials +
                                     (2 * static_cast<int64_t>(share) + (begins ? 0 : 1)) * stream_.slot_floats);
  }
  template <typename Visit>
  __device__ __forceinline__ void each_vector(float4* slot, const Visit& visit, StreamSums& sums) const {
    constexpr uint32_t kVectors = kStreamWarpColumns / 8;
#pragma unroll
    for (uint32_t g = 0; g < kStreamRowGroups; ++g) {
      if (g * kStreamRowGroup >= rows_) break;
#pragma unroll
      for (uint32_t j = 0; j < kVectors; ++j) {
        visit(slot + (g * kVectors + j) * kStreamThreads + threadIdx.x, sums.value[g][j]);
      }
    }
  }

  const WeightStream& stream_;
  uint32_t rows_;
};

// All units of this block's share of rows [first_row, first_row + rows), 0 < rows <= kStreamRows. Calls
// `finish(tile, sums)` for every tile whose sums it completes, in all threads.
template <typename T, typename Finish>
__device__ __forceinline__ void stream_weights(const SkinnyGemm& gemm, const WeightStream& stream, int64_t first_row,
                                               uint32_t rows, const Finish& finish) {
  extern __shared__ uint4 ring[];
  const uint32_t ring_address = shared_address(ring);
  const uint32_t stage_bytes =
      (kStreamColumns + (rows + kStreamRowGroup - 1) / kStreamRowGroup * kStreamRowGroup) * kStreamRowBytes;
  const StreamPartials partials(stream, rows);
  const uint64_t begin = partials.first_unit(blockIdx.x);
  const uint32_t units = static_cast<uint32_t>(partials.first_unit(blockIdx.x + 1) - begin);
  uint32_t tile = static_cast<uint32_t>(begin / stream.tile_units);
  uint32_t unit = static_cast<uint32_t>(begin % stream.tile_units), part_begin = unit;
  StreamCopies copies(gemm, stream, first_row, rows, tile, unit);
  const uint32_t ahead = stream.stages - 1;
  for (uint32_t i = 0; i < ahead; ++i) {
    if (i < units) copies.copy(ring_address + i * stage_bytes);
    close_copy_group();  // a group for each unit, empty past the last
  }
  StreamSums sums;
  sums.clear();
  uint32_t stage = 0;
  for (uint32_t i = 0; i < units; ++i) {
    wait_for_all_but(ahead - 1);
    // After it, all threads' copies of this stage are there, and the stage before it has been read by all.
    __syncthreads();
    if (i + ahead < units) copies.copy(ring_address + (stage == 0 ? ahead : stage - 1) * stage_bytes);
    close_copy_group();
    multiply_stage<T>(ring_address + stage * stage_bytes, rows, sums);
    stage = stage == ahead ? 0 : stage + 1;
    if (++unit < stream.tile_units && i + 1 < units) continue;
    const bool whole = part_begin == 0 && unit == stream.tile_units;
    if (whole || partials.complete(tile, sums)) finish(tile, sums);
    sums.clear();
    ++tile;
    unit = part_begin = 0;
  }
}

}  // namespace dflash::cuda
