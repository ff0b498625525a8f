#include "cpu/verify_sampled.h"

#include <algorithm>
#include <cmath>

#include "cpu/parallel.h"
#include "cpu/row_argmax.h"
#include "cpu/scratch.h"
#include "cpu/verify.h"
#include "params/philox.h"

namespace dflash::cpu {
namespace {

constexpr int64_t kStretch = 1024;  // weights are summed in float32 over a stretch, in float64 over stretches

struct Candidate {
  float value;
  float weight;
  int64_t id;
};

// The order that top-k and top-p cut in: larger logits first, equal ones by id.
bool before(const Candidate& a, const Candidate& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

// How many leading candidates (in `before` order) it takes to reach `wanted` weight; at least one. The candidates are
// only partitioned around the cut, never sorted: each step halves the part that the cut can lie in.
int64_t weighted_cut(Candidate* candidates, int64_t count, double wanted) {
  int64_t begin = 0, end = count;
  double gathered = 0.0;
  while (end - begin > 1) {
    const int64_t middle = (begin + end) / 2;
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
  return begin + 1;
}

struct Row {
  const float* values;
  float* weights;
  int64_t count;
};

// Zeroes the weight of everything that top-k, then top-p over what is left, cut away.
void restrict_to_top(const Row& row, int64_t top_k, double top_p, Candidate* candidates) {
  int64_t kept = row.count;
  for (int64_t i = 0; i < row.count; ++i) candidates[i] = {row.values[i], row.weights[i], i};
  if (top_k > 0 && top_k < kept) {
    std::nth_element(candidates, candidates + top_k - 1, candidates + kept, before);
    kept = top_k;
  }
  if (top_p < 1.0) {
    double total = 0.0;
    for (int64_t i = 0; i < kept; ++i) total += candidates[i].weight;
    kept = weighted_cut(candidates, kept, top_p * total);
  }
  const Candidate last = *std::max_element(candidates, candidates + kept, before);
  for (int64_t i = 0; i < row.count; ++i) {
    if (before(last, {row.values[i], 0.0f, i})) row.weights[i] = 0.0f;
  }
}

// The first id whose cumulative weight exceeds uniform * total.
int64_t invert_cdf(const Row& row, double uniform) {
  const auto sum_of = [&](int64_t begin) {
    double sum = 0.0;
    const int64_t end = std::min(begin + kStretch, row.count);
    for (int64_t i = begin; i < end; ++i) sum += row.weights[i];
    return sum;
  };
  double total = 0.0;
  for (int64_t begin = 0; begin < row.count; begin += kStretch) total += sum_of(begin);
  const double wanted = uniform * total;
  double gathered = 0.0;
  int64_t last_possible = 0;
  for (int64_t begin = 0; begin < row.count; begin += kStretch) {
    const double sum = sum_of(begin);
    if (sum <= 0.0) continue;
    const bool inside = gathered + sum > wanted;
    const int64_t end = std::min(begin + kStretch, row.count);
    double within = gathered;
    for (int64_t i = begin; i < end; ++i) {
      if (row.weights[i] <= 0.0f) continue;
      last_possible = i;
      within += row.weights[i];
      if (inside && within > wanted) return i;
    }
    gathered += sum;
  }
  return last_possible;  // rounding kept the sum at or below the wanted weight
}

}  // namespace

void verify_sampled(const VerifyParams& params, const SamplingParams& sampling) {
  const auto argmax = DFLASH_KERNEL(argmax_stretch);
  const auto to_float = DFLASH_KERNEL(row_to_float);
  const auto weigh = DFLASH_KERNEL(exp_weights);
  const int64_t columns = params.vocabulary;
  const int64_t row_bytes = (columns * 4 + 63) / 64 * 64;

  parallel_tasks(params.batch, 1, [&](int64_t request) {
    const float temperature = sampling.temperature[request * sampling.temperature_stride];
    const int64_t top_k = sampling.top_k[request * sampling.top_k_stride];
    const float top_p = sampling.top_p[request * sampling.top_p_stride];
    const auto seed = static_cast<uint64_t>(sampling.seed[request * sampling.seed_stride]);
    int64_t& offset = sampling.offset[request * sampling.offset_stride];
    const int64_t emitted = verify_request(params, request, [&](int64_t index) {
      const int64_t start = request * params.logits_batch_stride + index * params.logits_row_stride;
      const char* logits = static_cast<const char*>(params.logits) + start * dtype_size(params.dtype);
      const ArgmaxPartial top = argmax(logits, params.dtype, columns);
      if (temperature == 0.0f || top_k == 1 || !std::isfinite(top.value)) return top.index;
      const bool restricted = (top_k > 0 && top_k < columns) || top_p < 1.0f;
      char* scratch = static_cast<char*>(
          thread_scratch(2 * row_bytes + (restricted ? columns * static_cast<int64_t>(sizeof(Candidate)) : 0)));
      float* values = reinterpret_cast<float*>(scratch);
      float* weights = reinterpret_cast<float*>(scratch + row_bytes);
      to_float(logits, params.dtype, columns, values);
      weigh(values, columns, top.value, 1.0f / temperature, weights);
      const Row row{values, weights, columns};
      if (restricted) restrict_to_top(row, top_k, top_p, reinterpret_cast<Candidate*>(scratch + 2 * row_bytes));
      return invert_cdf(row, philox_uniform(seed, static_cast<uint64_t>(offset + index)));
    });
    offset += emitted;
  });
}

}  // namespace dflash::cpu
