#include "plan/project_context_kv.h"

#include "plan/skinny_gemm.h"

namespace dflash::plan {

ProjectContextKvWorkspace project_context_kv_workspace(int64_t rows, int64_t hidden_size, int64_t columns) {
  const int64_t kv_offset = round_up(4 * gemm_packed_floats(rows, 1, hidden_size), 64);
  return {kv_offset, kv_offset + 4 * gemm_pass_rows(rows) * columns};
}

}  // namespace dflash::plan
