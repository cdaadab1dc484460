#include "core/mesh/terms.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace foreshard::mesh {
namespace {

template <std::size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Of their first argument; others are sizes, places and types.
constexpr std::array<std::string_view, 34> kMoves{"view",
                                                  "_unsafe_view",
                                                  "reshape",
                                                  "flatten",
                                                  "unflatten",
                                                  "t",
                                                  "transpose",
                                                  "permute",
                                                  "squeeze",
                                                  "unsqueeze",
                                                  "expand",
                                                  "slice",
                                                  "select",
                                                  "narrow",
                                                  "split",
                                                  "chunk",
                                                  "unbind",
                                                  "split_with_sizes",
                                                  "clone",
                                                  "_to_copy",
                                                  "type_as",
                                                  "contiguous",
                                                  "neg",
                                                  "alias",
                                                  "detach",
                                                  "sum",
                                                  "mean",
                                                  "expand_as",
                                                  "constant_pad_nd",
                                                  "view_as_real",
                                                  "view_as_complex",
                                                  "to",
                                                  "squeeze_",
                                                  "unsqueeze_"};
/// Of their first argument, by whole places.
constexpr std::array<std::string_view, 3> kPicks{"index", "index_select", "gather"};
/// Of one argument, the others whole.
constexpr std::array<std::string_view, 8> kProducts{"mul", "mul_", "div", "div_", "mm", "bmm", "matmul", "linear"};
/// Of all arguments together.
constexpr std::array<std::string_view, 6> kSums{"add", "add_", "sub", "sub_", "cat", "stack"};
/// Of their last argument, into their first.
constexpr std::array<std::string_view, 10> kPuts{"index_put",    "index_put_", "index_add",   "index_add_",
                                                 "scatter",      "scatter_",   "scatter_add", "index_copy",
                                                 "scatter_add_", "index_copy_"};
/// Fresh tensors of the first one's size or kind.
constexpr std::array<std::string_view, 6> kFresh{"new_zeros",  "new_empty", "zeros_like",
                                                 "empty_like", "new_full",  "ones_like"};

bool whole(const CutTensor& x) { return !x.cut.cut() && !x.cut.term; }

bool adds_number(const Op& op, std::string_view name) {
  return name != "cat" && name != "stack" && op.args.size() > 1 &&
         (std::holds_alternative<std::int64_t>(op.args[1].value) || std::holds_alternative<double>(op.args[1].value));
}

/// Where the operator is linear in the arguments that are terms.
bool linear_in_terms(const Op& op, std::string_view name, const std::vector<CutTensor>& args) {
  const auto terms = std::count_if(args.begin(), args.end(), [](const CutTensor& x) { return x.cut.term; });
  const bool first = args.front().cut.term;
  if (is_one_of(name, kMoves) || is_one_of(name, kPicks)) return first && terms == 1;
  const auto zeros =
      std::count_if(args.begin(), args.end(), [](const CutTensor& x) { return x.cut.zero && !x.cut.term; });
  if (is_one_of(name, kSums))
    return terms + zeros == static_cast<std::ptrdiff_t>(args.size()) && !adds_number(op, name);
  if (puts(name)) return args.back().cut.term || (first && name != "index_put" && name != "index_put_");
  const bool divides = name.starts_with("div");
  const bool biased = name == "linear" && args.size() > 2;
  return is_one_of(name, kProducts) && terms == 1 && !biased && (first || !divides);
}

}  // namespace

bool makes_zeros(std::string_view name) { return name == "zeros" || name == "zeros_like" || name == "new_zeros"; }

bool leaves_zeros(std::string_view name) { return is_one_of(name, kSums) || is_one_of(name, kFresh); }

bool puts(std::string_view name) { return is_one_of(name, kPuts); }

std::optional<std::vector<Cut>> carry_terms(const Op& op, const std::vector<CutTensor>& args, std::size_t results) {
  const std::string_view name = base_name(op.name);
  if (is_one_of(name, kFresh)) {
    Cut whole;
    whole.zero = makes_zeros(name);
    return std::vector<Cut>(results, whole);
  }
  const bool beside = std::all_of(args.begin(), args.end(), [](const CutTensor& x) { return x.cut.term || whole(x); });
  if (!beside || !linear_in_terms(op, name, args)) return std::nullopt;
  Cut term;
  term.term = true;
  return std::vector<Cut>(results, term);
}

}  // namespace foreshard::mesh
