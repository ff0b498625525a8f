#include "lexer.h"

#include <cctype>

namespace ptxsim {
namespace {

bool is_word_start(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}

bool is_word(char c) { return is_word_start(c) || std::isdigit(static_cast<unsigned char>(c)); }

}  // namespace

std::vector<Token> tokenize(const std::string& text) {
  std::vector<Token> tokens;
  uint32_t line = 1;
  size_t i = 0;
  const size_t size = text.size();
  while (i < size) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      ++i;
    } else if (std::isspace(static_cast<unsigned char>(c))) {
      ++i;
    } else if (text.compare(i, 2, "//") == 0) {
      while (i < size && text[i] != '\n') ++i;
    } else if (text.compare(i, 2, "/*") == 0) {
      const size_t end = text.find("*/", i + 2);
      if (end == std::string::npos) TokenStream::fail_at(line, "comment without an end");
      for (; i < end + 2; ++i) line += text[i] == '\n';
    } else if (c == '"') {
      const size_t end = text.find('"', i + 1);
      if (end == std::string::npos) TokenStream::fail_at(line, "string without an end");
      tokens.push_back({Token::kString, text.substr(i + 1, end - i - 1), line, i});
      i = end + 1;
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      const size_t begin = i;
      const bool hex = c == '0' && i + 1 < size && std::isalpha(static_cast<unsigned char>(text[i + 1]));
      while (i < size && (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '.' ||
                          (!hex && (text[i] == '-' || text[i] == '+') && (text[i - 1] == 'e' || text[i - 1] == 'E')))) {
        ++i;
      }
      tokens.push_back({Token::kNumber, text.substr(begin, i - begin), line, begin});
    } else if (is_word_start(c)) {
      const size_t begin = i;
      // `.reg.b32` is two directives; in an opcode the dots stay.
      const bool directive = c == '.';
      while (i < size && (is_word(text[i]) || text.compare(i, 2, "::") == 0)) {
        if (directive && i > begin && text[i] == '.') break;
        i += text[i] == ':' ? 2 : 1;
      }
      tokens.push_back({Token::kWord, text.substr(begin, i - begin), line, begin});
    } else {
      tokens.push_back({Token::kPunctuation, std::string(1, c), line, i});
      ++i;
    }
  }
  tokens.push_back({Token::kEnd, "", line, size});
  return tokens;
}

Token TokenStream::next() {
  Token token = peek();
  if (position_ + 1 < tokens_.size()) ++position_;
  return token;
}

bool TokenStream::accept(const std::string& text) {
  if (!at(text)) return false;
  next();
  return true;
}

void TokenStream::expect(const std::string& text) {
  if (!accept(text)) fail("expected `" + text + "`, got `" + peek().text + "`");
}

std::string TokenStream::word(const char* what) {
  if (peek().kind != Token::kWord) fail(std::string("expected ") + what + ", got `" + peek().text + "`");
  return next().text;
}

int64_t TokenStream::integer() {
  const bool negative = accept("-");
  if (peek().kind != Token::kNumber) fail("expected an integer, got `" + peek().text + "`");
  const auto value = static_cast<int64_t>(std::stoull(next().text, nullptr, 0));
  return negative ? -value : value;
}

void TokenStream::skip_braces() {
  expect("{");
  for (int depth = 1; depth > 0;) {
    if (peek().kind == Token::kEnd) fail("`{` without its `}`");
    const Token token = next();
    if (token.kind != Token::kPunctuation) continue;
    depth += token.text == "{";
    depth -= token.text == "}";
  }
}

std::string TokenStream::source(size_t begin, size_t end) const {
  std::string line;
  for (size_t i = begin; i < end && i < text_.size(); ++i) {
    const bool space = std::isspace(static_cast<unsigned char>(text_[i]));
    if (!space) {
      line += text_[i];
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  return line;
}

void TokenStream::fail_at(uint32_t line, const std::string& message) {
  throw ParseError("line " + std::to_string(line) + ": " + message);
}

}  // namespace ptxsim
