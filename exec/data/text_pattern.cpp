#include "exec/data/text_pattern.h"

#include <fmt/format.h>

#include <utility>

#ifdef FORESHARD_WITH_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace foreshard::exec {

#ifdef FORESHARD_WITH_PCRE2

struct TextPattern::Code {
  Code(pcre2_code* compiled) : code(compiled), match(pcre2_match_data_create_from_pattern(compiled, nullptr)) {}
  ~Code() {
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* code;
  pcre2_match_data* match;
};

namespace {

std::string pcre_message(int code) {
  PCRE2_UCHAR8 text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Result<TextPattern> TextPattern::compile(const std::string& expression) {
  int code = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR8>(expression.data()), expression.size(),
                                       PCRE2_UTF | PCRE2_UCP, &code, &at, nullptr);
  if (compiled == nullptr) {
    Error error;
    error.code = ErrorCode::BadSyntax;
    error.place = fmt::format("offset {} of the pattern", at);
    error.message = "the pattern is no regular expression: " + pcre_message(code);
    error.expected = "a pattern that PCRE2 takes";
    error.got = expression;
    return fail(std::move(error));
  }
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);  // faster where it can; the interpreter where it cannot
  return TextPattern(std::make_unique<Code>(compiled));
}

Result<void> TextPattern::split(std::string_view text, const std::function<void(std::string_view)>& f) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR8>(text.data());
  std::size_t done = 0, from = 0;
  std::uint32_t options = 0;  // UTF-8 is checked once, on the first call
  while (from <= text.size()) {
    const int found = pcre2_match(code_->code, subject, text.size(), from, options, code_->match, nullptr);
    options = PCRE2_NO_UTF_CHECK;
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      Error error;
      error.code = ErrorCode::BadSyntax;
      error.place = fmt::format("byte {}", pcre2_get_startchar(code_->match));
      error.message = "the text cannot be cut into words: " + pcre_message(found);
      error.expected = "UTF-8";
      return fail(std::move(error));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(code_->match);
    if (ends[0] > done) f(text.substr(done, ends[0] - done));
    if (ends[1] > ends[0]) f(text.substr(ends[0], ends[1] - ends[0]));
    done = ends[1];
    from = ends[1] > ends[0] ? ends[1] : ends[1] + 1;  // an empty match: go on behind it
    while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0U) == 0x80U) ++from;
  }
  if (done < text.size()) f(text.substr(done));
  return {};
}

#else

struct TextPattern::Code {};

Result<TextPattern> TextPattern::compile(const std::string&) {
  Error error;
  error.code = ErrorCode::Unsupported;
  error.place = "train.data.kind";
  error.message = "this build does not read text: PCRE2 was not found";
  error.expected = "tokens or synthetic";
  error.hint = "install libpcre2-dev and build again, or make a file of token ids (docs/run.md)";
  return fail(std::move(error));
}

Result<void> TextPattern::split(std::string_view, const std::function<void(std::string_view)>&) const { return {}; }

#endif

TextPattern::TextPattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
TextPattern::TextPattern(TextPattern&&) noexcept = default;
TextPattern& TextPattern::operator=(TextPattern&&) noexcept = default;
TextPattern::~TextPattern() = default;

}  // namespace foreshard::exec
