// Symbolic sizes of a .pt2 archive: the text that sympy's srepr writes, parsed into a tree and evaluated. Never run.
//
// Grammar: Symbol('s0', ...), Integer(2), and functions of expressions (Add, Mul, Pow, FloorDiv, Mod, Max, ...).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace foreshard {

using SymbolValues = std::map<std::string, std::int64_t, std::less<>>;

struct SymExpr {
  enum class Kind : std::uint8_t { Integer, Symbol, Call } kind = Kind::Integer;
  std::int64_t value = 0;     // Integer
  std::string name;           // Symbol, or the function
  std::vector<SymExpr> args;  // Call
  bool operator==(const SymExpr&) const = default;
};

/// nullopt if the text is outside the grammar, longer or deeper than anything sensible.
std::optional<SymExpr> parse_sym_expr(std::string_view text);

/// nullopt where a symbol has no value, a function is unknown, or a result overflows or divides by zero.
std::optional<std::int64_t> evaluate(const SymExpr& expr, const SymbolValues& values);

}  // namespace foreshard
