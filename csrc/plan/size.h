// Sizes of workspaces follow from sizes of tensors, which are up to 2^63 where strides are 0.
#pragma once
#include <cstdint>

namespace dflash::plan {

// A number that stops at 2^63 - 1, more than any memory has, where an int64 would wrap to less than is needed.
class Size {
 public:
  static constexpr int64_t kMost = INT64_MAX;

  constexpr Size(int64_t value) : value_(value) {}
  constexpr int64_t value() const { return value_; }

  friend constexpr Size operator+(Size a, Size b) {
    int64_t sum = 0;
    return __builtin_add_overflow(a.value_, b.value_, &sum) ? kMost : sum;
  }
  friend constexpr Size operator*(Size a, Size b) {
    int64_t product = 0;
    return __builtin_mul_overflow(a.value_, b.value_, &product) ? kMost : product;
  }
  friend constexpr bool operator<(Size a, Size b) { return a.value_ < b.value_; }

  constexpr Size divided_up(int64_t step) const { return value_ / step + (value_ % step != 0); }
  constexpr Size rounded_up(int64_t step) const { return divided_up(step) * step; }

 private:
  int64_t value_;
};

}  // namespace dflash::plan
