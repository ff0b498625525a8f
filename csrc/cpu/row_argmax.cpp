#include "cpu/row_argmax.h"

#include <algorithm>

#include "cpu/parallel.h"

namespace dflash::cpu {

ArgmaxPartial argmax_over_threads(const void* row, DType dtype, int64_t columns) {
  constexpr int64_t kLeastStretch = 8192;  // below this, starting threads costs more than the scan
  constexpr int64_t kMostStretches = 64;
  const auto kernel = DFLASH_KERNEL(argmax_stretch);
  const int64_t stretches = std::clamp<int64_t>(columns / kLeastStretch, 1, std::min(thread_count(), kMostStretches));
  ArgmaxPartial partials[kMostStretches];
  parallel_tasks(stretches, 1, [&](int64_t stretch) {
    const int64_t begin = columns * stretch / stretches;
    const int64_t end = columns * (stretch + 1) / stretches;
    partials[stretch] = kernel(static_cast<const char*>(row) + begin * dtype_size(dtype), dtype, end - begin);
    partials[stretch].index += begin;
  });
  ArgmaxPartial best = partials[0];
  for (int64_t stretch = 1; stretch < stretches; ++stretch) best = merge_argmax(best, partials[stretch]);
  return best;
}

void row_argmax(const RowArgmaxParams& params) {
  const auto kernel = DFLASH_KERNEL(argmax_stretch);
  const int64_t row_bytes = params.row_stride * dtype_size(params.dtype);
  const auto* logits = static_cast<const char*>(params.logits);
  const auto store = [&](int64_t row, const ArgmaxPartial& best) {
    params.ids[row * params.ids_stride] = best.index;
    if (params.values != nullptr) params.values[row * params.values_stride] = best.value;
  };
  if (params.rows < thread_count()) {
    for (int64_t row = 0; row < params.rows; ++row) {
      store(row, argmax_over_threads(logits + row * row_bytes, params.dtype, params.columns));
    }
    return;
  }
  parallel_tasks(params.rows, 1,
                 [&](int64_t row) { store(row, kernel(logits + row * row_bytes, params.dtype, params.columns)); });
}

}  // namespace dflash::cpu
