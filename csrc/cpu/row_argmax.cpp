#include "cpu/row_argmax.h"

#include <cmath>

#include "cpu/parallel.h"

namespace dflash::cpu {

void row_argmax(const RowArgmaxParams& params) {
  const auto kernel = DFLASH_KERNEL(argmax_stretch);
  const int64_t row_bytes = params.row_stride * dtype_size(params.dtype);
  const auto* logits = static_cast<const char*>(params.logits);
  parallel_tasks(params.rows, 1, [&](int64_t row) {
    const ArgmaxPartial best = kernel(logits + row * row_bytes, params.dtype, params.columns);
    params.ids[row * params.ids_stride] = best.index;
    if (params.values != nullptr) params.values[row * params.values_stride] = best.value;
  });
}

}  // namespace dflash::cpu
