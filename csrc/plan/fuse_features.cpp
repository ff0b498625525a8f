#include "plan/fuse_features.h"

#include "plan/skinny_gemm.h"

namespace dflash::plan {

FuseFeaturesWorkspace fuse_features_workspace(int64_t rows, int64_t taps, int64_t tap_columns, int64_t columns) {
  const Size sums_offset = gemm_packed_bytes(rows, taps, tap_columns);
  return {sums_offset.value(), (sums_offset + Size(4 * gemm_pass_rows(rows)) * columns).value()};
}

}  // namespace dflash::plan
