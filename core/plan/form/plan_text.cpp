#include "core/plan/form/plan_text.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/plan/form/plan_reader.h"
#include "core/plan/form/plan_writer.h"
#include "core/text/format_append.h"

namespace foreshard {
namespace {

using namespace detail;  // NOLINT(google-build-using-namespace): the shared members
using Json = nlohmann::json;

constexpr std::string_view kSchema = "foreshard.plan/1";

bool is_word_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) {
  return is_word_start(c) || (c >= '0' && c <= '9') || c == '.' || c == ':' || c == '/' || c == '-';
}

/// Words that need no quotes: they cannot be taken for a number or a literal.
bool is_bare(std::string_view text) {
  if (text.empty() || !is_word_start(text.front()) || text == "true" || text == "false" || text == "null") return false;
  return std::all_of(text.begin(), text.end(), is_word);
}

/// `key=value` separated by blanks; lists in [], objects in {}.
class TextSink {
 public:
  void key(std::string_view name) {
    blank();
    append(name);
    buffer_.push_back('=');
    joined_ = true;
  }
  void text(std::string_view value) {
    blank();
    if (is_bare(value)) return append(value);
    buffer_.push_back('"');
    for (const char c : value) {
      if (c == '"' || c == '\\') buffer_.push_back('\\');
      if (static_cast<unsigned char>(c) < 0x20) {
        format_append(buffer_, "\\u{:04x}", static_cast<unsigned char>(c));
      } else {
        buffer_.push_back(c);
      }
    }
    buffer_.push_back('"');
  }
  void integer(std::int64_t value) {
    blank();
    format_append(buffer_, "{}", value);
  }
  void number(double value) {
    blank();
    format_append(buffer_, "{}", std::isfinite(value) ? value : 0.0);
  }
  void boolean(bool value) {
    blank();
    append(value ? "true" : "false");
  }
  void null() {
    blank();
    append("null");
  }
  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_list() { open('['); }
  void end_list() { close(']'); }

  /// A line: indentation and first word.
  void line(int indent, std::string_view word) {
    if (buffer_.size() != 0) buffer_.push_back('\n');
    for (int i = 0; i < indent; ++i) buffer_.push_back(' ');
    append(word);
    joined_ = false;
  }
  /// A word without a key.
  void word(std::string_view value) {
    blank();
    append(value);
  }
  std::string take() {
    buffer_.push_back('\n');
    return fmt::to_string(buffer_);
  }

 private:
  void append(std::string_view text) { buffer_.append(text.data(), text.data() + text.size()); }
  void blank() {
    if (!joined_) buffer_.push_back(' ');
    joined_ = false;
  }
  void open(char bracket) {
    blank();
    buffer_.push_back(bracket);
    joined_ = true;
  }
  void close(char bracket) {
    joined_ = false;
    buffer_.push_back(bracket);
  }

  fmt::memory_buffer buffer_;
  bool joined_ = true;
};

void write_group(TextSink& sink, const Plan& plan, const Instruction& i) {
  sink.line(2, phase_name(i.phase));
  if (i.unit.valid()) {
    sink.text(plan.units[i.unit.index()].name);
  } else {
    sink.null();
  }
}

void write_iteration(TextSink& sink, const Plan& plan, const PlanIteration& iteration, std::int64_t& id) {
  sink.line(0, "iteration");
  put_integer(sink, "index", iteration.index);
  put_integer(sink, "micro_batch", iteration.micro_batches);
  put_texts(sink, "actions", iteration.actions);
  const Instruction* previous = nullptr;
  for (const Instruction& i : iteration.instructions) {
    if (previous == nullptr || previous->phase != i.phase || previous->unit != i.unit) write_group(sink, plan, i);
    previous = &i;
    sink.line(4, fmt::format("{}", id++));
    sink.word(stream_name(i.stream));
    sink.word(instruction_kind_name(i.kind));
    if (i.origin == Origin::Autograd) put(sink, "origin", "autograd");
    write_instruction_details(sink, plan, i);
  }
  sink.line(2, "end");
  write_iteration_end(sink, plan, iteration);
}

void write_head(TextSink& sink, const Plan& plan) {
  sink.line(0, kSchema);
  sink.line(0, "plan");
  put(sink, "runtime", runtime_name(plan.runtime));
  put_integer(sink, "world_size", plan.world_size);
  put_integer(sink, "rank", plan.rank);
  put_flag(sink, "steady", plan.steady);
  sink.line(0, "groups");
  put_integers(sink, "shard", plan.groups.shard);
  put_integers(sink, "replicate", plan.groups.replicate);
  sink.line(0, "divide");
  put_number(sink, "pre", plan.pre_divide);
  put_number(sink, "post", plan.post_divide);
  for (const StreamInfo& stream : plan.streams) {
    sink.line(0, "stream");
    put(sink, "name", stream_name(stream.stream));
    put_integer(sink, "priority", stream.priority);
  }
  for (const std::string& param : plan.param_names) {
    sink.line(0, "param");
    sink.text(param);
  }
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    sink.line(0, "unit");
    write_unit(sink, plan, i);
  }
  for (std::size_t i = 0; i < plan.communicators.size(); ++i) {
    sink.line(0, "communicator");
    write_communicator(sink, plan, i);
  }
  for (std::size_t i = 0; i < plan.segments.size(); ++i) {
    sink.line(0, "segment");
    write_segment(sink, plan, i);
  }
  for (const std::string& name : plan.names) {
    sink.line(0, "name");
    sink.text(name);
  }
}

void write_tail(TextSink& sink, const Plan& plan) {
  for (const PlanCheck& check : plan.checks) {
    sink.line(0, "check");
    write_check(sink, check);
  }
  for (const Trap& trap : plan.traps) {
    sink.line(0, "trap");
    write_trap(sink, trap);
  }
  for (const std::string& warning : plan.warnings) {
    sink.line(0, "warning");
    sink.text(warning);
  }
  if (plan.failure) {
    sink.line(0, "failure");
    write_failure(sink, *plan.failure);
  }
}

// --- reading
// ----------------------------------------------------------------------------------------------------------

/// Values of one line. After the first mistake `wrong()` says what it was; the position stands still.
class LineParser {
 public:
  explicit LineParser(std::string_view line) : text_(line) { skip(); }

  bool at_end() const { return wrong_.empty() && at_ == text_.size(); }
  bool failed() const { return !wrong_.empty(); }
  const std::string& wrong() const { return wrong_; }
  std::size_t column() const { return at_ + 1; }
  std::size_t indent() const { return text_.find_first_not_of(' '); }

  /// The characters up to the next blank, bracket or '='.
  std::string word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::string_view(" =[]{}\"").find(text_[at_]) == std::string_view::npos) ++at_;
    if (begin == at_) miss("a word");
    std::string out(text_.substr(begin, at_ - begin));
    skip();
    return out;
  }

  Json value(int depth) {
    if (failed() || depth > kMaxPlanDepth || at_ == text_.size()) {
      miss(depth > kMaxPlanDepth ? "less nesting" : "a value");
      return {};
    }
    switch (text_[at_]) {
      case '"': return quoted();
      case '[': return list(depth);
      case '{': return object(depth);
      default: return plain();
    }
  }

  /// `key=value` up to the end of the line, or of the object.
  void members(Json& into, int depth, char close) {
    while (!failed() && at_ < text_.size() && text_[at_] != close) {
      const std::size_t begin = at_;
      const std::string key = word();
      if (failed()) return;
      if (at_ == text_.size() || text_[at_] != '=') return miss("'='");
      ++at_;
      if (into.contains(key)) {
        at_ = begin;
        return miss("every member once");
      }
      into[key] = value(depth + 1);
    }
  }

 private:
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  void miss(std::string expected) {
    if (wrong_.empty()) wrong_ = std::move(expected);
  }
  Json quoted() {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) {
      miss("a closing quote");
      return {};
    }
    Json value = Json::parse(text_.substr(at_, end + 1 - at_), nullptr, false);
    if (!value.is_string()) {
      miss("a quoted text");
      return {};
    }
    at_ = end + 1;
    skip();
    return value;
  }
  Json list(int depth) {
    Json out = Json::array();
    ++at_;
    skip();
    while (!failed() && at_ < text_.size() && text_[at_] != ']') out.push_back(value(depth + 1));
    close("']'");
    return out;
  }
  Json object(int depth) {
    Json out = Json::object();
    ++at_;
    skip();
    members(out, depth, '}');
    close("'}'");
    return out;
  }
  void close(const char* bracket) {
    if (failed()) return;
    if (at_ == text_.size()) return miss(bracket);
    ++at_;
    skip();
  }
  Json plain() {
    const std::string text = word();
    if (failed() || text == "null") return {};
    if (text == "true" || text == "false") return text == "true";
    if (is_bare(text)) return text;
    std::int64_t integer = 0;
    const char* last = text.data() + text.size();
    if (const auto [end, ec] = std::from_chars(text.data(), last, integer); ec == std::errc() && end == last)
      return integer;
    double number = 0.0;
    if (const auto [end, ec] = std::from_chars(text.data(), last, number);
        ec == std::errc() && end == last && std::isfinite(number)) {
      return number;
    }
    miss("a number, a word or a quoted text");
    return {};
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string wrong_;
};

/// Collects lines into the document that detail/plan_reader.h reads.
class TextReader {
 public:
  explicit TextReader(const std::string& file) : file_(file) {
    for (const char* list :
         {"streams", "params", "units", "segments", "names", "iterations", "checks", "traps", "warnings"}) {
      document_[list] = Json::array();
    }
  }

  std::optional<Error> add(std::string_view line, std::int64_t number) {
    number_ = number;
    if (line.find_first_not_of(' ') == std::string_view::npos) return {};
    LineParser parser(line);
    if (parser.indent() == 4) return add_instruction(parser);
    const std::string word = parser.word();
    if (parser.failed()) return syntax(parser);
    if (parser.indent() == 2 && word != "end") return add_group(parser, word);
    return parser.indent() == 2 ? add_end(parser) : add_top(parser, word);
  }

  Result<Plan> finish() { return read_plan(document_, file_); }

 private:
  Error wrong(std::string message, std::string expected, std::string got, std::size_t column = 1) const {
    return {.code = ErrorCode::BadSyntax,
            .message = std::move(message),
            .file = file_,
            .place = fmt::format("line {}, column {}", number_, column),
            .expected = std::move(expected),
            .got = std::move(got),
            .hint = "docs/formats/plan.md has the grammar"};
  }
  Error syntax(const LineParser& parser) const {
    return wrong("the line cannot be read", parser.failed() ? parser.wrong() : "the end of the line", "something else",
                 parser.column());
  }
  std::optional<Error> members(LineParser& parser, Json& into) {
    into["@line"] = number_;
    parser.members(into, 0, '\0');
    if (!parser.at_end()) return syntax(parser);
    return {};
  }
  Json* iteration() { return document_["iterations"].empty() ? nullptr : &document_["iterations"].back(); }

  std::optional<Error> add_top(LineParser& parser, const std::string& word) {
    if (word == kSchema) {
      document_["schema"] = word;
      return {};
    }
    if (word == "param" || word == "name" || word == "warning") {
      document_[word + "s"].push_back(parser.value(0));
      if (!parser.at_end()) return syntax(parser);
      return {};
    }
    Json value = Json::object();
    if (std::optional<Error> error = members(parser, value)) return error;
    if (word == "plan") {
      document_.update(value);
    } else if (word == "groups" || word == "divide" || word == "failure") {
      document_[word] = std::move(value);
    } else if (word == "stream" || word == "unit" || word == "segment" || word == "communicator" || word == "check" ||
               word == "trap") {
      document_[word + "s"].push_back(std::move(value));
    } else if (word == "iteration") {
      value["instructions"] = Json::array();
      document_["iterations"].push_back(std::move(value));
      phase_.clear();
    } else {
      return wrong("unknown line", "plan, groups, unit, iteration, check, ...", "\"" + word.substr(0, 80) + "\"");
    }
    return {};
  }

  std::optional<Error> add_group(LineParser& parser, const std::string& phase) {
    phase_ = phase;
    unit_ = parser.value(0);
    if (!parser.at_end()) return syntax(parser);
    return {};
  }

  std::optional<Error> add_end(LineParser& parser) {
    if (iteration() == nullptr) return wrong("the end of no iteration", "an iteration before it", "end");
    Json value = Json::object();
    if (std::optional<Error> error = members(parser, value)) return error;
    (*iteration())["end"] = std::move(value);
    return {};
  }

  std::optional<Error> add_instruction(LineParser& parser) {
    if (iteration() == nullptr || phase_.empty()) {
      return wrong("an instruction stands in an iteration, under a phase", "iteration ..., then phase and unit",
                   "neither");
    }
    Json value = Json::object();
    value["id"] = parser.value(0);
    value["stream"] = parser.value(0);
    value["kind"] = parser.value(0);
    value["phase"] = phase_;
    value["unit"] = unit_;
    if (std::optional<Error> error = members(parser, value)) return error;
    value.emplace("origin", "fsdp");
    (*iteration())["instructions"].push_back(std::move(value));
    return {};
  }

  std::string file_;
  std::int64_t number_ = 0;
  Json document_ = Json::object();
  std::string phase_;
  Json unit_;
};

}  // namespace

std::string plan_to_text(const Plan& plan) {
  TextSink sink;
  write_head(sink, plan);
  std::int64_t id = 0;
  for (const PlanIteration& iteration : plan.iterations) write_iteration(sink, plan, iteration, id);
  write_tail(sink, plan);
  return sink.take();
}

Result<Plan> plan_from_text(std::string_view text, const std::string& file) {
  if (text.size() > kMaxPlanBytes) {
    return fail({.code = ErrorCode::TooLarge,
                 .message = "this is too large for a plan",
                 .file = file,
                 .place = {},
                 .expected = fmt::format("at most {} bytes", kMaxPlanBytes),
                 .got = fmt::format("{} bytes", text.size()),
                 .hint = "write fewer iterations"});
  }
  TextReader reader(file);
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (std::optional<Error> error = reader.add(text.substr(0, end), ++number)) return fail(std::move(*error));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return reader.finish();
}

}  // namespace foreshard
