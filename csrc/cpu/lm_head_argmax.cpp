#include "cpu/lm_head_argmax.h"

#include <cmath>

#include "cpu/parallel.h"
#include "cpu/row_argmax.h"
#include "cpu/scratch.h"
#include "cpu/skinny_gemm.h"
#include "plan/lm_head_argmax.h"

namespace dflash::cpu {
namespace {

static_assert(sizeof(ArgmaxPartial) == 16, "the plan counts 16 bytes a partial result");

// Keeps `best` on ties: columns are visited in ascending order.
void take_better(ArgmaxPartial& best, const ArgmaxPartial& other) {
  if (std::isnan(best.value)) return;
  if (std::isnan(other.value) || other.value > best.value) best = other;
}

// The best of columns [begin, end) for each row of a pass.
void task_argmax(const LmHeadArgmaxParams& params, const void* packed, int64_t rows, int64_t stripe_columns,
                 int64_t begin, int64_t end, ArgmaxPartial* best) {
  const auto multiply = DFLASH_KERNEL(skinny_gemm_columns);
  const auto argmax = DFLASH_KERNEL(argmax_stretch);
  auto* tile = static_cast<float*>(thread_scratch(sizeof(float) * (rows * stripe_columns + gemm_scratch_floats(rows))));
  float* scratch = tile + rows * stripe_columns;
  for (int64_t first = begin; first < end; first += stripe_columns) {
    const int64_t count = end - first < stripe_columns ? end - first : stripe_columns;
    multiply(params.gemm, packed, rows, first, first + count, tile, stripe_columns, scratch);
    for (int64_t row = 0; row < rows; ++row) {
      ArgmaxPartial found = argmax(tile + row * stripe_columns, DType::kFloat32, count);
      found.index += first;
      if (first == begin) {
        best[row] = found;
      } else {
        take_better(best[row], found);
      }
    }
  }
}

}  // namespace

void lm_head_argmax(const LmHeadArgmaxParams& params) {
  const GemmActivations& activations = params.gemm.activations;
  const int64_t columns = params.gemm.weight.columns;
  const auto plan = plan::lm_head_argmax_plan(activations.rows, activations.piece_columns, columns);
  void* packed = params.workspace;
  auto* partials = reinterpret_cast<ArgmaxPartial*>(static_cast<char*>(params.workspace) + plan.partials_offset);
  for (int64_t first_row = 0; first_row < activations.rows; first_row += plan::kGemmRows) {
    const int64_t rows = plan::gemm_pass_rows(activations.rows - first_row);
    pack_gemm_activations(params.gemm, first_row, rows, packed);
    parallel_tasks(plan.tasks, 1, [&](int64_t task) {
      const int64_t begin = task * plan.task_columns;
      const int64_t end = begin + plan.task_columns < columns ? begin + plan.task_columns : columns;
      task_argmax(params, packed, rows, plan.stripe_columns, begin, end, partials + task * rows);
    });
    for (int64_t row = 0; row < rows; ++row) {
      ArgmaxPartial best = partials[row];
      for (int64_t task = 1; task < plan.tasks; ++task) take_better(best, partials[task * rows + row]);
      // The cap grows with the logit, so it does not change which is the largest.
      if (params.softcap > 0) best.value = params.softcap * std::tanh(best.value / params.softcap);
      params.ids[(first_row + row) * params.ids_stride] = best.index + params.vocab_offset;
      if (params.values != nullptr) params.values[(first_row + row) * params.values_stride] = best.value;
    }
  }
}

}  // namespace dflash::cpu
