// RMS norm over a head and rotation of its channels, the part that write_context_kv and norm_rope_qkv share. Several
// lanes share a head as plan/cuda/head_units.h says; everything between load and store is float32.
#pragma once
#include "cuda/common/head_access.cuh"
#include "cuda/common/reduce.cuh"
#include "plan/cuda/head_units.h"

namespace dflash::cuda {

// Norm weights and rotations wait in shared memory as float32. Where a lane reads eight of them, as two vectors of
// four, all first vectors come before all second ones, so that neighbouring lanes read neighbouring vectors.
template <int kElements>
__device__ __forceinline__ uint32_t staged_index(uint32_t i, uint32_t count) {
  return kElements == 8 ? i % 8 / 4 * (count / 2) + i / 8 * 4 + i % 4 : i;
}
template <int kElements>
__device__ __forceinline__ void load_staged(const float* staged, uint32_t first, uint32_t count,
                                            float (&x)[kElements]) {
  if constexpr (kElements >= 4) {
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      const float4 loaded = *reinterpret_cast<const float4*>(staged + staged_index<kElements>(first + i, count));
      x[i] = loaded.x, x[i + 1] = loaded.y, x[i + 2] = loaded.z, x[i + 3] = loaded.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) x[i] = staged[first + i];
  }
}

// The norm weights of a head, by all threads of the block.
template <int kElements>
__device__ __forceinline__ void stage_weights(const void* weights, DType dtype, int64_t first, uint32_t count,
                                              float* staged) {
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    staged[staged_index<kElements>(i, count)] = load_any(weights, dtype, first + i);
  }
}

// A row of the table, by all threads: cosines, then sines. A position outside the table (it is data that no one could
// check before the launch) is not followed: its keys become NaN, which does not pass unnoticed.
template <int kElements>
__device__ __forceinline__ void stage_rotation(const RopeTable& rope, const HeadUnits& split, int64_t position,
                                               float* staged) {
  const uint32_t half = split.rotary_dim / 2;
  const bool inside = position >= 0 && position < rope.table_rows;
  for (uint32_t i = threadIdx.x; i < split.rotary_dim; i += blockDim.x) {
    const float value =
        inside ? load_any(rope.cos_sin, rope.dtype, position * rope.row_stride + i) : __uint_as_float(0x7fffffffu);
    const uint32_t pair = i < half ? i : i - half;
    staged[(i < half ? 0 : half) + (split.interleaved ? pair : staged_index<kElements>(pair, half))] = value;
  }
}

__device__ __forceinline__ void rotate(float& first, float& second, float cosine, float sine) {
  const float low = first, high = second;
  first = low * cosine - high * sine;
  second = high * cosine + low * sine;
}

// One head, by the lanes that share it: out = rotate(norm(in) * weight).
template <typename Access>
class Head {
 public:
  static constexpr int kElements = Access::kElements;

  // in_element, out_element: offsets of the head's first element.
  __device__ __forceinline__ Head(const Access& access, const HeadUnits& split, const void* in, int64_t in_element,
                                  void* out, int64_t out_element)
      : access_(access), split_(split), in_(in), in_element_(in_element), out_(out), out_element_(out_element) {}

  // weight, rotation: staged, null where there is none.
  __device__ __forceinline__ void process(const float* weight, const float* rotation, float eps) const {
    const uint32_t lane = threadIdx.x % split_.lanes;
    Unit unit;
    if (lane < split_.units) load(lane, unit);
    float scale = 1.0f;
    if (weight != nullptr) {
      float squares = lane < split_.units ? sum_of_squares(unit) : 0.0f;
      for (uint32_t u = lane + split_.lanes; u < split_.units; u += split_.lanes) {
        Unit other;
        load(u, other);
        squares += sum_of_squares(other);
      }
      scale = 1.0f / sqrtf(sum_over_head(squares) / static_cast<float>(split_.head_dim) + eps);
    }
    for (uint32_t u = lane; u < split_.units; u += split_.lanes) {
      if (u != lane) load(u, unit);
      if (weight != nullptr) normalise(unit, scale, weight);
      if (rotation != nullptr) rotate_unit(u, unit, rotation);
      access_.store(out_, out_element_ + unit.first, unit.a);
      if (unit.has_second) access_.store(out_, out_element_ + unit.second, unit.b);
    }
  }

  // Neither norm nor rotation, and one dtype: the bits.
  __device__ __forceinline__ void copy() const {
    for (uint32_t u = threadIdx.x % split_.lanes; u < split_.units; u += split_.lanes) {
      Unit unit;
      place(u, unit);
      const auto a = access_.load_bits(in_, in_element_ + unit.first);
      auto b = a;
      if (unit.has_second) b = access_.load_bits(in_, in_element_ + unit.second);
      access_.store_bits(out_, out_element_ + unit.first, a);
      if (unit.has_second) access_.store_bits(out_, out_element_ + unit.second, b);
    }
  }

 private:
  struct Unit {
    uint32_t first, second;  // channels
    bool has_second;
    float a[kElements], b[kElements];
  };

  __device__ __forceinline__ void place(uint32_t u, Unit& unit) const {
    if (u < split_.split_units) {
      unit.first = u * kElements;
      unit.second = unit.first + split_.rotary_dim / 2;
    } else if (kElements == 1) {
      unit.first = 2 * u;
      unit.second = unit.first + 1;
    } else {
      const uint32_t rest = split_.units - split_.split_units;
      unit.first = (u + split_.split_units) * kElements;
      unit.second = unit.first + rest * kElements;
    }
    unit.has_second = unit.second < split_.head_dim;
  }

  __device__ __forceinline__ void load(uint32_t u, Unit& unit) const {
    place(u, unit);
    access_.load(in_, in_element_ + unit.first, unit.a);
    if (unit.has_second) {
      access_.load(in_, in_element_ + unit.second, unit.b);
    } else {
#pragma unroll
      for (int i = 0; i < kElements; ++i) unit.b[i] = 0.0f;
    }
    if constexpr (Access::kBiased) {
      access_.add_bias(in_element_ + unit.first, unit.a);
      if (unit.has_second) access_.add_bias(in_element_ + unit.second, unit.b);
    }
  }

  static __device__ __forceinline__ float sum_of_squares(const Unit& unit) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kElements; ++i) sum += unit.a[i] * unit.a[i] + unit.b[i] * unit.b[i];
    return sum;
  }

  __device__ __forceinline__ float sum_over_head(float value) const {
    const uint32_t first_lane = threadIdx.x % kWarpLanes / split_.lanes * split_.lanes;
    const uint32_t lanes = (kAllLanes >> (kWarpLanes - split_.lanes)) << first_lane;
    for (uint32_t distance = split_.lanes / 2; distance > 0; distance /= 2) {
      value += __shfl_xor_sync(lanes, value, distance);
    }
    return value;
  }

  __device__ __forceinline__ void normalise(Unit& unit, float scale, const float* weight) const {
    float weights[kElements];
    load_staged(weight, unit.first, split_.head_dim, weights);
#pragma unroll
    for (int i = 0; i < kElements; ++i) unit.a[i] = unit.a[i] * scale * weights[i];
    if (!unit.has_second) return;
    load_staged(weight, unit.second, split_.head_dim, weights);
#pragma unroll
    for (int i = 0; i < kElements; ++i) unit.b[i] = unit.b[i] * scale * weights[i];
  }

  __device__ __forceinline__ void rotate_unit(uint32_t u, Unit& unit, const float* rotation) const {
    const uint32_t half = split_.rotary_dim / 2;
    if (u < split_.split_units) {
      float cosines[kElements], sines[kElements];
      load_staged(rotation, unit.first, half, cosines);
      load_staged(rotation + half, unit.first, half, sines);
#pragma unroll
      for (int i = 0; i < kElements; ++i) rotate(unit.a[i], unit.b[i], cosines[i], sines[i]);
    } else if (split_.interleaved) {
      if constexpr (kElements == 1) {
        if (unit.first < split_.rotary_dim) rotate(unit.a[0], unit.b[0], rotation[u], rotation[half + u]);
      } else {
        rotate_pairs(unit.first, unit.a, rotation);
        if (unit.has_second) rotate_pairs(unit.second, unit.b, rotation);
      }
    }
  }

  // Interleaved pairs of a piece, which rotates as a whole or not at all.
  __device__ __forceinline__ void rotate_pairs(uint32_t channel, float (&x)[kElements], const float* rotation) const {
    if (channel >= split_.rotary_dim) return;
    constexpr int kPairs = kElements > 1 ? kElements / 2 : 1;
    float cosines[kPairs], sines[kPairs];
    load_staged(rotation, channel / 2, 0, cosines);
    load_staged(rotation + split_.rotary_dim / 2, channel / 2, 0, sines);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) rotate(x[2 * i], x[(2 * i + 1) % kElements], cosines[i], sines[i]);
  }

  const Access& access_;
  const HeadUnits& split_;
  const void* in_;
  int64_t in_element_;
  void* out_;
  int64_t out_element_;
};

}  // namespace dflash::cuda
