#include "bindings/block_attention_checks.h"

#include <algorithm>
#include <stdexcept>

#include "bindings/cuda_backend.h"

namespace dflash::bindings {

void check_queries(const char* op, const Tensor& q) {
  TensorCheck(op, "q", q).dim(3).floating().last_contiguous();
  const int64_t head_dim = q.size(2);
  TensorCheck(op, "q", q)
      .expect(head_dim > 0 && head_dim <= 256 && head_dim % 8 == 0, "head_dim a multiple of 8 from 8 to 256",
              to_string(q));
}

int64_t check_requests(const char* op, const Tensor& q, const Tensor& page_table, const Tensor& context_lens,
                       const OptionalTensor& cu_block_lens) {
  TensorCheck(op, "context_lens", context_lens).same_device(q).dtype(ScalarType::Int).dim(1);
  const int64_t tokens = q.size(0), batch = context_lens.size(0);
  TensorCheck(op, "page_table", page_table).same_device(q).dtype(ScalarType::Int).shape({batch, -1}).last_contiguous();
  if (cu_block_lens) {
    TensorCheck(op, "cu_block_lens", *cu_block_lens).same_device(q).dtype(ScalarType::Int).shape({batch + 1});
  } else {
    TensorCheck(op, "q", q)
        .expect(batch > 0 ? tokens % batch == 0 : tokens == 0,
                "as many rows for each of " + std::to_string(batch) + " requests", to_string(q));
  }
  return batch;
}

BlockAttentionParams check_block_attention(const char* op, const Tensor& q, const Tensor& k_block,
                                           const Tensor& v_block, const Tensor& k_cache, const Tensor& v_cache,
                                           const Tensor& page_table, const Tensor& context_lens,
                                           const OptionalTensor& cu_block_lens, double scale, bool causal,
                                           int64_t window, double softcap, const OptionalTensor& sinks,
                                           const Tensor& out, const OptionalTensor& lse) {
  check_queries(op, q);
  const int64_t tokens = q.size(0), q_heads = q.size(1), head_dim = q.size(2);
  TensorCheck(op, "k_block", k_block).same_device(q).same_dtype(q).dim(3).last_contiguous();
  const int64_t kv_heads = k_block.size(1);
  TensorCheck(op, "k_block", k_block)
      .shape({tokens, -1, head_dim})
      .expect(kv_heads > 0 && q_heads > 0 && q_heads % kv_heads == 0,
              "kv heads that divide q's " + std::to_string(q_heads) + " heads", to_string(k_block));
  TensorCheck(op, "v_block", v_block)
      .same_device(q)
      .same_dtype(q)
      .shape({tokens, kv_heads, head_dim})
      .last_contiguous();
  TensorCheck(op, "k_cache", k_cache).same_device(q).same_dtype(q).dim(4).last_contiguous();
  const int64_t pages = k_cache.size(0), page_size = k_cache.size(1);
  TensorCheck(op, "k_cache", k_cache)
      .shape({-1, -1, kv_heads, head_dim})
      .expect(page_size > 0 && page_size <= 256 && (page_size & (page_size - 1)) == 0,
              "a page size that is a power of two from 1 to 256", to_string(k_cache));
  TensorCheck(op, "v_cache", v_cache)
      .same_device(q)
      .same_dtype(q)
      .shape({pages, page_size, kv_heads, head_dim})
      .last_contiguous();
  const int64_t batch = check_requests(op, q, page_table, context_lens, cu_block_lens);
  TensorCheck(op, "window", q).expect(window >= 0, "0 (none) or more", std::to_string(window));
  TensorCheck(op, "softcap", q).expect(softcap >= 0, "0 (none) or more", std::to_string(softcap));
  if (sinks) TensorCheck(op, "sinks", *sinks).same_device(q).dtype(ScalarType::Float).shape({q_heads});
  TensorCheck(op, "out", out)
      .same_device(q)
      .same_dtype(q)
      .shape({tokens, q_heads, head_dim})
      .last_contiguous()
      .writable();
  if (lse) {
    TensorCheck(op, "lse", *lse).same_device(q).dtype(ScalarType::Float).shape({tokens, q_heads}).writable();
  }

  BlockAttentionParams params{};
  params.q = q.data_ptr();
  params.q_token_stride = q.stride(0);
  params.q_head_stride = q.stride(1);
  params.k_block = k_block.data_ptr();
  params.k_block_token_stride = k_block.stride(0);
  params.k_block_head_stride = k_block.stride(1);
  params.v_block = v_block.data_ptr();
  params.v_block_token_stride = v_block.stride(0);
  params.v_block_head_stride = v_block.stride(1);
  params.k_cache = k_cache.data_ptr();
  params.k_page_stride = k_cache.stride(0);
  params.k_slot_stride = k_cache.stride(1);
  params.k_head_stride = k_cache.stride(2);
  params.v_cache = v_cache.data_ptr();
  params.v_page_stride = v_cache.stride(0);
  params.v_slot_stride = v_cache.stride(1);
  params.v_head_stride = v_cache.stride(2);
  params.page_table = static_cast<const int32_t*>(page_table.data_ptr());
  params.page_table_stride = page_table.stride(0);
  params.context_lens = static_cast<const int32_t*>(context_lens.data_ptr());
  params.context_lens_stride = context_lens.stride(0);
  params.cu_block_lens = data_or_null<int32_t>(cu_block_lens);
  params.cu_block_lens_stride = cu_block_lens ? cu_block_lens->stride(0) : 0;
  params.sinks = data_or_null<float>(sinks);
  params.sinks_stride = sinks ? sinks->stride(0) : 0;
  params.out = out.data_ptr();
  params.out_token_stride = out.stride(0);
  params.out_head_stride = out.stride(1);
  params.lse = lse ? static_cast<float*>(lse->data_ptr()) : nullptr;
  params.lse_token_stride = lse ? lse->stride(0) : 0;
  params.lse_head_stride = lse ? lse->stride(1) : 0;
  params.dtype = dtype_of(q);
  params.batch = batch;
  params.tokens = tokens;
  params.q_heads = q_heads;
  params.kv_heads = kv_heads;
  params.head_dim = head_dim;
  params.page_size = page_size;
  params.max_pages = page_table.size(1);
  params.scale = static_cast<float>(scale);
  params.causal = causal;
  // No distance is larger; sums with it cannot overflow.
  params.window = std::min(window, params.max_pages * page_size + tokens);
  params.softcap = static_cast<float>(softcap);
  return params;
}

void check_block_lengths(const char* op, const int32_t* cu_block_lens, int64_t cu_block_lens_stride, int64_t batch,
                         int64_t tokens) {
  int64_t previous = 0;
  for (int64_t i = 0; cu_block_lens != nullptr && i <= batch; ++i) {
    const int64_t value = cu_block_lens[i * cu_block_lens_stride];
    if (value < previous || value > tokens || (i == 0 && value != 0)) {
      raise(op, "cu_block_lens[" + std::to_string(i) + "]",
            i == 0 ? "0" : "a value from " + std::to_string(previous) + " to " + std::to_string(tokens),
            std::to_string(value));
    }
    previous = value;
  }
}

void check_context_lens(const char* op, const int32_t* context_lens, int64_t context_lens_stride, int64_t batch,
                        int64_t capacity) {
  for (int64_t request = 0; request < batch; ++request) {
    const int64_t context_len = context_lens[request * context_lens_stride];
    if (context_len < 0 || context_len > capacity) {
      raise(op, "context_lens[" + std::to_string(request) + "]",
            "0 to " + std::to_string(capacity) + " (the page table's columns times the page size)",
            std::to_string(context_len));
    }
  }
}

void check_page(const char* op, const int32_t* table, int64_t request, int64_t index, int64_t pages) {
  if (table[index] < 0 || table[index] >= pages) {
    raise(op, "page_table[" + std::to_string(request) + ", " + std::to_string(index) + "]",
          "a page from 0 to " + std::to_string(pages - 1), std::to_string(table[index]));
  }
}

void launch_attention(const char* op, const Tensor& q, const Tensor& workspace,
                      const std::function<LaunchPlan()>& make_plan) {
  try {
    const LaunchPlan plan = make_plan();
    if (plan.workspace_bytes > 0) TensorCheck(op, "workspace", workspace).workspace(plan.workspace_bytes);
    cuda_launch(op, q, plan);
  } catch (const std::invalid_argument& refusal) {
    throw std::runtime_error(std::string(op) + ": " + refusal.what());
  }
}

}  // namespace dflash::bindings
