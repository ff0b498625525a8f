#include "cpu/row_sampling.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

#include "cpu/row_argmax.h"
#include "cpu/scratch.h"

namespace dflash::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kFewCandidates = 1024;  // so many are cut by selection; of more, thresholds split off a part first

bool before(const Candidate& a, const Candidate& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

Cut earlier(const Cut& a, const Cut& b) { return a.value > b.value || (a.value == b.value && a.id < b.id) ? a : b; }

// The leading `kept` candidates, partitioned off but not sorted; the last of them is at [kept - 1].
void select(Candidate* candidates, int64_t kept, int64_t count) {
  if (kept < count) std::nth_element(candidates, candidates + kept - 1, candidates + count, before);
  std::iter_swap(std::max_element(candidates, candidates + kept, before), candidates + kept - 1);
}

// The candidate at which the leading ones reach the weight `wanted`. Each step halves the part it can lie in.
Cut weighted_cut(Candidate* candidates, int64_t count, double wanted) {
  int64_t begin = 0, end = count;
  double gathered = 0.0;
  while (end - begin > 1) {
    const int64_t middle = begin + (end - begin) / 2;
    std::nth_element(candidates + begin, candidates + middle, candidates + end, before);
    double half = 0.0;
    for (int64_t i = begin; i < middle; ++i) half += candidates[i].weight;
    if (gathered + half >= wanted) {
      end = middle;
    } else {
      gathered += half;
      begin = middle;
    }
  }
  return {candidates[begin].value, candidates[begin].id};
}

double sum_of(const double* values, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += values[i];
  return sum;
}

class Sampler {
 public:
  Sampler(const LogitRow& row, const RowSampling& sampling)
      : row_(row), sampling_(sampling), stretches_(row.stretches()) {
    const int64_t padded = stretches_ * kStretch;
    auto* memory = static_cast<char*>(thread_scratch(stretches_ * (sizeof(double) + 2 * sizeof(float)) +
                                                     padded * (sizeof(Candidate) + sizeof(float))));
    const auto take = [&](auto*& array, int64_t count) {
      array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(memory);
      memory += count * sizeof(*array);
    };
    take(candidates_, padded);
    take(sums_, stretches_);
    take(weights_, padded);
    take(maxima_, stretches_);
    take(ordered_maxima_, stretches_);
  }

  int64_t sample(double uniform) {
    if (sampling_.temperature == 0.0f || sampling_.top_k == 1) return argmax();
    DFLASH_KERNEL(stretch_maxima)(row_, maxima_);
    top_ = maxima_[0];
    for (int64_t s = 1; s < stretches_; ++s) top_ = maxima_[s] <= top_ ? top_ : maxima_[s];
    if (!std::isfinite(top_)) return argmax();
    // The bounds keep 0 * scale and -inf * scale what they are at temperatures whose inverse float32 cannot hold.
    constexpr float kLog2E = 1.44269504f;
    scale_ = std::clamp(kLog2E / sampling_.temperature, FLT_MIN, FLT_MAX);
    const Cut cut = find_cut();
    weigh(cut, nullptr);
    return invert(cut, uniform);
  }

 private:
  int64_t argmax() const { return DFLASH_KERNEL(argmax_stretch)(row_.logits, row_.dtype, row_.columns).index; }

  Cut no_cut() const { return {-kInfinity, row_.columns}; }

  void weigh(const Cut& cut, float* weights) {
    DFLASH_KERNEL(stretch_weights)(row_, 0, stretches_, maxima_, top_, scale_, cut, sums_, weights);
  }

  // The last token that top-k, then top-p over what top-k left, keep.
  Cut find_cut() {
    const bool limits_count = sampling_.top_k > 0 && sampling_.top_k < row_.columns;
    const bool limits_mass = sampling_.top_p < 1.0f;
    if (limits_count && sampling_.top_k <= stretches_) return cut_of_few(sampling_.top_k);
    Cut cut = no_cut();
    if (!limits_count && !limits_mass) return cut;
    weigh(cut, weights_);
    if (limits_count) {
      cut = cut_at(static_cast<double>(sampling_.top_k), false);
      weigh(cut, nullptr);
    }
    if (!limits_mass) return cut;
    return earlier(cut, cut_at(sampling_.top_p * sum_of(sums_, stretches_), true));
  }

  // At least k logits reach the k-th largest of the stretches' maxima, and seldom many more do.
  Cut cut_of_few(int64_t k) {
    std::copy_n(maxima_, stretches_, ordered_maxima_);
    std::nth_element(ordered_maxima_, ordered_maxima_ + k - 1, ordered_maxima_ + stretches_, std::greater<float>());
    const float low = ordered_maxima_[k - 1];
    const int64_t count = DFLASH_KERNEL(collect_candidates)(row_, maxima_, nullptr, low, kInfinity, candidates_);
    select(candidates_, k, count);
    if (sampling_.top_p == 1.0f) return {candidates_[k - 1].value, candidates_[k - 1].id};
    double total = 0.0;
    for (int64_t i = 0; i < k; ++i) {
      candidates_[i].weight = std::exp2((candidates_[i].value - top_) * scale_);
      total += candidates_[i].weight;
    }
    return weighted_cut(candidates_, k, sampling_.top_p * total);
  }

  // The token at which the leading ones reach `wanted`, a weight (`by_mass`) or a number; weights_ are in place.
  // Thresholds narrow the values it can have to low .. high, until few candidates are left to select from.
  Cut cut_at(double wanted, bool by_mass) {
    float low = -kInfinity, high = kInfinity;
    MassAbove above_high{};  // only [0] of each is used
    int64_t count_from_low = row_.columns;
    double reach = by_mass ? 64.0 * sampling_.temperature : 64.0;
    while (count_from_low - above_high.count[0] > kFewCandidates) {
      float thresholds[kThresholds];
      if (!next_thresholds(low, high, reach, thresholds)) break;
      const MassAbove above = DFLASH_KERNEL(mass_above)(row_, maxima_, weights_, thresholds);
      for (int t = 0; t < kThresholds; ++t) {
        if ((by_mass ? above.mass[t] : static_cast<double>(above.count[t])) >= wanted) {
          low = thresholds[t];
          count_from_low = above.count[t];
        } else {
          high = thresholds[t];
          above_high = {{above.mass[t]}, {above.count[t]}};
          break;
        }
      }
      reach *= 16.0;
    }
    const int64_t count = DFLASH_KERNEL(collect_candidates)(row_, maxima_, weights_, low, high, candidates_);
    if (count == 0) return no_cut();
    if (by_mass) return weighted_cut(candidates_, count, wanted - above_high.mass[0]);
    const int64_t kept = static_cast<int64_t>(wanted) - above_high.count[0];
    select(candidates_, kept, count);
    return {candidates_[kept - 1].value, candidates_[kept - 1].id};
  }

  // Three ascending values strictly inside low .. high; false if float32 has no more of them. Without a lower end they
  // reach down from the maximum, further each time.
  bool next_thresholds(float low, float high, double reach, float* thresholds) const {
    const double top = std::isinf(high) ? top_ : high;
    for (int t = 0; t < kThresholds; ++t) {
      const double value = std::isinf(low) ? top_ - reach / (1 << (2 * t)) : low + (top - low) * (t + 1) / 4.0;
      thresholds[t] = static_cast<float>(value);
    }
    return std::isfinite(thresholds[0]) && low < thresholds[0] && thresholds[0] < thresholds[1] &&
           thresholds[1] < thresholds[2] && thresholds[2] < high;
  }

  // The first kept id at which the cumulative weight exceeds uniform * total; sums_ hold the kept weights.
  int64_t invert(const Cut& cut, double uniform) {
    const double wanted = uniform * sum_of(sums_, stretches_);
    double gathered = 0.0;
    int64_t stretch = 0, last_with_weight = 0;
    double gathered_before_last = 0.0;
    for (; stretch < stretches_; ++stretch) {
      if (sums_[stretch] <= 0.0) continue;
      last_with_weight = stretch;
      gathered_before_last = gathered;
      gathered += sums_[stretch];
      if (gathered > wanted) break;
    }
    float weights[kStretch];
    stretch = last_with_weight;
    DFLASH_KERNEL(stretch_weights)(row_, stretch, stretch + 1, maxima_, top_, scale_, cut, sums_, weights);
    const int64_t columns = std::min(kStretch, row_.columns - stretch * kStretch);
    int64_t choice = 0;
    double within = gathered_before_last;
    for (int64_t i = 0; i < columns; ++i) {
      if (weights[i] <= 0.0f) continue;
      choice = i;  // stays the last one if rounding keeps the sum at or below what is wanted
      within += weights[i];
      if (within > wanted) break;
    }
    return stretch * kStretch + choice;
  }

  const LogitRow& row_;
  const RowSampling& sampling_;
  int64_t stretches_;
  float top_ = 0.0f;
  float scale_ = 0.0f;  // weight = 2^((logit - top) * scale)
  Candidate* candidates_;
  double* sums_;
  float* weights_;
  float* maxima_;
  float* ordered_maxima_;
};

}  // namespace

int64_t sample_row(const LogitRow& row, const RowSampling& sampling, double uniform) {
  return Sampler(row, sampling).sample(uniform);
}

}  // namespace dflash::cpu
