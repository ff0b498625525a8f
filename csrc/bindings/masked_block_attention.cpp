#include "cpu/masked_block_attention.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <stdexcept>

#include "bindings/block_attention_checks.h"
#include "bindings/checks.h"
#include "bindings/cuda_backend.h"
#include "plan/cuda/masked_block_attention.h"
#include "plan/cuda/masked_block_attention_backward.h"

namespace dflash::bindings {
namespace {

HeadRows head_rows(const Tensor& tensor) { return {tensor.data_ptr(), tensor.stride(0), tensor.stride(1)}; }

MaskMode mode_of(const char* op, const std::string& mode) {
  if (mode == "anchor") return MaskMode::kAnchor;
  if (mode == "block_causal") return MaskMode::kBlockCausal;
  if (mode == "bidirectional") return MaskMode::kBidirectional;
  if (mode == "causal") return MaskMode::kCausal;
  raise(op, "mode", "anchor, block_causal, bidirectional or causal", mode);
}

// Checks everything but the values of anchors and cu_seqlens.
MaskedBlockAttentionParams check_inputs(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                                        const std::string& mode, int64_t block_size, const OptionalTensor& anchors,
                                        const OptionalTensor& cu_seqlens, bool causal, int64_t window, double scale) {
  MaskedBlockAttentionParams params{};
  check_queries(op, q);
  const int64_t queries = q.size(0), q_heads = q.size(1), head_dim = q.size(2);
  TensorCheck(op, "k", k).same_device(q).same_dtype(q).dim(3).last_contiguous();
  const int64_t keys = k.size(0), kv_heads = k.size(1);
  TensorCheck(op, "k", k)
      .shape({-1, -1, head_dim})
      .expect(kv_heads > 0 && q_heads > 0 && q_heads % kv_heads == 0,
              "kv heads that divide q's " + std::to_string(q_heads) + " heads", to_string(k))
      .expect(keys < INT32_MAX, "fewer than 2^31 - 1 keys", to_string(k));
  TensorCheck(op, "v", v).same_device(q).same_dtype(q).shape({keys, kv_heads, head_dim}).last_contiguous();
  params.mode = mode_of(op, mode);
  const bool anchored = params.mode == MaskMode::kAnchor;
  const bool has_blocks = anchored || params.mode == MaskMode::kBlockCausal;
  if (has_blocks) {
    TensorCheck(op, "block_size", q).expect(block_size > 0, "1 or more in this mode", std::to_string(block_size));
  }
  if (anchored) {
    if (!anchors) raise(op, "anchors", "a tensor in mode anchor", "None");
    TensorCheck(op, "anchors", *anchors).same_device(q).dtype(ScalarType::Int).dim(1);
    TensorCheck(op, "q", q)
        .expect(queries % block_size == 0 && queries / block_size == anchors->size(0),
                std::to_string(anchors->size(0)) + " blocks of " + std::to_string(block_size) + " rows", to_string(q));
    TensorCheck(op, "k", k)
        .expect(keys >= queries, "the context's keys and " + std::to_string(queries) + " of the blocks", to_string(k));
    params.anchors = data_or_null<int32_t>(anchors);
    params.anchors_stride = anchors->stride(0);
  } else {
    TensorCheck(op, "q", q).expect(queries == keys, "as many rows as k, " + std::to_string(keys), to_string(q));
  }
  if (cu_seqlens) {
    TensorCheck(op, "cu_seqlens", *cu_seqlens).same_device(q).dtype(ScalarType::Int).dim(1);
    TensorCheck(op, "cu_seqlens", *cu_seqlens)
        .expect(cu_seqlens->size(0) > 0, "one element or more", to_string(*cu_seqlens));
    params.cu_seqlens = data_or_null<int32_t>(cu_seqlens);
    params.cu_seqlens_stride = cu_seqlens->stride(0);
    params.documents = cu_seqlens->size(0) - 1;
  }
  TensorCheck(op, "window", q).expect(window >= 0, "0 (none) or more", std::to_string(window));
  params.q = head_rows(q);
  params.k = head_rows(k);
  params.v = head_rows(v);
  params.dtype = dtype_of(q);
  params.queries = queries;
  params.keys = keys;
  params.q_heads = q_heads;
  params.kv_heads = kv_heads;
  params.head_dim = head_dim;
  // No block is longer, and no distance; sums with them cannot overflow.
  params.block_size = has_blocks ? std::min<int64_t>(block_size, INT32_MAX) : 1;
  params.causal = causal;
  params.window = std::min(window, keys + params.block_size + 1);
  params.scale = static_cast<float>(scale);
  return params;
}

void check_queries_like(const char* op, const char* name, const Tensor& tensor, const Tensor& q) {
  TensorCheck(op, name, tensor).same_device(q).same_dtype(q).shape({q.size(0), q.size(1), q.size(2)}).last_contiguous();
}

void check_lse(const char* op, const Tensor& lse, const Tensor& q) {
  TensorCheck(op, "lse", lse).same_device(q).dtype(ScalarType::Float).shape({q.size(0), q.size(1)});
}

// Values are data, so only the CPU can look at them before anything is written.
void check_values(const char* op, const MaskedBlockAttentionParams& params) {
  int64_t end = context_tokens(params);
  int64_t previous = 0;
  for (int64_t i = 0; params.cu_seqlens != nullptr && i <= params.documents; ++i) {
    const int64_t value = params.cu_seqlens[i * params.cu_seqlens_stride];
    if (value < previous || value > context_tokens(params) || (i == 0 && value != 0)) {
      raise(op, "cu_seqlens[" + std::to_string(i) + "]",
            i == 0 ? "0" : "a value from " + std::to_string(previous) + " to " + std::to_string(context_tokens(params)),
            std::to_string(value));
    }
    previous = end = value;
  }
  for (int64_t i = 0; params.mode == MaskMode::kAnchor && i < params.queries / params.block_size; ++i) {
    const int64_t value = params.anchors[i * params.anchors_stride];
    if (value > end) {
      raise(op, "anchors[" + std::to_string(i) + "]",
            "at most " + std::to_string(end) + " (the end of the last document), or negative for padding",
            std::to_string(value));
    }
  }
}

// The workspace is torch's own memory of the call, so a captured graph keeps it. Plans refuse what the kernels are not
// made for: float32, other head sizes, rows that are not aligned.
template <typename WorkspaceBytes, typename Plans>
void launch_plans(const char* op, const Tensor& q, const WorkspaceBytes& workspace_bytes, const Plans& plans) {
  const DeviceProperties& device = cuda_device(op, q);
  try {
    const Tensor workspace = torch::stable::new_empty(q, {workspace_bytes(device)}, ScalarType::Byte);
    for (const LaunchPlan& plan : plans(workspace.data_ptr(), device)) cuda_launch(op, q, plan);
  } catch (const std::invalid_argument& refusal) {
    throw std::runtime_error(std::string(op) + ": " + refusal.what());
  }
}

void forward_on_cuda(const char* op, const MaskedBlockAttentionParams& params, const Tensor& q) {
  launch_plans(
      op, q, [&](const DeviceProperties&) { return cuda::masked_block_attention_forward_workspace_bytes(params); },
      [&](void* workspace, const DeviceProperties& device) {
        return cuda::plan_masked_block_attention_forward(params, workspace, device);
      });
}

void backward_on_cuda(const char* op, const MaskedBlockAttentionParams& params, const Tensor& q) {
  launch_plans(
      op, q,
      [&](const DeviceProperties& device) {
        return cuda::masked_block_attention_backward_workspace_bytes(params, device);
      },
      [&](void* workspace, const DeviceProperties& device) {
        return cuda::plan_masked_block_attention_backward(params, workspace, device);
      });
}

template <Backend backend>
void run_forward(const char* op, MaskedBlockAttentionParams& params, const Tensor& q, const Tensor& out,
                 const Tensor& lse) {
  params.out = head_rows(out);
  params.lse = head_rows(lse);
  if constexpr (backend == Backend::kCuda) {
    forward_on_cuda(op, params, q);
  } else {
    cpu::masked_block_attention_forward(params);
  }
}

}  // namespace

template <Backend backend>
void masked_block_attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const std::string& mode,
                                    int64_t block_size, const OptionalTensor& anchors, const OptionalTensor& cu_seqlens,
                                    bool causal, int64_t window, double scale, const Tensor& out, const Tensor& lse) {
  constexpr const char* op = "masked_block_attention_forward";
  MaskedBlockAttentionParams params =
      check_inputs(op, q, k, v, mode, block_size, anchors, cu_seqlens, causal, window, scale);
  check_queries_like(op, "out", out, q);
  TensorCheck(op, "out", out).writable();
  check_lse(op, lse, q);
  TensorCheck(op, "lse", lse).writable();
  check_separate(op, {{"out", out}, {"lse", lse}},
                 {{"q", q}, {"k", k}, {"v", v}, {"anchors", anchors}, {"cu_seqlens", cu_seqlens}});
  if constexpr (backend == Backend::kCpu) check_values(op, params);
  run_forward<backend>(op, params, q, out, lse);
}

template <Backend backend>
std::tuple<Tensor, Tensor> masked_block_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const std::string& mode, int64_t block_size,
                                                  const OptionalTensor& anchors, const OptionalTensor& cu_seqlens,
                                                  bool causal, int64_t window, double scale) {
  constexpr const char* op = "masked_block_attention";
  MaskedBlockAttentionParams params =
      check_inputs(op, q, k, v, mode, block_size, anchors, cu_seqlens, causal, window, scale);
  if constexpr (backend == Backend::kCpu) check_values(op, params);
  const Tensor out = torch::stable::new_empty(q, {q.size(0), q.size(1), q.size(2)});
  const Tensor lse = torch::stable::new_empty(q, {q.size(0), q.size(1)}, ScalarType::Float);
  run_forward<backend>(op, params, q, out, lse);
  return {out, lse};
}

template <Backend backend>
void masked_block_attention_backward(const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& out, const Tensor& lse, const std::string& mode, int64_t block_size,
                                     const OptionalTensor& anchors, const OptionalTensor& cu_seqlens, bool causal,
                                     int64_t window, double scale, const Tensor& grad_q, const Tensor& grad_k,
                                     const Tensor& grad_v) {
  constexpr const char* op = "masked_block_attention_backward";
  MaskedBlockAttentionParams params =
      check_inputs(op, q, k, v, mode, block_size, anchors, cu_seqlens, causal, window, scale);
  check_queries_like(op, "grad_out", grad_out, q);
  check_queries_like(op, "out", out, q);
  check_lse(op, lse, q);
  check_queries_like(op, "grad_q", grad_q, q);
  TensorCheck(op, "grad_q", grad_q).writable();
  const std::pair<const char*, const Tensor*> key_grads[] = {{"grad_k", &grad_k}, {"grad_v", &grad_v}};
  for (const auto& [name, tensor] : key_grads) {
    TensorCheck(op, name, *tensor)
        .same_device(q)
        .same_dtype(q)
        .shape({params.keys, params.kv_heads, params.head_dim})
        .last_contiguous()
        .writable();
  }
  check_separate(op, {{"grad_q", grad_q}, {"grad_k", grad_k}, {"grad_v", grad_v}},
                 {{"grad_out", grad_out},
                  {"q", q},
                  {"k", k},
                  {"v", v},
                  {"out", out},
                  {"lse", lse},
                  {"anchors", anchors},
                  {"cu_seqlens", cu_seqlens}});
  params.out = head_rows(out);
  params.lse = head_rows(lse);
  params.grad_out = head_rows(grad_out);
  params.grad_q = head_rows(grad_q);
  params.grad_k = head_rows(grad_k);
  params.grad_v = head_rows(grad_v);
  if constexpr (backend == Backend::kCuda) {
    backward_on_cuda(op, params, q);
  } else {
    check_values(op, params);
    cpu::masked_block_attention_backward(params);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(masked_block_attention)
DFLASH_REGISTER_OP(masked_block_attention_forward)
DFLASH_REGISTER_OP(masked_block_attention_backward)
