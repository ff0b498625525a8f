#include "counters.h"

#include <algorithm>

namespace ptxsim {

void Counters::merge(const Counters& other) {
  instructions.resize(std::max(instructions.size(), other.instructions.size()));
  buffers.resize(std::max(buffers.size(), other.buffers.size()));
  for (size_t i = 0; i < other.instructions.size(); ++i) {
    InstructionCounters& to = instructions[i];
    const InstructionCounters& from = other.instructions[i];
    to.executions += from.executions;
    to.active_lanes += from.active_lanes;
    to.global_bytes += from.global_bytes;
    to.sectors += from.sectors;
    to.ideal_sectors += from.ideal_sectors;
    to.wavefronts += from.wavefronts;
    to.ideal_wavefronts += from.ideal_wavefronts;
  }
  for (size_t i = 0; i < other.buffers.size(); ++i) {
    buffers[i].load_bytes += other.buffers[i].load_bytes;
    buffers[i].store_bytes += other.buffers[i].store_bytes;
    buffers[i].load_sectors += other.buffers[i].load_sectors;
    buffers[i].store_sectors += other.buffers[i].store_sectors;
  }
  barriers += other.barriers;
}

namespace {

// The number of distinct values; sorts in place unless they already ascend.
template <typename T>
uint32_t distinct(T* values, uint32_t count) {
  if (count == 0) return 0;
  if (!std::is_sorted(values, values + count)) std::sort(values, values + count);
  uint32_t result = 1;
  for (uint32_t i = 1; i < count; ++i) result += values[i] != values[i - 1];
  return result;
}

}  // namespace

TrafficCount count_sectors(const uint64_t* addresses, uint32_t mask, int bytes) {
  uint64_t lanes[kLanes];
  uint64_t sectors[kLanes];
  uint32_t count = 0;
  for (; mask != 0; mask &= mask - 1) lanes[count++] = addresses[__builtin_ctz(mask)];
  const uint32_t requests = distinct(lanes, count);
  for (uint32_t i = 0; i < count; ++i) sectors[i] = lanes[i] / 32;
  TrafficCount result;
  result.units = distinct(sectors, count);
  result.ideal = (requests * static_cast<uint32_t>(bytes) + 31) / 32;
  return result;
}

TrafficCount count_wavefronts(const uint32_t* addresses, uint32_t mask, int bytes) {
  TrafficCount result;
  const int lanes_at_once = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  for (int first = 0; first < kLanes; first += lanes_at_once) {
    const uint32_t group = lanes_at_once == 32 ? kFullMask : ((1u << lanes_at_once) - 1) << first;
    uint32_t words[kLanes];
    uint32_t count = 0;
    for (uint32_t left = mask & group; left != 0; left &= left - 1) {
      const uint32_t address = addresses[__builtin_ctz(left)];
      for (int offset = 0; offset < std::max(bytes, 4); offset += 4)
        words[count++] = (address + static_cast<uint32_t>(offset)) / 4;
    }
    if (count == 0) continue;
    if (!std::is_sorted(words, words + count)) std::sort(words, words + count);
    uint8_t per_bank[32] = {};
    uint32_t deepest = 0;
    uint32_t unique = 0;
    for (uint32_t i = 0; i < count; ++i) {
      if (i > 0 && words[i] == words[i - 1]) continue;
      ++unique;
      deepest = std::max<uint32_t>(deepest, ++per_bank[words[i] % 32]);
    }
    result.units += deepest;
    result.ideal += (unique + 31) / 32;
  }
  return result;
}

}  // namespace ptxsim
