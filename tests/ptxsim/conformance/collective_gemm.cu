// A GEMM of CUTLASS 4.2's collectives for sm_90a (TMA, wgmma, one producer and one consumer warpgroup): D = A * B^T,
// bfloat16 [m, k] and [n, k] to float32 [m, n]. collective_gemm_90.ptx is made from it, and needs no CUTLASS to run:
//
//   pip install --no-deps --target DIR nvidia-cutlass==4.2.0.0
//   nvcc -std=c++17 -O3 -ptx -arch=sm_90a --expt-relaxed-constexpr -DNDEBUG -IDIR/cutlass_library/source/include
//       collective_gemm.cu -o collective_gemm_90.ptx        (11 seconds of processor, 1.5 GB)
//
// CUTLASS is NVIDIA's, under the terms in CUTLASS_LICENSE.txt.
#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

namespace {

using Sm90 = cutlass::arch::Sm90;
using TensorOp = cutlass::arch::OpClassTensorOp;
using RowMajor = cutlass::layout::RowMajor;
using TileShape = cute::Shape<cute::_64, cute::_64, cute::_64>;
using ClusterShape = cute::Shape<cute::_1, cute::_1, cute::_1>;
using Epilogue = cutlass::epilogue::collective::CollectiveBuilder<
    Sm90, TensorOp, TileShape, ClusterShape, cutlass::epilogue::collective::EpilogueTileAuto, float, float, void,
    RowMajor, 4, float, RowMajor, 4, cutlass::epilogue::NoSmemWarpSpecialized>::CollectiveOp;
using Mainloop =
    cutlass::gemm::collective::CollectiveBuilder<Sm90, TensorOp, cutlass::bfloat16_t, RowMajor, 8, cutlass::bfloat16_t,
                                                 cutlass::layout::ColumnMajor, 8, float, TileShape, ClusterShape,
                                                 cutlass::gemm::collective::StageCount<3>,
                                                 cutlass::gemm::KernelTmaWarpSpecialized>::CollectiveOp;
using Gemm = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>;

// What test_conformance.py counts on when it packs the parameters, whose inner structs have no names to take offsets
// of.
static_assert(sizeof(Gemm::Params) == 896 && Gemm::SharedStorageSize == 49280 && Gemm::MaxThreadsPerBlock == 256);

}  // namespace

extern "C" __global__ void __launch_bounds__(Gemm::MaxThreadsPerBlock, 1)
    collective_gemm(const __grid_constant__ Gemm::Params params) {
  extern __shared__ char shared[];
  Gemm()(params, shared);
}
