#include "cpu/project_context_kv.h"

#include "cpu/gemm_passes.h"
#include "cpu/skinny_gemm.h"
#include "cpu/write_context_kv.h"
#include "plan/project_context_kv.h"

namespace dflash::cpu {

void project_context_kv(const ProjectContextKvParams& params) {
  const GemmActivations& activations = params.gemm.activations;
  const int64_t columns = params.gemm.weight.columns;
  const auto workspace = plan::project_context_kv_workspace(activations.rows, activations.piece_columns, columns);
  const int64_t rows = params.write.row_count != nullptr ? *params.write.row_count : activations.rows;

  if (columns == 0) return;

  for_each_gemm_pass(rows, params.workspace, workspace.bytes, [&](int64_t first_row, int64_t pass_rows, void* memory) {
    auto* kv = reinterpret_cast<float*>(static_cast<char*>(memory) + workspace.kv_offset);
    pack_gemm_activations(params.gemm, first_row, pass_rows, memory);
    skinny_gemm(params.gemm, memory, pass_rows, kv, columns);

    WriteContextKvParams write = params.write;
    write.kv = kv;
    write.dtype = DType::kFloat32;
    write.head_stride = write.caches.head_dim;
    write.part_stride = write.caches.kv_heads * write.head_stride;
    write.layer_stride = 2 * write.part_stride;
    write.row_stride = columns;
    write.row_count = nullptr;
    write.rows = pass_rows;
    write.caches.slot_mapping += first_row * write.caches.slot_mapping_stride;
    if (write.rope.positions != nullptr) write.rope.positions += first_row * write.rope.positions_stride;
    write_context_kv(write);
  });
}

}  // namespace dflash::cpu
