// How the lanes of a warp share one head in write_context_kv and norm_rope_qkv.
//
// A lane takes a unit: two pieces of `elements` neighbouring channels, so that both channels of a rotated pair are in
// one lane's registers and no lane needs another's. Half-split rotation pairs channel i with i + rotary_dim / 2, so
// the pieces of the first units lie that far apart; the pieces of the others half of what is left, which keeps the
// accesses of neighbouring lanes next to each other:
//
//   |  a0 a1 .. | b0 b1 .. |  a a ..  |  b b .. |      a, b: first and second pieces
//   0       rotary_dim/2   rotary_dim          head_dim
//
// Interleaved pairs lie inside a piece; pieces of one element (heads that cannot be accessed in vectors) are
// neighbours.
#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "params/rope_table.h"

namespace dflash::cuda {

struct HeadUnits {
  uint32_t head_dim;
  uint32_t rotary_dim;  // 0: no rotation
  uint32_t units;
  uint32_t split_units;  // the first of them hold half-split pairs
  uint32_t lanes;        // that share a head: a power of two, at most a warp
  bool interleaved;
};

inline HeadUnits head_units(int64_t head_dim, const RopeTable& rope, int64_t elements) {
  HeadUnits split{};
  split.head_dim = static_cast<uint32_t>(head_dim);
  split.rotary_dim = rope.cos_sin == nullptr ? 0 : static_cast<uint32_t>(rope.rotary_dim);
  split.interleaved = rope.interleaved;
  split.units = static_cast<uint32_t>((head_dim + 2 * elements - 1) / (2 * elements));
  split.split_units = rope.interleaved ? 0 : static_cast<uint32_t>(split.rotary_dim / (2 * elements));
  for (split.lanes = 1; split.lanes < split.units && split.lanes < 32;) split.lanes *= 2;
  return split;
}

// Elements of a piece: a 16-bit value needs eight for a 16-byte access; where the two dtypes differ in size, four make
// the accesses of a warp whole sectors on both sides.
constexpr int64_t vector_elements(DType in, DType out) { return dtype_size(in) + dtype_size(out) == 4 ? 8 : 4; }

// Whether heads can be accessed in whole pieces of `elements`.
inline bool whole_pieces(int64_t head_dim, const RopeTable& rope, int64_t elements) {
  const int64_t rotated = rope.cos_sin == nullptr ? 0 : rope.interleaved ? rope.rotary_dim : rope.rotary_dim / 2;
  return head_dim % elements == 0 && rotated % elements == 0;
}

// Whether pieces of `elements` are aligned at every head of a tensor with these strides.
inline bool aligned_pieces(const void* data, DType dtype, std::initializer_list<int64_t> strides, int64_t elements) {
  return reinterpret_cast<uintptr_t>(data) % (elements * dtype_size(dtype)) == 0 &&
         std::all_of(strides.begin(), strides.end(), [&](int64_t stride) { return stride % elements == 0; });
}

}  // namespace dflash::cuda
