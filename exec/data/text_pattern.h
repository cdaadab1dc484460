// A regular expression over UTF-8 with Unicode's classes, as pre-tokenizers use them (\p{L}, lookahead): PCRE2, where
// it was found when this was built.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/result.h"

namespace foreshard::exec {

class TextPattern {
 public:
  /// Errors: an expression that PCRE2 does not take (with its place), a build without PCRE2.
  static Result<TextPattern> compile(const std::string& expression);

  TextPattern(TextPattern&&) noexcept;
  TextPattern& operator=(TextPattern&&) noexcept;
  ~TextPattern();

  /// Calls f with every match and every stretch between matches, in order. Error: text that is no UTF-8.
  Result<void> split(std::string_view text, const std::function<void(std::string_view)>& f) const;

 private:
  struct Code;
  explicit TextPattern(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace foreshard::exec
