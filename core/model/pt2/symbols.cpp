#include "core/model/pt2/symbols.h"

#include <algorithm>
#include <charconv>

namespace foreshard {
namespace {

constexpr std::size_t kLongestSymbol = 16'384;
constexpr int kDeepest = 64;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::optional<SymExpr> run() {
    SymExpr expr;
    if (!expression(expr, 0)) return std::nullopt;
    skip_spaces();
    if (at_ != text_.size()) return std::nullopt;
    return expr;
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string_view word() {
    skip_spaces();
    const std::size_t begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_' || text_[at_] == '.'))
      ++at_;
    return text_.substr(begin, at_ - begin);
  }
  bool integer(std::int64_t& value) {
    skip_spaces();
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc{}) return false;
    at_ += static_cast<std::size_t>(end - begin);
    return true;
  }

  bool symbol(SymExpr& expr) {
    skip_spaces();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return false;
    const std::size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) return false;
    expr.kind = SymExpr::Kind::Symbol;
    expr.name = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    while (take(',')) {  // assumptions: positive=True
      if (word().empty() || !take('=') || word().empty()) return false;
    }
    return take(')');
  }

  bool expression(SymExpr& expr, int depth) {
    if (depth > kDeepest) return false;
    skip_spaces();
    if (at_ < text_.size() && (text_[at_] == '-' || std::isdigit(static_cast<unsigned char>(text_[at_])) != 0))
      return integer(expr.value);
    std::string_view name = word();
    if (const std::size_t dot = name.rfind('.'); dot != std::string_view::npos) name.remove_prefix(dot + 1);
    if (name.empty()) return false;
    if (name == "true" || name == "True") return expr.value = 1, true;
    if (name == "false" || name == "False") return true;
    if (!take('(')) return false;
    if (name == "Symbol") return symbol(expr);
    if (name == "Integer") return integer(expr.value) && take(')');
    expr.kind = SymExpr::Kind::Call;
    expr.name = name;
    if (take(')')) return true;
    do {
      if (!expression(expr.args.emplace_back(), depth + 1)) return false;
    } while (take(','));
    return take(')');
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

using Number = std::optional<std::int64_t>;

Number plus(std::int64_t a, std::int64_t b) {
  std::int64_t c = 0;
  return __builtin_add_overflow(a, b, &c) ? Number{} : Number{c};
}
Number times(std::int64_t a, std::int64_t b) {
  std::int64_t c = 0;
  return __builtin_mul_overflow(a, b, &c) ? Number{} : Number{c};
}
Number floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0 || (b == -1 && a == INT64_MIN)) return {};
  const std::int64_t q = a / b;
  return q - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}
Number modulo(std::int64_t a, std::int64_t b) {
  const Number q = floor_divide(a, b);
  return q ? Number{a - *q * b} : Number{};
}
Number power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0 || exponent > 64) return {};
  Number result = 1;
  for (std::int64_t i = 0; i < exponent && result; ++i) result = times(*result, base);
  return result;
}

Number apply(std::string_view name, std::int64_t a, std::int64_t b) {
  if (name == "Add") return plus(a, b);
  if (name == "Mul") return times(a, b);
  if (name == "Max") return std::max(a, b);
  if (name == "Min") return std::min(a, b);
  if (name == "Pow" || name == "PowByNatural") return power(a, b);
  if (name == "FloorDiv" || name == "CleanDiv" || name == "IntTrueDiv" || name == "CeilToInt")
    return floor_divide(a, b);
  if (name == "CeilDiv") {
    const Number q = floor_divide(-a, b);
    return q ? Number{-*q} : Number{};
  }
  if (name == "Mod" || name == "PythonMod") return modulo(a, b);
  if (name == "Equality" || name == "Eq") return a == b;
  if (name == "Unequality" || name == "Ne") return a != b;
  if (name == "GreaterThan" || name == "Ge") return a >= b;
  if (name == "LessThan" || name == "Le") return a <= b;
  if (name == "StrictGreaterThan" || name == "Gt") return a > b;
  if (name == "StrictLessThan" || name == "Lt") return a < b;
  return {};
}

}  // namespace

std::optional<SymExpr> parse_sym_expr(std::string_view text) {
  if (text.size() > kLongestSymbol) return std::nullopt;
  return Parser(text).run();
}

std::optional<std::int64_t> evaluate(const SymExpr& expr, const SymbolValues& values) {
  if (expr.kind == SymExpr::Kind::Integer) return expr.value;
  if (expr.kind == SymExpr::Kind::Symbol) {
    const auto found = values.find(expr.name);
    return found == values.end() ? std::nullopt : Number{found->second};
  }
  Number total;
  for (const SymExpr& arg : expr.args) {
    const Number next = evaluate(arg, values);
    if (!next) return std::nullopt;
    total = &arg == &expr.args.front() ? next : apply(expr.name, *total, *next);
    if (!total) return std::nullopt;
  }
  return total;
}

}  // namespace foreshard
