// Draws one token from a row of logits: temperature, top-k, top-p, inverse of the cumulative distribution.
#pragma once
#include "cpu/isa.h"
#include "params/dtype.h"

namespace dflash::cpu {

// Rows are worked on in stretches of this many columns. Sums are float32 within a stretch and float64 over stretches,
// in order, so results do not depend on how stretches are spread over threads.
constexpr int64_t kStretch = 256;

struct LogitRow {
  const void* logits;
  DType dtype;
  int64_t columns;

  int64_t stretches() const { return (columns + kStretch - 1) / kStretch; }
};

// The last token kept, in the order that top-k and top-p cut in: larger logits first, equal ones by id.
struct Cut {
  float value;
  int64_t id;
};

struct Candidate {
  float value;
  float weight;
  int64_t id;
};

constexpr int kThresholds = 3;

// Weight and number of the columns at or above each threshold.
struct MassAbove {
  double mass[kThresholds];
  int64_t count[kThresholds];
};

struct RowSampling {
  float temperature;  // 0: argmax
  int64_t top_k;      // 0: off
  float top_p;        // 1: off
};

// The token at place `uniform` in [0, 1) of the row's cumulative distribution, ids ascending. Uses the thread's
// scratch.
int64_t sample_row(const LogitRow& row, const RowSampling& sampling, double uniform);

}  // namespace dflash::cpu

// The largest logit of each stretch, NaN where it holds one.
DFLASH_DECLARE_KERNEL(void, stretch_maxima, (const cpu::LogitRow& row, float* maxima))
// exp2((logit - maximum) * scale), 0 for what `cut` leaves out, of stretches begin .. end-1: summed per stretch (sums
// and maxima are indexed by stretch of the whole row), and stored where `weights` (which begins with column begin *
// kStretch) is not null. Stretches wholly left out get sum 0 and no weights.
DFLASH_DECLARE_KERNEL(void, stretch_weights,
                      (const cpu::LogitRow& row, int64_t begin, int64_t end, const float* maxima, float maximum,
                       float scale, cpu::Cut cut, double* sums, float* weights))
// Of kThresholds ascending thresholds.
DFLASH_DECLARE_KERNEL(cpu::MassAbove, mass_above,
                      (const cpu::LogitRow& row, const float* maxima, const float* weights, const float* thresholds))
// Columns with low <= logit < high, in order of id; weights may be null (then 0). Returns their number.
DFLASH_DECLARE_KERNEL(int64_t, collect_candidates,
                      (const cpu::LogitRow& row, const float* maxima, const float* weights, float low, float high,
                       cpu::Candidate* candidates))
