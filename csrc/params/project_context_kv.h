#pragma once
#include "params/skinny_gemm.h"
#include "params/write_context_kv.h"

namespace dflash {

struct ProjectContextKvParams {
  SkinnyGemm gemm;             // one piece; columns [layers][keys, values][kv_heads][head_dim]
  WriteContextKvParams write;  // its kv fields are set to the product, row by row pass
  void* workspace;
};

}  // namespace dflash
