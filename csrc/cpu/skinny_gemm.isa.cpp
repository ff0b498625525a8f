#include "cpu/skinny_gemm.h"

#include "cpu/multiply_add.h"

namespace dflash {
namespace DFLASH_ISA {
namespace {

using plan::kGemmRowBlock;
static_assert(plan::kGemmMaxLanes % kLanes == 0, "chunks are whole vectors");

// Columns of a register tile. Four rows by three columns of sums leave three registers for weights and one for
// activations of the sixteen there are; AVX-512 has twice as many. One or two rows take more columns, to have more
// reads under way; two rows of 16-bit weights, which are converted in registers, take four.
template <typename T>
constexpr int tile_columns(int64_t rows) {
  if (kLanes == 16 || rows == 1) return 6;
  if (rows == 2) return sizeof(T) == 4 ? 6 : 4;
  return 3;
}
// Columns that are computed from one chunk of packed weights. With few registers several tiles share the activations
// read; with many, one tile and longer chunks spend less on the ends of chunks.
constexpr int64_t kBlockColumns = kLanes == 16 ? 6 : plan::kGemmColumnBlock;
static_assert(plan::kGemmColumnBlock % kBlockColumns == 0, "threads own whole blocks");
static_assert(kLanes == 16 || (kBlockColumns % 6 == 0 && kBlockColumns % 4 == 0), "whole tiles");
// The longest chunk, in elements: packed weights take the same room whatever the block.
constexpr int64_t kMaxChunk = plan::kGemmMaxChunk * plan::kGemmColumnBlock / kBlockColumns;

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

constexpr int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

template <typename T>
using Vector = typename Operand<T>::Vector;
template <typename T>
using Element = typename Operand<T>::Element;

// Values of T in a vector.
template <typename T>
constexpr int kValues = kLanes * Operand<T>::kPerElement;

// The inner dimension is cut into equal chunks of whole vectors. Their size, in values, follows from the weight alone,
// so that a row's result does not depend on how many rows are computed with it.
template <typename T>
constexpr int64_t chunk_columns(int64_t piece_columns) {
  const int64_t chunks = ceil_div(piece_columns, kMaxChunk * Operand<T>::kPerElement);
  return chunks == 0 ? 0
                     : plan::round_up(ceil_div(piece_columns, chunks), plan::kGemmMaxLanes * Operand<T>::kPerElement);
}

// Where a tile's weights come from: the weight tensor itself, leaving a packed copy if further row blocks follow ...
template <int columns, typename T, bool copy>
struct StreamedWeights {
  const T* rows[columns];
  Element<T>* packed;

  void keep(int64_t step, const Vector<T> (&w)[columns]) const {
    if constexpr (copy) {
      for (int c = 0; c < columns; ++c) Operand<T>::store(packed + (step * columns + c) * kLanes, w[c]);
    }
  }
  void read(int64_t step, Vector<T> (&w)[columns]) const {
    for (int c = 0; c < columns; ++c) w[c] = Operand<T>::read(rows[c] + step * kValues<T>);
    keep(step, w);
  }
  void read_partial(int64_t step, int count, Vector<T> (&w)[columns]) const {
    for (int c = 0; c < columns; ++c) w[c] = Operand<T>::read_partial(rows[c] + step * kValues<T>, count);
    keep(step, w);
  }
};

// ... or that copy, laid out [step][column][lane].
template <int columns, typename T>
struct PackedWeights {
  const Element<T>* data;

  void read(int64_t step, Vector<T> (&w)[columns]) const {
    for (int c = 0; c < columns; ++c) w[c] = Operand<T>::load(data + (step * columns + c) * kLanes);
  }
  void read_partial(int64_t step, int count, Vector<T> (&w)[columns]) const { read(step, w); }
};

// What a tile prefetches of the weights that are read after this chunk: the same place in `count` columns.
template <int count, typename T>
struct Prefetch {
  const T* rows[count == 0 ? 1 : count];

  void step(int64_t step) const {
    for (int c = 0; c < count; ++c) __builtin_prefetch(rows[c] + step * kValues<T>, 0, 2);
  }
};

// totals[i] += the lanes of sums[i], added up in the same order for every i; `first`: starts from zero.
template <int count>
void add_lanes(const Floats* sums, bool first, float* totals) {
  constexpr int now = count < kLanes ? count : kLanes;
  Floats total{};
  if (!first) std::memcpy(&total, totals, sizeof(float) * now);
  total += reduce_add_each<now>(sums);
  std::memcpy(totals, &total, sizeof(float) * now);
  if constexpr (count > now) add_lanes<count - now>(sums + now, first, totals + now);
}

// sums[rows][columns] += activations x weights over one chunk of the inner dimension. A chunk is added up by itself
// first: long inner dimensions lose less to rounding.
template <typename T, int rows, int columns, typename Weights, typename Ahead>
void multiply_tile(const Element<T>* activations, const Weights& weights, const Ahead& prefetch, int64_t inner,
                   bool first, float* sums) {
  Floats sum[rows * columns] = {};
  Vector<T> w[columns];
  const auto add_products = [&] {
    for (int r = 0; r < rows; ++r) {
      const Vector<T> a = Operand<T>::load(activations + r * kLanes);
      for (int c = 0; c < columns; ++c) {
        sum[r * columns + c] = Operand<T>::multiply_add(sum[r * columns + c], a, w[c]);
      }
    }
    activations += rows * kLanes;
  };
  const int64_t steps = inner / kValues<T>;
  for (int64_t step = 0; step < steps; ++step) {
    weights.read(step, w);
    prefetch.step(step);
    // One row of pairs asks for lines faster than the core takes them: what it drops is asked for again.
    if constexpr (rows == 1 && Operand<T>::kPerElement == 2) prefetch.step(step);
    add_products();
  }
  if (const int rest = static_cast<int>(inner - steps * kValues<T>); rest > 0) {
    weights.read_partial(steps, rest, w);
    add_products();
  }
  add_lanes<rows * columns>(sum, first, sums);
}

// One chunk of the inner dimension of a column block: all rows.
template <typename T, int columns>
struct Chunk {
  const T* const* weight_rows;    // [kBlockColumns]
  int64_t offset, inner, ahead;   // ahead: values from this chunk to the one that is read after it
  const Element<T>* activations;  // [row block][step][row][lane]
  int64_t rows;
  bool first;
  Element<T>* packed;  // [kBlockColumns / columns][step][column][lane]
  float* sums;         // [row block][kBlockColumns / columns][row][column]

  int64_t steps() const { return ceil_div(inner, kValues<T>); }

  // `count` columns of a tile that starts at column `first_column` of the block.
  template <int count>
  Prefetch<count, T> prefetch_columns(int first_column) const {
    Prefetch<count, T> prefetch;
    for (int i = 0; i < count; ++i) prefetch.rows[i] = weight_rows[first_column + i] + offset + ahead;
    return prefetch;
  }

  template <int block_rows, bool copy, int prefetched>
  void stream() const {
    for (int c = 0; c < kBlockColumns; c += columns) {
      StreamedWeights<columns, T, copy> weights;
      for (int i = 0; i < columns; ++i) weights.rows[i] = weight_rows[c + i] + offset;
      weights.packed = packed + c * steps() * kLanes;
      multiply_tile<T, block_rows, columns>(activations, weights, prefetch_columns<prefetched>(c), inner, first,
                                            sums + c * block_rows);
    }
  }

  // A further row block, which prefetches columns [first_prefetched, first_prefetched + prefetched) of each tile.
  template <int block_rows, int prefetched>
  void reuse(int64_t row, int first_prefetched) const {
    for (int c = 0; c < kBlockColumns; c += columns) {
      const PackedWeights<columns, T> weights{packed + c * steps() * kLanes};
      multiply_tile<T, block_rows, columns>(activations + row * steps() * kLanes, weights,
                                            prefetch_columns<prefetched>(c + first_prefetched), inner, first,
                                            sums + row * kBlockColumns + c * block_rows);
    }
  }

  template <int prefetched>
  void reuse_block(int64_t row, int first_prefetched) const {
    if (rows - row == 1) return reuse<1, prefetched>(row, first_prefetched);
    if (rows - row == 2) return reuse<2, prefetched>(row, first_prefetched);
    if (rows - row == 3) return reuse<3, prefetched>(row, first_prefetched);
    reuse<4, prefetched>(row, first_prefetched);
  }

  // All row blocks; each prefetches `share` columns of a tile until all are.
  template <int share>
  void run_blocks() const {
    stream<4, true, share>();
    int64_t row = 4;
    for (int c = share; c < columns; c += share, row += 4) reuse_block<share>(row, c);
    for (; row < rows; row += 4) reuse_block<0>(row, 0);
  }

  void run() const {
    if constexpr (columns == tile_columns<T>(1)) {
      if (rows == 1) return stream<1, false, columns>();
    }
    if constexpr (columns == tile_columns<T>(2)) {
      if (rows == 2) return stream<2, false, columns>();
    }
    if constexpr (columns == tile_columns<T>(3)) {
      if (rows == 3) return stream<3, false, columns>();
      if (rows == 4) return stream<4, false, columns>();
      constexpr int third = columns / 3;
      if (rows <= 8) {
        stream<4, true, third>();
        return reuse_block<2 * third>(4, third);
      }
      if constexpr (columns == 6) {
        if (rows > 20) return run_blocks<1>();
      }
      run_blocks<third>();
    }
  }
};
static_assert(kGemmRowBlock == 4, "Chunk::run spells the row blocks out");

// The rows of a column block; a short block repeats its last column.
template <typename T>
void find_weight_rows(const GemmWeight& weight, int64_t column, int64_t count, const T* (&rows)[kBlockColumns]) {
  int64_t layer = column / weight.layer_columns, within = column % weight.layer_columns;
  for (int64_t c = 0; c < kBlockColumns; ++c) {
    rows[c] = static_cast<const T*>(weight.data) + layer * weight.layer_stride + within * weight.row_stride;
    if (c + 1 < count && ++within == weight.layer_columns) {
      within = 0;
      ++layer;
    }
  }
}

template <typename T>
float bias_of(const GemmWeight& weight, int64_t column) {
  const int64_t layer = column / weight.layer_columns;
  const int64_t element = layer * weight.bias_layer_stride + column - layer * weight.layer_columns;
  return to_float(static_cast<const T*>(weight.bias)[element]);
}

// Writes the first `count` columns of the block, from the order the tiles left them in.
template <typename T, int columns>
void finish_block(const GemmWeight& weight, const float* sums, int64_t rows, int64_t begin, int64_t count, float* out,
                  int64_t out_row_stride) {
  float bias[kBlockColumns] = {};
  for (int64_t c = 0; weight.bias != nullptr && c < count; ++c) bias[c] = bias_of<T>(weight, begin + c);
  for (int64_t row = 0; row < rows; row += kGemmRowBlock) {
    const int64_t block_rows = rows - row < kGemmRowBlock ? rows - row : kGemmRowBlock;
    const float* block = sums + row * kBlockColumns;
    for (int64_t r = 0; r < block_rows; ++r) {
      float totals[kBlockColumns];
      for (int c = 0; c < kBlockColumns; ++c) {
        totals[c] = block[(c / columns * block_rows + r) * columns + c % columns] + bias[c];
      }
      float* target = out + (row + r) * out_row_stride;
      if (count == kBlockColumns) {
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
  // A short row is over before a prefetch of the next block arrives.
  const int64_t next_columns = whole_chunk >= all_columns ? plan::kGemmColumnBlock : kBlockColumns;
  auto* weights = reinterpret_cast<Element<T>*>(scratch);
  float* sums = scratch + kBlockColumns * kMaxChunk;
  for (int64_t column = begin; column < end; column += kBlockColumns) {
    const int64_t count = end - column < kBlockColumns ? end - column : kBlockColumns;
    const T* weight_rows[kBlockColumns];
    find_weight_rows(gemm.weight, column, count, weight_rows);
    Chunk<T, columns> chunk{weight_rows, 0, 0, 0, activations, rows, true, weights, sums};
    for (int64_t piece = 0; piece < gemm.activations.piece_count; ++piece) {
      for (int64_t first = 0; first < piece_columns; first += whole_chunk) {
        chunk.offset = piece * piece_columns + first;
        chunk.inner = piece_columns - first < whole_chunk ? piece_columns - first : whole_chunk;
        const bool last = chunk.offset + chunk.inner == all_columns;
        chunk.ahead = last ? next_columns * gemm.weight.row_stride - chunk.offset : chunk.inner;
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
