#include "plan/cuda/lm_head_argmax.h"

namespace dflash::cuda {
namespace {

constexpr int64_t kBestsBytes = 8 * kStreamWarps * kStreamRows;  // in shared memory

StreamShape shape_of(int64_t hidden_size, int64_t vocab_size) {
  return {1, hidden_size, vocab_size, vocab_size, kStreamColumns};
}

struct Offsets {
  int64_t row_arrivals, best, partials, end;
};

Offsets offsets_of(const StreamShape& shape, int64_t rows) {
  Offsets at{};
  at.row_arrivals = stream_arrivals_bytes(shape);
  at.best = at.row_arrivals + ceil_div(4 * stream_row_tiles(rows), 64) * 64;
  at.partials = at.best + ceil_div(8 * rows, 64) * 64;
  at.end = at.partials + stream_partials_bytes(shape, rows);
  return at;
}

}  // namespace

LaunchPlan plan_lm_head_argmax(const LmHeadArgmaxParams& params, const DeviceProperties& device) {
  const int64_t rows = params.gemm.activations.rows;
  const StreamShape shape = shape_of(params.gemm.activations.piece_columns, params.gemm.weight.columns);
  const Offsets at = offsets_of(shape, rows);
  unsigned char* workspace = static_cast<unsigned char*>(params.workspace);
  LmHeadArgmaxLaunch launch{};
  launch.op = params;
  launch.stream = weight_stream(params.gemm, shape, kBestsBytes, workspace, workspace + at.partials, device);
  launch.row_arrivals = reinterpret_cast<uint32_t*>(workspace + at.row_arrivals);
  launch.best = reinterpret_cast<uint64_t*>(workspace + at.best);
  const char* entry = params.gemm.dtype == DType::kFloat16 ? "lm_head_argmax_float16" : "lm_head_argmax_bfloat16";
  return stream_launch(entry, launch, launch.stream, rows, at.end);
}

int64_t lm_head_argmax_zero_bytes(int64_t rows, int64_t hidden_size, int64_t vocab_size) {
  return offsets_of(shape_of(hidden_size, vocab_size), rows).partials;
}

int64_t lm_head_argmax_workspace_bytes(int64_t rows, int64_t hidden_size, int64_t vocab_size) {
  return offsets_of(shape_of(hidden_size, vocab_size), rows).end;
}

}  // namespace dflash::cuda
