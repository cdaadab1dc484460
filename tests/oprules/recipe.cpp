#include "tests/oprules/recipe.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <fstream>
#include <random>
#include <stdexcept>

namespace foreshard::oprules {
namespace {

/// Sizes for the letters: different from each other, none of them one, few multiples.
std::array<std::int64_t, 26> draw_sizes(std::uint32_t trial) {
  std::array<std::int64_t, 10> pool{2, 3, 4, 5, 6, 7, 8, 9, 11, 13};
  std::mt19937 random(trial);
  for (std::size_t i = pool.size(); i > 1; --i) std::swap(pool[i - 1], pool[random() % i]);
  std::array<std::int64_t, 26> sizes{};
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = pool[i % pool.size()];
  return sizes;
}

class Parser {
 public:
  Parser(const Recipe& recipe, std::uint32_t trial, DType dtype)
      : recipe_(recipe), text_(recipe.text), sizes_(draw_sizes(trial)), dtype_(dtype) {}

  OperatorCase parse(std::vector<std::size_t>& gradable) {
    gradable_ = &gradable;
    made_.op.name = word();
    for (skip(); at_ < text_.size(); skip()) {
      const std::size_t equals = text_.find('=', at_), space = text_.find(' ', at_);
      if (equals < space && std::islower(static_cast<unsigned char>(text_[at_])) != 0) {
        std::string name = text_.substr(at_, equals - at_);
        at_ = equals + 1;
        made_.op.kwargs.push_back({std::move(name), argument()});
      } else {
        made_.op.args.push_back(argument());
      }
    }
    return std::move(made_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(fmt::format("recipes.txt line {}: {} at '{}'", recipe_.line, what, text_.substr(at_)));
  }
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  std::string word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::string_view(" ,)]=").find(text_[at_]) == std::string_view::npos) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  /// Sums of products of numbers and letters.
  std::int64_t size() {
    std::int64_t sum = product();
    while (peek() == '+' || peek() == '-') {
      const char sign = text_[at_++];
      sum += sign == '+' ? product() : -product();
    }
    return sum;
  }
  std::int64_t product() {
    std::int64_t value = factor();
    while (take('*')) value *= factor();
    return value;
  }
  std::int64_t factor() {
    if (take('-')) return -factor();
    if (std::isupper(static_cast<unsigned char>(peek())) != 0)
      return sizes_[static_cast<std::size_t>(text_[at_++] - 'A')];
    if (std::isdigit(static_cast<unsigned char>(peek())) == 0) fail("expected a size");
    std::int64_t value = 0;
    while (std::isdigit(static_cast<unsigned char>(peek())) != 0) value = 10 * value + (text_[at_++] - '0');
    return value;
  }

  Arg argument() {
    const bool tensor = at_ + 1 < text_.size() && text_[at_ + 1] == '[';
    if (tensor) return this->tensor();
    if (take('(')) {
      ArgList list;
      while (!take(')')) {
        list.push_back(argument());
        if (!take(',') && peek() != ')') fail("expected , or )");
      }
      return {list};
    }
    if (take('"')) {
      const std::size_t end = text_.find('"', at_);
      std::string value = text_.substr(at_, end - at_);
      at_ = end + 1;
      return {std::move(value)};
    }
    return constant();
  }

  Arg constant() {
    const std::size_t begin = at_;
    const std::string text = word();
    if (text == "none") return {};
    if (text == "true" || text == "false") return {text == "true"};
    if (const auto dtype = parse_dtype(text)) return {*dtype};
    if (text.find('.') != std::string::npos || text.find('e') != std::string::npos) return {std::stod(text)};
    at_ = begin;
    return {size()};
  }

  Arg tensor() {
    OperatorTensor made;
    const char kind = text_[at_];
    at_ += 2;
    while (!take(']')) {
      made.sizes.push_back(size());
      if (!take(',') && peek() != ']') fail("expected , or ]");
    }
    made.dtype = kind == 'i'   ? DType::Int64
                 : kind == 'b' ? DType::Bool
                 : kind == 'F' ? DType::Float32
                 : kind == 'c' ? DType::Complex64
                               : dtype_;
    const std::size_t n = made.sizes.size();
    made.strides.assign(n, 1);
    for (std::size_t i = n; i-- > 1;) made.strides[i - 1] = made.strides[i] * made.sizes[i];
    if (take('\'') && n >= 2) {
      made.strides[n - 2] = 1;
      made.strides[n - 1] = made.sizes[n - 2];
    }
    if (kind == 'f' || kind == 'F' || kind == 'c') gradable_->push_back(made_.inputs.size());
    made_.inputs.push_back(std::move(made));
    return {ParamRef{ParamId(made_.inputs.size() - 1)}};
  }

  const Recipe& recipe_;
  const std::string& text_;
  std::size_t at_ = 0;
  std::array<std::int64_t, 26> sizes_;
  DType dtype_;
  OperatorCase made_;
  std::vector<std::size_t>* gradable_ = nullptr;
};

}  // namespace

std::vector<Recipe> read_recipes(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + " cannot be read");
  std::vector<Recipe> recipes;
  std::string text;
  for (std::int32_t line = 1; std::getline(file, text); ++line)
    if (!text.empty() && text[0] != '#') recipes.push_back({line, text});
  return recipes;
}

std::vector<OperatorCase> draw_cases(const Recipe& recipe, std::uint32_t trial, DType dtype) {
  std::vector<std::size_t> gradable;
  const OperatorCase drawn = Parser(recipe, trial, dtype).parse(gradable);
  const std::uint32_t all = (1u << gradable.size()) - 1;
  std::vector<OperatorCase> cases;
  for (std::uint32_t subset = 0; subset <= all; ++subset) {
    const bool one = (subset & (subset - 1)) == 0;
    if (gradable.size() > 3 && !one && subset != all) continue;
    cases.push_back(drawn);
    for (std::size_t i = 0; i < gradable.size(); ++i)
      cases.back().inputs[gradable[i]].requires_grad = (subset >> i & 1u) != 0;
  }
  return cases;
}

}  // namespace foreshard::oprules
