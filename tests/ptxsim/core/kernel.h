// A kernel ready to run: calls inlined, variables placed, operands resolved to places in a warp's register file.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir.h"
#include "memory.h"

namespace ptxsim {

struct KernelParameter {
  std::string name;
  uint64_t offset = 0;
  uint64_t size = 0;
};

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  // A warp's register file: special registers, then constants (both filled from `initial_registers`), then registers.
  uint32_t register_bytes = 0;
  std::vector<uint8_t> initial_registers;
  std::vector<std::pair<SpecialRegister, uint32_t>> specials;  // special registers in use and their slots
  std::vector<KernelParameter> parameters;
  uint64_t parameter_bytes = 0;
  uint64_t static_shared = 0;  // where dynamic shared memory starts
  uint64_t local_bytes = 0;    // of one lane
  bool bulk = false;           // has mbarriers, bulk copies or wgmma
  bool wgmma = false;
  uint32_t max_threads = 0;
  std::array<uint32_t, 3> required_threads{0, 0, 0};
};

// A module with its variables placed and its kernels linked.
class Program {
 public:
  explicit Program(const std::string& text);

  const Kernel& kernel(const std::string& name) const;
  std::vector<std::string> kernel_names() const;
  const Module& module() const { return module_; }
  // Module-scope .global and .const variables; they keep their contents from launch to launch, as on a device.
  std::vector<std::unique_ptr<Buffer>>& variables() { return variables_; }

 private:
  void place_variables();

  Module module_;
  std::vector<std::unique_ptr<Buffer>> variables_;
  std::map<std::string, uint64_t> addresses_;  // of module variables
  std::map<std::string, Kernel> kernels_;
};

// Links one entry of the module (link.cpp).
Kernel link_kernel(const Module& module, const Function& entry, const std::map<std::string, uint64_t>& addresses);

}  // namespace ptxsim
