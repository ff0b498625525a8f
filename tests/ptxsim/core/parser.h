// Internal to the parser: module level (parser.cpp), function bodies (parse_body.cpp), instruction families
// (parse_*.cpp).
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "lexer.h"

namespace ptxsim {

Type type_named(const std::string& name);  // kNone when it is no type

// Parses variables; shared by module scope and function bodies. The stream stands behind the space directive.
Variable parse_variable(TokenStream& in, Space space, bool is_extern);
void parse_initialiser(TokenStream& in, Variable& variable);

// One operand, or several in braces or joined by `|`.
struct OperandGroup {
  std::vector<Operand> items;
  bool braces = false;
};

// The modifiers of one opcode. A decoder takes those it knows; what is left over is an error.
class ModifierList {
 public:
  explicit ModifierList(std::vector<std::string> names) : names_(std::move(names)), taken_(names_.size(), false) {}

  bool take(const std::string& name);
  bool take_prefix(const std::string& prefix);  // takes every modifier with this prefix
  Type take_type();                             // the next type in order, kNone when there is none
  std::string take_any();                       // the next one not taken, "" at the end
  const std::string* first_left() const;

 private:
  std::vector<std::string> names_;
  std::vector<bool> taken_;
};

// One instruction being decoded.
struct Decode {
  Instruction& in;
  ModifierList& mods;
  std::vector<OperandGroup>& groups;
  std::string name;  // first part of the opcode

  [[noreturn]] void fail(const std::string& message) const;
  Type need_type();
  void operands(size_t least, size_t most) const;
  // Appends a group to dst or src with the type each of its items is read as.
  void to_dst(size_t group, Type type);
  void to_src(size_t group, Type type);
  Operand single(size_t group) const;
  void address(size_t group);  // to src, checked to be one
};

// Modifiers several families share (parse_memory.cpp).
Space take_space(Decode& d, Space otherwise);
void take_scope(Decode& d);
void take_semantics(Decode& d);
bool take_cache_hints(Decode& d);  // whether a cache policy operand follows
AtomicOp take_atomic_op(Decode& d);
void need(Decode& d, const char* modifier);  // the modifier must be there
void decode_wgmma(Decode& d);                // parse_wgmma.cpp
void decode_bulk(Decode& d, bool reduce);    // cp.async.bulk and cp.reduce.async.bulk (parse_async.cpp)

const std::unordered_map<std::string, SpecialRegister>& special_registers();

// Converts an immediate to the bits of `type`.
void set_type(Operand& operand, Type type);

using Decoder = void (*)(Decode&);
using DecoderTable = std::unordered_map<std::string, Decoder>;
const DecoderTable& arithmetic_decoders();
const DecoderTable& memory_decoders();
const DecoderTable& control_decoders();
const DecoderTable& tensor_decoders();
const DecoderTable& async_decoders();

void parse_body(TokenStream& in, Function& function);
void parse_location(TokenStream& in, SourceLine& location);

}  // namespace ptxsim
