#include "cpu/skinny_gemm.h"

#include "cpu/multiply_add.h"

namespace dflash {
namespace DFLASH_ISA {
namespace {

using plan::kGemmColumnBlock;
using plan::kGemmRowBlock;
static_assert(plan::kGemmMaxLanes % kLanes == 0, "chunks are whole vectors");

// What the multiply-adds take of T: its values as float32 ...
template <typename T>
struct Operand : SinglePrecision {
  static Floats read(const T* p) { return DFLASH_ISA::load(p); }
  static Floats read_partial(const T* p, int count) { return load_partial(p, count); }
};

#if DFLASH_BFLOAT16_IN_PAIRS
// ... or bfloat16 as they lie in memory, two a lane.
template <>
struct Operand<BFloat16> : BFloat16Pairs {
  static Words read(const BFloat16* p) {
    Words x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  static Words read_partial(const BFloat16* p, int count) {
    Words x{};
    std::memcpy(&x, p, sizeof(BFloat16) * count);
    return x;
  }
};
#endif

template <typename T>
using Vector = typename Operand<T>::Vector;
template <typename T>
using Element = typename Operand<T>::Element;

// Values of T in a vector.
template <typename T>
constexpr int kValues = kLanes * Operand<T>::kPerElement;

template <typename T>
constexpr int64_t chunk_columns(int64_t piece_columns) {
  return plan::gemm_chunk_columns(piece_columns, Operand<T>::kPerElement);
}

// Columns of a register tile. Four rows by three columns of sums leave three registers for weights and one for
// activations of the sixteen there are; AVX-512 has twice as many. One or two rows take more columns, to have more
// reads under way; two rows of 16-bit weights, which are converted in registers, take four.
template <typename T>
constexpr int tile_columns(int64_t rows) {
  if (kLanes == 16 || rows == 1) return 6;
  if (rows == 2) return sizeof(T) == 4 ? 6 : 4;
  return 3;
}
static_assert(kGemmColumnBlock % 6 == 0 && kGemmColumnBlock % 4 == 0 && kGemmColumnBlock % 3 == 0, "whole tiles");
static_assert(kGemmColumnBlock % 4 == 0, "sums are finished four columns at a time");

// Where a tile's weights come from: the weight tensor itself, leaving a packed copy if further row blocks follow ...
template <int columns, typename T, bool copy>
struct StreamedWeights {
  const T* rows[columns];
  int64_t ahead;  // values from here to what is read after this chunk, to be prefetched meanwhile
  Element<T>* packed;

  // The second row block prefetches the rest: all at once would be more than the memory system takes.
  static constexpr int kPrefetched = copy ? columns / 3 : columns;

  void keep(int64_t step, const Vector<T> (&w)[columns]) const {
    if constexpr (copy) {
      for (int c = 0; c < columns; ++c) Operand<T>::store(packed + (step * columns + c) * kLanes, w[c]);
    }
  }
  void read(int64_t step, Vector<T> (&w)[columns]) const {
    for (int c = 0; c < columns; ++c) {
      const T* here = rows[c] + step * kValues<T>;
      w[c] = Operand<T>::read(here);
      if (c < kPrefetched) __builtin_prefetch(here + ahead, 0, 2);
    }
    keep(step, w);
  }
  void read_partial(int64_t step, int count, Vector<T> (&w)[columns]) const {
    for (int c = 0; c < columns; ++c) w[c] = Operand<T>::read_partial(rows[c] + step * kValues<T>, count);
    keep(step, w);
  }
};

// ... or that copy, laid out [step][column][lane].
template <int columns, typename T, bool prefetch>
struct PackedWeights {
  const Element<T>* data;
  const T* rows[columns];
  int64_t ahead;

  void read(int64_t step, Vector<T> (&w)[columns]) const {
    for (int c = 0; c < columns; ++c) {
      w[c] = Operand<T>::load(data + (step * columns + c) * kLanes);
      if (prefetch && c >= StreamedWeights<columns, T, true>::kPrefetched) {
        __builtin_prefetch(rows[c] + step * kValues<T> + ahead, 0, 2);
      }
    }
  }
  void read_partial(int64_t step, int count, Vector<T> (&w)[columns]) const { read(step, w); }
};

// sums[rows][columns] += activations x weights over one chunk of the inner dimension. A chunk is added up by itself
// first: long inner dimensions lose less to rounding.
template <typename T, int rows, int columns, typename Weights>
void multiply_tile(const Element<T>* activations, const Weights& weights, int64_t inner, bool first, float* sums) {
  Floats sum[rows][columns] = {};
  Vector<T> w[columns];
  const auto add_products = [&] {
    for (int r = 0; r < rows; ++r) {
      const Vector<T> a = Operand<T>::load(activations + r * kLanes);
      for (int c = 0; c < columns; ++c) sum[r][c] = Operand<T>::multiply_add(sum[r][c], a, w[c]);
    }
    activations += rows * kLanes;
  };
  const int64_t steps = inner / kValues<T>;
  for (int64_t step = 0; step < steps; ++step) {
    weights.read(step, w);
    add_products();
  }
  if (const int rest = static_cast<int>(inner - steps * kValues<T>); rest > 0) {
    weights.read_partial(steps, rest, w);
    add_products();
  }
  constexpr int count = rows * columns;
#pragma GCC unroll 6
  for (int i = 0; i < count; i += 4) {
    const auto at = [&](int j) { return j < count ? sum[j / columns][j % columns] : Floats{}; };
    Quad added = reduce_add_each(at(i), at(i + 1), at(i + 2), at(i + 3));
    float parts[4];
    std::memcpy(parts, &added, 16);
    if (i + 4 <= count) {
      Quad total;
      if (!first) {
        std::memcpy(&total, sums + i, 16);
        added += total;
      }
      std::memcpy(sums + i, &added, 16);
    } else {
      for (int j = 0; j < count - i; ++j) sums[i + j] = first ? parts[j] : sums[i + j] + parts[j];
    }
  }
}

// One chunk of the inner dimension of a column block: all rows.
template <typename T, int columns>
struct Chunk {
  const T* const* weight_rows;  // [kGemmColumnBlock]
  int64_t offset, inner, ahead;
  const Element<T>* activations;  // [row block][step][row][lane]
  int64_t rows;
  bool first;
  Element<T>* packed;  // [kGemmColumnBlock / columns][step][column][lane]
  float* sums;         // [row block][kGemmColumnBlock / columns][row][column][lane]

  int64_t steps() const { return (inner + kValues<T> - 1) / kValues<T>; }

  template <int block_rows, bool copy>
  void stream() const {
    for (int c = 0; c < kGemmColumnBlock; c += columns) {
      StreamedWeights<columns, T, copy> weights;
      for (int i = 0; i < columns; ++i) weights.rows[i] = weight_rows[c + i] + offset;
      weights.ahead = ahead;
      weights.packed = packed + c * steps() * kLanes;
      multiply_tile<T, block_rows, columns>(activations, weights, inner, first, sums + c * block_rows);
    }
  }

  template <int block_rows, bool prefetch>
  void reuse(int64_t row) const {
    for (int c = 0; c < kGemmColumnBlock; c += columns) {
      PackedWeights<columns, T, prefetch> weights;
      weights.data = packed + c * steps() * kLanes;
      for (int i = 0; i < columns; ++i) weights.rows[i] = weight_rows[c + i] + offset;
      weights.ahead = ahead;
      multiply_tile<T, block_rows, columns>(activations + row * steps() * kLanes, weights, inner, first,
                                         sums + row * kGemmColumnBlock + c * block_rows);
    }
  }

  template <bool prefetch>
  void reuse_block(int64_t row) const {
    if (rows - row == 1) return reuse<1, prefetch>(row);
    if (rows - row == 2) return reuse<2, prefetch>(row);
    if (rows - row == 3) return reuse<3, prefetch>(row);
    reuse<4, prefetch>(row);
  }

  void run() const {
    if constexpr (columns == tile_columns<T>(1)) {
      if (rows == 1) return stream<1, false>();
    }
    if constexpr (columns == tile_columns<T>(2)) {
      if (rows == 2) return stream<2, false>();
    }
    if constexpr (columns == tile_columns<T>(3)) {
      if (rows == 3) return stream<3, false>();
      if (rows == 4) return stream<4, false>();
      stream<4, true>();
      reuse_block<true>(4);
      for (int64_t row = 8; row < rows; row += 4) reuse_block<false>(row);
    }
  }
};
static_assert(kGemmRowBlock == 4, "Chunk::run spells the row blocks out");

template <typename T>
const T* weight_row(const GemmWeight& weight, int64_t column) {
  const int64_t layer = column / weight.layer_columns;
  return static_cast<const T*>(weight.data) + layer * weight.layer_stride +
         (column - layer * weight.layer_columns) * weight.row_stride;
}

template <typename T>
float bias_of(const GemmWeight& weight, int64_t column) {
  const int64_t layer = column / weight.layer_columns;
  const int64_t element = layer * weight.bias_layer_stride + column - layer * weight.layer_columns;
  return to_float(static_cast<const T*>(weight.bias)[element]);
}

// Adds the lanes of each sum up and writes the first `count` columns of the block.
template <typename T, int columns>
void finish_block(const GemmWeight& weight, const float* sums, int64_t rows, int64_t begin, int64_t count, float* out,
                  int64_t out_row_stride) {
  float bias[kGemmColumnBlock] = {};
  for (int64_t c = 0; weight.bias != nullptr && c < count; ++c) bias[c] = bias_of<T>(weight, begin + c);
  for (int64_t row = 0; row < rows; row += kGemmRowBlock) {
    const int64_t block_rows = rows - row < kGemmRowBlock ? rows - row : kGemmRowBlock;
    const float* block = sums + row * kGemmColumnBlock;
    for (int64_t r = 0; r < block_rows; ++r) {
      const auto sum = [&](int64_t c) {
        return block[(c / columns * block_rows + r) * columns + c % columns];
      };
      float totals[kGemmColumnBlock];
      for (int c = 0; c < kGemmColumnBlock; ++c) totals[c] = bias[c] + sum(c);
      float* target = out + (row + r) * out_row_stride;
      if (count == kGemmColumnBlock) {
        std::memcpy(target, totals, sizeof(totals));
      } else {
        for (int64_t c = 0; c < count; ++c) target[c] = totals[c];
      }
    }
  }
}

template <typename T, int columns>
void multiply_columns(const SkinnyGemm& gemm, const Element<T>* activations, int64_t rows, int64_t begin, int64_t end,
                      float* out, int64_t out_row_stride, float* scratch) {
  const int64_t piece_columns = gemm.activations.piece_columns;
  const int64_t all_columns = gemm.activations.piece_count * piece_columns;
  const int64_t whole_chunk = chunk_columns<T>(piece_columns);
  auto* weights = reinterpret_cast<Element<T>*>(scratch);
  float* sums = scratch + kGemmColumnBlock * plan::kGemmMaxChunk;
  for (int64_t column = begin; column < end; column += kGemmColumnBlock) {
    const int64_t count = end - column < kGemmColumnBlock ? end - column : kGemmColumnBlock;
    // A short block repeats its last column; the surplus sums are dropped.
    const T* weight_rows[kGemmColumnBlock];
    for (int64_t c = 0; c < kGemmColumnBlock; ++c) {
      weight_rows[c] = weight_row<T>(gemm.weight, column + (c < count ? c : count - 1));
    }
    Chunk<T, columns> chunk{weight_rows, 0, 0, 0, activations, rows, true, weights, sums};
    for (int64_t piece = 0; piece < gemm.activations.piece_count; ++piece) {
      for (int64_t first = 0; first < piece_columns; first += whole_chunk) {
        chunk.offset = piece * piece_columns + first;
        chunk.inner = piece_columns - first < whole_chunk ? piece_columns - first : whole_chunk;
        const bool last = chunk.offset + chunk.inner == all_columns;
        chunk.ahead = last ? kGemmColumnBlock * gemm.weight.row_stride - chunk.offset : chunk.inner;
        chunk.run();
        chunk.activations += rows * chunk.steps() * kLanes;
        chunk.first = false;
      }
    }
    finish_block<T, columns>(gemm.weight, sums, rows, column, count, out + (column - begin), out_row_stride);
  }
}

template <int count, typename T>
void pack_rows(const T* const* rows, int64_t inner, Element<T>* packed) {
  const int64_t steps = inner / kValues<T>;
  const auto pack = [&](int row, int64_t step, Vector<T> x) {
    Operand<T>::store(packed + (step * count + row) * kLanes, x);
  };
  for (int64_t step = 0; step < steps; ++step) {
    for (int i = 0; i < count; ++i) pack(i, step, Operand<T>::read(rows[i] + step * kValues<T>));
  }
  const int rest = static_cast<int>(inner - steps * kValues<T>);
  for (int i = 0; rest > 0 && i < count; ++i) {
    pack(i, steps, Operand<T>::read_partial(rows[i] + steps * kValues<T>, rest));
  }
}

}  // namespace

void pack_gemm_rows(const GemmActivations& activations, DType dtype, int64_t first_row, int64_t rows, int64_t block,
                    void* packed) {
  const int64_t row = block * kGemmRowBlock;
  const int64_t count = rows - row < kGemmRowBlock ? rows - row : kGemmRowBlock;
  visit_dtype(dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t whole_chunk = chunk_columns<T>(activations.piece_columns);
    auto* chunk = static_cast<Element<T>*>(packed);
    for (int64_t piece = 0; piece < activations.piece_count; ++piece) {
      const T* data = static_cast<const T*>(activations.pieces[piece]);
      const int64_t stride = activations.row_strides[piece];
      for (int64_t column = 0; column < activations.piece_columns; column += whole_chunk) {
        const int64_t left = activations.piece_columns - column;
        const int64_t inner = left < whole_chunk ? left : whole_chunk;
        const int64_t steps = (inner + kValues<T> - 1) / kValues<T>;
        const T* chunk_rows[kGemmRowBlock];
        for (int64_t r = 0; r < count; ++r) chunk_rows[r] = data + (first_row + row + r) * stride + column;
        Element<T>* target = chunk + row * steps * kLanes;
        if (count == 1) pack_rows<1>(chunk_rows, inner, target);
        if (count == 2) pack_rows<2>(chunk_rows, inner, target);
        if (count == 3) pack_rows<3>(chunk_rows, inner, target);
        if (count == 4) pack_rows<4>(chunk_rows, inner, target);
        chunk += rows * steps * kLanes;
      }
    }
  });
}

void skinny_gemm_columns(const SkinnyGemm& gemm, const void* packed, int64_t rows, int64_t begin, int64_t end,
                         float* out, int64_t out_row_stride, float* scratch) {
  visit_dtype(gemm.dtype, [&](auto type) {
    using T = decltype(type);
    const auto multiply = rows == 1   ? &multiply_columns<T, tile_columns<T>(1)>
                          : rows == 2 ? &multiply_columns<T, tile_columns<T>(2)>
                                      : &multiply_columns<T, tile_columns<T>(3)>;
    multiply(gemm, static_cast<const Element<T>*>(packed), rows, begin, end, out, out_row_stride, scratch);
  });
}

}  // namespace DFLASH_ISA
}  // namespace dflash
