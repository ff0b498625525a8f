#pragma once
#include "params/skinny_gemm.h"

namespace dflash {

struct LmHeadArgmaxParams {
  SkinnyGemm gemm;  // one piece; columns are the vocabulary of this shard
  int64_t vocab_offset;
  float softcap;  // 0: none
  int64_t* ids;   // [rows]
  int64_t ids_stride;
  float* values;  // [rows] or null
  int64_t values_stride;
  void* workspace;
};

}  // namespace dflash
