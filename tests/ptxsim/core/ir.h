// The typed form of a PTX module: what the parser produces and the linker and executor read.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "instruction_set.h"

namespace ptxsim {

constexpr int kLanes = 32;
constexpr uint32_t kFullMask = 0xffffffffu;

enum class OperandKind : uint8_t {
  kSink,  // `_`
  kRegister,
  kImmediate,  // value holds the bits, already converted to `type`
  kSpecial,    // %tid.x and the like; value holds a SpecialRegister
  kSymbol,     // a variable's address (plus value)
  kAddress,    // [register + value] or [symbol + value] or [value]
  kLabel,
};

enum class Literal : uint8_t { kInteger, kF32, kF64 };  // how an immediate was written

struct Operand {
  OperandKind kind = OperandKind::kSink;
  Literal literal = Literal::kInteger;
  Type type = Type::kNone;           // how the instruction reads or writes it
  Type register_type = Type::kNone;  // declared type of the register
  bool negate = false;               // !%p
  uint32_t reg = 0;                  // register number in its function (base register of an address)
  bool has_register = false;         // address with a base register
  uint64_t value = 0;                // immediate bits, address offset, special register
  std::string name;                  // symbol or label
  // Filled by the linker: byte offset of the value in a warp's register file (registers, immediates, special
  // registers).
  uint32_t slot = 0;
};

struct SourceLine {
  uint32_t ptx_line = 0;
  uint32_t file = 0;        // index of .file, 0 = unknown
  uint32_t line = 0;        // .cu line of .loc; for inlined code the innermost line
  uint32_t outer_file = 0;  // where the outermost inlined_at points; equals file/line otherwise
  uint32_t outer_line = 0;
};

struct AluArguments;
using AluFunction = void (*)(const AluArguments&);

struct Instruction {
  Opcode opcode = Opcode::kNop;
  Type type = Type::kNone;         // operation type; for cvt and mma the destination's
  Type source_type = Type::kNone;  // cvt, set, mma A
  Type type_b = Type::kNone;       // mma B
  Type type_c = Type::kNone;       // mma C
  Modifiers mod;
  bool guarded = false;
  bool guard_negate = false;
  Operand guard;
  std::vector<Operand> dst;
  std::vector<Operand> src;      // braces flattened
  int32_t target = -1;           // branch: index in the function's code
  std::vector<int32_t> targets;  // brx.idx: the table
  SourceLine source;
  std::string text;  // the statement, for messages
  // Filled by the linker
  AluFunction alu = nullptr;
  bool alu_direct = false;  // every operand's lanes have the width the function expects
};

struct Variable {
  std::string name;
  Space space = Space::kGlobal;
  Type type = Type::kB8;
  uint64_t size = 0;  // bytes; 0 for .extern .shared arrays
  uint64_t align = 1;
  bool is_extern = false;
  std::vector<uint8_t> initial;                            // empty: zeros (global, const) or nothing
  std::vector<std::pair<uint64_t, std::string>> pointers;  // initialisers that are addresses: byte offset, symbol
};

struct Register {
  std::string name;
  Type type;
};

struct Function {
  std::string name;
  bool is_entry = false;
  bool is_prototype = false;         // declared, not defined
  std::vector<Variable> parameters;  // space kParam (with offsets for an entry) or kReg
  std::vector<Variable> returns;
  std::vector<Register> registers;
  std::vector<Variable> variables;  // .local, .shared, .param declared in the body
  std::vector<Instruction> code;
  uint32_t max_threads = 0;  // product of .maxntid, 0 = not given
  std::array<uint32_t, 3> required_threads{0, 0, 0};
};

struct Module {
  std::string target;  // sm_80, sm_90a, ...
  std::vector<Variable> variables;
  std::vector<Function> functions;
  std::map<uint32_t, std::string> files;
};

// Any complaint about the text: "line 12: `mma.sync...`: expected ..., got ...".
struct ParseError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Module parse_module(const std::string& text);

}  // namespace ptxsim
