#include "core/mesh/partial_gradients.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/mesh/terms.h"

namespace foreshard::mesh {
namespace {

/// Beside its parameters the operator is linear in what it reads: a layer without an activation.
bool is_layer(const Op& op) {
  return op.name == "aten.linear.default" || op.name == "aten.mm.default" || op.name == "aten.addmm.default" ||
         op.name == "aten.matmul.default";
}

/// Its backward is written in products and sums, which take terms (pow's, as a norm of single operators has it); that
/// of others is one operator of its own, which DTensor gives whole gradients.
bool has_formula(const Op& op) {
  static constexpr std::array<std::string_view, 10> kFormulas{
      "aten.mul.Tensor",    "aten.mul.Scalar",   "aten.div.Tensor",         "aten.pow.Tensor_Scalar",
      "aten.rsqrt.default", "aten.sqrt.default", "aten.reciprocal.default", "aten.exp.default",
      "aten.add.Tensor",    "aten.add.Scalar"};
  return std::find(kFormulas.begin(), kFormulas.end(), op.name) != kFormulas.end();
}

}  // namespace

void PartialGradients::follow(const Op& op, const std::vector<CutTensor>& args, const std::vector<ParamId>& params) {
  const auto is_parameter = [this](const CutTensor& x) { return x.value < 0 || views_.contains(x.value); };
  const auto is_known = [this](const CutTensor& x) {  // no gradient goes back through numbers of rows and places
    return x.floating && x.value >= 0 && sources_.contains(x.value);
  };
  const bool own = !params.empty() && std::any_of(args.begin(), args.end(), is_parameter);
  if (!own && std::none_of(args.begin(), args.end(), is_known)) return;
  if (op.name == "aten.detach.default") return;  // nothing comes back
  if (own && std::all_of(args.begin(), args.end(), is_parameter)) {
    for (const ValueId id : op.out) views_.insert(id.value);
    return;
  }
  const bool terms = std::any_of(args.begin(), args.end(), [](const CutTensor& x) { return x.cut.term; });
  Source made;
  std::vector<CutTensor> gradients = args;  // as they come back: terms
  for (CutTensor& x : gradients) {
    if (!is_known(x)) continue;
    const Source& source = sources_.at(x.value);
    made.behind.insert(source.behind.begin(), source.behind.end());
    if (terms && !x.cut.term && x.floating) lacking_.insert(source.behind.begin(), source.behind.end());
    x.cut.term = true;
    made.sums = made.sums || source.sums;
    if (!source.sums) made.params.insert(source.params.begin(), source.params.end());
  }
  if (own) {
    made.sums = false;  // of what it reads; that is summed where it is read
    for (const ParamId param : params) made.params.insert(param.value);
    made.behind.insert(made.params.begin(), made.params.end());
  }
  const bool takes_terms =
      has_formula(op) || (own ? is_layer(op) : carry_terms(op, gradients, op.out.size()).has_value());
  made.sums = made.sums || !takes_terms;
  for (const ValueId id : op.out)
    if (id.valid()) sources_[id.value] = made;
}

bool PartialGradients::arrives(std::int32_t value) {
  const auto known = sources_.find(value);
  if (known == sources_.end() || known->second.sums) return true;
  reached_.insert(known->second.params.begin(), known->second.params.end());
  return false;
}

void PartialGradients::gets_terms(std::int32_t value) {
  const auto known = sources_.find(value);
  if (known != sources_.end()) lacking_.insert(known->second.behind.begin(), known->second.behind.end());
}

bool PartialGradients::feeds(std::int32_t value, const std::set<std::int32_t>& params) const {
  const auto known = sources_.find(value);
  return known != sources_.end() && !known->second.sums &&
         std::any_of(known->second.params.begin(), known->second.params.end(),
                     [&](std::int32_t param) { return params.contains(param); });
}

}  // namespace foreshard::mesh
