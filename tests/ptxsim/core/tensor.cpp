#include "tensor.h"

#include <algorithm>
#include <cstring>

#include "half.h"

namespace ptxsim {
namespace {

constexpr int kRows = 16;
constexpr int kColumns = 8;

float element_float(uint32_t word, int index, Type type) {
  if (type == Type::kTF32) return float_of(word & 0xffffe000u);
  const uint32_t half = (word >> (16 * index)) & 0xffffu;
  return type == Type::kBF16 ? bf16_to_float(half) : f16_to_float(half);
}

int32_t element_integer(uint32_t word, int index, Type type) {
  const uint32_t byte = word >> (8 * index);
  return type == Type::kS8 ? static_cast<int32_t>(static_cast<int8_t>(byte))
                           : static_cast<int32_t>(static_cast<uint8_t>(byte));
}

// Spreads fragments over matrices; `Element` reads element j of a register.
template <int kElements, typename T, typename Element>
void unpack(const MmaFragments& f, int k, T a[][32], T b[][kColumns], const Element& element_a,
            const Element& element_b) {
  const int registers_b = k / (4 * kElements);
  for (int r = 0; r < 2 * registers_b; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) {
      T* row = &a[lane / 4 + 8 * (r % 2)][(lane % 4) * kElements + 4 * kElements * (r / 2)];
      for (int j = 0; j < kElements; ++j) row[j] = element_a(f.a[r][lane], j);
    }
  }
  for (int r = 0; r < registers_b; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int first = (lane % 4) * kElements + 4 * kElements * r;
      for (int j = 0; j < kElements; ++j) b[first + j][lane / 4] = element_b(f.b[r][lane], j);
    }
  }
}

template <typename T>
void product(int k, const T a[][32], const T b[][kColumns], T c[][kColumns]) {
  for (int row = 0; row < kRows; ++row) {
    T sum[kColumns];
    std::copy(c[row], c[row] + kColumns, sum);
    for (int i = 0; i < k; ++i) {
      const T factor = a[row][i];
      for (int column = 0; column < kColumns; ++column) sum[column] += factor * b[i][column];
    }
    std::copy(sum, sum + kColumns, c[row]);
  }
}

template <Type kType>
struct FloatElement {
  float operator()(uint32_t word, int index) const { return element_float(word, index, kType); }
};

// The accumulator's place of register r of a lane.
int accumulator_row(int lane, int r) { return lane / 4 + 8 * (r / 2); }
int accumulator_column(int lane, int r) { return (lane % 4) * 2 + r % 2; }

template <Type kType>
void multiply_float(const Instruction& in, const MmaFragments& f) {
  constexpr int kElements = kType == Type::kTF32 ? 1 : 2;
  float a[kRows][32];
  float b[32][kColumns];
  float c[kRows][kColumns];
  unpack<kElements>(f, in.mod.k, a, b, FloatElement<kType>{}, FloatElement<kType>{});
  const bool half = in.type == Type::kF16;
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < 4; ++r) {
      c[accumulator_row(lane, r)][accumulator_column(lane, r)] =
          half ? f16_to_float((f.c[r / 2][lane] >> (16 * (r % 2))) & 0xffffu) : float_of(f.c[r][lane]);
    }
  }
  product(in.mod.k, a, b, c);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const float value = c[accumulator_row(lane, r)][accumulator_column(lane, r)];
      if (!half) {
        f.d[r][lane] = value != value ? kNanF32 : bits_of(value);
      } else if (r % 2 == 0) {
        f.d[r / 2][lane] = f16_from(value);
      } else {
        f.d[r / 2][lane] |= uint32_t{f16_from(value)} << 16;
      }
    }
  }
}

void multiply_integer(const Instruction& in, const MmaFragments& f) {
  // 32 products of bytes and an accumulator fit 64 bits, so .satfinite clamps the exact sum.
  int64_t a[kRows][32];
  int64_t b[32][kColumns];
  int64_t c[kRows][kColumns];
  struct Element {
    Type type;
    int64_t operator()(uint32_t word, int index) const { return element_integer(word, index, type); }
  };
  unpack<4>(f, in.mod.k, a, b, Element{in.source_type}, Element{in.type_b});
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < 4; ++r)
      c[accumulator_row(lane, r)][accumulator_column(lane, r)] = static_cast<int32_t>(f.c[r][lane]);
  }
  product(in.mod.k, a, b, c);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < 4; ++r) {
      int64_t value = c[accumulator_row(lane, r)][accumulator_column(lane, r)];
      if (in.mod.sat) value = std::min<int64_t>(std::max<int64_t>(value, INT32_MIN), INT32_MAX);
      f.d[r][lane] = static_cast<uint32_t>(value);
    }
  }
}

}  // namespace

void multiply_accumulate(const Instruction& in, const MmaFragments& fragments) {
  switch (in.source_type) {
    case Type::kF16:
      multiply_float<Type::kF16>(in, fragments);
      break;
    case Type::kBF16:
      multiply_float<Type::kBF16>(in, fragments);
      break;
    case Type::kTF32:
      multiply_float<Type::kTF32>(in, fragments);
      break;
    default:
      multiply_integer(in, fragments);
  }
}

void matrix_to_fragment(const uint8_t* const rows[8], bool transposed, uint32_t* fragment) {
  uint16_t matrix[8][8];
  for (int row = 0; row < 8; ++row) std::memcpy(matrix[row], rows[row], 16);
  for (int lane = 0; lane < kLanes; ++lane) {
    const int row = lane / 4;
    const int column = (lane % 4) * 2;
    const uint32_t low = transposed ? matrix[column][row] : matrix[row][column];
    const uint32_t high = transposed ? matrix[column + 1][row] : matrix[row][column + 1];
    fragment[lane] = low | high << 16;
  }
}

void fragment_to_matrix(const uint32_t* fragment, bool transposed, uint16_t matrix[8][8]) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const int row = lane / 4;
    const int column = (lane % 4) * 2;
    for (int j = 0; j < 2; ++j) {
      const auto value = static_cast<uint16_t>(fragment[lane] >> (16 * j));
      (transposed ? matrix[column + j][row] : matrix[row][column + j]) = value;
    }
  }
}

}  // namespace ptxsim
