#include "wgmma.h"

#include <algorithm>
#include <cstring>

#include "half.h"
#include "tensor_map.h"

namespace ptxsim {
namespace {

constexpr int kRows = 16;
constexpr int kMostColumns = 256;
constexpr int kMostDepth = 32;

template <typename T>
T element(const uint8_t* bytes, Type type) {
  uint32_t word = 0;
  std::memcpy(&word, bytes, static_cast<size_t>(size_of(type)));
  switch (type) {
    case Type::kF16:
      return static_cast<T>(f16_to_float(word));
    case Type::kBF16:
      return static_cast<T>(bf16_to_float(word));
    case Type::kTF32:
      return static_cast<T>(float_of(word & 0xffffe000u));
    case Type::kS8:
      return static_cast<T>(static_cast<int8_t>(word));
    default:
      return static_cast<T>(static_cast<uint8_t>(word));
  }
}

// The accumulator's place of register r (one value each) of a lane.
int row_of(int lane, int r) { return lane / 4 + 8 * (r / 2 % 2); }
int column_of(int lane, int r) { return r / 4 * 8 + lane % 4 * 2 + r % 2; }

template <typename T, typename Load, typename Store>
void product(const Instruction& in, const WarpProduct& x, const Load& load, const Store& store) {
  const int n = in.mod.n;
  const int k = in.mod.k;
  const auto size = static_cast<size_t>(size_of(in.source_type));
  T a[kRows][kMostDepth];
  static thread_local T b[kMostDepth][kMostColumns];
  static thread_local T sum[kRows][kMostColumns];
  const T sign = static_cast<T>(in.mod.negate_a != in.mod.negate_b ? -1 : 1);
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < k; ++i)
      a[row][i] = sign * element<T>(x.a + static_cast<size_t>(row * k + i) * size, in.source_type);
  }
  for (int column = 0; column < n; ++column) {
    for (int i = 0; i < k; ++i) b[i][column] = element<T>(x.b + static_cast<size_t>(column * k + i) * size, in.type_b);
  }
  for (int r = 0; r < n / 2; ++r) {
    for (int lane = 0; lane < kLanes; ++lane)
      sum[row_of(lane, r)][column_of(lane, r)] = x.accumulate ? load(r, lane) : T{0};
  }
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < k; ++i) {
      const T factor = a[row][i];
      for (int column = 0; column < n; ++column) sum[row][column] += factor * b[i][column];
    }
  }
  for (int r = 0; r < n / 2; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) store(r, lane, sum[row_of(lane, r)][column_of(lane, r)]);
  }
}

}  // namespace

MatrixDescriptor::MatrixDescriptor(uint64_t bits)
    : start((bits & 0x3fff) << 4),
      leading((bits >> 16 & 0x3fff) << 4),
      stride((bits >> 32 & 0x3fff) << 4),
      base_offset(static_cast<uint32_t>(bits >> 49 & 7)),
      swizzle(bits >> 62 == 0 ? 0 : 4 - static_cast<int>(bits >> 62)) {}

uint64_t MatrixDescriptor::k_major(uint32_t row, uint32_t chunk) const {
  const uint64_t width = uint64_t{16} << swizzle;
  const uint64_t along = swizzle == 0 ? chunk * leading : uint64_t{chunk} * 16;
  return swizzled(start + row / 8 * stride + row % 8 * width + along, swizzle);
}

uint64_t MatrixDescriptor::mn_major(uint32_t row, uint32_t chunk) const {
  if (swizzle == 0) return start + chunk * stride + row / 8 * leading + row % 8 * 16;
  const uint64_t width = uint64_t{16} << swizzle;
  const uint32_t chunks = 1u << swizzle;  // in a row of the swizzle
  return swizzled(start + chunk / chunks * leading + chunk % chunks * 16 + row / 8 * stride + row % 8 * width, swizzle);
}

void multiply_warpgroup(const Instruction& in, const WarpProduct& x) {
  if (in.type == Type::kS32) {
    product<int64_t>(
        in, x, [&](int r, int lane) { return static_cast<int64_t>(static_cast<int32_t>(x.d[r][lane])); },
        [&](int r, int lane, int64_t value) {
          if (in.mod.sat) value = std::min<int64_t>(std::max<int64_t>(value, INT32_MIN), INT32_MAX);
          x.d[r][lane] = static_cast<uint32_t>(value);
        });
  } else if (in.type == Type::kF16) {
    product<float>(
        in, x, [&](int r, int lane) { return f16_to_float(x.d[r / 2][lane] >> (16 * (r % 2)) & 0xffffu); },
        [&](int r, int lane, float value) {
          const uint32_t half = f16_from(value);
          x.d[r / 2][lane] = r % 2 == 0 ? half : (x.d[r / 2][lane] & 0xffffu) | half << 16;
        });
  } else {
    product<float>(
        in, x, [&](int r, int lane) { return float_of(x.d[r][lane]); },
        [&](int r, int lane, float value) { x.d[r][lane] = value != value ? kNanF32 : bits_of(value); });
  }
}

void fragments_to_rows(const Instruction& in, const uint32_t* const fragments[4], uint8_t* rows) {
  const auto row_bytes = static_cast<size_t>(in.mod.k * size_of(in.source_type));
  for (int r = 0; r < 4; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto row = static_cast<size_t>(lane / 4 + 8 * (r % 2));
      std::memcpy(rows + row * row_bytes + static_cast<size_t>(16 * (r / 2) + lane % 4 * 4), &fragments[r][lane], 4);
    }
  }
}

}  // namespace ptxsim
