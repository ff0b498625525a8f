#include "plan/tensor_map.h"

#include "params/masked_block_attention.h"

namespace dflash {
namespace {

constexpr int64_t kAlignment = 16;  // of the address and the strides, bytes
constexpr int64_t kMostSize = int64_t{1} << 32;
constexpr int64_t kStrideLimit = int64_t{1} << 40;
constexpr int64_t kMostBoxSize = 256;

bool is_size(int64_t size) { return 0 < size && size <= kMostSize; }

// In elements: in bytes it might not fit.
bool is_stride(int64_t stride, int64_t element_bytes) {
  return 0 < stride && stride < kStrideLimit / element_bytes && stride * element_bytes % kAlignment == 0;
}

}  // namespace

std::optional<TensorMapPlan> head_rows_tensor_map(const HeadRows& tensor, DType dtype, int64_t rows, int64_t heads,
                                                  int64_t head_dim, int64_t box_rows, int64_t params_offset) {
  const int64_t element_bytes = dtype_size(dtype);
  const int64_t head_stride = heads == 1 ? tensor.row_stride : tensor.head_stride;
  const bool taken = dtype != DType::kFloat32 && reinterpret_cast<uintptr_t>(tensor.data) % kAlignment == 0 &&
                     is_size(rows) && is_size(heads) && is_size(head_dim) &&  //
                     0 < box_rows && box_rows <= kMostBoxSize &&              //
                     is_stride(head_stride, element_bytes) && is_stride(tensor.row_stride, element_bytes) &&
                     head_stride >= head_dim && tensor.row_stride % head_stride == 0 &&
                     tensor.row_stride / head_stride >= heads;
  if (!taken) return std::nullopt;
  return TensorMapPlan{params_offset,
                       dtype,
                       tensor.data,
                       {head_dim, heads, rows},
                       {head_stride * element_bytes, tensor.row_stride * element_bytes},
                       {kTensorMapChannels, 1, box_rows}};
}

}  // namespace dflash
