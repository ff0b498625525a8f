#include "cpu/verify_sampled.h"

#include "cpu/simd.h"

namespace dflash {
namespace DFLASH_ISA {

void row_to_float(const void* logits, DType dtype, int64_t count, float* values) {
  visit_dtype(dtype, [&](auto element) {
    const auto* source = static_cast<const decltype(element)*>(logits);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(values + i, load(source + i));
    for (; i < count; ++i) values[i] = to_float(source[i]);
  });
}

double exp_weights(const float* values, int64_t count, float maximum, float scale, float* weights) {
  const Floats top = broadcast(maximum);
  Floats sum = Floats{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats weight = exp((load(values + i) - top) * scale);
    if (weights != nullptr) store(weights + i, weight);
    sum += weight;
  }
  double total = reduce_add(sum);
  if (i < count) {
    const int left = static_cast<int>(count - i);
    const Floats weight = exp((load_partial(values + i, left, maximum) - top) * scale);
    if (weights != nullptr) store_partial(weights + i, weight, left);
    for (int lane = 0; lane < left; ++lane) total += weight[lane];
  }
  return total;
}

}  // namespace DFLASH_ISA
}  // namespace dflash
