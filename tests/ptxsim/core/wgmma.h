// wgmma as pure functions: where a matrix descriptor's elements lie in shared memory, and the product of one warp's 16
// rows (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
#pragma once

#include <cstdint>
#include <vector>

#include "ir.h"

namespace ptxsim {

// A matrix in shared memory. K-major: 8 rows (of M or N) by 16 bytes along K make a core matrix; MN-major: 16 bytes
// along M or N by 8 along K. Without a swizzle core matrices are contiguous; with one, a row of 32, 64 or 128 bytes
// holds 2, 4 or 8 of their rows, and chunks of 16 bytes are permuted by their address.
struct MatrixDescriptor {
  explicit MatrixDescriptor(uint64_t bits);

  // Address of 16 bytes: for K-major row `row` and the `chunk`-th 16 bytes along K; for MN-major index `row` along K
  // and the `chunk`-th 16 bytes along M or N.
  uint64_t k_major(uint32_t row, uint32_t chunk) const;
  uint64_t mn_major(uint32_t row, uint32_t chunk) const;

  uint64_t start;
  uint64_t leading;  // byte offsets
  uint64_t stride;
  uint32_t base_offset;
  int swizzle;  // 0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes
};

// One warp's part: a [16][k], b [n][k], accumulators d [n / 2 (f32, s32) or n / 4 (f16)] registers of 32 lanes.
struct WarpProduct {
  const uint8_t* a;  // 16 rows of k elements, row-major
  const uint8_t* b;  // n rows of k elements
  uint32_t* const* d;
  bool accumulate;  // scale-d: otherwise D = A B
};
void multiply_warpgroup(const Instruction& in, const WarpProduct& x);

// The 16 x k rows of A from four fragment registers of 32 lanes.
void fragments_to_rows(const Instruction& in, const uint32_t* const fragments[4], uint8_t* rows);

}  // namespace ptxsim
