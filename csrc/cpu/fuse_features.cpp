#include "cpu/fuse_features.h"

#include "cpu/gemm_passes.h"
#include "cpu/norm_rope.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "cpu/skinny_gemm.h"
#include "plan/fuse_features.h"

namespace dflash::cpu {
namespace {

// Starting a thread costs about as much as norming this many elements.
constexpr int64_t kElementsPerTask = 32768;

// Rows [begin, end) of a pass: out = norm(sums) in the data's dtype.
void norm_rows(const FuseFeaturesParams& params, const float* sums, int64_t first_row, int64_t begin, int64_t end) {
  const int64_t columns = params.gemm.weight.columns;
  auto* scratch = static_cast<float*>(thread_scratch(sizeof(float) * 2 * padded_floats(columns)));
  float* weight = scratch + padded_floats(columns);
  NormRopeHeads row{};
  row.in_dtype = DType::kFloat32;
  row.out_dtype = params.gemm.dtype;
  row.heads = 1;
  row.head_dim = columns;
  row.eps = params.eps;
  if (params.norm_weight != nullptr) {
    DFLASH_KERNEL(convert_to_floats)(params.norm_weight, params.gemm.dtype, columns, weight);
    row.weight = weight;
  }
  for (int64_t i = begin; i < end; ++i) {
    row.in = sums + i * columns;
    row.out = static_cast<char*>(params.out) + (first_row + i) * params.out_row_stride * dtype_size(params.gemm.dtype);
    DFLASH_KERNEL(norm_rope_heads)(row, scratch);
  }
}

}  // namespace

void fuse_features(const FuseFeaturesParams& params) {
  const GemmActivations& activations = params.gemm.activations;
  const int64_t columns = params.gemm.weight.columns;
  const auto workspace =
      plan::fuse_features_workspace(activations.rows, activations.piece_count, activations.piece_columns, columns);
  const int64_t rows = params.row_count != nullptr ? *params.row_count : activations.rows;
  if (columns == 0) return;
  for_each_gemm_pass(rows, params.workspace, workspace.bytes, [&](int64_t first_row, int64_t pass_rows, void* memory) {
    auto* sums = reinterpret_cast<float*>(static_cast<char*>(memory) + workspace.sums_offset);
    pack_gemm_activations(params.gemm, first_row, pass_rows, memory);
    skinny_gemm(params.gemm, memory, pass_rows, sums, columns);
    parallel_ranges(pass_rows, kElementsPerTask / columns + 1,
                    [&](int64_t begin, int64_t end) { norm_rows(params, sums, first_row, begin, end); });
  });
}

}  // namespace dflash::cpu
