// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC11), counter-based: the
// random number of a token depends on its request's seed and its place in the request alone.
#pragma once
#include <cstdint>

#include "params/host_device.h"

namespace dflash {

// 53 random bits: from words 0 and 1 of the block with key = seed, counter = (counter, 0).
DFLASH_HOST_DEVICE inline uint64_t philox_bits(uint64_t seed, uint64_t counter) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  uint32_t word[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(0xD2511F53u) * word[0];
    const uint64_t product1 = static_cast<uint64_t>(0xCD9E8D57u) * word[2];
    const uint32_t next[4] = {static_cast<uint32_t>(product1 >> 32) ^ word[1] ^ key0, static_cast<uint32_t>(product1),
                              static_cast<uint32_t>(product0 >> 32) ^ word[3] ^ key1, static_cast<uint32_t>(product0)};
    for (int i = 0; i < 4; ++i) word[i] = next[i];
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return ((static_cast<uint64_t>(word[0]) << 32) | word[1]) >> 11;
}

// The same as a number in [0, 1).
DFLASH_HOST_DEVICE inline double philox_uniform(uint64_t seed, uint64_t counter) {
  return static_cast<double>(philox_bits(seed, counter)) * 0x1.0p-53;
}

}  // namespace dflash
