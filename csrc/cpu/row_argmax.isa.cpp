#include "cpu/row_argmax.h"

#include "cpu/simd.h"

namespace dflash {
namespace DFLASH_ISA {
namespace {

template <typename T>
cpu::ArgmaxPartial scalar_argmax(const T* logits, int64_t begin, int64_t end, cpu::ArgmaxPartial best) {
  for (int64_t i = begin; i < end; ++i) {
    const float value = to_float(logits[i]);
    if (value != value) return {value, i};
    if (value > best.value) best = {value, i};
  }
  return best;
}

template <typename T>
cpu::ArgmaxPartial argmax(const T* logits, int64_t count) {
  // Four independent chains hide the latency of compare and blend; the lane index is the step number, which stays in
  // int32 because a stretch is at most 2^31 steps long.
  constexpr int kChains = 4;
  constexpr int64_t kStep = kChains * kLanes;
  const int64_t steps = count / kStep;
  cpu::ArgmaxPartial best{to_float(logits[0]), 0};
  if (steps > 0) {
    Floats values[kChains];
    Ints step_of[kChains];
    Ints is_nan = Ints{};
    for (int c = 0; c < kChains; ++c) {
      values[c] = load(logits + c * kLanes);
      step_of[c] = Ints{};
      is_nan |= values[c] != values[c];
    }
    for (int64_t s = 1; s < steps; ++s) {
      const T* p = logits + s * kStep;
      const Ints step = broadcast_int(static_cast<int32_t>(s));
      for (int c = 0; c < kChains; ++c) {
        const Floats x = load(p + c * kLanes);
        const Ints greater = x > values[c];
        is_nan |= x != x;
        values[c] = greater ? x : values[c];
        step_of[c] = greater ? step : step_of[c];
      }
    }
    for (int i = 0; i < kLanes; ++i) {
      if (is_nan[i] != 0) return scalar_argmax(logits, 0, count, best);
    }
    best.index = count;
    for (int c = 0; c < kChains; ++c) {
      for (int i = 0; i < kLanes; ++i) {
        const int64_t index = static_cast<int64_t>(step_of[c][i]) * kStep + c * kLanes + i;
        if (best.index == count || values[c][i] > best.value || (values[c][i] == best.value && index < best.index)) {
          best = {values[c][i], index};
        }
      }
    }
  }
  return scalar_argmax(logits, steps * kStep, count, best);
}

}  // namespace

cpu::ArgmaxPartial argmax_stretch(const void* logits, DType dtype, int64_t count) {
  cpu::ArgmaxPartial best{};
  visit_dtype(dtype, [&](auto element) { best = argmax(static_cast<const decltype(element)*>(logits), count); });
  return best;
}

}  // namespace DFLASH_ISA
}  // namespace dflash
