// Module level of PTX: directives, variables, function headers.
#include "parser.h"

#include <cstring>

namespace ptxsim {

int size_of(Type type) {
  switch (type) {
    case Type::kNone:
    case Type::kPred:
      return 0;
    case Type::kB8:
    case Type::kU8:
    case Type::kS8:
      return 1;
    case Type::kB16:
    case Type::kU16:
    case Type::kS16:
    case Type::kF16:
    case Type::kBF16:
      return 2;
    case Type::kB64:
    case Type::kU64:
    case Type::kS64:
    case Type::kF64:
      return 8;
    case Type::kB128:
      return 16;
    default:
      return 4;
  }
}

bool is_float(Type type) {
  return type == Type::kF16 || type == Type::kBF16 || type == Type::kF32 || type == Type::kTF32 || type == Type::kF64 ||
         type == Type::kF16x2 || type == Type::kBF16x2;
}

bool is_signed(Type type) {
  return type == Type::kS8 || type == Type::kS16 || type == Type::kS32 || type == Type::kS64;
}

Type type_named(const std::string& name) {
  static const std::unordered_map<std::string, Type> kTypes = {
      {"pred", Type::kPred}, {"b8", Type::kB8},     {"u8", Type::kU8},       {"s8", Type::kS8},
      {"b16", Type::kB16},   {"u16", Type::kU16},   {"s16", Type::kS16},     {"f16", Type::kF16},
      {"bf16", Type::kBF16}, {"b32", Type::kB32},   {"u32", Type::kU32},     {"s32", Type::kS32},
      {"f32", Type::kF32},   {"tf32", Type::kTF32}, {"f16x2", Type::kF16x2}, {"bf16x2", Type::kBF16x2},
      {"b64", Type::kB64},   {"u64", Type::kU64},   {"s64", Type::kS64},     {"f64", Type::kF64},
      {"b128", Type::kB128},
  };
  const auto found = kTypes.find(name);
  return found == kTypes.end() ? Type::kNone : found->second;
}

namespace {

uint64_t literal_bits(TokenStream& in, Type type) {
  const bool negative = in.accept("-");
  const std::string text = in.next().text;
  Operand operand;
  operand.kind = OperandKind::kImmediate;
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'f' || text[1] == 'F')) {
    operand.literal = Literal::kF32;
    operand.value = std::stoull(text.substr(2), nullptr, 16);
  } else if (text.size() > 2 && text[0] == '0' && (text[1] == 'd' || text[1] == 'D')) {
    operand.literal = Literal::kF64;
    operand.value = std::stoull(text.substr(2), nullptr, 16);
  } else if (text.find('.') != std::string::npos) {
    const double value = negative ? -std::stod(text) : std::stod(text);
    operand.literal = Literal::kF64;
    std::memcpy(&operand.value, &value, 8);
  } else {
    operand.value = std::stoull(text, nullptr, 0);
    if (negative) operand.value = -operand.value;
  }
  set_type(operand, type);
  return operand.value;
}

// One element of an initialiser: a literal, a symbol, generic(symbol), or symbol + offset.
void parse_element(TokenStream& in, Variable& variable, uint64_t offset) {
  const auto element = static_cast<uint64_t>(size_of(variable.type));
  if (in.peek().kind == Token::kWord) {
    const bool generic = in.at("generic");
    std::string name = in.next().text;
    if (generic) {
      in.expect("(");
      name = in.word("a variable");
      in.expect(")");
    }
    if (in.at("+") || in.at("-")) in.fail("an offset in an address initialiser is not supported");
    if (element != 8) in.fail("an address initialiser needs a 64-bit variable");
    variable.pointers.emplace_back(offset, name);
    return;
  }
  const uint64_t bits = literal_bits(in, variable.type);
  std::memcpy(variable.initial.data() + offset, &bits, element);
}

}  // namespace

void parse_initialiser(TokenStream& in, Variable& variable) {
  const auto element = static_cast<uint64_t>(size_of(variable.type));
  const auto ensure = [&](uint64_t size) {
    if (variable.size == 0 && variable.initial.size() < size) variable.initial.resize(size);
    if (variable.initial.size() < size) in.fail("more initialisers than the variable has elements");
  };
  variable.initial.assign(variable.size, 0);
  uint64_t offset = 0;
  int depth = 0;
  do {
    while (in.accept("{")) ++depth;
    ensure(offset + element);
    parse_element(in, variable, offset);
    offset += element;
    while (depth > 0 && in.accept("}")) --depth;
  } while (in.accept(","));
  if (depth != 0) in.fail("unbalanced braces in an initialiser");
  variable.size = variable.initial.size();
}

Variable parse_variable(TokenStream& in, Space space, bool is_extern) {
  Variable variable;
  variable.space = space;
  variable.is_extern = is_extern;
  uint64_t align = 0;
  uint64_t vector = 1;
  while (in.peek().kind == Token::kWord && in.peek().text[0] == '.') {
    const std::string directive = in.next().text.substr(1);
    if (directive == "align") {
      align = static_cast<uint64_t>(in.integer());
    } else if (directive == "v2" || directive == "v4") {
      vector = static_cast<uint64_t>(directive[1] - '0');
    } else if (directive == "ptr") {
      while (in.at(".global") || in.at(".shared") || in.at(".const") || in.at(".local")) in.next();
    } else if (type_named(directive) != Type::kNone) {
      variable.type = type_named(directive);
    } else {
      in.fail("unknown variable directive `." + directive + "`");
    }
  }
  variable.name = in.word("a variable name");
  uint64_t elements = vector;
  bool open = false;
  while (in.accept("[")) {
    if (in.at("]")) {
      open = true;
    } else {
      elements *= static_cast<uint64_t>(in.integer());
    }
    in.expect("]");
  }
  const auto element = static_cast<uint64_t>(size_of(variable.type));
  variable.size = open ? 0 : elements * element;
  variable.align = align ? align : std::max<uint64_t>(element * vector, 1);
  if (in.accept("=")) parse_initialiser(in, variable);
  return variable;
}

void parse_location(TokenStream& in, SourceLine& location) {
  location.file = static_cast<uint32_t>(in.integer());
  location.line = static_cast<uint32_t>(in.integer());
  in.integer();
  location.outer_file = location.file;
  location.outer_line = location.line;
  while (in.accept(",")) {
    if (in.accept("function_name")) {
      in.word("a label");
      if (in.accept("+")) in.integer();
    } else {
      in.expect("inlined_at");
      location.outer_file = static_cast<uint32_t>(in.integer());
      location.outer_line = static_cast<uint32_t>(in.integer());
      in.integer();
    }
  }
}

namespace {

std::vector<Variable> parse_parameters(TokenStream& in) {
  std::vector<Variable> parameters;
  in.expect("(");
  while (!in.accept(")")) {
    if (in.accept(".param")) {
      parameters.push_back(parse_variable(in, Space::kParam, false));
    } else {
      in.expect(".reg");
      parameters.push_back(parse_variable(in, Space::kReg, false));
    }
    in.accept(",");
  }
  return parameters;
}

// Performance directives between a function's header and its body.
void parse_function_directives(TokenStream& in, Function& function) {
  while (!in.at("{") && !in.at(";")) {
    const std::string directive = in.word("a function directive or `{`");
    std::array<uint32_t, 3> values{1, 1, 1};
    if (directive == ".noreturn" || directive == ".explicitcluster") continue;
    if (directive == ".pragma") {
      in.next();
      in.accept(";");
      continue;
    }
    if (directive != ".maxntid" && directive != ".reqntid" && directive != ".minnctapersm" && directive != ".maxnreg" &&
        directive != ".reqnctapercluster" && directive != ".maxclusterrank") {
      in.fail("unknown function directive `" + directive + "`");
    }
    size_t count = 0;
    do {
      const auto value = static_cast<uint32_t>(in.integer());
      if (count < 3) values[count++] = value;
    } while (in.accept(","));
    if (directive == ".maxntid") function.max_threads = values[0] * values[1] * values[2];
    if (directive == ".reqntid") function.required_threads = values;
    if (directive == ".reqnctapercluster" && values[0] * values[1] * values[2] != 1) {
      in.fail("clusters of more than one block are not supported (stage 3)");
    }
  }
}

void parse_function(TokenStream& in, Module& module, bool is_entry) {
  Function function;
  function.is_entry = is_entry;
  if (in.at("(")) function.returns = parse_parameters(in);
  function.name = in.word("a function name");
  if (in.at("(")) function.parameters = parse_parameters(in);
  parse_function_directives(in, function);
  if (in.accept(";")) {
    function.is_prototype = true;
  } else {
    parse_body(in, function);
  }
  module.functions.push_back(std::move(function));
}

}  // namespace

Module parse_module(const std::string& text) {
  Module module;
  TokenStream in(text);
  bool is_extern = false;
  SourceLine ignored;
  while (in.peek().kind != Token::kEnd) {
    const std::string directive = in.word("a directive");
    if (directive == ".version" || directive == ".address_size") {
      in.next();
    } else if (directive == ".target") {
      module.target = in.word("a target");
      while (in.accept(",")) in.next();
    } else if (directive == ".file") {
      const auto number = static_cast<uint32_t>(in.integer());
      module.files[number] = in.next().text;
      while (in.accept(",")) in.next();
    } else if (directive == ".loc") {
      parse_location(in, ignored);
    } else if (directive == ".section") {
      in.word("a section name");
      in.skip_braces();
    } else if (directive == ".visible" || directive == ".weak" || directive == ".common") {
      // Linkage makes no difference inside one module.
    } else if (directive == ".extern") {
      is_extern = true;
      continue;
    } else if (directive == ".entry" || directive == ".func") {
      parse_function(in, module, directive == ".entry");
    } else if (directive == ".global" || directive == ".const" || directive == ".shared") {
      const Space space = directive == ".global"  ? Space::kGlobal
                          : directive == ".const" ? Space::kConst
                                                  : Space::kShared;
      do {
        module.variables.push_back(parse_variable(in, space, is_extern));
      } while (in.accept(","));
      in.expect(";");
    } else if (directive == ".pragma") {
      in.next();
      in.expect(";");
    } else {
      in.fail("unknown directive `" + directive + "`");
    }
    is_extern = false;
  }
  return module;
}

}  // namespace ptxsim
