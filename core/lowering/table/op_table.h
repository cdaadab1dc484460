// The table of operator rules in two parts, and the words that its rows are written with.
//
// What core/lowering/op_rules.h looks rules up in: one row an operator. A newcomer adds a line beside its like.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

#include "core/lowering/op_rules.h"

namespace foreshard::op_table {

using F = OpForm;
using B = OpFormula;
using K = KernelClass;

constexpr SaveRule in(int index, int if_grad = 0) {
  return {false, static_cast<std::uint8_t>(index), static_cast<std::uint8_t>(if_grad)};
}
constexpr SaveRule out(int index, int if_grad = 0) {
  return {true, static_cast<std::uint8_t>(index), static_cast<std::uint8_t>(if_grad)};
}

constexpr OpRule row(std::string_view name, OpForm form, OpFormula formula, KernelClass kind,
                     std::initializer_list<SaveRule> saves = {}, int launches = 1) {
  OpRule rule{name, form, formula, kind, {}, 0, static_cast<std::uint8_t>(launches)};
  for (const SaveRule& save : saves) rule.saves[rule.save_count++] = save;
  return rule;
}

/// Only the first result has a gradient.
constexpr OpRule first_only(OpRule rule) {
  rule.first_only = true;
  return rule;
}

/// The one kernel of backward takes these, in order ("g x0 r1"), not the gradient, what is kept of the arguments and of
/// the results.
constexpr OpRule takes(std::string_view order, OpRule rule) {
  rule.written = order;
  return rule;
}

/// Backward is what `formula` says: see backward/written.cpp.
constexpr OpRule written(std::string_view name, std::string_view formula, std::initializer_list<SaveRule> saves = {},
                         OpForm form = F::Elementwise, KernelClass kind = K::Elementwise) {
  OpRule rule = row(name, form, B::Written, kind, saves);
  rule.written = formula;
  return rule;
}

/// What training loops run most: views, products, normalisations, attention, gathers, images.
std::span<const OpRule> usual_rows();
/// Rarer functions, reductions and losses, recurrent networks, and the spellings of exported programs.
std::span<const OpRule> further_rows();
/// What autograd's own formulas run, as operators of a forward that are differentiated again.
std::span<const OpRule> gradient_rows();

}  // namespace foreshard::op_table
