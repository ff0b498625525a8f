#include "cpu/remask.h"

#include "cpu/simd.h"

namespace dflash {
namespace DFLASH_ISA {

double exp_sum(const void* logits, DType dtype, int64_t count, float maximum) {
  constexpr int64_t kStretch = 1024;  // summed in float32; float64 over stretches
  double total = 0.0;
  visit_dtype(dtype, [&](auto element) {
    const auto* source = static_cast<const decltype(element)*>(logits);
    for (int64_t begin = 0; begin < count; begin += kStretch) {
      const int64_t end = begin + kStretch < count ? begin + kStretch : count;
      Floats sum = Floats{};
      int64_t i = begin;
      for (; i + kLanes <= end; i += kLanes) sum += exp(load(source + i) - maximum);
      if (i < end) sum += exp(load_partial(source + i, static_cast<int>(end - i), -__builtin_inff()) - maximum);
      total += reduce_add(sum);
    }
  });
  return total;
}

}  // namespace DFLASH_ISA
}  // namespace dflash
