#include "cpu/project_context_kv.h"

#include "cpu/skinny_gemm.h"
#include "cpu/write_context_kv.h"
#include "plan/project_context_kv.h"

namespace dflash::cpu {

void project_context_kv(const ProjectContextKvParams& params) {
  const GemmActivations& activations = params.gemm.activations;
  const int64_t columns = params.gemm.weight.columns;
  const auto workspace = plan::project_context_kv_workspace(activations.rows, activations.piece_columns, columns);
  void* packed = params.workspace;
  auto* kv = reinterpret_cast<float*>(static_cast<char*>(params.workspace) + workspace.kv_offset);
  const int64_t rows = params.write.row_count != nullptr ? *params.write.row_count : activations.rows;

  WriteContextKvParams write = params.write;
  write.kv = kv;
  write.dtype = DType::kFloat32;
  write.head_stride = write.caches.head_dim;
  write.part_stride = write.caches.kv_heads * write.head_stride;
  write.layer_stride = 2 * write.part_stride;
  write.row_stride = columns;
  write.row_count = nullptr;
  for (int64_t first_row = 0; first_row < rows && columns > 0; first_row += plan::kGemmRows) {
    const int64_t pass_rows = plan::gemm_pass_rows(rows - first_row);
    pack_gemm_activations(params.gemm, first_row, pass_rows, packed);
    skinny_gemm(params.gemm, packed, pass_rows, kv, columns);
    write.rows = pass_rows;
    write_context_kv(write);
    write.caches.slot_mapping += pass_rows * write.caches.slot_mapping_stride;
    if (write.rope.positions != nullptr) write.rope.positions += pass_rows * write.rope.positions_stride;
  }
}

}  // namespace dflash::cpu
