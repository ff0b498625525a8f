#include "plan/lm_head_argmax.h"

#include "plan/skinny_gemm.h"

namespace dflash::plan {
namespace {

// Wide enough that scanning a row of the tile costs little more than a load per vector, small enough for the
// second-level cache (48 KiB at 64 rows).
constexpr int64_t kStripeColumns = 16 * kGemmColumnBlock;
// Enough for an even split over any number of threads.
constexpr int64_t kMaxTasks = 512;
constexpr int64_t kPartialBytes = 16;

}  // namespace

LmHeadArgmaxPlan lm_head_argmax_plan(int64_t rows, int64_t hidden_size, int64_t vocab_size) {
  const int64_t stripes = (vocab_size + kStripeColumns - 1) / kStripeColumns;
  const int64_t stripes_per_task = (stripes + kMaxTasks - 1) / kMaxTasks;
  LmHeadArgmaxPlan plan{};
  plan.stripe_columns = kStripeColumns;
  plan.task_columns = stripes_per_task * kStripeColumns;
  plan.tasks = plan.task_columns == 0 ? 0 : (vocab_size + plan.task_columns - 1) / plan.task_columns;
  plan.partials_offset = round_up(4 * gemm_packed_floats(rows, 1, hidden_size), 64);
  plan.bytes = plan.partials_offset + kPartialBytes * plan.tasks * gemm_pass_rows(rows);
  return plan;
}

}  // namespace dflash::plan
