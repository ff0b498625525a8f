#include "plan/cuda/lm_head_argmax.h"

#include <algorithm>

namespace dflash::cuda {
namespace {

constexpr int64_t kBestsBytes = 8 * kStreamWarps * kStreamRows;  // in shared memory

StreamShape shape_of(int64_t hidden_size, int64_t vocab_size) {
  return {1, hidden_size, vocab_size, vocab_size, kStreamColumns};
}

// Shares of any device, or tiles.
int64_t bests_bytes(const StreamShape& shape, int64_t rows) {
  return 8 * kStreamRows * stream_row_tiles(rows) * std::max(kMostStreamShares, stream_tiles(shape));
}

}  // namespace

LaunchPlan plan_lm_head_argmax(const LmHeadArgmaxParams& params, const DeviceProperties& device) {
  const int64_t rows = params.gemm.activations.rows;
  const StreamShape shape = shape_of(params.gemm.activations.piece_columns, params.gemm.weight.columns);
  LmHeadArgmaxLaunch launch{};
  launch.op = params;
  launch.stream = weight_stream(params.gemm, shape, kBestsBytes, params.workspace, device);
  launch.row_arrivals = launch.stream.arrivals + launch.stream.arrival_count;
  launch.bests = reinterpret_cast<uint64_t*>(scratch_of(params.workspace) + stream_partials_bytes(shape, rows));
  const char* entry = params.gemm.dtype == DType::kFloat16 ? "lm_head_argmax_float16" : "lm_head_argmax_bfloat16";
  return stream_launch(entry, launch, launch.stream, rows,
                       lm_head_argmax_workspace_bytes(rows, shape.piece_columns, shape.columns));
}

int64_t lm_head_argmax_workspace_bytes(int64_t rows, int64_t hidden_size, int64_t vocab_size) {
  const StreamShape shape = shape_of(hidden_size, vocab_size);
  return kCounterBytes + stream_partials_bytes(shape, rows) + bests_bytes(shape, rows);
}

}  // namespace dflash::cuda
