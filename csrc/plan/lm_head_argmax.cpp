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
  const int64_t stripes = Size(vocab_size).divided_up(kStripeColumns).value();
  const int64_t stripes_per_task = (stripes + kMaxTasks - 1) / kMaxTasks;
  LmHeadArgmaxPlan plan{};
  plan.stripe_columns = kStripeColumns;
  plan.task_columns = stripes_per_task * kStripeColumns;
  plan.tasks = plan.task_columns == 0 ? 0 : Size(vocab_size).divided_up(plan.task_columns).value();
  const Size packed = gemm_packed_bytes(rows, 1, hidden_size);
  plan.partials_offset = packed.value();
  plan.bytes = (packed + kPartialBytes * plan.tasks * gemm_pass_rows(rows)).value();
  return plan;
}

}  // namespace dflash::plan
