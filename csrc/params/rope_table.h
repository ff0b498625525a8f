#pragma once
#include "params/dtype.h"

namespace dflash {

// The rotation of each row of a call. The first `rotary_dim` channels rotate: half-split pairs (i, i + rotary_dim / 2),
// or `interleaved` pairs (2i, 2i + 1).
struct RopeTable {
  const void* cos_sin;  // [table_rows, rotary_dim]: cosines, then sines; null: no rotation
  DType dtype;
  int64_t table_rows;
  int64_t row_stride;  // elements
  int64_t rotary_dim;
  bool interleaved;
  const int64_t* positions;  // [rows]
  int64_t positions_stride;
};

}  // namespace dflash
