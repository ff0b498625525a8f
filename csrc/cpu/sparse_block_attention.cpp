#include "cpu/sparse_block_attention.h"

#include "cpu/block_attention.h"
#include "plan/select_pages.h"

namespace dflash::cpu {
namespace {

// Writes the pages of the cache that one head sees, in order of position; returns how many rows they hold. All of
// them are full but the context's last, which is always among them: pages after the last selected one are seen too.
int64_t find_pages(const BlockAttentionParams& params, const int32_t* selected, int64_t count, int64_t request,
                   int32_t* pages) {
  const int64_t context_len = params.context_lens[request * params.context_lens_stride];
  const int64_t context_pages = (context_len + params.page_size - 1) / params.page_size;
  const int32_t* table = params.page_table + request * params.page_table_stride;
  int64_t found = 0, after = 0;
  for (int64_t i = 0; i < count && selected[i] < context_pages; ++i) {
    pages[found++] = table[selected[i]];
    after = selected[i] + 1;
  }
  for (int64_t page = after; page < context_pages; ++page) pages[found++] = table[page];
  return context_len - (context_pages - found) * params.page_size;
}

}  // namespace

void sparse_block_attention(BlockAttentionParams params, const PageSelection& selection, int64_t threads) {
  const plan::BlockAttentionShape shape = plan::block_attention_shape(params, threads);
  const plan::SparseBlockAttentionWorkspace workspace = plan::sparse_block_attention_workspace(shape, params.max_pages);
  auto* pages = reinterpret_cast<int32_t*>(static_cast<char*>(params.workspace) + workspace.pages_offset);
  auto* lens = reinterpret_cast<int32_t*>(static_cast<char*>(params.workspace) + workspace.lens_offset);
  for (int64_t request = 0; request < params.batch; ++request) {
    for (int64_t head = 0; head < params.kv_heads; ++head) {
      const int64_t list = request * params.kv_heads + head;
      const int32_t* selected = selection.selected + request * selection.batch_stride + head * selection.head_stride;
      const int32_t count =
          selection.counts[request * selection.counts_batch_stride + head * selection.counts_head_stride];
      lens[list] = static_cast<int32_t>(find_pages(params, selected, count, request, pages + list * params.max_pages));
    }
  }
  params.head_pages = pages;
  params.head_context_lens = lens;
  block_attention(params, threads);
}

}  // namespace dflash::cpu
