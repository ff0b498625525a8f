// Register arithmetic: pure functions on vectors of 32 lanes.
//
// A lane's value lives in a 32-bit slot, or a 64-bit slot for 64-bit types; 8- and 16-bit values are zero-extended in
// their slot. A predicate is one 32-bit mask. Functions compute all 32 lanes, also inactive ones (the caller blends),
// so none may trap. A destination may be the same register as a source, never a shifted part of it.
#pragma once

#include <cstdint>

#include "ir.h"

namespace ptxsim {

struct AluArguments {
  void* dst[4] = {};
  const void* src[5] = {};
  uint32_t* carry = nullptr;  // condition code, a bit a lane
  const Instruction* instruction = nullptr;
};

// The function for an instruction of the arithmetic opcodes, null when it is none of them. Throws std::invalid_argument
// for a combination of type and modifiers PTX does not have.
AluFunction alu_function(const Instruction& instruction);

// Families; each returns null when the opcode is not its own.
AluFunction integer_function(const Instruction& instruction);
AluFunction bit_function(const Instruction& instruction);
AluFunction float_function(const Instruction& instruction);
AluFunction half_function(const Instruction& instruction);
AluFunction convert_function(const Instruction& instruction);
AluFunction compare_function(const Instruction& instruction);

// What an atomic operation or a reduction stores (execute_atomics.cpp).
uint64_t atomic_result(Type type, AtomicOp op, uint64_t old, uint64_t operand);

}  // namespace ptxsim
