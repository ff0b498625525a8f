#include "cpu/row_sampling.h"

#include "cpu/simd.h"

namespace dflash {
namespace DFLASH_ISA {
namespace {

using cpu::kStretch;
using cpu::kThresholds;
static_assert(kStretch % kLanes == 0, "only the last stretch of a row has a partial vector");

constexpr float kInfinity = __builtin_inff();

Ints lane_numbers() {
  Ints numbers;
  for (int i = 0; i < kLanes; ++i) numbers[i] = i;
  return numbers;
}

bool any(Ints mask) {
  uint64_t words[kLanes / 2];
  std::memcpy(words, &mask, sizeof(words));
  uint64_t all = 0;
  for (uint64_t word : words) all |= word;
  return all != 0;
}

// visit(vector, first column within the stretch, columns in the vector); a partial vector is filled up with -inf.
template <typename T, typename Visit>
inline void visit_stretch(const cpu::LogitRow& row, int64_t stretch, const Visit& visit) {
  const T* source = static_cast<const T*>(row.logits) + stretch * kStretch;
  const int64_t left = row.columns - stretch * kStretch;
  const int count = static_cast<int>(left < kStretch ? left : kStretch);
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) visit(load(source + i), i, kLanes);
  if (i < count) visit(load_partial(source + i, count - i, -kInfinity), i, count - i);
}

template <typename T>
float maximum_of(const cpu::LogitRow& row, int64_t stretch) {
  Floats top = broadcast(-kInfinity);
  Ints is_nan = Ints{};
  visit_stretch<T>(row, stretch, [&](Floats x, int, int) {
    top = maximum(x, top);
    is_nan |= x != x;
  });
  return any(is_nan) ? __builtin_nanf("") : reduce_max(top);
}

template <typename T>
double weigh(const cpu::LogitRow& row, int64_t stretch, float maximum, float scale, const cpu::Cut& cut,
             float* weights) {
  // The cut's column as seen from this stretch: every lane of an earlier stretch is before it, none of a later one.
  const int64_t place = cut.id - stretch * kStretch;
  const Ints last = broadcast_int(place < 0 ? -1 : place < kStretch ? static_cast<int>(place) : kStretch);
  const Ints lanes = lane_numbers();
  const Floats border = broadcast(cut.value);
  Floats sum = Floats{};
  visit_stretch<T>(row, stretch, [&](Floats x, int column, int count) {
    const Ints kept = (x > border) | ((x == border) & (lanes + column <= last));
    const Floats weight = kept ? exp2((x - maximum) * scale) : Floats{};
    sum += weight;
    if (weights == nullptr) return;
    if (count == kLanes) {
      store(weights + column, weight);
    } else {
      store_partial(weights + column, weight, count);
    }
  });
  return reduce_add(sum);
}

template <typename T>
void add_mass_above(const cpu::LogitRow& row, int64_t stretch, const float* weights, const float* thresholds,
                    cpu::MassAbove& result) {
  Floats mass[kThresholds] = {};
  Ints count[kThresholds] = {};
  visit_stretch<T>(row, stretch, [&](Floats x, int column, int lanes) {
    const Floats weight = lanes == kLanes ? load(weights + column) : load_partial(weights + column, lanes);
    for (int t = 0; t < kThresholds; ++t) {
      const Ints above = x >= thresholds[t];
      mass[t] += above ? weight : Floats{};
      count[t] -= above;
    }
  });
  for (int t = 0; t < kThresholds; ++t) {
    result.mass[t] += reduce_add(mass[t]);
    for (int i = 0; i < kLanes; ++i) result.count[t] += count[t][i];
  }
}

}  // namespace

void stretch_maxima(const cpu::LogitRow& row, float* maxima) {
  visit_dtype(row.dtype, [&](auto element) {
    for (int64_t s = 0; s < row.stretches(); ++s) maxima[s] = maximum_of<decltype(element)>(row, s);
  });
}

void stretch_weights(const cpu::LogitRow& row, int64_t begin, int64_t end, const float* maxima, float maximum,
                     float scale, cpu::Cut cut, double* sums, float* weights) {
  visit_dtype(row.dtype, [&](auto element) {
    for (int64_t s = begin; s < end; ++s) {
      float* to = weights != nullptr ? weights + (s - begin) * kStretch : nullptr;
      sums[s] = maxima[s] < cut.value ? 0.0 : weigh<decltype(element)>(row, s, maximum, scale, cut, to);
    }
  });
}

cpu::MassAbove mass_above(const cpu::LogitRow& row, const float* maxima, const float* weights,
                          const float* thresholds) {
  cpu::MassAbove result{};
  visit_dtype(row.dtype, [&](auto element) {
    for (int64_t s = 0; s < row.stretches(); ++s) {
      if (maxima[s] < thresholds[0]) continue;
      add_mass_above<decltype(element)>(row, s, weights + s * kStretch, thresholds, result);
    }
  });
  return result;
}

int64_t collect_candidates(const cpu::LogitRow& row, const float* maxima, const float* weights, float low, float high,
                           cpu::Candidate* candidates) {
  int64_t found = 0;
  visit_dtype(row.dtype, [&](auto element) {
    for (int64_t s = 0; s < row.stretches(); ++s) {
      if (maxima[s] < low) continue;
      visit_stretch<decltype(element)>(row, s, [&](Floats x, int column, int count) {
        const Ints wanted = (x >= low) & (x < high);
        if (!any(wanted)) return;
        for (int i = 0; i < count; ++i) {
          const int64_t id = s * kStretch + column + i;
          if (wanted[i] != 0) candidates[found++] = {x[i], weights != nullptr ? weights[id] : 0.0f, id};
        }
      });
    }
  });
  return found;
}

}  // namespace DFLASH_ISA
}  // namespace dflash
