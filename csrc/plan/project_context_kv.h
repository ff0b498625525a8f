// Workspace of project_context_kv: the packed activations of one pass, then its float32 keys and values of all layers.
#pragma once
#include <cstdint>

namespace dflash::plan {

struct ProjectContextKvWorkspace {
  int64_t kv_offset;  // bytes
  int64_t bytes;
};
// columns: layers * 2 * kv_heads * head_dim
ProjectContextKvWorkspace project_context_kv_workspace(int64_t rows, int64_t hidden_size, int64_t columns);

}  // namespace dflash::plan
