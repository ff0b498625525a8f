// Device memory: named global buffers, module variables, shared, local, constant and parameter space.
//
// Every global buffer has its own window of 2^40 addresses, so an access outside of it, however far, hits no other
// buffer. Bytes stay where the caller has them (no copies): a test may use views into one large allocation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir.h"

namespace ptxsim {

constexpr int kWindowBits = 40;
constexpr uint64_t kWindowSize = uint64_t{1} << kWindowBits;
// Windows of the generic address space; buffers have the numbers from 1 on.
constexpr uint64_t kSharedWindow = 0x7001;
constexpr uint64_t kLocalWindow = 0x7002;
constexpr uint64_t kParamWindow = 0x7003;
constexpr uint64_t kFirstVariableWindow = 0x7100;  // module-scope .global and .const variables
constexpr uint64_t window_base(uint64_t window) { return window << kWindowBits; }

struct Buffer {
  std::string name;
  uint8_t* host = nullptr;
  uint64_t size = 0;
  uint64_t base = 0;  // device address of the first byte, a multiple of 256 (plus `misalign`)
  bool read_only = false;
  bool settled = false;          // no launch that may still be running writes it
  bool track_reads = false;      // contents are undefined before the kernel writes them
  std::vector<uint8_t> written;  // per byte, when track_reads
  std::vector<uint8_t> owned;    // storage of module variables
  uint32_t index = 0;            // in GlobalMemory::buffers()
};

// The buffers of one launch. Addresses depend only on the order of `add`, so runs repeat exactly.
class GlobalMemory {
 public:
  // Returns the device address. `misalign` shifts it off its 256-byte alignment.
  uint64_t add(const std::string& name, uint8_t* host, uint64_t size, bool read_only, bool undefined, bool settled,
               uint64_t misalign);
  // Makes a module's variables part of the address space; they count after the buffers.
  void attach(std::vector<std::unique_ptr<Buffer>>& variables);

  Buffer* find(uint64_t address) {
    const uint64_t window = address >> kWindowBits;
    if (window - 1 < owned_.size()) return buffers_[window - 1];
    if (window - kFirstVariableWindow < buffers_.size() - owned_.size()) {
      return buffers_[owned_.size() + window - kFirstVariableWindow];
    }
    return nullptr;
  }
  const std::vector<Buffer*>& buffers() const { return buffers_; }

 private:
  std::vector<std::unique_ptr<Buffer>> owned_;
  std::vector<Buffer*> buffers_;  // owned ones, then attached variables
};

// Shared memory of one block, with a mark per byte for "written".
struct SharedMemory {
  std::vector<uint8_t> bytes;
  std::vector<uint8_t> written;

  void reset(uint64_t size);
};

}  // namespace ptxsim
