// How row_argmax and verify_greedy cut rows of logits into stretches, and the workspace in which the blocks of a row
// meet: arrival counters, then every stretch's best (csrc/cuda/common/argmax.cuh).
#pragma once
#include <cstdint>

#include "params/dtype.h"
#include "plan/device.h"

namespace dflash::cuda {

constexpr int kArgmaxThreads = 256;  // of a block
constexpr int kArgmaxChunkBytes = 16;
constexpr int kArgmaxLineBytes = 128;  // stretches begin at such an address

// What the kernels need of it.
struct ArgmaxRows {
  uint32_t* arrivals;      // zero before a launch and after it
  uint64_t* stretch_best;  // [rows][stretches]
  uint32_t stretches;      // of a row
  uint32_t stretch_chunks;
};

ArgmaxRows argmax_rows(int64_t rows, int64_t columns, DType dtype, void* workspace, const DeviceProperties& device);

// On any device, for any dtype and number of columns.
int64_t argmax_rows_workspace_bytes(int64_t rows);

}  // namespace dflash::cuda
