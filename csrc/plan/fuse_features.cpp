#include "plan/fuse_features.h"

#include "plan/skinny_gemm.h"

namespace dflash::plan {

FuseFeaturesWorkspace fuse_features_workspace(int64_t rows, int64_t taps, int64_t tap_columns, int64_t columns) {
  const int64_t sums_offset = round_up(4 * gemm_packed_floats(rows, taps, tap_columns), 64);
  return {sums_offset, sums_offset + 4 * gemm_pass_rows(rows) * columns};
}

}  // namespace dflash::plan
