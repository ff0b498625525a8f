#include "bindings/checks.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

namespace dflash::bindings {
namespace {

const char* dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return "float32";
    case ScalarType::Half:
      return "float16";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Bool:
      return "bool";
    case ScalarType::Byte:
      return "uint8";
    default:
      return "another dtype";
  }
}

template <typename Sizes>
std::string list(const Sizes& sizes) {
  std::ostringstream text;
  text << "[";
  bool first = true;
  for (int64_t size : sizes) {
    text << (first ? "" : ", ");
    if (size < 0) {
      text << "*";
    } else {
      text << size;
    }
    first = false;
  }
  text << "]";
  return text.str();
}

std::string device_name(const Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu";
  if (tensor.is_cuda()) return "cuda:" + std::to_string(tensor.get_device_index());
  return "another device";
}

}  // namespace

void raise(const char* op, const std::string& argument, const std::string& expected, const std::string& got) {
  throw std::runtime_error(std::string(op) + ": " + argument + ": expected " + expected + ", got " + got);
}

void raise_no_cuda_kernel(const char* op) {
  throw std::runtime_error(std::string(op) +
                           ": this build of dflash_ops has no CUDA kernel for it. Install a dflash_ops version whose "
                           "build_info()['cuda_ops'] "
                           "lists it, from source with nvcc on PATH (DFLASH_OPS_CUDA_ARCHS chooses the architectures), "
                           "or move the tensors to "
                           "the CPU.");
}

std::string to_string(const Tensor& tensor) {
  return std::string(dtype_name(tensor.scalar_type())) + " " + list(tensor.sizes()) + " with strides " +
         list(tensor.strides()) + " on " + device_name(tensor);
}

const TensorCheck& TensorCheck::expect(bool condition, const std::string& expected, const std::string& got) const {
  if (!condition) raise(op_, name_, expected, got);
  return *this;
}

const TensorCheck& TensorCheck::dim(int64_t expected) const {
  if (tensor_.dim() != expected) raise(op_, name_, std::to_string(expected) + " dimensions", to_string(tensor_));
  return *this;
}

const TensorCheck& TensorCheck::size(int64_t axis, int64_t expected) const {
  if (tensor_.size(axis) != expected) {
    raise(op_, name_, "size " + std::to_string(expected) + " in dimension " + std::to_string(axis), to_string(tensor_));
  }
  return *this;
}

const TensorCheck& TensorCheck::shape(std::initializer_list<int64_t> expected) const {
  bool matches = tensor_.dim() == static_cast<int64_t>(expected.size());
  int64_t axis = 0;
  for (int64_t size : expected) {
    if (!matches) break;
    matches = size < 0 || tensor_.size(axis) == size;
    ++axis;
  }
  if (!matches) raise(op_, name_, "shape " + list(expected), to_string(tensor_));
  return *this;
}

const TensorCheck& TensorCheck::dtype(ScalarType expected) const {
  if (tensor_.scalar_type() != expected) raise(op_, name_, dtype_name(expected), to_string(tensor_));
  return *this;
}

const TensorCheck& TensorCheck::floating() const {
  const ScalarType type = tensor_.scalar_type();
  if (type != ScalarType::Float && type != ScalarType::Half && type != ScalarType::BFloat16) {
    raise(op_, name_, "float32, float16 or bfloat16", to_string(tensor_));
  }
  return *this;
}

const TensorCheck& TensorCheck::half_on_cuda() const {
  return expect(dtype_of(tensor_) != DType::kFloat32, "float16 or bfloat16 on CUDA", to_string(tensor_));
}

const TensorCheck& TensorCheck::same_dtype(const Tensor& other) const { return dtype(other.scalar_type()); }

const TensorCheck& TensorCheck::same_device(const Tensor& other) const {
  if (device_name(tensor_) != device_name(other)) {
    raise(op_, name_, "a tensor on " + device_name(other), to_string(tensor_));
  }
  return *this;
}

const TensorCheck& TensorCheck::last_contiguous() const {
  const int64_t last = tensor_.dim() - 1;
  if (last >= 0 && tensor_.size(last) > 1 && tensor_.stride(last) != 1) {
    raise(op_, name_, "stride 1 in the last dimension", to_string(tensor_));
  }
  return *this;
}

const TensorCheck& TensorCheck::contiguous() const {
  if (!tensor_.is_contiguous()) raise(op_, name_, "a contiguous tensor", to_string(tensor_));
  return *this;
}

const TensorCheck& TensorCheck::workspace(int64_t bytes) const {
  dtype(ScalarType::Byte).dim(1).contiguous();
  const bool aligned = reinterpret_cast<uintptr_t>(tensor_.data_ptr()) % 64 == 0;
  if (tensor_.numel() < bytes || (bytes > 0 && !aligned)) {
    raise(op_, name_, "at least " + std::to_string(bytes) + " bytes, 64-byte aligned",
          to_string(tensor_) + (aligned ? "" : " (unaligned)"));
  }
  return *this;
}

const TensorCheck& TensorCheck::writable() const {
  // Sorted by stride, each dimension must step over everything the smaller ones cover.
  std::vector<std::pair<int64_t, int64_t>> dimensions;
  for (int64_t axis = 0; axis < tensor_.dim(); ++axis) {
    if (tensor_.size(axis) == 0) return *this;
    if (tensor_.size(axis) > 1) dimensions.emplace_back(tensor_.stride(axis), tensor_.size(axis));
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t covered = 1;
  for (const auto& [stride, size] : dimensions) {
    if (stride < covered) raise(op_, name_, "an output without overlapping elements", to_string(tensor_));
    covered = stride * (size - 1) + covered;
  }
  return *this;
}

DType dtype_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Half:
      return DType::kFloat16;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    default:
      return DType::kFloat32;
  }
}

}  // namespace dflash::bindings
