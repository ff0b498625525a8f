// The third launch of verify_sampled: one block draws the token of a row.
#pragma once
#include "cuda/verify_sampled/scans.cuh"

namespace dflash::cuda {

// The first of `count` items at which the running sum of value_at(item) exceeds target_of(sum of all). Every thread
// gets it, and the sum before it.
struct Located {
  uint32_t item;
  uint64_t before;
};
template <typename ValueAt, typename TargetOf>
__device__ __forceinline__ Located locate(uint32_t count, const ValueAt& value_at, const TargetOf& target_of) {
  __shared__ Located found;
  const uint32_t each = (count + kChooseThreads - 1) / kChooseThreads;
  const uint32_t begin = min(threadIdx.x * each, count), end = min(begin + each, count);
  uint64_t own = 0;
  for (uint32_t i = begin; i < end; ++i) own += value_at(i);
  uint64_t total;
  uint64_t before = block_sum_before<kChooseThreads>(own, &total);
  const uint64_t target = target_of(total);
  if (before <= target && target < before + own) {
    for (uint32_t i = begin; i < end; ++i) {
      const uint64_t value = value_at(i);
      if (target < before + value) {
        found = {i, before};
        break;
      }
      before += value;
    }
  }
  __syncthreads();
  const Located result = found;
  __syncthreads();
  return result;
}

// The last token kept, in the order that top-k and top-p cut in: larger logits first, equal ones by id.
struct Cut {
  uint32_t key;
  int64_t column;
  uint64_t mass;  // of all that are kept
};

template <typename T>
class RowChooser {
 public:
  __device__ __forceinline__ RowChooser(const VerifySampledLaunch& launch, const SampledPlace& place)
      : rows_(launch.rows),
        index_(place.index),
        row_(sampled_row<T>(launch, place)),
        sampling_(launch.sampling, place.request),
        maxima_(launch.rows.maxima + place.index * launch.rows.stretches),
        masses_(launch.rows.masses + place.index * launch.rows.stretches),
        top_key_(top_key_of<kChooseThreads>(maxima_, rows_.stretches)),
        weights_(sampling_, row_.columns(), top_key_) {}

  // `bits`: 53 random ones.
  __device__ __forceinline__ int64_t choose(uint64_t bits) const {
    if (sampling_.takes_argmax() || !weights_.finite_top()) return argmax();
    const auto target = [bits](uint64_t total) { return place_of(bits, total); };
    const bool limits_count = sampling_.limits_count(row_.columns());
    if (!limits_count && !sampling_.limits_mass()) {
      return locate_column([&](float x, int64_t) { return weights_.mass(x); }, target);
    }
    Cut cut{0, 0, limits_count ? 0 : sum_of_masses()};
    // Top-k, then top-p: a prefix of what top-k left is a prefix of the row.
#pragma unroll 1
    for (int step = limits_count ? 0 : 1; step < (sampling_.limits_mass() ? 2 : 1); ++step) {
      const bool by_mass = step == 1;
      cut = find_cut(by_mass, by_mass ? min(share_of(sampling_.top_p, cut.mass), cut.mass)
                                      : static_cast<uint64_t>(sampling_.top_k));
    }
    const auto kept = [&](float x, int64_t column) {
      const uint32_t key = key_of<T>(x);
      return key > cut.key || (key == cut.key && column <= cut.column) ? weights_.mass(x) : 0;
    };
    sum_stretches(cut.key, kept);
    return locate_column(kept, target);
  }

 private:
  static constexpr uint32_t kFewCandidates = kChooseThreads;  // one for each thread
  static constexpr uint32_t kWarps = kChooseThreads / kWarpLanes;

  // The first column with the largest key.
  __device__ __forceinline__ int64_t argmax() const {
    __shared__ uint32_t first_stretch, first_place;
    if (threadIdx.x == 0) first_stretch = first_place = 0xffffffffu;
    __syncthreads();
    for (uint32_t s = threadIdx.x; s < rows_.stretches; s += kChooseThreads) {
      if (maxima_[s] == top_key_) atomicMin(&first_stretch, s);
    }
    __syncthreads();
    for (uint32_t place = threadIdx.x; place < row_.stretch_columns(); place += kChooseThreads) {
      const int64_t column = row_.column(first_stretch, place);
      if (row_.holds(column) && key_of<T>(row_.at(column)) == top_key_) atomicMin(&first_place, place);
    }
    __syncthreads();
    return row_.column(first_stretch, first_place);
  }

  __device__ __forceinline__ uint64_t sum_of_masses() const {
    uint64_t own = 0, total;
    for (uint32_t s = threadIdx.x; s < rows_.stretches; s += kChooseThreads) own += masses_[s];
    block_sum_before<kChooseThreads>(own, &total);
    return total;
  }

  // Calls visit(x, column) for the stretches that hold a logit with a key from `low` on, done(stretch) after each.
  template <typename Visit, typename Done>
  __device__ __forceinline__ void walk_from(uint32_t low, const Visit& visit, const Done& done) const {
    row_.template walk<1>(
        threadIdx.x / kWarpLanes, rows_.stretches, kWarps, [&](uint32_t stretch) { return maxima_[stretch] >= low; },
        [&](int, float x, int64_t column) { visit(x, column); }, [&](int, uint32_t stretch) { done(stretch); });
  }

  // Overwrites the stretches' masses with sums of value(x, column), which is 0 below `low`.
  template <typename Value>
  __device__ __forceinline__ void sum_stretches(uint32_t low, const Value& value) const {
    for (uint32_t s = threadIdx.x; s < rows_.stretches; s += kChooseThreads) {
      if (maxima_[s] < low) masses_[s] = 0;
    }
    uint64_t gathered = 0;
    walk_from(
        low, [&](float x, int64_t column) { gathered += value(x, column); },
        [&](uint32_t stretch) {
          const uint64_t of_warp = warp_reduce(gathered, [](uint64_t a, uint64_t b) { return a + b; });
          if (threadIdx.x % kWarpLanes == 0) masses_[stretch] = of_warp;
          gathered = 0;
        });
    __syncthreads();
  }

  // The column at which the running sum of value(x, column) exceeds target_of(sum of all), ids ascending. The
  // stretches' masses are the sums of the same values.
  template <typename Value, typename TargetOf>
  __device__ __forceinline__ int64_t locate_column(const Value& value, const TargetOf& target_of) const {
    uint64_t target = 0;
    const Located stretch = locate(
        rows_.stretches, [&](uint32_t s) { return masses_[s]; },
        [&](uint64_t total) { return target = target_of(total); });
    const auto value_at = [&](uint32_t place) {
      const int64_t column = row_.column(stretch.item, place);
      return row_.holds(column) ? value(row_.at(column), column) : uint64_t{0};
    };
    const Located place = locate(row_.stretch_columns(), value_at, [&](uint64_t) { return target - stretch.before; });
    return row_.column(stretch.item, place.item);
  }

  // Keys low <= key < high that the cut can have, and what lies above them.
  struct Range {
    uint32_t low, high;
    uint64_t count_from_low, mass_above, count_above;

    __device__ __forceinline__ void narrow(bool by_mass, uint64_t wanted, const uint32_t (&thresholds)[kThresholds],
                                           const MassAbove& above) {
      bool reached = true;  // no break, so that the loop is unrolled and the thresholds stay in registers
#pragma unroll
      for (int t = 0; t < kThresholds; ++t) {
        const bool was_reached = reached;
        reached = reached && (by_mass ? above.mass[t] : above.count[t]) >= wanted;
        if (reached) {
          low = thresholds[t];
          count_from_low = above.count[t];
        } else if (was_reached) {
          high = thresholds[t];
          mass_above = above.mass[t];
          count_above = above.count[t];
        }
      }
    }
  };

  // What the second launch found above the first thresholds, in every thread.
  __device__ __forceinline__ const MassAbove& first_sums() const {
    __shared__ MassAbove sums;
    if (threadIdx.x < kThresholds) {
      uint64_t mass = 0, count = 0;
      for (uint32_t part = 0; part < rows_.parts; ++part) {
        const MassAbove& of_part = rows_.above[index_ * rows_.parts + part];
        mass += of_part.mass[threadIdx.x];
        count += of_part.count[threadIdx.x];
      }
      sums.mass[threadIdx.x] = mass;
      sums.count[threadIdx.x] = count;
    }
    __syncthreads();
    return sums;
  }

  // The token at which the leading ones reach `wanted`, a mass or a number. Thresholds narrow the values it can have
  // until few candidates are left, or one value.
  __device__ __forceinline__ Cut find_cut(bool by_mass, uint64_t wanted) const {
    Range range{0, top_key_ + 1, static_cast<uint64_t>(row_.columns()), 0, 0};
    uint32_t thresholds[kThresholds];
    weights_.thresholds(thresholds);
    range.narrow(by_mass, wanted, thresholds, first_sums());
    while (range.count_from_low - range.count_above > kFewCandidates && range.high - range.low > 1) {
#pragma unroll
      for (int t = 0; t < kThresholds; ++t) {
        const uint64_t width = range.high - range.low;
        thresholds[t] = range.low + static_cast<uint32_t>(width * (t + 1) / (kThresholds + 1));
      }
      ThreadAbove above;
      walk_from(
          range.low, [&](float x, int64_t) { above.add(key_of<T>(x), weights_.mass(x), thresholds); }, [](uint32_t) {});
      range.narrow(by_mass, wanted, thresholds, above.template over_block<kChooseThreads>());
    }
    return range.count_from_low - range.count_above > kFewCandidates ? cut_of_equals(range, by_mass, wanted)
                                                                     : cut_of_few(range, by_mass, wanted);
  }

  // All candidates have one value, so the first so many of them are kept.
  __device__ __forceinline__ Cut cut_of_equals(const Range& range, bool by_mass, uint64_t wanted) const {
    const uint64_t mass_each = weights_.mass(value_of_key<T>(range.low));
    const uint64_t number =
        by_mass ? (wanted - range.mass_above + mass_each - 1) / mass_each : wanted - range.count_above;
    const auto is_equal = [&](float x, int64_t) { return key_of<T>(x) == range.low ? uint64_t{1} : uint64_t{0}; };
    sum_stretches(range.low, is_equal);
    const int64_t column = locate_column(is_equal, [number](uint64_t) { return number - 1; });
    return {range.low, column, range.mass_above + number * mass_each};
  }

  // Every candidate adds up those before it; the cut is the one that crosses `wanted`.
  __device__ __forceinline__ Cut cut_of_few(const Range& range, bool by_mass, uint64_t wanted) const {
    __shared__ uint64_t masses[kFewCandidates];
    __shared__ int64_t columns[kFewCandidates];
    __shared__ uint32_t keys[kFewCandidates];
    __shared__ uint32_t count;
    __shared__ Cut cut;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    walk_from(
        range.low,
        [&](float x, int64_t column) {
          const uint32_t key = key_of<T>(x);
          if (key < range.low || key >= range.high) return;
          const uint32_t at = atomicAdd(&count, 1u);
          keys[at] = key;
          columns[at] = column;
          masses[at] = weights_.mass(x);
        },
        [](uint32_t) {});
    __syncthreads();
    if (threadIdx.x < count) {
      const uint32_t key = keys[threadIdx.x];
      const int64_t column = columns[threadIdx.x];
      uint64_t mass_before = range.mass_above, count_before = range.count_above;
      for (uint32_t other = 0; other < count; ++other) {
        const bool before = keys[other] > key || (keys[other] == key && columns[other] < column);
        mass_before += before ? masses[other] : 0;
        count_before += before ? 1 : 0;
      }
      const uint64_t mass_upto = mass_before + masses[threadIdx.x];
      const bool crosses = by_mass ? mass_before < wanted && wanted <= mass_upto : count_before + 1 == wanted;
      if (crosses) cut = {key, column, mass_upto};
    }
    __syncthreads();
    return cut;
  }

  const SampledRows& rows_;
  int64_t index_;
  StretchedRow<T> row_;
  RequestSampling sampling_;
  const uint32_t* maxima_;
  uint64_t* masses_;
  uint32_t top_key_;
  Weights<T> weights_;
};

// Block (row of all requests); the last block of a request to arrive decides it.
template <typename T>
__device__ __forceinline__ void verify_sampled(const VerifySampledLaunch& launch) {
  const VerifyParams& op = launch.op;
  const SamplingParams& sampling = launch.sampling;
  const SampledPlace place(op, blockIdx.x);
  int64_t* tokens = op.tokens + place.request * op.tokens_stride;
  int64_t* offset = sampling.offset + place.request * sampling.offset_stride;
  if (place.row <= draft_len_of(op, place.request)) {
    __shared__ uint64_t random_bits;
    if (threadIdx.x == 0) {  // only the thread that arrives below reads the offset, so that it may be advanced then
      random_bits = philox_bits(static_cast<uint64_t>(sampling.seed[place.request * sampling.seed_stride]),
                                static_cast<uint64_t>(*offset + place.row));
    }
    __syncthreads();
    const int64_t token = RowChooser<T>(launch, place).choose(random_bits);
    if (threadIdx.x == 0) tokens[place.row] = token;
  }
  if (!last_to_arrive(launch.rows.arrivals + place.request, static_cast<uint32_t>(op.drafts) + 1)) return;
  if (threadIdx.x >= kWarpLanes) return;
  commit_drafts(op, place.request, tokens);
  if (threadIdx.x == 0 && draft_len_of(op, place.request) >= 0) {
    *offset += op.accepted[place.request * op.accepted_stride] + 1;
  }
}

}  // namespace dflash::cuda
