// Tensor maps: what a kernel of sm_90 and up that fetches by TMA (cuda/common/bulk_copy.cuh) needs to know of a tensor.
// The driver makes one, 128 opaque bytes within the kernel's parameters. A launch plan only says of what, so that it is
// made without a driver; whoever carries the plan out puts the bytes into its copy of the parameters.
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "params/dtype.h"

namespace dflash {

struct HeadRows;

// A part of a kernel's parameters. The driver asks for 64-byte alignment, and so the struct around it has it too, in
// the constant memory that the kernel reads its parameters from.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// A tensor of three dimensions in global memory, innermost first, and the box of it that one bulk copy moves to shared
// memory with the 128-byte swizzle. What lies outside of the tensor reads as zero.
struct TensorMapPlan {
  int64_t params_offset;           // of the TensorMap in LaunchPlan::params
  DType dtype;                     // float16 or bfloat16
  const void* data;                // 16-byte aligned
  std::array<int64_t, 3> sizes;    // elements
  std::array<int64_t, 2> strides;  // bytes, of the second and third dimension
  std::array<int64_t, 3> box;      // elements; the innermost is 128 bytes
};

constexpr int64_t kTensorMapChannels = 64;  // of 16 bits: the 128 bytes that the swizzle permutes

// The map of rows of heads with dimensions [channel, head, row], whose box is 64 channels of one head of `box_rows`
// rows. Nothing where TMA cannot take the layout; the kernel for other layouts has to do then.
//
// What the driver asks for (CUDA Driver API, "cuTensorMapEncodeTiled", without interleave):
// - the address is a multiple of 16;
// - sizes are 1 to 2^32, box sizes 1 to 256;
// - the innermost box size is a multiple of 16 bytes and no wider than the swizzle;
// - strides are multiples of 16 bytes below 2^40; the first one is at least a row of the innermost dimension, and each
//   following one is the one before times at least its dimension's size. So rows that lie closer than their heads, as
//   after a transpose, are refused. The stride of a single head is free, and taken to be that of the row.
std::optional<TensorMapPlan> head_rows_tensor_map(const HeadRows& tensor, DType dtype, int64_t rows, int64_t heads,
                                                  int64_t head_dim, int64_t box_rows, int64_t params_offset);

}  // namespace dflash
