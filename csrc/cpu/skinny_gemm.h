// out[rows, columns] (float32) = activations x weight^T + bias for few rows: the weights are streamed from memory once
// a pass, the activations are read in pieces without being concatenated. A row's result is the same to the last bit
// whatever the number of rows and its place among them. docs/kernels/skinny_gemm.md explains the blocking.
#pragma once
#include "cpu/isa.h"
#include "params/skinny_gemm.h"
#include "plan/skinny_gemm.h"

namespace dflash::cpu {

// Scratch of one thread for passes of `rows` rows, in floats.
constexpr int64_t gemm_scratch_floats(int64_t rows) { return plan::kGemmColumnBlock * (plan::kGemmMaxChunk + rows); }

// Packs rows [first_row, first_row + rows) of the activations, rows <= kGemmRows, on all threads.
void pack_gemm_activations(const SkinnyGemm& gemm, int64_t first_row, int64_t rows, void* packed);

// All columns of the packed rows, on all threads, into out (rows `out_row_stride` apart).
void skinny_gemm(const SkinnyGemm& gemm, const void* packed, int64_t rows, float* out, int64_t out_row_stride);

}  // namespace dflash::cpu

// Packs row block `block` of a pass that starts at first_row and has `rows` rows.
DFLASH_DECLARE_KERNEL(void, pack_gemm_rows,
                      (const GemmActivations& activations, DType dtype, int64_t first_row, int64_t rows, int64_t block,
                       void* packed))
// Columns [begin, end) of a pass; out points at the first of them. `scratch`: gemm_scratch_floats(rows), 64-byte
// aligned.
DFLASH_DECLARE_KERNEL(void, skinny_gemm_columns,
                      (const SkinnyGemm& gemm, const void* packed, int64_t rows, int64_t begin, int64_t end, float* out,
                       int64_t out_row_stride, float* scratch))
