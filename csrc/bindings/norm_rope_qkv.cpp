#include "cpu/norm_rope_qkv.h"

#include "bindings/context_checks.h"
#include "bindings/cuda_backend.h"
#include "plan/cuda/norm_rope_qkv.h"

namespace dflash::bindings {

template <Backend backend>
void norm_rope_qkv(const Tensor& qkv, const OptionalTensor& q_norm_weight, const OptionalTensor& k_norm_weight,
                   const OptionalTensor& cos_sin, const OptionalTensor& positions, double eps, bool interleaved,
                   const Tensor& q, const Tensor& k, const Tensor& v) {
  constexpr const char* op = "norm_rope_qkv";
  TensorCheck(op, "qkv", qkv).dim(2).floating().last_contiguous();
  const int64_t rows = qkv.size(0);
  const auto check_heads = [&](const char* name, const Tensor& heads) {
    TensorCheck(op, name, heads).same_device(qkv).same_dtype(qkv).dim(3).last_contiguous().writable();
  };
  check_heads("q", q);
  check_heads("k", k);
  check_heads("v", v);
  const int64_t q_heads = q.size(1), kv_heads = k.size(1), head_dim = q.size(2);
  TensorCheck(op, "q", q).shape({rows, q_heads, head_dim}).expect(head_dim > 0, "a head_dim above 0", to_string(q));
  TensorCheck(op, "k", k).shape({rows, kv_heads, head_dim});
  TensorCheck(op, "v", v).shape({rows, kv_heads, head_dim});
  TensorCheck(op, "qkv", qkv)
      .expect(qkv.size(1) == (q_heads + 2 * kv_heads) * head_dim,
              std::to_string((q_heads + 2 * kv_heads) * head_dim) + " columns (all heads of q, k and v)",
              to_string(qkv));
  if (q_norm_weight) check_weight(op, "q_norm_weight", *q_norm_weight, qkv, {head_dim});
  if (k_norm_weight) check_weight(op, "k_norm_weight", *k_norm_weight, qkv, {head_dim});

  NormRopeQkvParams params{};
  params.rope = check_rope(op, cos_sin, positions, interleaved, qkv, rows, head_dim);
  check_separate(op, {{"q", q}, {"k", k}, {"v", v}},
                 {{"qkv", qkv},
                  {"q_norm_weight", q_norm_weight},
                  {"k_norm_weight", k_norm_weight},
                  {"cos_sin", cos_sin},
                  {"positions", positions}});
  params.qkv = qkv.data_ptr();
  params.qkv_row_stride = qkv.stride(0);
  params.dtype = dtype_of(qkv);
  params.rows = rows;
  params.q_heads = q_heads;
  params.kv_heads = kv_heads;
  params.head_dim = head_dim;
  params.q_norm_weight = q_norm_weight ? q_norm_weight->data_ptr() : nullptr;
  params.k_norm_weight = k_norm_weight ? k_norm_weight->data_ptr() : nullptr;
  params.eps = static_cast<float>(eps);
  params.q = q.data_ptr();
  params.q_row_stride = q.stride(0);
  params.q_head_stride = q.stride(1);
  params.k = k.data_ptr();
  params.k_row_stride = k.stride(0);
  params.k_head_stride = k.stride(1);
  params.v = v.data_ptr();
  params.v_row_stride = v.stride(0);
  params.v_head_stride = v.stride(1);

  if constexpr (backend == Backend::kCuda) {
    const DeviceProperties& device = cuda_device(op, qkv);
    cuda_launch(op, qkv, cuda::plan_norm_rope_qkv(params, device));
  } else {
    for (int64_t row = 0; params.rope.cos_sin != nullptr && row < rows; ++row) check_position(op, params.rope, row);
    cpu::norm_rope_qkv(params);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(norm_rope_qkv)
