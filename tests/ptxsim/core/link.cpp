// From a parsed entry to a Kernel. Calls are inlined: each call site gets its own copy of the callee's code, registers
// and local variables, so running needs no call stack; recursion and indirect calls are therefore rejected.
#include <algorithm>
#include <cstring>

#include "alu.h"
#include "kernel.h"

namespace ptxsim {
namespace {

constexpr uint64_t aligned(uint64_t value, uint64_t align) { return (value + align - 1) / align * align; }

[[noreturn]] void fail(const Instruction& in, const std::string& message) {
  throw ParseError("line " + std::to_string(in.source.ptx_line) + ": `" + in.text + "`: " + message);
}

class Linker {
 public:
  Linker(const Module& module, const std::map<std::string, uint64_t>& addresses)
      : module_(module), addresses_(addresses) {}

  Kernel link(const Function& entry) {
    kernel_.name = entry.name;
    kernel_.max_threads = entry.max_threads;
    kernel_.required_threads = entry.required_threads;
    for (const Variable& parameter : entry.parameters) {
      kernel_.parameter_bytes = aligned(kernel_.parameter_bytes, parameter.align);
      kernel_.parameters.push_back({parameter.name, kernel_.parameter_bytes, parameter.size});
      kernel_.parameter_bytes += parameter.size;
    }
    find_dynamic_shared();
    expand(entry, {}, -1);
    place_dynamic_shared();
    assign_slots();
    return std::move(kernel_);
  }

 private:
  // What the names of one inlined function instance mean.
  struct Instance {
    const Function* function;
    uint32_t first_register;
    std::map<std::string, uint64_t> locals;  // .local and .param variables: offset in a lane's local memory
  };

  void find_dynamic_shared() {
    for (const Variable& variable : module_.variables) {
      if (variable.space == Space::kShared && variable.size == 0)
        dynamic_align_ = std::max(dynamic_align_, variable.align);
    }
  }

  uint64_t place_local(const Variable& variable) {
    kernel_.local_bytes = aligned(kernel_.local_bytes, std::max<uint64_t>(variable.align, 16));
    const uint64_t offset = kernel_.local_bytes;
    kernel_.local_bytes += std::max<uint64_t>(variable.size, 1);
    return offset;
  }

  uint64_t place_shared(const Variable& variable, const std::string& key) {
    const auto found = shared_.find(key);
    if (found != shared_.end()) return found->second;
    kernel_.static_shared = aligned(kernel_.static_shared, variable.align);
    const uint64_t offset = kernel_.static_shared;
    kernel_.static_shared += variable.size;
    shared_[key] = offset;
    return offset;
  }

  // Appends `function` to the code. `bindings` gives the caller's variables its parameters stand for.
  void expand(const Function& function, std::map<std::string, uint64_t> bindings, int depth) {
    if (depth > 32) throw ParseError("function `" + function.name + "` is recursive, which is not supported");
    Instance instance{&function, static_cast<uint32_t>(registers_.size()), std::move(bindings)};
    for (const Register& reg : function.registers) registers_.push_back(reg.type);
    for (const Variable& variable : function.variables) {
      if (variable.space == Space::kLocal || variable.space == Space::kParam) {
        instance.locals[variable.name] = place_local(variable);
      }
    }
    std::vector<int32_t> place(function.code.size());  // where each instruction went
    std::vector<size_t> branches;
    std::vector<size_t> returns;
    for (size_t i = 0; i < function.code.size(); ++i) {
      place[i] = static_cast<int32_t>(kernel_.code.size());
      Instruction in = function.code[i];
      rebase(in, instance);
      if (in.opcode == Opcode::kCall) {
        call(in, instance, depth);
        continue;
      }
      if (in.opcode == Opcode::kBra || in.opcode == Opcode::kBrx) branches.push_back(kernel_.code.size());
      if (in.opcode == Opcode::kRet && depth < 0) in.opcode = Opcode::kExit;
      if (in.opcode == Opcode::kRet) {
        in.opcode = Opcode::kBra;
        returns.push_back(kernel_.code.size());
      }
      kernel_.code.push_back(std::move(in));
    }
    for (const size_t b : branches) {
      Instruction& in = kernel_.code[b];
      if (in.target >= 0) in.target = place[static_cast<size_t>(in.target)];
      for (int32_t& target : in.targets) target = place[static_cast<size_t>(target)];
    }
    for (const size_t r : returns) kernel_.code[r].target = static_cast<int32_t>(kernel_.code.size());
  }

  const Function* find_function(const std::string& name) const {
    const Function* prototype = nullptr;
    for (const Function& function : module_.functions) {
      if (function.name != name) continue;
      if (!function.is_prototype) return &function;
      prototype = &function;
    }
    return prototype;
  }

  void call(const Instruction& in, const Instance& caller, int depth) {
    const std::string& name = in.src[0].name;
    const Function* callee = find_function(name);
    Instruction stub = in;
    stub.src.clear();
    stub.dst.clear();
    if (name == "__assertfail" || name == "vprintf") {
      stub.opcode = name == "vprintf" ? Opcode::kNop : Opcode::kTrap;
      kernel_.code.push_back(stub);
      return;
    }
    if (callee == nullptr || callee->is_prototype) fail(in, "function `" + name + "` has no body in this module");
    std::map<std::string, uint64_t> bindings;
    const auto bind = [&](const std::vector<Variable>& formals, const Operand* actuals, size_t count) {
      if (formals.size() != count) fail(in, "the number of arguments does not fit `" + name + "`");
      for (size_t i = 0; i < count; ++i) {
        const auto local = caller.locals.find(actuals[i].name);
        if (formals[i].space != Space::kParam || local == caller.locals.end()) {
          fail(in, "arguments of a call must be .param variables");
        }
        bindings[formals[i].name] = local->second;
      }
    };
    bind(callee->returns, in.dst.data(), in.dst.size());
    bind(callee->parameters, in.src.data() + 1, in.src.size() - 1);
    size_t skip = 0;
    if (in.guarded) {
      stub.opcode = Opcode::kBra;
      stub.guard_negate = !stub.guard_negate;
      skip = kernel_.code.size();
      kernel_.code.push_back(stub);
    }
    expand(*callee, std::move(bindings), depth + 1);
    if (in.guarded) kernel_.code[skip].target = static_cast<int32_t>(kernel_.code.size());
  }

  void rebase(Instruction& in, const Instance& instance) {
    const auto one = [&](Operand& operand) {
      if (operand.kind == OperandKind::kRegister || operand.has_register) operand.reg += instance.first_register;
      if (in.opcode == Opcode::kCall || operand.name.empty()) return;
      resolve_symbol(in, operand, instance);
    };
    for (Operand& operand : in.dst) one(operand);
    for (Operand& operand : in.src) one(operand);
    if (in.guarded) one(in.guard);
  }

  // Turns a symbol into a number: an address, or an offset in the space it lies in.
  void resolve_symbol(Instruction& in, Operand& operand, const Instance& instance) {
    uint64_t address = 0;
    if (!find_symbol(in, operand, instance, address)) fail(in, "unknown symbol `" + operand.name + "`");
    operand.value += address;
    if (operand.kind == OperandKind::kSymbol) operand.kind = OperandKind::kImmediate;
  }

  bool find_symbol(Instruction& in, Operand& operand, const Instance& instance, uint64_t& address) {
    const auto local = instance.locals.find(operand.name);
    if (local != instance.locals.end()) {
      // Parameters of calls are variables in local memory.
      if (in.mod.space == Space::kParam) in.mod.space = Space::kLocal;
      address = local->second;
      return true;
    }
    for (const KernelParameter& parameter : kernel_.parameters) {
      if (parameter.name != operand.name) continue;
      address = parameter.offset;
      return true;
    }
    for (const Variable& variable : instance.function->variables) {
      if (variable.name != operand.name || variable.space != Space::kShared) continue;
      address = place_shared(variable, instance.function->name + "/" + variable.name);
      return true;
    }
    for (const Variable& variable : module_.variables) {
      if (variable.name != operand.name) continue;
      if (variable.space == Space::kShared && variable.size == 0) {
        dynamic_operands_.push_back({kernel_.code.size(), static_cast<size_t>(&operand - in.src.data())});
        address = 0;
      } else if (variable.space == Space::kShared) {
        address = place_shared(variable, variable.name);
      } else {
        address = addresses_.at(variable.name);
      }
      return true;
    }
    return false;
  }

  // Dynamic shared memory begins behind the static variables, whose size is known only now.
  void place_dynamic_shared() {
    kernel_.static_shared = aligned(kernel_.static_shared, dynamic_align_);
    for (const auto& [instruction, operand] : dynamic_operands_) {
      kernel_.code[instruction].src[operand].value += kernel_.static_shared;
    }
  }

  // ---- register file

  uint32_t allocate(bool wide) {
    const uint32_t slot = next_slot_;
    next_slot_ += wide ? 8 * kLanes : 4 * kLanes;
    return slot;
  }

  uint32_t constant(Type type, uint64_t value) {
    const bool predicate = type == Type::kPred;
    const bool wide = is_wide(type);
    const auto key = std::make_tuple(predicate, wide, value);
    const auto found = constants_.find(key);
    if (found != constants_.end()) return found->second;
    const uint32_t slot = allocate(wide);
    kernel_.initial_registers.resize(next_slot_);
    uint8_t* place = kernel_.initial_registers.data() + slot;
    for (int lane = 0; lane < kLanes; ++lane) {
      if (wide) {
        std::memcpy(place + 8 * lane, &value, 8);
      } else {
        const auto narrow = static_cast<uint32_t>(value);
        std::memcpy(place + 4 * lane, &narrow, 4);
      }
    }
    constants_[key] = slot;
    return slot;
  }

  uint32_t special(uint64_t number) {
    const auto which = static_cast<SpecialRegister>(number);
    for (const auto& [reg, slot] : kernel_.specials) {
      if (reg == which) return slot;
    }
    const uint32_t slot = allocate(false);
    kernel_.initial_registers.resize(next_slot_);
    kernel_.specials.emplace_back(which, slot);
    return slot;
  }

  void assign_slots() {
    for (Instruction& in : kernel_.code) {
      kernel_.wgmma = kernel_.wgmma || (in.opcode >= Opcode::kWgmma && in.opcode <= Opcode::kWgmmaWait);
      kernel_.bulk = kernel_.bulk || (in.opcode >= Opcode::kCpAsyncMbarrier && in.opcode <= Opcode::kWgmmaWait);
      const auto constant_or_special = [&](Operand& operand) {
        if (operand.kind == OperandKind::kImmediate) operand.slot = constant(operand.type, operand.value);
        if (operand.kind == OperandKind::kSpecial && operand.value < static_cast<uint64_t>(SpecialRegister::kCount)) {
          operand.slot = special(operand.value);
          operand.register_type = Type::kU32;
        }
      };
      for (Operand& operand : in.src) constant_or_special(operand);
    }
    std::vector<uint32_t> slots(registers_.size());
    for (size_t r = 0; r < registers_.size(); ++r) {
      if (registers_[r] != Type::kPred) slots[r] = allocate(is_wide(registers_[r]));
    }
    for (size_t r = 0; r < registers_.size(); ++r) {
      if (registers_[r] != Type::kPred) continue;
      slots[r] = next_slot_;
      next_slot_ += 4;
    }
    kernel_.register_bytes = static_cast<uint32_t>(aligned(next_slot_, 64));
    for (Instruction& in : kernel_.code) {
      const auto place = [&](Operand& operand) {
        if (operand.kind == OperandKind::kRegister || operand.has_register) operand.slot = slots[operand.reg];
      };
      for (Operand& operand : in.dst) place(operand);
      for (Operand& operand : in.src) place(operand);
      if (in.guarded) place(in.guard);
      in.alu_direct = is_direct(in);
    }
  }

  static bool is_direct(const Instruction& in) {
    if (in.dst.size() > 4 || in.src.size() > 5) return false;
    const auto fits = [](const Operand& operand) {
      if (operand.kind == OperandKind::kSink || operand.kind == OperandKind::kImmediate) return true;
      return !operand.negate && is_wide(operand.register_type) == is_wide(operand.type);
    };
    // cvt fills the register it writes, whatever its width.
    const bool fills = in.opcode == Opcode::kCvt && !is_float(in.type);
    return (fills || std::all_of(in.dst.begin(), in.dst.end(), fits)) &&
           std::all_of(in.src.begin(), in.src.end(), fits);
  }

  const Module& module_;
  const std::map<std::string, uint64_t>& addresses_;
  Kernel kernel_;
  std::vector<Type> registers_;
  std::map<std::string, uint64_t> shared_;
  uint64_t dynamic_align_ = 16;
  std::vector<std::pair<size_t, size_t>> dynamic_operands_;
  std::map<std::tuple<bool, bool, uint64_t>, uint32_t> constants_;
  uint32_t next_slot_ = 0;
};

}  // namespace

Kernel link_kernel(const Module& module, const Function& entry, const std::map<std::string, uint64_t>& addresses) {
  return Linker(module, addresses).link(entry);
}

Program::Program(const std::string& text) : module_(parse_module(text)) {
  place_variables();
  for (const Function& function : module_.functions) {
    if (function.is_entry && !function.is_prototype)
      kernels_[function.name] = link_kernel(module_, function, addresses_);
  }
}

void Program::place_variables() {
  for (const Variable& variable : module_.variables) {
    if (variable.space == Space::kShared) continue;
    auto buffer = std::make_unique<Buffer>();
    buffer->name = variable.name;
    buffer->owned = variable.initial;
    buffer->owned.resize(std::max<uint64_t>(variable.size, 1));
    buffer->host = buffer->owned.data();
    buffer->size = variable.size;
    buffer->base = window_base(kFirstVariableWindow + variables_.size());
    buffer->read_only = variable.space == Space::kConst;
    buffer->settled = buffer->read_only;
    addresses_[variable.name] = buffer->base;
    variables_.push_back(std::move(buffer));
  }
  size_t index = 0;
  for (const Variable& variable : module_.variables) {
    if (variable.space == Space::kShared) continue;
    for (const auto& [offset, name] : variable.pointers) {
      const auto found = addresses_.find(name);
      if (found == addresses_.end())
        throw ParseError("initialiser of `" + variable.name + "`: unknown symbol `" + name + "`");
      std::memcpy(variables_[index]->owned.data() + offset, &found->second, 8);
    }
    ++index;
  }
}

const Kernel& Program::kernel(const std::string& name) const {
  const auto found = kernels_.find(name);
  if (found != kernels_.end()) return found->second;
  std::string names;
  for (const auto& [known, unused] : kernels_) names += " " + known;
  throw std::invalid_argument("entry: expected one of" + names + ", got " + name);
}

std::vector<std::string> Program::kernel_names() const {
  std::vector<std::string> names;
  for (const auto& [name, unused] : kernels_) names.push_back(name);
  return names;
}

}  // namespace ptxsim
