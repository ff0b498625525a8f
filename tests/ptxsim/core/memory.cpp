#include "memory.h"

#include <algorithm>

namespace ptxsim {

uint64_t GlobalMemory::add(const std::string& name, uint8_t* host, uint64_t size, bool read_only, bool undefined,
                           bool settled, uint64_t misalign) {
  if (buffers_.size() != owned_.size()) throw std::logic_error("buffers come before a module's variables");
  auto buffer = std::make_unique<Buffer>();
  buffer->name = name;
  buffer->host = host;
  buffer->size = size;
  buffer->read_only = read_only;
  buffer->settled = settled;
  buffer->track_reads = undefined;
  if (undefined) buffer->written.assign(size, 0);
  buffer->index = static_cast<uint32_t>(buffers_.size());
  buffer->base = window_base(owned_.size() + 1) + misalign;
  buffers_.push_back(buffer.get());
  owned_.push_back(std::move(buffer));
  return buffers_.back()->base;
}

void GlobalMemory::attach(std::vector<std::unique_ptr<Buffer>>& variables) {
  buffers_.resize(owned_.size());
  for (const auto& variable : variables) {
    variable->index = static_cast<uint32_t>(buffers_.size());
    buffers_.push_back(variable.get());
  }
}

void SharedMemory::reset(uint64_t size) {
  // An undefined byte reads as a NaN pattern, so that a kernel that uses it shows wrong values too.
  bytes.assign(size, 0xff);
  written.assign(size, 0);
}

}  // namespace ptxsim
