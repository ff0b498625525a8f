#include "cpu/skinny_gemm.h"

#include "cpu/parallel.h"
#include "cpu/scratch.h"

namespace dflash::cpu {
namespace {

// Starting a thread costs about as much as this many multiply-adds.
constexpr int64_t kProductsPerTask = 200000;

}  // namespace

void pack_gemm_activations(const SkinnyGemm& gemm, int64_t first_row, int64_t rows, void* packed) {
  const auto pack = DFLASH_KERNEL(pack_gemm_rows);
  const int64_t blocks = (rows + plan::kGemmRowBlock - 1) / plan::kGemmRowBlock;
  const int64_t inner = gemm.activations.piece_count * gemm.activations.piece_columns;
  parallel_tasks(blocks, 1 + kProductsPerTask / (plan::kGemmRowBlock * inner + 1),
                 [&](int64_t block) { pack(gemm.activations, gemm.dtype, first_row, rows, block, packed); });
}

void skinny_gemm(const SkinnyGemm& gemm, const void* packed, int64_t rows, float* out, int64_t out_row_stride) {
  const auto compute = DFLASH_KERNEL(skinny_gemm_columns);
  const int64_t columns = gemm.weight.columns;
  const int64_t blocks = (columns + plan::kGemmColumnBlock - 1) / plan::kGemmColumnBlock;
  const int64_t inner = gemm.activations.piece_count * gemm.activations.piece_columns;
  const int64_t grain = 1 + kProductsPerTask / (rows * plan::kGemmColumnBlock * inner + 1);
  parallel_ranges(blocks, grain, [&](int64_t first_block, int64_t end_block) {
    const int64_t begin = first_block * plan::kGemmColumnBlock;
    const int64_t end = end_block * plan::kGemmColumnBlock < columns ? end_block * plan::kGemmColumnBlock : columns;
    auto* scratch = static_cast<float*>(thread_scratch(sizeof(float) * gemm_scratch_floats(rows)));
    compute(gemm, packed, rows, begin, end, out + begin, out_row_stride, scratch);
  });
}

}  // namespace dflash::cpu
