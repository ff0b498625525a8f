#include "cpu/skinny_gemm.h"

#include "cpu/simd.h"

namespace dflash {
namespace DFLASH_ISA {
namespace {

using plan::kGemmColumnBlock;
using plan::kGemmRowBlock;
static_assert(plan::kGemmMaxLanes % kLanes == 0, "chunks are whole vectors");

// Columns of a register tile. Four rows by three columns of accumulators leave three registers for weights and one for
// activations of the sixteen there are; AVX-512 has twice as many.
constexpr int kTileColumns = kLanes == 16 ? 6 : 3;
static_assert(kGemmColumnBlock % kTileColumns == 0, "column blocks are whole tiles");

// Packed blocks are [step][row or column][lane]: a tile reads both operands front to back.
template <int count, typename T>
void pack_rows(const T* const* rows, int64_t columns, float* packed) {
  const int64_t whole = columns / kLanes;
  for (int64_t step = 0; step < whole; ++step) {
    for (int i = 0; i < count; ++i) store(packed + (step * count + i) * kLanes, load(rows[i] + step * kLanes));
  }
  const int rest = static_cast<int>(columns - whole * kLanes);
  for (int i = 0; rest > 0 && i < count; ++i) {
    store(packed + (whole * count + i) * kLanes, load_partial(rows[i] + whole * kLanes, rest));
  }
}

// sums[rows][columns] += activations x weights over `steps` vectors of the inner dimension. A chunk is added up by
// itself first: long inner dimensions lose less to rounding.
template <int rows, int columns>
void multiply_tile(const float* activations, const float* weights, int64_t steps, bool first, float* sums) {
  Floats sum[rows][columns] = {};
  for (int64_t step = 0; step < steps; ++step) {
    Floats w[columns];
    for (int c = 0; c < columns; ++c) w[c] = load(weights + c * kLanes);
    for (int r = 0; r < rows; ++r) {
      const Floats a = load(activations + r * kLanes);
      for (int c = 0; c < columns; ++c) sum[r][c] += a * w[c];
    }
    weights += columns * kLanes;
    activations += rows * kLanes;
  }
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      float* total = sums + (r * columns + c) * kLanes;
      store(total, first ? sum[r][c] : load(total) + sum[r][c]);
    }
  }
}

template <int columns>
void multiply_block(int64_t rows, const float* activations, const float* weights, int64_t steps, bool first,
                    float* sums) {
  switch (rows) {
    case 1:
      return multiply_tile<1, columns>(activations, weights, steps, first, sums);
    case 2:
      return multiply_tile<2, columns>(activations, weights, steps, first, sums);
    case 3:
      return multiply_tile<3, columns>(activations, weights, steps, first, sums);
    default:
      return multiply_tile<4, columns>(activations, weights, steps, first, sums);
  }
}

// The work of one column block over all rows. `columns` of a tile: a single narrow row block takes wider tiles, so that
// there are enough independent sums to hide the latency of the adds.
template <int columns>
struct ColumnBlock {
  const SkinnyGemm& gemm;
  const float* packed;
  int64_t rows;
  float* weights;  // [kGemmColumnBlock / columns][step][columns][kLanes]
  float* sums;     // [row block][kGemmColumnBlock / columns][row][columns][kLanes]

  template <typename T>
  const T* weight_row(int64_t column) const {
    const GemmWeight& weight = gemm.weight;
    const int64_t layer = column / weight.layer_columns;
    return static_cast<const T*>(weight.data) + layer * weight.layer_stride +
           (column - layer * weight.layer_columns) * weight.row_stride;
  }

  float bias(int64_t column) const {
    const GemmWeight& weight = gemm.weight;
    if (weight.bias == nullptr) return 0.0f;
    const int64_t layer = column / weight.layer_columns;
    const int64_t element = layer * weight.bias_layer_stride + column - layer * weight.layer_columns;
    float value = 0.0f;
    visit_dtype(gemm.dtype,
                [&](auto type) { value = to_float(static_cast<const decltype(type)*>(weight.bias)[element]); });
    return value;
  }

  template <typename T>
  void multiply(int64_t begin, int64_t end) {
    const GemmActivations& activations = gemm.activations;
    const int64_t chunk_columns = plan::gemm_chunk_columns(activations.piece_columns);
    const T* weight_rows[kGemmColumnBlock];
    // The last block repeats its last column; the surplus sums are dropped.
    for (int64_t c = 0; c < kGemmColumnBlock; ++c)
      weight_rows[c] = weight_row<T>(begin + c < end ? begin + c : end - 1);
    const float* activation = packed;
    bool first = true;
    for (int64_t piece = 0; piece < activations.piece_count; ++piece) {
      for (int64_t column = 0; column < activations.piece_columns; column += chunk_columns) {
        const int64_t left = activations.piece_columns - column;
        const int64_t count = left < chunk_columns ? left : chunk_columns;
        const int64_t steps = (count + kLanes - 1) / kLanes;
        for (int64_t c = 0; c < kGemmColumnBlock; c += columns) {
          const T* chunk_rows[columns];
          for (int i = 0; i < columns; ++i) {
            chunk_rows[i] = weight_rows[c + i] + piece * activations.piece_columns + column;
          }
          pack_rows<columns>(chunk_rows, count, weights + c * steps * kLanes);
        }
        multiply_chunk(activation, steps, first);
        activation += rows * steps * kLanes;
        first = false;
      }
    }
  }

  void multiply_chunk(const float* activation, int64_t steps, bool first) {
    for (int64_t row = 0; row < rows; row += kGemmRowBlock) {
      const int64_t block_rows = rows - row < kGemmRowBlock ? rows - row : kGemmRowBlock;
      for (int64_t c = 0; c < kGemmColumnBlock; c += columns) {
        multiply_block<columns>(block_rows, activation + row * steps * kLanes, weights + c * steps * kLanes, steps,
                                first, sums + (row * kGemmColumnBlock + c * block_rows) * kLanes);
      }
    }
  }

  // Adds the lanes of each sum up and writes columns [begin, end).
  void finish(int64_t begin, int64_t end, float* out, int64_t out_row_stride) const {
    for (int64_t c = 0; begin + c < end; ++c) {
      const float added = bias(begin + c);
      const int64_t tile = c / columns, inside = c - tile * columns;
      for (int64_t row = 0; row < rows; row += kGemmRowBlock) {
        const int64_t block_rows = rows - row < kGemmRowBlock ? rows - row : kGemmRowBlock;
        const float* block = sums + (row * kGemmColumnBlock + tile * columns * block_rows) * kLanes;
        Floats lanes[kGemmRowBlock] = {};
        for (int64_t r = 0; r < block_rows; ++r) lanes[r] = load(block + (r * columns + inside) * kLanes);
        const Quad totals = reduce_add_each(lanes[0], lanes[1], lanes[2], lanes[3]);
        for (int64_t r = 0; r < block_rows; ++r) out[(row + r) * out_row_stride + c] = totals[r] + added;
      }
    }
  }

  void run(int64_t begin, int64_t end, float* out, int64_t out_row_stride) {
    visit_dtype(gemm.dtype, [&](auto type) { multiply<decltype(type)>(begin, end); });
    finish(begin, end, out, out_row_stride);
  }
};

template <int columns>
void run_columns(const SkinnyGemm& gemm, const float* packed, int64_t rows, int64_t begin, int64_t end, float* out,
                 int64_t out_row_stride, float* scratch) {
  ColumnBlock<columns> block{gemm, packed, rows, scratch, scratch + kGemmColumnBlock * plan::kGemmMaxChunk};
  for (int64_t column = begin; column < end; column += kGemmColumnBlock) {
    const int64_t block_end = column + kGemmColumnBlock < end ? column + kGemmColumnBlock : end;
    block.run(column, block_end, out + (column - begin), out_row_stride);
  }
}

}  // namespace

void pack_gemm_rows(const GemmActivations& activations, DType dtype, int64_t first_row, int64_t rows, int64_t block,
                    float* packed) {
  const int64_t row = block * kGemmRowBlock;
  const int64_t count = rows - row < kGemmRowBlock ? rows - row : kGemmRowBlock;
  const int64_t chunk_columns = plan::gemm_chunk_columns(activations.piece_columns);
  visit_dtype(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t piece = 0; piece < activations.piece_count; ++piece) {
      const T* data = static_cast<const T*>(activations.pieces[piece]);
      const int64_t stride = activations.row_strides[piece];
      for (int64_t column = 0; column < activations.piece_columns; column += chunk_columns) {
        const int64_t left = activations.piece_columns - column;
        const int64_t inner = left < chunk_columns ? left : chunk_columns;
        const int64_t steps = (inner + kLanes - 1) / kLanes;
        const T* chunk_rows[kGemmRowBlock];
        for (int64_t r = 0; r < count; ++r) chunk_rows[r] = data + (first_row + row + r) * stride + column;
        float* target = packed + row * steps * kLanes;
        if (count == 1) pack_rows<1>(chunk_rows, inner, target);
        if (count == 2) pack_rows<2>(chunk_rows, inner, target);
        if (count == 3) pack_rows<3>(chunk_rows, inner, target);
        if (count == 4) pack_rows<4>(chunk_rows, inner, target);
        packed += rows * steps * kLanes;
      }
    }
  });
}

void skinny_gemm_columns(const SkinnyGemm& gemm, const float* packed, int64_t rows, int64_t begin, int64_t end,
                         float* out, int64_t out_row_stride, float* scratch) {
  if (rows == 1) return run_columns<kGemmColumnBlock>(gemm, packed, rows, begin, end, out, out_row_stride, scratch);
  if (rows == 2) return run_columns<kGemmColumnBlock / 2>(gemm, packed, rows, begin, end, out, out_row_stride, scratch);
  run_columns<kTileColumns>(gemm, packed, rows, begin, end, out, out_row_stride, scratch);
}

}  // namespace DFLASH_ISA
}  // namespace dflash
