// Cache blocking of the matrix product with few rows (docs/kernels/skinny_gemm.md).
#pragma once
#include <cstdint>

#include "plan/size.h"

namespace dflash::plan {

// Rows of one pass over the weights. More rows take several passes: by then arithmetic, not the weights, is the limit.
constexpr int64_t kGemmRows = 64;
// Rows and columns computed from one pair of packed blocks, and the longest stretch of the inner dimension they cover,
// in 4-byte elements (a float32 value or, where the instruction set multiplies bfloat16, a pair of them): 27 KiB of
// weights, which stay in the first-level cache while the activations of one row block after another pass. A kernel may
// split the block and lengthen the chunk accordingly.
constexpr int64_t kGemmRowBlock = 4;
constexpr int64_t kGemmColumnBlock = 12;
constexpr int64_t kGemmMaxChunk = 576;
// Widest vector, in floats: packed rows are padded to it.
constexpr int64_t kGemmMaxLanes = 16;

constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

constexpr int64_t gemm_pass_rows(int64_t rows) { return rows < kGemmRows ? rows : kGemmRows; }

// Bytes that one pass's packed activations take at most, whole cache lines: pairs need no more than single floats.
constexpr Size gemm_packed_bytes(int64_t rows, int64_t piece_count, int64_t piece_columns) {
  return (Size(4 * gemm_pass_rows(rows)) * piece_count * Size(piece_columns).rounded_up(kGemmMaxLanes)).rounded_up(64);
}

}  // namespace dflash::plan
