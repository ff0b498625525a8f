#include "cpu/scratch.h"

#include <cstdlib>
#include <new>

namespace dflash::cpu {
namespace {

struct Scratch {
  void* data = nullptr;
  size_t size = 0;
  ~Scratch() { std::free(data); }
};

}  // namespace

void* thread_scratch(size_t bytes) {
  thread_local Scratch scratch;
  if (scratch.size < bytes) {
    std::free(scratch.data);
    scratch.size = 0;
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    scratch.data = std::aligned_alloc(64, rounded);
    if (scratch.data == nullptr) throw std::bad_alloc();
    scratch.size = rounded;
  }
  return scratch.data;
}

}  // namespace dflash::cpu
