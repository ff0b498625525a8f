#include "cpu/isa.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace dflash::cpu {
namespace {

constexpr const char* kNames[] = {"portable", "avx2", "avx512", "avx512_bf16"};

int index_of(const char* name) {
  for (int i = 0; i < 4; ++i) {
    if (std::strcmp(kNames[i], name) == 0) return i;
  }
  return -1;
}

Isa detect() {
#if defined(DFLASH_X86)
  __builtin_cpu_init();
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))) {
    return Isa::kPortable;
  }
#if defined(DFLASH_EMULATE_AVX512)
  return Isa::kAvx512Bf16;
#endif
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))) {
    return Isa::kAvx2;
  }
  return __builtin_cpu_supports("avx512bf16") ? Isa::kAvx512Bf16 : Isa::kAvx512;
#else
  return Isa::kPortable;
#endif
}

Isa initial_isa() {
  const Isa best = best_isa();
  const char* wanted = std::getenv("DFLASH_OPS_CPU_ISA");
  const int index = wanted ? index_of(wanted) : -1;
  return index >= 0 && index <= static_cast<int>(best) ? static_cast<Isa>(index) : best;
}

std::atomic<Isa>& isa_slot() {
  static std::atomic<Isa> slot{initial_isa()};
  return slot;
}

}  // namespace

Isa best_isa() {
  static const Isa best = detect();
  return best;
}

Isa current_isa() { return isa_slot().load(std::memory_order_relaxed); }

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool set_isa(const char* name) {
  const int index = index_of(name);
  if (index < 0 || index > static_cast<int>(best_isa())) return false;
  isa_slot().store(static_cast<Isa>(index), std::memory_order_relaxed);
  return true;
}

}  // namespace dflash::cpu
