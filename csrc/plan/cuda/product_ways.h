// Which way the product of `rows` rows with a weight goes in fuse_features and project_context_kv: the one table.
// docs/kernels/weight_streaming.md has the arithmetic behind its borders.
#pragma once
#include <cstdint>

#include "params/dtype.h"

namespace dflash::cuda {

enum class ProductWay {
  kShares,   // the streaming kernel: every weight is read once, and a row's result does not depend on the others
  kPasses,   // the same kernel, which reads the weight again for each kStreamRows rows
  kLibrary,  // torch's GEMM, and a kernel for what follows
};

constexpr int kStreamRows = 128;  // most of a block of the streaming kernel

struct ProductRange {
  int64_t most_rows;
  ProductWay way;
};

constexpr ProductRange kProductRanges[] = {
    {kStreamRows, ProductWay::kShares},
    {2 * kStreamRows, ProductWay::kPasses},
    {INT64_MAX, ProductWay::kLibrary},
};

// Products of the library lie in the workspace as float32, of so many rows at a time.
constexpr int64_t kLibraryRows = 512;

constexpr ProductWay product_way(int64_t rows) {
  for (const ProductRange& range : kProductRanges) {
    if (rows <= range.most_rows) return range.way;
  }
  return ProductWay::kLibrary;
}

// Only torch's GEMM multiplies float32. It knows no row count on the device and multiplies all rows, so where there is
// one (`counted`) the streaming kernel goes on, in passes.
constexpr ProductWay product_way(int64_t rows, DType dtype, bool counted) {
  if (dtype == DType::kFloat32) return ProductWay::kLibrary;
  const ProductWay way = product_way(rows);
  return counted && way == ProductWay::kLibrary ? ProductWay::kPasses : way;
}

}  // namespace dflash::cuda
