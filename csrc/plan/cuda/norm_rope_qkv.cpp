#include "plan/cuda/norm_rope_qkv.h"

namespace dflash::cuda {
namespace {

constexpr int64_t kRotationBytes = 16 * 1024;  // of a block's rows, in shared memory
constexpr int64_t kBlocksPerMultiprocessor = 2;

bool vectors_fit(const NormRopeQkvParams& params, int64_t elements) {
  return whole_pieces(params.head_dim, params.rope, elements) &&
         aligned_pieces(params.qkv, params.dtype, {params.qkv_row_stride}, elements) &&
         aligned_pieces(params.q, params.dtype, {params.q_row_stride, params.q_head_stride}, elements) &&
         aligned_pieces(params.k, params.dtype, {params.k_row_stride, params.k_head_stride}, elements) &&
         aligned_pieces(params.v, params.dtype, {params.v_row_stride, params.v_head_stride}, elements);
}

}  // namespace

LaunchPlan plan_norm_rope_qkv(const NormRopeQkvParams& params, const DeviceProperties& device) {
  constexpr const char* kEntries[] = {"norm_rope_qkv_float32", "norm_rope_qkv_float16", "norm_rope_qkv_bfloat16"};
  const int64_t elements = vector_elements(params.dtype, params.dtype);
  const bool vectors = vectors_fit(params, elements);
  const char* entry = vectors ? kEntries[static_cast<int>(params.dtype)] : "norm_rope_qkv_unaligned";
  NormRopeQkvLaunch launch{params, head_units(params.head_dim, params.rope, vectors ? elements : 1), 0};
  const int64_t rotary_dim = launch.head.rotary_dim;
  const int64_t spread = ceil_div(params.rows, kBlocksPerMultiprocessor * device.multiprocessors);
  const int64_t fitting = rotary_dim == 0 ? kMostNormRopeRows : kRotationBytes / (4 * rotary_dim);
  const int64_t block_rows = std::max<int64_t>(1, std::min({spread, fitting, int64_t{kMostNormRopeRows}}));
  launch.block_rows = static_cast<uint32_t>(block_rows);
  const bool nothing = params.q_heads + params.kv_heads == 0;
  return make_launch(entry, {nothing ? 0 : ceil_div(params.rows, block_rows)}, {kNormRopeThreads},
                     4 * (block_rows * rotary_dim + 2 * params.head_dim), launch, 0);
}

}  // namespace dflash::cuda
