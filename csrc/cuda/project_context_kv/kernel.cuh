#pragma once
#include "cuda/common/context_slot.cuh"
#include "cuda/common/norm_rope.cuh"
#include "cuda/common/weight_stream.cuh"
#include "cuda/write_context_kv/kernel.cuh"
#include "plan/cuda/project_context_kv.h"

namespace dflash::cuda {

// What a block holds of the row group it is writing.
struct alignas(16) StagedRows {
  float sums[kStreamRowGroup][kStagedRowFloats];
  float rotations[kStreamRowGroup][kStreamColumns];
  float weights[kStreamColumns];  // of the norm
  int64_t slots[kStreamRowGroup], positions[kStreamRowGroup];
};

// Norms, rotates and writes the heads of finished tiles.
class ContextWriter {
 public:
  __device__ __forceinline__ ContextWriter(const ProjectContextKvLaunch& launch, int64_t first_row, uint32_t rows,
                                           StagedRows& staged)
      : launch_(launch), write_(launch.op.write), first_row_(first_row), rows_(rows), staged_(staged) {}

  __device__ __forceinline__ void write(uint32_t tile_index, const StreamSums& sums) const {
    const StreamTile tile(launch_.stream, tile_index);
    const uint32_t layer = tile.section / 2;
    const bool values = tile.section % 2 == 1;
    const bool rotated = !values && launch_.head.rotary_dim > 0, normed = !values && write_.k_norm_weight != nullptr;
    for (uint32_t g = 0; g * kStreamRowGroup < rows_; ++g) {
      __syncthreads();  // the group before is written
      if (threadIdx.x < kStreamRowGroup) find_row(g * kStreamRowGroup + threadIdx.x, rotated);
      stage_sums(g, tile, sums);
      if (normed && g == 0) {
        stage_weights<kProjectVectorElements>(write_.k_norm_weight, write_.weight_dtype,
                                              layer * write_.k_norm_layer_stride, launch_.head.head_dim,
                                              staged_.weights);
      }
      __syncthreads();
      if (rotated) {
        for (uint32_t r = 0; r < kStreamRowGroup; ++r) {
          if (staged_.slots[r] < 0) continue;
          stage_rotation<kProjectVectorElements>(write_.rope, launch_.head, staged_.positions[r], staged_.rotations[r]);
        }
        __syncthreads();
      }
      if (launch_.vectors) {
        write_heads(FloatAccess(DType::kFloat32, write_.caches.dtype), tile, layer, values, normed, rotated);
      } else {
        write_heads(ElementAccess(DType::kFloat32, write_.caches.dtype), tile, layer, values, normed, rotated);
      }
    }
  }

 private:
  __device__ __forceinline__ void find_row(uint32_t row, bool rotated) const {
    const int64_t slot = context_slot(write_, first_row_ + row);  // -1 past the last row
    staged_.slots[threadIdx.x] = slot;
    if (rotated && slot >= 0) {
      staged_.positions[threadIdx.x] = write_.rope.positions[(first_row_ + row) * write_.rope.positions_stride];
    }
  }

  __device__ __forceinline__ void stage_sums(uint32_t group, const StreamTile& tile, const StreamSums& sums) const {
    const GemmWeight& weight = launch_.op.gemm.weight;
    const int64_t bias = tile.section / 2 * weight.bias_layer_stride +
                         static_cast<int64_t>(tile.section % 2) * launch_.stream.section_columns + tile.first;
#pragma unroll
    for (uint32_t j = 0; j < kStreamWarpColumns / 8; ++j) {
      const uint32_t column = StreamSums::column(j, 0);
      float low = 0.0f, high = 0.0f;
      if (weight.bias != nullptr) {
        if (column < tile.columns) low = load_any(weight.bias, launch_.op.gemm.dtype, bias + column);
        if (column + 1 < tile.columns) high = load_any(weight.bias, launch_.op.gemm.dtype, bias + column + 1);
      }
      // Registers have no addresses: the group is found by comparing.
#pragma unroll
      for (uint32_t g = 0; g < kStreamRowGroups; ++g) {
        if (g != group) continue;
#pragma unroll
        for (uint32_t i = 0; i < 4; i += 2) {
          *reinterpret_cast<float2*>(&staged_.sums[StreamSums::row(0, i)][column]) =
              make_float2(sums.value[g][j][i] + low, sums.value[g][j][i + 1] + high);
        }
      }
    }
  }

  template <typename Access>
  __device__ __forceinline__ void write_heads(const Access& access, const StreamTile& tile, uint32_t layer, bool values,
                                              bool normed, bool rotated) const {
    const ContextCaches& caches = write_.caches;
    const ContextCacheLayer& cache = caches.layers[layer];
    const HeadUnits& head = launch_.head;
    const int page_shift = __ffs(static_cast<int>(caches.page_size)) - 1;  // of a power of two
    const uint32_t heads = tile.columns / head.head_dim, first_head = tile.first / head.head_dim;
    for (uint32_t item = threadIdx.x / head.lanes; item < kStreamRowGroup * heads;
         item += kStreamThreads / head.lanes) {
      const uint32_t h = item % heads, r = item / heads;
      const int64_t slot = staged_.slots[r];
      if (slot < 0) continue;
      const int64_t page = slot >> page_shift, offset = slot & (caches.page_size - 1);
      const float* const in = &staged_.sums[r][h * head.head_dim];
      if (values) {
        const int64_t out = page * cache.v_page_stride + offset * cache.v_slot_stride +
                            static_cast<int64_t>(first_head + h) * cache.v_head_stride;
        Head<Access>(access, head, in, 0, cache.v, out).process(nullptr, nullptr, 0.0f);
      } else {
        const int64_t out = page * cache.k_page_stride + offset * cache.k_slot_stride +
                            static_cast<int64_t>(first_head + h) * cache.k_head_stride;
        Head<Access>(access, head, in, 0, cache.k, out)
            .process(normed ? staged_.weights : nullptr, rotated ? staged_.rotations[r] : nullptr, write_.eps);
      }
    }
  }

  const ProjectContextKvLaunch& launch_;
  const WriteContextKvParams& write_;
  int64_t first_row_;
  uint32_t rows_;
  StagedRows& staged_;
};

// Block (share, row tile).
template <typename T>
__device__ __forceinline__ void project_context_kv(const ProjectContextKvLaunch& launch) {
  __shared__ StagedRows staged;
  overlap_earlier_launches(launch.op.gemm, launch.stream);
  const WriteContextKvParams& op = launch.op.write;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kStreamRows;
  int64_t left = op.rows - first_row;
  if (op.row_count != nullptr) left = min(left, *op.row_count - first_row);
  if (left <= 0) return;
  const uint32_t rows = static_cast<uint32_t>(min(left, static_cast<int64_t>(kStreamRows)));
  const ContextWriter writer(launch, first_row, rows, staged);
  stream_weights<T>(launch.op.gemm, launch.stream, first_row, rows,
                    [&](uint32_t tile, const StreamSums& sums) { writer.write(tile, sums); });
}

// Float32 products in memory, to which a bias is added, as `Base` reads and writes them.
template <typename Base>
class BiasedAccess {
 public:
  static constexpr int kElements = Base::kElements;
  static constexpr bool kBiased = true;

  __device__ __forceinline__ BiasedAccess(DType in, DType out) : base_(in, out) {}
  // The head whose first product is element `in`.
  __device__ __forceinline__ void at_head(const WriteContextKvLaunch& launch, uint32_t layer, uint32_t part,
                                          uint32_t head, int64_t in) {
    const ContextCaches& caches = launch.op.caches;
    bias_ = launch.products.bias;
    dtype_ = launch.products.bias_dtype;
    from_product_ = layer * launch.products.bias_layer_stride + (part * caches.kv_heads + head) * caches.head_dim - in;
  }
  __device__ __forceinline__ void load(const void* in, int64_t element, float (&x)[kElements]) const {
    base_.load(in, element, x);
  }
  // Apart from the loads, which are to be in flight together.
  __device__ __forceinline__ void add_bias(int64_t element, float (&x)[kElements]) const {
    if (bias_ == nullptr) return;
#pragma unroll
    for (int i = 0; i < kElements; ++i) x[i] += load_any(bias_, dtype_, element + from_product_ + i);
  }
  __device__ __forceinline__ void store(void* out, int64_t element, const float (&x)[kElements]) const {
    base_.store(out, element, x);
  }

 private:
  Base base_;
  const void* bias_;
  DType dtype_;
  int64_t from_product_;  // from a product's element to its bias'
};

}  // namespace dflash::cuda
