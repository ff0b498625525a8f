#include "cpu/norm_rope.h"

#include "cpu/simd.h"

namespace dflash {
namespace DFLASH_ISA {
namespace {

using cpu::NormRopeHeads;
static_assert(cpu::kFloatPadding % kLanes == 0, "padded arrays are read in whole vectors");

// in -> x[0, count), zeros up to the next whole vector.
template <typename In>
inline void load_row(const In* in, int64_t count, float* x) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(x + i, load(in + i));
  if (i < count) store(x + i, load_partial(in + i, static_cast<int>(count - i)));
}

template <typename Out>
inline void store_row(const float* x, int64_t count, Out* out) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, load(x + i));
  if (i < count) store_partial(out + i, load(x + i), static_cast<int>(count - i));
}

// x = x / rms(x) * weight; two chains, because one add a step would wait for the one before.
inline void normalise(float* x, int64_t count, const float* weight, float eps) {
  Floats even{}, odd{};
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    const Floats a = load(x + i), b = load(x + i + kLanes);
    even += a * a;
    odd += b * b;
  }
  for (; i < count; i += kLanes) {
    const Floats a = load(x + i);
    even += a * a;
  }
  const float scale = 1.0f / __builtin_sqrtf(reduce_add(even + odd) / static_cast<float>(count) + eps);
  for (i = 0; i < count; i += kLanes) store(x + i, load(x + i) * scale * load(weight + i));
}

inline void rotate_half_split(float* x, int64_t rotary_dim, const float* rotation) {
  const int64_t half = rotary_dim / 2;
  const float* cosines = rotation;
  const float* sines = rotation + cpu::padded_floats(rotary_dim);
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats low = load(x + i), high = load(x + half + i);
    const Floats c = load(cosines + i), s = load(sines + i);
    store(x + i, low * c - high * s);
    store(x + half + i, high * c + low * s);
  }
  for (; i < half; ++i) {
    const float low = x[i], high = x[half + i];
    x[i] = low * cosines[i] - high * sines[i];
    x[half + i] = high * cosines[i] + low * sines[i];
  }
}

// Exchanges the two floats of each pair.
inline Floats swap_pairs(Floats x) {
  typedef uint64_t Pairs __attribute__((vector_size(sizeof(Floats))));
  const Pairs pairs = reinterpret_cast<Pairs>(x);
  return reinterpret_cast<Floats>((pairs >> 32) | (pairs << 32));
}

inline void rotate_interleaved(float* x, int64_t rotary_dim, const float* rotation) {
  const float* cosines = rotation;
  const float* sines = rotation + cpu::padded_floats(rotary_dim);
  int64_t i = 0;
  for (; i + kLanes <= rotary_dim; i += kLanes) {
    const Floats pairs = load(x + i);
    store(x + i, pairs * load(cosines + i) + swap_pairs(pairs) * load(sines + i));
  }
  for (; i < rotary_dim; i += 2) {
    const float first = x[i], second = x[i + 1];
    x[i] = first * cosines[i] + second * sines[i];
    x[i + 1] = second * cosines[i + 1] + first * sines[i + 1];
  }
}

template <typename In, typename Out>
void process_heads(const NormRopeHeads& heads, float* x) {
  for (int64_t head = 0; head < heads.heads; ++head) {
    load_row(static_cast<const In*>(heads.in) + head * heads.in_head_stride, heads.head_dim, x);
    if (heads.weight != nullptr) normalise(x, heads.head_dim, heads.weight, heads.eps);
    if (heads.rotation != nullptr) {
      if (heads.interleaved) {
        rotate_interleaved(x, heads.rotary_dim, heads.rotation);
      } else {
        rotate_half_split(x, heads.rotary_dim, heads.rotation);
      }
    }
    store_row(x, heads.head_dim, static_cast<Out*>(heads.out) + head * heads.out_head_stride);
  }
}

}  // namespace

void norm_rope_heads(const NormRopeHeads& heads, float* scratch) {
  if (heads.weight == nullptr && heads.rotation == nullptr && heads.in_dtype == heads.out_dtype) {
    const int64_t size = dtype_size(heads.in_dtype);
    for (int64_t head = 0; head < heads.heads; ++head) {
      std::memcpy(static_cast<char*>(heads.out) + head * heads.out_head_stride * size,
                  static_cast<const char*>(heads.in) + head * heads.in_head_stride * size,
                  static_cast<size_t>(heads.head_dim * size));
    }
    return;
  }
  visit_dtype(heads.in_dtype, [&](auto in) {
    visit_dtype(heads.out_dtype, [&](auto out) { process_heads<decltype(in), decltype(out)>(heads, scratch); });
  });
}

void convert_to_floats(const void* in, DType dtype, int64_t count, float* out) {
  visit_dtype(dtype, [&](auto element) { load_row(static_cast<const decltype(element)*>(in), count, out); });
  const int64_t written = (count + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = written; i < cpu::padded_floats(count); ++i) out[i] = 0.0f;
}

void expand_rotation(const void* cos_sin, DType dtype, int64_t rotary_dim, bool interleaved, float* out) {
  const int64_t half = rotary_dim / 2;
  float* sines = out + cpu::padded_floats(rotary_dim);
  visit_dtype(dtype, [&](auto element) {
    const auto* row = static_cast<const decltype(element)*>(cos_sin);
    if (!interleaved) {
      load_row(row, half, out);
      load_row(row + half, half, sines);
      return;
    }
    for (int64_t i = 0; i < half; ++i) {
      const float sine = to_float(row[half + i]);
      out[2 * i] = out[2 * i + 1] = to_float(row[i]);
      sines[2 * i] = -sine;
      sines[2 * i + 1] = sine;
    }
  });
}

}  // namespace DFLASH_ISA
}  // namespace dflash
