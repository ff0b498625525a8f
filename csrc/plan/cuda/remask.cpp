#include "plan/cuda/remask.h"

#include "plan/cuda/workspace.h"

namespace dflash::cuda {
namespace {

// What argmax_rows needs, a float for each of its 8-byte bests, a key and a choice for each row.
struct Layout {
  explicit Layout(int64_t rows)
      : sums(ceil_div(argmax_rows_workspace_bytes(rows), 64) * 64),
        keys(sums + ceil_div((argmax_rows_workspace_bytes(rows) - kCounterBytes) / 2, 64) * 64),
        choices(keys + 8 * rows),
        bytes(choices + 8 * rows) {}
  int64_t sums, keys, choices, bytes;  // offsets
};

}  // namespace

LaunchPlan plan_remask(const RemaskParams& params, void* workspace, const DeviceProperties& device) {
  constexpr const char* kEntries[] = {"remask_float32", "remask_float16", "remask_bfloat16"};
  const int64_t rows = params.batch * params.positions;
  const Layout layout(rows);
  auto* bytes = static_cast<unsigned char*>(workspace);
  RemaskLaunch launch{};
  launch.op = params;
  launch.rows = argmax_rows(rows, params.vocabulary, params.dtype, workspace, device);
  launch.stretch_sums = reinterpret_cast<float*>(bytes + layout.sums);
  launch.keys = reinterpret_cast<uint64_t*>(bytes + layout.keys);
  launch.choices = reinterpret_cast<int64_t*>(bytes + layout.choices);
  return make_launch(kEntries[static_cast<int>(params.dtype)], {rows, launch.rows.stretches}, {kArgmaxThreads}, 0,
                     launch, layout.bytes);
}

int64_t remask_workspace_bytes(int64_t batch, int64_t positions) { return Layout(batch * positions).bytes; }

}  // namespace dflash::cuda
