// Argument checks of all bindings. Every message reads "<op>: <argument>: expected <what>, got <what>" and is raised
// before anything is written.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

#include "params/dtype.h"

namespace dflash::bindings {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Which dispatch key a binding was registered under.
enum class Backend { kCpu, kCuda };

[[noreturn]] void raise(const char* op, const std::string& argument, const std::string& expected,
                        const std::string& got);

// Says that `op` has no CUDA kernel in this build and which build is needed.
[[noreturn]] void raise_no_cuda_kernel(const char* op);

std::string to_string(const Tensor& tensor);  // "bfloat16 [3, 4] with strides [4, 1] on cpu"

// Fluent checks of one tensor argument; each returns *this.
class TensorCheck {
 public:
  TensorCheck(const char* op, std::string name, const Tensor& tensor)
      : op_(op), name_(std::move(name)), tensor_(tensor) {
    if (!tensor_.defined()) raise(op_, name_, "a tensor", "None");  // which the dispatcher lets pass
  }

  const TensorCheck& dim(int64_t expected) const;
  const TensorCheck& size(int64_t axis, int64_t expected) const;
  const TensorCheck& shape(std::initializer_list<int64_t> expected) const;  // -1: any size
  const TensorCheck& dtype(ScalarType expected) const;
  const TensorCheck& floating() const;                        // float32, float16 or bfloat16
  const TensorCheck& half_on_cuda() const;                    // float16 or bfloat16, what matrix instructions take
  const TensorCheck& same_dtype(const Tensor& other) const;   // for arguments of one dtype per call
  const TensorCheck& same_device(const Tensor& other) const;  // every tensor of a call sits on one device
  const TensorCheck& last_contiguous() const;                 // stride 1 in the last dimension (or size <= 1)
  const TensorCheck& contiguous() const;
  const TensorCheck& workspace(int64_t bytes) const;  // uint8, 1-D, contiguous, at least `bytes`, 64-byte aligned
  // An output whose elements overlap each other (a broadcast view) would be written more than once.
  const TensorCheck& writable() const;
  const TensorCheck& expect(bool condition, const std::string& expected, const std::string& got) const;

 private:
  const char* op_;
  std::string name_;
  const Tensor& tensor_;
};

// One argument for check_separate: a tensor, an optional one, or a list.
class Argument {
 public:
  Argument(const char* name, const Tensor& tensor) : name_(name), tensors_(&tensor), count_(1) {}
  Argument(const char* name, const OptionalTensor& tensor)
      : name_(name), tensors_(tensor ? &*tensor : nullptr), count_(tensor ? 1 : 0) {}
  Argument(const char* name, const std::vector<Tensor>& list)
      : name_(name), tensors_(list.data()), count_(list.size()), is_list_(true) {}

  size_t size() const { return count_; }
  const Tensor& operator[](size_t i) const { return tensors_[i]; }
  std::string name(size_t i) const { return is_list_ ? std::string(name_) + "[" + std::to_string(i) + "]" : name_; }

 private:
  const char* name_;
  const Tensor* tensors_;
  size_t count_;
  bool is_list_ = false;
};

// That what is written shares no element with any other argument. Views of one storage may lie between each other.
void check_separate(const char* op, std::initializer_list<Argument> written, std::initializer_list<Argument> read);

DType dtype_of(const Tensor& tensor);  // of a tensor that passed floating()

template <typename T>
const T* data_or_null(const OptionalTensor& tensor) {
  return tensor.has_value() ? static_cast<const T*>(tensor->data_ptr()) : nullptr;
}

}  // namespace dflash::bindings

// Registers template function `name<Backend>` for both devices. The CUDA key is present in every build, so that a call
// without CUDA kernels gets a message of ours instead of the dispatcher's.
#define DFLASH_REGISTER_OP(name)                                                                                      \
  STABLE_TORCH_LIBRARY_IMPL(dflash_ops, CPU, m) { m.impl(#name, TORCH_BOX(&dflash::bindings::name<Backend::kCpu>)); } \
  STABLE_TORCH_LIBRARY_IMPL(dflash_ops, CUDA, m) { m.impl(#name, TORCH_BOX(&dflash::bindings::name<Backend::kCuda>)); }
