// Which instruction set the CPU kernels use; settable so that tests and benchmarks can compare them.
#include <torch/csrc/stable/library.h>

#include <string>

#include "bindings/checks.h"
#include "cpu/isa.h"

namespace dflash::bindings {

std::string cpu_isa() { return cpu::isa_name(cpu::current_isa()); }

void set_cpu_isa(const std::string& name) {
  if (!cpu::set_isa(name.c_str())) {
    raise("set_cpu_isa", "name",
          std::string("one of portable, avx2, avx512, avx512_bf16 up to ") + cpu::isa_name(cpu::best_isa()) +
              " (what this machine has)",
          name);
  }
}

}  // namespace dflash::bindings

STABLE_TORCH_LIBRARY_FRAGMENT(dflash_ops, m) {
  m.def("cpu_isa() -> str");
  m.def("set_cpu_isa(str name) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(dflash_ops, CompositeExplicitAutograd, m) {
  m.impl("cpu_isa", TORCH_BOX(&dflash::bindings::cpu_isa));
  m.impl("set_cpu_isa", TORCH_BOX(&dflash::bindings::set_cpu_isa));
}
