// Typed access to register slots, and the loops over 32 lanes every arithmetic function is made of.
#pragma once

#include <type_traits>

#include "alu.h"
#include "half.h"

namespace ptxsim {

template <typename T>
inline T get(const void* slots, int lane) {
  if constexpr (sizeof(T) == 8 || std::is_same_v<T, float>) {
    return static_cast<const T*>(slots)[lane];
  } else {
    return static_cast<T>(static_cast<const uint32_t*>(slots)[lane]);
  }
}

template <typename T>
inline void put(void* slots, int lane, T value) {
  if constexpr (sizeof(T) == 8 || std::is_same_v<T, float>) {
    static_cast<T*>(slots)[lane] = value;
  } else {
    static_cast<uint32_t*>(slots)[lane] = static_cast<std::make_unsigned_t<T>>(value);
  }
}

// Lanes are independent (a destination is a source's register or a different one), which `ivdep` tells the compiler.
template <typename D, typename A, typename F>
inline void map1(const AluArguments& x, F f) {
  void* d = x.dst[0];
  const void* a = x.src[0];
#pragma GCC ivdep
  for (int i = 0; i < kLanes; ++i) put<D>(d, i, f(get<A>(a, i)));
}

template <typename D, typename A, typename B, typename F>
inline void map2(const AluArguments& x, F f) {
  void* d = x.dst[0];
  const void* a = x.src[0];
  const void* b = x.src[1];
#pragma GCC ivdep
  for (int i = 0; i < kLanes; ++i) put<D>(d, i, f(get<A>(a, i), get<B>(b, i)));
}

template <typename D, typename A, typename B, typename C, typename F>
inline void map3(const AluArguments& x, F f) {
  void* d = x.dst[0];
  const void* a = x.src[0];
  const void* b = x.src[1];
  const void* c = x.src[2];
#pragma GCC ivdep
  for (int i = 0; i < kLanes; ++i) put<D>(d, i, f(get<A>(a, i), get<B>(b, i), get<C>(c, i)));
}

// A predicate operand is one mask.
inline uint32_t predicate(const void* mask) { return *static_cast<const uint32_t*>(mask); }
inline bool lane_of(uint32_t mask, int lane) { return (mask >> lane) & 1u; }

}  // namespace ptxsim
