#include "cpu/scratch.h"

#include <cstdlib>
#include <new>

namespace dflash::cpu {
namespace {

class GrowingMemory {
 public:
  ~GrowingMemory() { std::free(data_); }

  void* at_least(size_t bytes) {
    if (size_ < bytes) {
      std::free(data_);
      size_ = 0;
      const size_t rounded = (bytes + 4095) / 4096 * 4096;
      data_ = std::aligned_alloc(64, rounded);
      if (data_ == nullptr) throw std::bad_alloc();
      size_ = rounded;
    }
    return data_;
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace

void* thread_scratch(size_t bytes) {
  thread_local GrowingMemory memory;
  return memory.at_least(bytes);
}

void* calling_thread_workspace(size_t bytes) {
  thread_local GrowingMemory memory;
  return memory.at_least(bytes);
}

}  // namespace dflash::cpu
