// Run-time choice of the instruction set.
//
// A kernel lives in `cpu/<op>.isa.cpp`, which CMake compiles once per instruction set with its compiler flags and
// DFLASH_ISA set to the namespace (isa_portable, isa_avx2, isa_avx512, isa_avx512_bf16). Such files include no header
// with non-inlined templates (no <vector>, <algorithm>, <string>): the linker would keep one copy of them, possibly the
// one built for instructions the machine lacks. Threads and argument checks belong to the callers, built once.
#pragma once

namespace dflash::cpu {

enum class Isa : int { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };

// The best instruction set of this machine, or the one asked for by set_isa or DFLASH_OPS_CPU_ISA.
Isa current_isa();
const char* isa_name(Isa isa);
Isa best_isa();
// Returns false, changing nothing, if the name is unknown or the machine lacks the instructions.
bool set_isa(const char* name);

}  // namespace dflash::cpu

// Declares `result name arguments` in every instruction set's namespace.
#if defined(DFLASH_X86)
#define DFLASH_DECLARE_KERNEL(result, name, arguments) \
  namespace dflash::isa_portable {                     \
  result name arguments;                               \
  }                                                    \
  namespace dflash::isa_avx2 {                         \
  result name arguments;                               \
  }                                                    \
  namespace dflash::isa_avx512 {                       \
  result name arguments;                               \
  }                                                    \
  namespace dflash::isa_avx512_bf16 {                  \
  result name arguments;                               \
  }
// The address of kernel `name` for the current instruction set.
#define DFLASH_KERNEL(name)                                                                           \
  (::dflash::cpu::current_isa() == ::dflash::cpu::Isa::kAvx512Bf16 ? &::dflash::isa_avx512_bf16::name \
   : ::dflash::cpu::current_isa() == ::dflash::cpu::Isa::kAvx512   ? &::dflash::isa_avx512::name      \
   : ::dflash::cpu::current_isa() == ::dflash::cpu::Isa::kAvx2     ? &::dflash::isa_avx2::name        \
                                                                   : &::dflash::isa_portable::name)
#else
#define DFLASH_DECLARE_KERNEL(result, name, arguments) \
  namespace dflash::isa_portable {                     \
  result name arguments;                               \
  }
#define DFLASH_KERNEL(name) (&::dflash::isa_portable::name)
#endif
