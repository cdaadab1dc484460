#include "core/lowering/op_rules.h"

#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/lowering/mesh_rules.h"
#include "core/lowering/table/op_table.h"

namespace foreshard {

namespace {

using F = OpForm;
using B = OpFormula;

/// Operators in place that have no row of their own: as their siblings that make a new tensor, with the same saves (of
/// what they write over autograd keeps a copy).
std::deque<std::pair<std::string, OpRule>> in_place_rules() {
  std::deque<std::pair<std::string, OpRule>> made;  // names stay where they are
  for (const OpRule& rule : op_rules()) {
    const bool grown = rule.formula == B::Addmm || rule.formula == B::Baddbmm || rule.formula == B::Addbmm ||
                       rule.formula == B::Cumsum;  // results as large as what they are added to
    if ((rule.form != F::Elementwise && rule.form != F::LikeFirst && !grown) || rule.formula == B::None) continue;
    const std::size_t dot = rule.name.rfind('.');
    if (rule.name[dot - 1] == '_') continue;
    std::string name(rule.name.substr(0, dot));
    name += '_';
    name += rule.name.substr(dot);
    made.emplace_back(std::move(name), rule);
    made.back().second.name = made.back().first;
    made.back().second.form = F::InPlace;
  }
  return made;
}

/// The rows by their names; of equal names that of the table.
const std::unordered_map<std::string_view, const OpRule*>& by_name() {
  static const auto derived = in_place_rules();
  static const std::unordered_map<std::string_view, const OpRule*> rows = [] {
    std::unordered_map<std::string_view, const OpRule*> all;
    for (const OpRule& rule : op_rules()) all.emplace(rule.name, &rule);
    for (const auto& [name, rule] : derived) all.emplace(name, &rule);
    return all;
  }();
  return rows;
}

/// Further names of operators, without their overloads: composites that only call the other.
constexpr std::pair<std::string_view, std::string_view> kSynonyms[] = {
    {"aten.__and__", "aten.bitwise_and"},
    {"aten.__or__", "aten.bitwise_or"},
    {"aten.__xor__", "aten.bitwise_xor"},
    {"aten.absolute", "aten.abs"},
    {"aten.arccos", "aten.acos"},
    {"aten.arccosh", "aten.acosh"},
    {"aten.arcsin", "aten.asin"},
    {"aten.arcsinh", "aten.asinh"},
    {"aten.arctan", "aten.atan"},
    {"aten.arctan2", "aten.atan2"},
    {"aten.arctanh", "aten.atanh"},
    {"aten.clip", "aten.clamp"},
    {"aten.concat", "aten.cat"},
    {"aten.concatenate", "aten.cat"},
    {"aten.divide", "aten.div"},
    {"aten.fix", "aten.trunc"},
    {"aten.greater", "aten.gt"},
    {"aten.greater_equal", "aten.ge"},
    {"aten.less", "aten.lt"},
    {"aten.less_equal", "aten.le"},
    {"aten.multiply", "aten.mul"},
    {"aten.negative", "aten.neg"},
    {"aten.not_equal", "aten.ne"},
    {"aten.special_digamma", "aten.digamma"},
    {"aten.special_erf", "aten.erf"},
    {"aten.special_erfc", "aten.erfc"},
    {"aten.special_erfinv", "aten.erfinv"},
    {"aten.special_exp2", "aten.exp2"},
    {"aten.special_expit", "aten.sigmoid"},
    {"aten.special_expm1", "aten.expm1"},
    {"aten.special_gammaln", "aten.lgamma"},
    {"aten.special_log1p", "aten.log1p"},
    {"aten.special_logsumexp", "aten.logsumexp"},
    {"aten.special_psi", "aten.digamma"},
    {"aten.special_round", "aten.round"},
    {"aten.special_sinc", "aten.sinc"},
    {"aten.subtract", "aten.sub"},
    {"aten.swapaxes", "aten.transpose"},
    {"aten.swapdims", "aten.transpose"},
    {"aten.true_divide", "aten.div"},
};

const OpRule* find_row(std::string_view name) {
  const auto at = by_name().find(name);
  return at == by_name().end() ? nullptr : at->second;
}

}  // namespace

const OpRule* find_op_rule(std::string_view name) {
  if (name.starts_with("mesh.")) return find_mesh_rule(name);
  if (const OpRule* rule = find_row(name)) return rule;
  const std::string_view base = name.substr(0, name.rfind('.'));
  for (const auto& [synonym, other] : kSynonyms) {
    if (base != synonym) continue;
    const std::string_view overload = name.substr(base.size());
    const bool transpose = other == "aten.transpose";
    return find_row(std::string(other) + std::string(transpose ? ".int" : overload));
  }
  return nullptr;
}

const OpRule& default_op_rule() {
  static constexpr OpRule rule = op_table::row(
      "", F::Contiguous, B::Unknown, KernelClass::Elementwise,
      {op_table::in(0), op_table::in(1), op_table::in(2), op_table::in(3), op_table::out(0), op_table::out(1)});
  return rule;
}

std::span<const OpRule> op_rules() {
  static const std::vector<OpRule> all = [] {
    std::vector<OpRule> rows;
    for (const std::span<const OpRule> part :
         {op_table::usual_rows(), op_table::further_rows(), op_table::gradient_rows()})
      rows.insert(rows.end(), part.begin(), part.end());
    return rows;
  }();
  return all;
}

}  // namespace foreshard
