#pragma once
#include "params/skinny_gemm.h"

namespace dflash {

struct FuseFeaturesParams {
  SkinnyGemm gemm;           // pieces are the tapped hidden states; one layer of columns
  const int32_t* row_count;  // one element, or null: all rows
  const void* norm_weight;   // [columns] or null: no norm
  float eps;
  void* out;  // [rows, columns]
  int64_t out_row_stride;
  void* workspace;
};

}  // namespace dflash
