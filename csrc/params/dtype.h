// Element types shared by the bindings and every kernel, free of torch.
#pragma once
#include <cstdint>

namespace dflash {

enum class DType : int8_t { kFloat32, kFloat16, kBFloat16 };

// Storage-only 16-bit floats: kernels convert on load and store.
struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

constexpr int64_t dtype_size(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// Calls `function(T{})` with the element type of `dtype`.
template <typename Function>
inline void visit_dtype(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::kFloat32:
      function(float{});
      break;
    case DType::kFloat16:
      function(Float16{});
      break;
    case DType::kBFloat16:
      function(BFloat16{});
      break;
  }
}

}  // namespace dflash
