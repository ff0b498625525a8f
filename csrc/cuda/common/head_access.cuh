// Pieces of heads between memory and float32 registers: in vectors, or element by element where those do not fit.
#pragma once
#include <type_traits>

#include "cuda/common/convert.cuh"

namespace dflash::cuda {

// kBytes bytes as one aligned access.
template <int kBytes>
struct Words {
  static_assert(kBytes == 8 || kBytes == 16, "one vector access");
  uint32_t word[kBytes / 4];

  static __device__ __forceinline__ Words load(const void* address) {
    Words words;
    if constexpr (kBytes == 16) {
      const uint4 loaded = *static_cast<const uint4*>(address);
      words.word[0] = loaded.x, words.word[1] = loaded.y, words.word[2] = loaded.z, words.word[3] = loaded.w;
    } else {
      const uint2 loaded = *static_cast<const uint2*>(address);
      words.word[0] = loaded.x, words.word[1] = loaded.y;
    }
    return words;
  }

  __device__ __forceinline__ void store(void* address) const {
    if constexpr (kBytes == 16) {
      *static_cast<uint4*>(address) = make_uint4(word[0], word[1], word[2], word[3]);
    } else {
      *static_cast<uint2*>(address) = make_uint2(word[0], word[1]);
    }
  }
};

// Two elements in a word.
template <typename T>
__device__ __forceinline__ void unpack(uint32_t word, float* x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    x[0] = __uint_as_float(word << 16);
    x[1] = __uint_as_float(word & 0xffff0000u);
  } else {
    x[0] = to_float(T{static_cast<uint16_t>(word)});
    x[1] = to_float(T{static_cast<uint16_t>(word >> 16)});
  }
}
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  return std::is_same_v<T, Float16> ? f16x2_from_floats(low, high) : bf16x2_from_floats(low, high);
}

template <typename T, int kElements>
__device__ __forceinline__ void load_elements(const T* address, float (&x)[kElements]) {
  const auto words = Words<kElements * sizeof(T)>::load(address);
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) x[i] = __uint_as_float(words.word[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kElements / 2; ++i) unpack<T>(words.word[i], x + 2 * i);
  }
}

template <typename T, int kElements>
__device__ __forceinline__ void store_elements(T* address, const float (&x)[kElements]) {
  Words<kElements * sizeof(T)> words;
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) words.word[i] = __float_as_uint(x[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kElements / 2; ++i) words.word[i] = pack<T>(x[2 * i], x[2 * i + 1]);
  }
  words.store(address);
}

// Eight elements, in as many accesses of 16 bytes as their type needs.
template <typename T>
__device__ __forceinline__ void load_pieces(const T* address, float (&x)[8]) {
  if constexpr (sizeof(T) == 4) {
    float low[4], high[4];
    load_elements(address, low);
    load_elements(address + 4, high);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = low[i], x[4 + i] = high[i];
  } else {
    load_elements(address, x);
  }
}
template <typename T>
__device__ __forceinline__ void store_pieces(T* address, const float (&x)[8]) {
  if constexpr (sizeof(T) == 4) {
    const float low[4] = {x[0], x[1], x[2], x[3]}, high[4] = {x[4], x[5], x[6], x[7]};
    store_elements(address, low);
    store_elements(address + 4, high);
  } else {
    store_elements(address, x);
  }
}

// Element `index` of an array whose type is known at run time.
__device__ __forceinline__ float load_any(const void* data, DType dtype, int64_t index) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return dtype == DType::kFloat16 ? to_float(Float16{bits}) : to_float(BFloat16{bits});
}
__device__ __forceinline__ void store_any(void* data, DType dtype, int64_t index, float value) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(
        dtype == DType::kFloat16 ? f16x2_from_floats(value, 0.0f) : bf16x2_from_floats(value, 0.0f));
  }
}

// Both accesses read and write a piece at `element`, an offset from the tensor's first element.
template <typename In, typename Out>
struct VectorAccess {
  static constexpr int kElements = sizeof(In) + sizeof(Out) == 4 ? 8 : 4;  // plan/cuda/head_units.h
  static constexpr bool kBiased = false;                                   // project_context_kv/kernel.cuh

  __device__ __forceinline__ VectorAccess(DType, DType) {}
  __device__ __forceinline__ bool copies() const { return std::is_same_v<In, Out>; }
  __device__ __forceinline__ void load(const void* in, int64_t element, float (&x)[kElements]) const {
    load_elements(static_cast<const In*>(in) + element, x);
  }
  __device__ __forceinline__ void store(void* out, int64_t element, const float (&x)[kElements]) const {
    store_elements(static_cast<Out*>(out) + element, x);
  }
  // Bit by bit, which a way through float32 is not for every NaN. Only where copies().
  struct Bits {
    Words<kElements * sizeof(In)> words;
  };
  __device__ __forceinline__ Bits load_bits(const void* in, int64_t element) const {
    return {Words<kElements * sizeof(In)>::load(static_cast<const In*>(in) + element)};
  }
  __device__ __forceinline__ void store_bits(void* out, int64_t element, const Bits& bits) const {
    bits.words.store(static_cast<In*>(out) + element);
  }
};

// Float32 to a type known at run time.
struct FloatAccess {
  static constexpr int kElements = 4;
  static constexpr bool kBiased = false;
  DType out_dtype;

  __device__ __forceinline__ FloatAccess(DType, DType out) : out_dtype(out) {}
  __device__ __forceinline__ void load(const void* in, int64_t element, float (&x)[kElements]) const {
    load_elements(static_cast<const float*>(in) + element, x);
  }
  __device__ __forceinline__ void store(void* out, int64_t element, const float (&x)[kElements]) const {
    if (out_dtype == DType::kFloat32) {
      store_elements(static_cast<float*>(out) + element, x);
    } else if (out_dtype == DType::kFloat16) {
      store_elements(static_cast<Float16*>(out) + element, x);
    } else {
      store_elements(static_cast<BFloat16*>(out) + element, x);
    }
  }
};

struct ElementAccess {
  static constexpr int kElements = 1;
  static constexpr bool kBiased = false;
  DType in_dtype, out_dtype;

  __device__ __forceinline__ ElementAccess(DType in, DType out) : in_dtype(in), out_dtype(out) {}
  __device__ __forceinline__ bool copies() const { return in_dtype == out_dtype; }
  __device__ __forceinline__ void load(const void* in, int64_t element, float (&x)[1]) const {
    x[0] = load_any(in, in_dtype, element);
  }
  __device__ __forceinline__ void store(void* out, int64_t element, const float (&x)[1]) const {
    store_any(out, out_dtype, element, x[0]);
  }
  using Bits = uint32_t;
  __device__ __forceinline__ Bits load_bits(const void* in, int64_t element) const {
    return in_dtype == DType::kFloat32 ? static_cast<const uint32_t*>(in)[element]
                                       : static_cast<const uint16_t*>(in)[element];
  }
  __device__ __forceinline__ void store_bits(void* out, int64_t element, Bits bits) const {
    if (in_dtype == DType::kFloat32) {
      static_cast<uint32_t*>(out)[element] = bits;
    } else {
      static_cast<uint16_t*>(out)[element] = static_cast<uint16_t>(bits);
    }
  }
};

}  // namespace dflash::cuda
