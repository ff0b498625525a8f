// Function bodies: declarations, scopes, labels, operands, and the dispatch of instructions to their decoders.
#include <algorithm>
#include <cstring>

#include "alu.h"
#include "parser.h"

namespace ptxsim {
namespace {

std::vector<std::string> split_dots(const std::string& opcode) {
  std::vector<std::string> parts(1);
  for (const char c : opcode) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

class BodyParser {
 public:
  BodyParser(TokenStream& in, Function& function) : in_(in), function_(function) {}

  void run() {
    in_.expect("{");
    scopes_.push_back({-1, {}, {}, {}, {}});
    scope_ = 0;
    for (const auto* list : {&function_.returns, &function_.parameters}) {
      for (const Variable& v : *list) {
        if (v.space == Space::kReg) add_register(v.name, v.type);
      }
    }
    while (true) {
      if (in_.peek().kind == Token::kEnd) in_.fail("function `" + function_.name + "` has no end");
      if (in_.accept("}")) {
        if (scope_ == 0) break;
        scope_ = scopes_[scope_].parent;
      } else if (in_.accept("{")) {
        scopes_.push_back({scope_, {}, {}, {}, {}});
        scope_ = static_cast<int>(scopes_.size()) - 1;
      } else {
        statement();
      }
    }
    resolve_labels();
  }

 private:
  struct Scope {
    int parent;
    std::unordered_map<std::string, uint32_t> registers;
    std::unordered_map<std::string, std::string> variables;  // name here -> unique name in the function
    std::unordered_map<std::string, int32_t> labels;
    std::unordered_map<std::string, std::vector<std::string>> tables;
  };
  struct PendingBranch {
    size_t instruction;
    int scope;
    std::string label;
    bool table;
  };

  void add_register(const std::string& name, Type type) {
    scopes_[scope_].registers[name] = static_cast<uint32_t>(function_.registers.size());
    function_.registers.push_back({name, type});
  }

  void declare_registers() {
    const std::string directive = in_.word("a type");
    const Type type = type_named(directive.substr(1));
    if (type == Type::kNone || type == Type::kB128) in_.fail("registers of type `" + directive + "` are not supported");
    do {
      const std::string name = in_.word("a register name");
      if (in_.accept("<")) {
        const int64_t count = in_.integer();
        in_.expect(">");
        for (int64_t i = 0; i < count; ++i) add_register(name + std::to_string(i), type);
      } else {
        add_register(name, type);
      }
    } while (in_.accept(","));
    in_.expect(";");
  }

  void declare_variables(Space space) {
    do {
      Variable variable = parse_variable(in_, space, false);
      std::string unique = variable.name;
      if (scope_ != 0) unique += "@" + std::to_string(scope_);
      scopes_[scope_].variables[variable.name] = unique;
      variable.name = unique;
      function_.variables.push_back(std::move(variable));
    } while (in_.accept(","));
    in_.expect(";");
  }

  void statement() {
    const Token first = in_.peek();
    if (first.kind == Token::kWord && in_.peek(1).text == ":" && in_.peek(1).kind == Token::kPunctuation) {
      in_.next();
      in_.next();
      label(first.text);
    } else if (first.kind == Token::kWord && first.text[0] == '.') {
      in_.next();
      directive(first.text);
    } else {
      instruction();
    }
  }

  void label(const std::string& name) {
    if (in_.accept(".branchtargets")) {
      std::vector<std::string>& table = scopes_[scope_].tables[name];
      do {
        table.push_back(in_.word("a label"));
      } while (in_.accept(","));
      in_.expect(";");
    } else if (in_.at(".callprototype") || in_.at(".calltargets")) {
      in_.fail("indirect calls are not supported");
    } else if (!scopes_[scope_].labels.emplace(name, static_cast<int32_t>(function_.code.size())).second) {
      in_.fail("label `" + name + "` is defined twice");
    }
  }

  void directive(const std::string& name) {
    if (name == ".loc") {
      parse_location(in_, location_);
    } else if (name == ".reg") {
      declare_registers();
    } else if (name == ".local") {
      declare_variables(Space::kLocal);
    } else if (name == ".shared") {
      declare_variables(Space::kShared);
    } else if (name == ".param") {
      declare_variables(Space::kParam);
    } else if (name == ".pragma") {
      in_.next();
      in_.expect(";");
    } else {
      in_.fail("unknown directive `" + name + "` in a function");
    }
  }

  // ---- operands

  bool find_register(const std::string& name, Operand& operand) const {
    for (int s = scope_; s >= 0; s = scopes_[s].parent) {
      const auto found = scopes_[s].registers.find(name);
      if (found == scopes_[s].registers.end()) continue;
      operand.kind = OperandKind::kRegister;
      operand.reg = found->second;
      operand.register_type = function_.registers[found->second].type;
      return true;
    }
    return false;
  }

  std::string unique_name(const std::string& name) const {
    for (int s = scope_; s >= 0; s = scopes_[s].parent) {
      const auto found = scopes_[s].variables.find(name);
      if (found != scopes_[s].variables.end()) return found->second;
    }
    return name;
  }

  Operand number(bool negative) {
    Operand operand;
    operand.kind = OperandKind::kImmediate;
    const std::string text = in_.next().text;
    const bool prefixed = text.size() > 2 && text[0] == '0' && std::isalpha(static_cast<unsigned char>(text[1]));
    const char kind = prefixed ? static_cast<char>(std::tolower(text[1])) : '0';
    if (kind == 'f' || kind == 'd') {
      operand.literal = kind == 'f' ? Literal::kF32 : Literal::kF64;
      operand.value = std::stoull(text.substr(2), nullptr, 16);
      if (negative) operand.value ^= kind == 'f' ? uint64_t{1} << 31 : uint64_t{1} << 63;
    } else if (!prefixed && text.find_first_of(".eE") != std::string::npos) {
      const double value = negative ? -std::stod(text) : std::stod(text);
      operand.literal = Literal::kF64;
      std::memcpy(&operand.value, &value, 8);
    } else if (kind == 'b') {
      operand.value = std::stoull(text.substr(2), nullptr, 2);
    } else {
      operand.value = std::stoull(text, nullptr, 0);
    }
    if (negative && operand.literal == Literal::kInteger) operand.value = -operand.value;
    return operand;
  }

  Operand operand() {
    Operand operand;
    if (in_.accept("!")) {
      operand = this->operand();
      operand.negate = !operand.negate;
      return operand;
    }
    if (in_.accept("-")) {
      if (in_.peek().kind != Token::kNumber) in_.fail("`-` needs a number");
      return number(true);
    }
    if (in_.peek().kind == Token::kNumber) return number(false);
    const std::string name = in_.word("an operand");
    if (name == "_") return operand;
    if (find_register(name, operand)) return operand;
    const auto special = special_registers().find(name);
    if (special != special_registers().end()) {
      operand.kind = OperandKind::kSpecial;
      operand.value = static_cast<uint64_t>(special->second);
      return operand;
    }
    if (name == "WARP_SZ") {
      operand.kind = OperandKind::kImmediate;
      operand.value = kLanes;
      return operand;
    }
    if (name[0] == '%') in_.fail("unknown register `" + name + "`");
    operand.kind = OperandKind::kSymbol;
    operand.name = unique_name(name);
    if (in_.at("+") || in_.at("-")) operand.value = offset();
    return operand;
  }

  uint64_t offset() {
    int64_t total = 0;
    while (in_.at("+") || in_.at("-")) {
      const bool negative = in_.next().text == "-";
      const int64_t value = in_.integer();
      total += negative ? -value : value;
    }
    return static_cast<uint64_t>(total);
  }

  Operand address() {
    Operand base = operand();
    Operand result;
    result.kind = OperandKind::kAddress;
    if (base.kind == OperandKind::kRegister) {
      result.has_register = true;
      result.reg = base.reg;
      result.register_type = base.register_type;
      result.value = in_.at("+") || in_.at("-") ? offset() : 0;
    } else if (base.kind == OperandKind::kSymbol) {
      result.name = base.name;
      result.value = base.value;
    } else if (base.kind == OperandKind::kImmediate) {
      result.value = base.value;
    } else {
      in_.fail("expected a register, variable or number in an address");
    }
    return result;
  }

  OperandGroup group() {
    OperandGroup group;
    const bool parentheses = in_.at("(");
    if (in_.accept("{") || in_.accept("(")) {
      group.braces = true;
      const std::string close = parentheses ? ")" : "}";
      while (!in_.accept(close)) {
        group.items.push_back(operand());
        if (!in_.at(close)) in_.expect(",");
      }
    } else if (in_.accept("[")) {
      group.items.push_back(address());
      if (in_.accept(",")) {
        // Tensor coordinates of cp.async.bulk.tensor, behind the address of the tensor map.
        in_.expect("{");
        while (!in_.accept("}")) {
          group.items.push_back(operand());
          if (!in_.at("}")) in_.expect(",");
        }
      }
      in_.expect("]");
    } else {
      group.items.push_back(operand());
      while (in_.accept("|")) group.items.push_back(operand());
    }
    return group;
  }

  // ---- instructions

  void instruction() {
    Instruction instruction;
    instruction.source = location_;
    instruction.source.ptx_line = in_.peek().line;
    const size_t begin = in_.peek().begin;
    if (in_.accept("@")) {
      instruction.guarded = true;
      instruction.guard_negate = in_.accept("!");
      if (!find_register(in_.word("a predicate"), instruction.guard) ||
          instruction.guard.register_type != Type::kPred) {
        in_.fail("the guard is no predicate register");
      }
    }
    const uint32_t line = in_.peek().line;
    std::vector<std::string> parts = split_dots(in_.word("an opcode"));
    std::vector<OperandGroup> groups;
    while (!in_.at(";")) {
      groups.push_back(group());
      if (!in_.at(";")) in_.expect(",");
    }
    instruction.text = in_.source(begin, in_.peek().begin);
    in_.expect(";");
    instruction.source.ptx_line = line;
    const std::string name = parts[0];
    parts.erase(parts.begin());
    ModifierList mods(parts);
    Decode decode{instruction, mods, groups, name};
    Decoder decoder = nullptr;
    for (const auto* table :
         {&arithmetic_decoders(), &memory_decoders(), &control_decoders(), &tensor_decoders(), &async_decoders()}) {
      const auto found = table->find(name);
      if (found != table->end()) decoder = found->second;
    }
    if (decoder == nullptr) decode.fail("unknown opcode `" + name + "`");
    decoder(decode);
    if (const std::string* left = mods.first_left()) decode.fail("unknown modifier `." + *left + "`");
    try {
      instruction.alu = alu_function(instruction);
    } catch (const std::invalid_argument& error) {
      decode.fail(error.what());
    }
    if (instruction.opcode == Opcode::kBra || instruction.opcode == Opcode::kBrx) {
      const bool table = instruction.opcode == Opcode::kBrx;
      branches_.push_back({function_.code.size(), scope_, instruction.src.back().name, table});
      instruction.src.pop_back();
    }
    function_.code.push_back(std::move(instruction));
  }

  int32_t find_label(int scope, const std::string& name, const Instruction& at) const {
    for (int s = scope; s >= 0; s = scopes_[s].parent) {
      const auto found = scopes_[s].labels.find(name);
      if (found != scopes_[s].labels.end()) return found->second;
    }
    TokenStream::fail_at(at.source.ptx_line, "`" + at.text + "`: unknown label `" + name + "`");
  }

  void resolve_labels() {
    // A label at the end of a body needs an instruction to stand on.
    Instruction end;
    end.opcode = function_.is_entry ? Opcode::kExit : Opcode::kRet;
    end.text = "(end of the function)";
    end.source = location_;
    function_.code.push_back(end);
    for (const PendingBranch& branch : branches_) {
      Instruction& instruction = function_.code[branch.instruction];
      if (!branch.table) {
        instruction.target = find_label(branch.scope, branch.label, instruction);
        continue;
      }
      for (int s = branch.scope; s >= 0; s = scopes_[s].parent) {
        const auto found = scopes_[s].tables.find(branch.label);
        if (found == scopes_[s].tables.end()) continue;
        for (const std::string& label : found->second) {
          instruction.targets.push_back(find_label(branch.scope, label, instruction));
        }
        break;
      }
      if (instruction.targets.empty()) TokenStream::fail_at(instruction.source.ptx_line, "unknown branch table");
    }
  }

  TokenStream& in_;
  Function& function_;
  std::vector<Scope> scopes_;
  int scope_ = 0;
  SourceLine location_;
  std::vector<PendingBranch> branches_;
};

}  // namespace

void parse_body(TokenStream& in, Function& function) { BodyParser(in, function).run(); }

}  // namespace ptxsim
