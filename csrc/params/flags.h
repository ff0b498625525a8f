#pragma once
#include <cstdint>

namespace dflash {

// A flag of a bool tensor. Views of other data hold bytes besides 0 and 1, which no bool may be loaded from.
inline bool flag_at(const bool* flags, int64_t index) { return reinterpret_cast<const uint8_t*>(flags)[index] != 0; }

}  // namespace dflash
