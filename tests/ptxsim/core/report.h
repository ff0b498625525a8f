// What a launch reports: findings (each a bug of the kernel) and the launch's failure.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace ptxsim {

// Kinds of findings; the text form goes to Python.
enum class Finding : uint8_t {
  kOutOfBounds,
  kMisaligned,
  kReadOnlyWrite,
  kUninitialisedRead,
  kRace,
  kWarpRace,  // two lanes of one warp without bar.warp.sync between them
  kDivergentBarrier,
  kDivergentCollective,
  kExitedBarrier,
  kDeadlock,
  kInstructionLimit,
  kInvalidOperand,
  kAsync,              // asynchronous work outlives what it needs
  kMissingProxyFence,  // ordered, but not between the generic and the asynchronous proxy
  kMbarrier,           // misuse of an mbarrier: counts, phases, use without init
  kWgmmaRegisters,     // registers touched while wgmma has them, or without wgmma.fence
  kDependency,         // what an earlier launch may still be writing, without griddepcontrol.wait
  kTrap,
};
const char* name_of(Finding kind);

struct FindingRecord {
  Finding kind;
  std::string message;
  int32_t instruction = -1;
  int32_t other = -1;  // the second instruction of a race
  uint64_t count = 1;
};

// Ends a launch: the finding that made it impossible to go on has been recorded.
struct LaunchAborted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Collects findings of all worker threads; one record for each kind and pair of instructions.
class FindingList {
 public:
  void add(Finding kind, int32_t instruction, int32_t other, const std::string& message);
  // True when this finding was recorded before, so that the caller need not build its message.
  bool known(Finding kind, int32_t instruction, int32_t other);
  std::vector<FindingRecord> sorted() const;

 private:
  using Key = std::tuple<int32_t, int32_t, Finding>;
  mutable std::mutex mutex_;
  std::map<Key, FindingRecord> records_;
};

}  // namespace ptxsim
