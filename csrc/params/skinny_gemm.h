#pragma once
#include "params/dtype.h"

namespace dflash {

// Sized so that the params structs stay plain; targets are tapped at 4 to 6 layers.
constexpr int64_t kMaxGemmPieces = 64;

// Rows of activations, each the concatenation of one row of every piece. Strides count elements.
struct GemmActivations {
  const void* pieces[kMaxGemmPieces];  // [rows, piece_columns], columns contiguous
  int64_t row_strides[kMaxGemmPieces];
  int64_t piece_count, piece_columns;
  int64_t rows;
};

// One weight row (and bias) for each output column; layers of `layer_columns` columns lie `layer_stride` apart.
struct GemmWeight {
  const void* data;  // [layers, layer_columns, piece_count * piece_columns], the last dimension contiguous
  int64_t layer_stride, row_stride;
  const void* bias;  // [layers, layer_columns] or null
  int64_t bias_layer_stride;
  int64_t layer_columns;
  int64_t columns;  // of all layers
};

struct SkinnyGemm {
  GemmActivations activations;
  GemmWeight weight;
  DType dtype;  // of activations, weight and bias
};

}  // namespace dflash
