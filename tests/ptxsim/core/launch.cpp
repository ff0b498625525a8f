#include "launch.h"

#include <deque>
#include <numeric>
#include <thread>

namespace ptxsim {
namespace {

// A block that has not finished after this many warp instructions may be waiting for another block: the worker starts
// the next one beside it and alternates.
constexpr uint64_t kBlockSlice = 20'000'000;

// Blocks start in an order as free as that of the warps: ascending, descending, or in seeded strides.
uint64_t block_at(uint64_t turn, uint64_t blocks, const LaunchOptions& options) {
  if (options.schedule == Schedule::kGreedy) return blocks - 1 - turn;
  if (options.schedule != Schedule::kRandom) return turn;
  uint64_t stride = 1 + (options.seed * 0x9e3779b97f4a7c15ull + 0x7f4a7c15ull) % blocks;
  while (std::gcd(stride, blocks) != 1) ++stride;
  return (turn * stride + options.seed) % blocks;
}

void work(Launch& launch, std::atomic<uint64_t>& next_block, Counters& counters) {
  Executor executor(launch, counters);
  const uint64_t blocks = launch.grid.count();
  std::deque<std::unique_ptr<Block>> resident;
  bool more = true;
  try {
    while (more || !resident.empty()) {
      if (more) {
        const uint64_t turn = next_block++;
        more = turn < blocks;
        if (more) {
          resident.push_back(std::make_unique<Block>());
          executor.start(*resident.back(), static_cast<uint32_t>(block_at(turn, blocks, launch.options)));
        }
      }
      for (size_t count = resident.size(); count > 0; --count) {
        std::unique_ptr<Block> block = std::move(resident.front());
        resident.pop_front();
        if (!executor.run(*block, kBlockSlice)) resident.push_back(std::move(block));
      }
    }
  } catch (const LaunchAborted&) {
    launch.stopped = true;
  }
}

void check_launch(const Kernel& kernel, Dimensions grid, Dimensions block, const std::vector<uint8_t>& parameters) {
  const uint64_t threads = block.count();
  if (threads == 0 || threads > 1024)
    throw std::invalid_argument("block: expected 1 to 1024 threads, got " + std::to_string(threads));
  if (grid.count() == 0 || grid.y > 65535 || grid.z > 65535 || grid.x > 0x7fffffffu) {
    throw std::invalid_argument("grid: expected 1 to 2^31-1 x 65535 x 65535 blocks");
  }
  if (kernel.max_threads != 0 && threads > kernel.max_threads) {
    throw std::invalid_argument("block: expected at most " + std::to_string(kernel.max_threads) +
                                " threads (__launch_bounds__), got " + std::to_string(threads));
  }
  const auto& required = kernel.required_threads;
  if (required[0] != 0 && (required[0] != block.x || required[1] != block.y || required[2] != block.z)) {
    throw std::invalid_argument("block: differs from the kernel's .reqntid");
  }
  if (parameters.size() != kernel.parameter_bytes) {
    throw std::invalid_argument("parameters: expected " + std::to_string(kernel.parameter_bytes) + " bytes, got " +
                                std::to_string(parameters.size()));
  }
}

}  // namespace

LaunchResult run_launch(Program& program, const std::string& entry, GlobalMemory& memory, Dimensions grid,
                        Dimensions block, uint64_t dynamic_shared, std::vector<uint8_t> parameters,
                        const LaunchOptions& options) {
  const Kernel& kernel = program.kernel(entry);
  check_launch(kernel, grid, block, parameters);
  memory.attach(program.variables());
  Launch launch(kernel, memory);
  launch.options = options;
  launch.grid = grid;
  launch.block = block;
  launch.dynamic_shared = dynamic_shared;
  launch.parameters = std::move(parameters);
  for (const Buffer* buffer : memory.buffers()) {
    launch.shadows.push_back(std::make_unique<Shadow>(options.races && !buffer->read_only ? buffer->size + 256 : 0));
  }
  const auto workers =
      static_cast<size_t>(std::max<int64_t>(1, std::min<int64_t>(options.threads, static_cast<int64_t>(grid.count()))));
  std::vector<Counters> counters(workers);
  for (Counters& c : counters) {
    c.instructions.resize(kernel.code.size());
    c.buffers.resize(memory.buffers().size());
  }
  std::atomic<uint64_t> next_block{0};
  std::vector<std::thread> threads;
  for (size_t w = 1; w < workers; ++w) {
    threads.emplace_back([&launch, &next_block, &counters, w] { work(launch, next_block, counters[w]); });
  }
  work(launch, next_block, counters[0]);
  for (std::thread& thread : threads) thread.join();
  LaunchResult result;
  for (const Counters& c : counters) result.counters.merge(c);
  result.findings = launch.findings.sorted();
  result.completed = !launch.stopped;
  result.instructions = launch.instructions;
  return result;
}

}  // namespace ptxsim
