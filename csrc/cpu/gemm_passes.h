// How the rows of a matrix product are cut into passes of at most kGemmRows rows, each with its own workspace.
#pragma once
#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "plan/skinny_gemm.h"

namespace dflash::cpu {

// Runs pass(first_row, rows, workspace) over [0, rows). Few rows take one pass after another, in the caller's
// workspace, and each shares its columns among the threads. As soon as every thread has a whole pass of its own, the
// passes themselves are shared: the threads meet once instead of several times a pass, and what a pass produces stays
// in its core's cache. A row's result depends on neither.
template <typename Pass>
inline void for_each_gemm_pass(int64_t rows, void* workspace, int64_t workspace_bytes, const Pass& pass) {
  const int64_t threads = thread_count();
  if (threads == 1 || rows < threads * plan::kGemmRows) {
    for (int64_t first_row = 0; first_row < rows; first_row += plan::kGemmRows) {
      pass(first_row, plan::gemm_pass_rows(rows - first_row), workspace);
    }
    return;
  }
  // Equal passes, the same number for every thread.
  const int64_t rounds = (rows + threads * plan::kGemmRows - 1) / (threads * plan::kGemmRows);
  const int64_t pass_rows = plan::round_up((rows + rounds * threads - 1) / (rounds * threads), plan::kGemmRowBlock);
  parallel_ranges((rows + pass_rows - 1) / pass_rows, 1, [&](int64_t begin, int64_t end) {
    void* own = calling_thread_workspace(workspace_bytes);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first_row = i * pass_rows;
      pass(first_row, first_row + pass_rows < rows ? pass_rows : rows - first_row, own);
    }
  });
}

}  // namespace dflash::cpu
