#include "plan/project_context_kv.h"

#include "plan/skinny_gemm.h"

namespace dflash::plan {

ProjectContextKvWorkspace project_context_kv_workspace(int64_t rows, int64_t hidden_size, int64_t columns) {
  const Size kv_offset = gemm_packed_bytes(rows, 1, hidden_size);
  return {kv_offset.value(), (kv_offset + Size(4 * gemm_pass_rows(rows)) * columns).value()};
}

}  // namespace dflash::plan
