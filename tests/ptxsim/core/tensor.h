// Tensor instructions as pure functions on fragments: registers of 32 lanes in, registers out.
//
// Lane l has group g = l / 4 and place t = l % 4 (PTX ISA, "Matrix fragments for mma"). With e elements in a 32-bit
// register (f16/bf16 2, tf32 1, 8-bit 4), register r of A holds row g + 8 (r % 2), columns t e + 4 e (r / 2) ...;
// register r of B holds rows t e + 4 e r ... of column g; the accumulator has c0, c1 in row g and c2, c3 in row g + 8,
// columns 2t, 2t+1.
#pragma once

#include <cstdint>

#include "ir.h"

namespace ptxsim {

struct MmaFragments {
  const uint32_t* a[4];
  const uint32_t* b[2];
  const uint32_t* c[4];
  uint32_t* d[4];
};

// D = A B + C for the shape and types of `in`. Products are exact; sums are rounded to f32 in ascending k.
void multiply_accumulate(const Instruction& in, const MmaFragments& fragments);

// An 8x8 matrix of 16-bit elements, from 8 rows of 16 bytes to a fragment register and back.
void matrix_to_fragment(const uint8_t* const rows[8], bool transposed, uint32_t* fragment);
void fragment_to_matrix(const uint32_t* fragment, bool transposed, uint16_t matrix[8][8]);

}  // namespace ptxsim
