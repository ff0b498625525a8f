#include "report.h"

namespace ptxsim {

const char* name_of(Finding kind) {
  switch (kind) {
    case Finding::kOutOfBounds:
      return "out_of_bounds";
    case Finding::kMisaligned:
      return "misaligned";
    case Finding::kReadOnlyWrite:
      return "read_only_write";
    case Finding::kUninitialisedRead:
      return "uninitialised_read";
    case Finding::kRace:
      return "race";
    case Finding::kWarpRace:
      return "warp_race";
    case Finding::kDivergentBarrier:
      return "divergent_barrier";
    case Finding::kDivergentCollective:
      return "divergent_collective";
    case Finding::kExitedBarrier:
      return "exited_barrier";
    case Finding::kDeadlock:
      return "deadlock";
    case Finding::kInstructionLimit:
      return "instruction_limit";
    case Finding::kInvalidOperand:
      return "invalid_operand";
    case Finding::kAsync:
      return "async";
    case Finding::kMissingProxyFence:
      return "missing_proxy_fence";
    case Finding::kMbarrier:
      return "mbarrier";
    case Finding::kWgmmaRegisters:
      return "wgmma_registers";
    case Finding::kDependency:
      return "dependency";
    case Finding::kTrap:
      return "trap";
  }
  return "unknown";
}

void FindingList::add(Finding kind, int32_t instruction, int32_t other, const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [record, added] = records_.try_emplace(Key{instruction, other, kind});
  if (added) {
    record->second = {kind, message, instruction, other, 1};
  } else {
    ++record->second.count;
  }
}

bool FindingList::known(Finding kind, int32_t instruction, int32_t other) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = records_.find(Key{instruction, other, kind});
  if (found == records_.end()) return false;
  ++found->second.count;
  return true;
}

std::vector<FindingRecord> FindingList::sorted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<FindingRecord> result;
  for (const auto& [key, record] : records_) result.push_back(record);
  return result;
}

}  // namespace ptxsim
