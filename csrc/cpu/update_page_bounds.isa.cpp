#include "cpu/update_page_bounds.h"

#include "cpu/simd.h"

namespace dflash {
namespace DFLASH_ISA {
namespace {

// kVectors vectors of channels; the last may be partial, with `count` channels in all. A NaN stays, as in
// torch.amin and torch.amax: it must not pass unnoticed.
template <int kVectors, bool kPartial, typename T>
inline void channel_bounds(const T* rows, int64_t slot_stride, int64_t row_count, int count, T* minima, T* maxima) {
  Floats least[kVectors], greatest[kVectors];
  for (int64_t row = 0; row < row_count; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const T* source = rows + row * slot_stride + v * kLanes;
      Floats x;
      if constexpr (kPartial) {
        x = load_partial(source, count);
      } else {
        x = load(source);
      }
      least[v] = row == 0 ? x : minimum_or_nan(least[v], x);
      greatest[v] = row == 0 ? x : maximum_or_nan(greatest[v], x);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    if constexpr (kPartial) {
      store_partial(minima, least[v], count);
      store_partial(maxima, greatest[v], count);
    } else {
      store(minima + v * kLanes, least[v]);
      store(maxima + v * kLanes, greatest[v]);
    }
  }
}

template <typename T>
void bounds_of_heads(const cpu::PageRows& page) {
  for (int64_t head = 0; head < page.heads; ++head) {
    const T* rows = static_cast<const T*>(page.k) + head * page.head_stride;
    T* minima = static_cast<T*>(page.bounds) + head * page.bounds_head_stride;
    T* maxima = minima + page.bounds_part_stride;
    int64_t d = 0;
    for (; d + 4 * kLanes <= page.head_dim; d += 4 * kLanes) {
      channel_bounds<4, false>(rows + d, page.slot_stride, page.rows, 0, minima + d, maxima + d);
    }
    for (; d + kLanes <= page.head_dim; d += kLanes) {
      channel_bounds<1, false>(rows + d, page.slot_stride, page.rows, 0, minima + d, maxima + d);
    }
    if (d < page.head_dim) {
      channel_bounds<1, true>(rows + d, page.slot_stride, page.rows, static_cast<int>(page.head_dim - d), minima + d,
                              maxima + d);
    }
  }
}

// One vector of channels, the last one partial.
template <bool kPartial, typename T>
inline void group_channels(const cpu::GroupPages& group, int64_t offset, int count, T* minima) {
  const auto load_vector = [count](const T* source) {
    if constexpr (kPartial) {
      return load_partial(source, count);
    } else {
      return load(source);
    }
  };
  Floats least, greatest;
  for (int64_t i = 0; i < group.count; ++i) {
    const T* page = static_cast<const T*>(group.bounds) + group.pages[i] * group.page_stride + offset;
    const Floats low = load_vector(page), high = load_vector(page + group.part_stride);
    least = i == 0 ? low : minimum_or_nan(least, low);
    greatest = i == 0 ? high : maximum_or_nan(greatest, high);
  }
  T* maxima = minima + group.group_part_stride;
  if constexpr (kPartial) {
    store_partial(minima, least, count);
    store_partial(maxima, greatest, count);
  } else {
    store(minima, least);
    store(maxima, greatest);
  }
}

template <typename T>
void bounds_of_group(const cpu::GroupPages& group) {
  for (int64_t head = 0; head < group.heads; ++head) {
    T* minima = static_cast<T*>(group.group) + head * group.group_head_stride;
    int64_t d = 0;
    for (; d + kLanes <= group.head_dim; d += kLanes) {
      group_channels<false>(group, head * group.head_stride + d, 0, minima + d);
    }
    if (d < group.head_dim) {
      group_channels<true>(group, head * group.head_stride + d, static_cast<int>(group.head_dim - d), minima + d);
    }
  }
}

}  // namespace

void page_bounds(const cpu::PageRows& page) {
  visit_dtype(page.dtype, [&](auto element) { bounds_of_heads<decltype(element)>(page); });
}

void group_bounds(const cpu::GroupPages& group) {
  visit_dtype(group.dtype, [&](auto element) { bounds_of_group<decltype(element)>(group); });
}

}  // namespace DFLASH_ISA
}  // namespace dflash
