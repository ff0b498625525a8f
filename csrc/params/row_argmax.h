#pragma once
#include "params/dtype.h"

namespace dflash {

struct RowArgmaxParams {
  const void* logits;  // [rows, columns], columns contiguous
  DType dtype;
  int64_t rows;
  int64_t columns;
  int64_t row_stride;  // elements
  int64_t* ids;        // [rows]
  int64_t ids_stride;
  float* values;  // [rows] or null
  int64_t values_stride;
};

}  // namespace dflash
