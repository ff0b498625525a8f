// Tokens of PTX text.
#pragma once

#include <string>
#include <vector>

#include "ir.h"

namespace ptxsim {

struct Token {
  // A word holds opcodes with their modifiers, directives, registers and names: `ld.global.u32`, `.reg`, `%tid.x`.
  enum Kind : uint8_t { kWord, kNumber, kString, kPunctuation, kEnd };
  Kind kind = kEnd;
  std::string text;
  uint32_t line = 0;
  size_t begin = 0;  // offset in the text
};

std::vector<Token> tokenize(const std::string& text);

// A cursor over tokens with the errors every parser level needs.
class TokenStream {
 public:
  explicit TokenStream(const std::string& text) : text_(text), tokens_(tokenize(text)) {}

  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(position_ + ahead, tokens_.size() - 1)]; }
  Token next();
  bool at(const std::string& text) const { return peek().text == text && peek().kind != Token::kString; }
  bool accept(const std::string& text);
  void expect(const std::string& text);
  std::string word(const char* what);
  int64_t integer();
  void skip_braces();                                  // a balanced {...} block
  std::string source(size_t begin, size_t end) const;  // the text in between on one line
  [[noreturn]] void fail(const std::string& message) const { fail_at(peek().line, message); }
  [[noreturn]] static void fail_at(uint32_t line, const std::string& message);

 private:
  const std::string& text_;
  std::vector<Token> tokens_;
  size_t position_ = 0;
};

}  // namespace ptxsim
