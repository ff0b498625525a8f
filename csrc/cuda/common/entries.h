// The table of kernels by name. Every csrc/cuda/<op>/entries.cu registers its own with one static EntryTable.
#pragma once
#include <cstdint>
#include <initializer_list>

namespace dflash::cuda {

struct Entry {
  const char* name;
  const void* kernel;
  int64_t params_bytes;  // of its one parameter
};

template <typename Params>
Entry entry(const char* name, void (*kernel)(Params)) {
  return {name, reinterpret_cast<const void*>(kernel), sizeof(Params)};
}

struct EntryTable {
  // `op` is empty where the kernels belong to an op that another table names.
  EntryTable(const char* op, std::initializer_list<Entry> entries);
};

}  // namespace dflash::cuda

#define DFLASH_ENTRY(kernel) dflash::cuda::entry(#kernel, &kernel)
