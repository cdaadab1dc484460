#include "core/mesh/cut.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/lowering/op_rules.h"
#include "core/mesh/cut_errors.h"
#include "core/mesh/own_code.h"
#include "core/mesh/terms.h"

namespace foreshard::mesh {
namespace {

std::int32_t wrap(std::int64_t dim, std::size_t rank) {
  return static_cast<std::int32_t>(dim < 0 ? dim + static_cast<std::int64_t>(rank) : dim);
}

const Arg* argument(const Op& op, std::size_t position, std::string_view name) {
  for (const NamedArg& named : op.kwargs)
    if (named.name == name) return &named.arg;
  return position < op.args.size() ? &op.args[position] : nullptr;
}

std::vector<std::int64_t> integers(const Op& op, std::size_t position, std::string_view name) {
  std::vector<std::int64_t> out;
  const Arg* arg = argument(op, position, name);
  if (arg == nullptr) return out;
  if (const auto* one = std::get_if<std::int64_t>(&arg->value)) out.push_back(*one);
  if (const auto* list = std::get_if<ArgList>(&arg->value)) {
    for (const Arg& a : *list)
      if (const auto* number = std::get_if<std::int64_t>(&a.value)) out.push_back(*number);
  }
  return out;
}

std::int64_t product(const Shape& shape, std::size_t begin, std::size_t end) {
  std::int64_t total = 1;
  for (std::size_t i = begin; i < end; ++i) total *= shape[i];
  return total;
}

class Carrier {
 public:
  Carrier(Op& op, const std::vector<CutTensor>& args, const std::vector<Shape>& results, const Group& group,
          const std::string& place, const std::set<std::int32_t>& parts)
      : op_(op),
        args_(args),
        results_(results),
        group_(group),
        errors_{op, args, group, place},
        name_(base_name(op.name)),
        parts_(parts) {}

  Result<std::vector<Cut>> run() {
    bool any = false, replica = false;
    for (const CutTensor& arg : args_) {
      any = any || arg.cut.cut() || arg.cut.term;
      spread_ = spread_ || arg.cut.spread;
      replica = replica || arg.cut.replica;
    }
    Cut same;
    if (!any) {
      same.replica = replica;
      same.spread = spread_;
      same.zero = makes_zeros(name_);
      return std::vector<Cut>(results_.size(), same);
    }
    auto made = cuts();
    if (!made) return made;
    for (Cut& cut : *made)
      if (cut.cut()) cut.spread = spread_;
    return made;
  }

 private:
  using Cuts = std::vector<Cut>;

  Result<Cuts> cuts() {
    if (std::any_of(args_.begin(), args_.end(), [](const CutTensor& x) { return x.cut.term; })) {
      if (auto terms = carry_terms(op_, args_, results_.size())) return std::move(*terms);
      return fail(errors_.mixes("terms of a sum"));
    }
    if (name_ == "view" || name_ == "_unsafe_view" || name_ == "reshape" || name_ == "flatten" || name_ == "unflatten")
      return reshaped();
    if (name_ == "t" || name_ == "transpose" || name_ == "permute") return permuted();
    if (name_ == "unsqueeze" || name_ == "squeeze" || name_ == "expand" || name_ == "expand_as") return stretched();
    if (name_ == "slice" || name_ == "select" || name_ == "narrow") return parts();
    if (name_ == "split" || name_ == "split_with_sizes" || name_ == "chunk" || name_ == "unbind") return pieces();
    if (name_ == "cat" || name_ == "stack") return joined();
    if (name_ == "view_as_complex" || name_ == "view_as_real") return same_dim(args_.front());
    if (name_ == "mm" || name_ == "addmm" || name_ == "bmm" || name_ == "baddbmm") return multiplied();
    if (name_ == "matmul") return batched();
    if (name_ == "repeat_interleave") return repeated();
    if (name_ == "type_as") return same_dim(args_.front());
    if (name_ == "linear" || op_.name.starts_with("torchao.matmul_float8")) return linear();
    if (name_ == "_grouped_mm") return grouped();
    if (name_ == "embedding") return looked_up();
    if (name_.find("scaled_dot_product") != name_.npos) return attended();
    if (name_ == "native_layer_norm" || name_ == "_fused_rms_norm" || name_ == "rms_norm") return normalised();
    if (name_ == "constant_pad_nd") return padded();
    if (name_ == "new_empty" || name_ == "new_zeros" || name_ == "new_ones" || name_ == "new_full") return fresh();
    if (reduces()) return reduced();
    const OpRule* rule = find_op_rule(op_.name);
    const bool pointwise = rule != nullptr && (rule->form == OpForm::Elementwise || rule->form == OpForm::LikeFirst ||
                                               rule->form == OpForm::InPlace || rule->form == OpForm::Alias ||
                                               rule->form == OpForm::CopyIfNeeded);
    if (pointwise || name_ == "clone" || name_ == "native_dropout" || name_ == "_to_copy") return pointwise_cuts();
    if (group_.own_rows) return of_own_rows();
    return fail(errors_.mixes("there is no rule that carries the cut through it"));
  }

  /// Of rows of its own a rank makes as much as of any: results with as many rows are cut as they are.
  Result<Cuts> of_own_rows() {
    const auto cut = std::find_if(args_.begin(), args_.end(), [](const CutTensor& x) { return x.cut.cut(); });
    const bool of_rows =
        std::all_of(args_.begin(), args_.end(), [](const CutTensor& x) { return !x.cut.cut() || x.cut.dim == 0; });
    if (!of_rows) return fail(errors_.mixes("there is no rule that carries the cut through it"));
    Cuts out;
    for (const Shape& shape : results_)
      out.push_back(!shape.empty() && shape.front() == cut->shape.front() ? cut->cut : Cut());
    return out;
  }

  /// Rows that were sent to the rank's experts, by their weights; or all rows, by a part of every expert's matrix.
  Result<Cuts> grouped() {
    const bool stacked = args_.size() > 1 && args_[0].shape.size() == 2 && args_[1].shape.size() == 3;
    if (stacked && args_[1].cut.dim > 0) {
      const Cut &x = args_[0].cut, &w = args_[1].cut;
      Cut out;
      if (!x.cut() && w.dim == 2) {
        out = w;
        out.dim = 1;
      } else if (x.dim == 1 && w.dim == 1) {
        out.term = true;
      } else {
        return fail(errors_.mixes("only one side of the product's inner dimension is cut"));
      }
      return Cuts{out};
    }
    if (stacked && args_[0].cut.dim == 0 && !args_[1].cut.cut()) return Cuts(results_.size(), args_[0].cut);
    const bool by_experts = args_.size() > 1 && args_[1].cut.dim == 0 && args_[1].shape.size() == 3;
    if (!by_experts || args_.front().cut.cut()) return fail(errors_.mixes("its experts are not cut as wholes"));
    return Cuts(results_.size());
  }

  // --- views ---

  Result<Cuts> reshaped() {
    const CutTensor& x = args_.front();
    const Shape& out = results_.front();
    Cut cut = x.cut;
    // Both shapes fall into groups of neighbouring dimensions with equal products.
    std::size_t i = 0, j = 0;
    while (i < x.shape.size() || j < out.size()) {
      const std::size_t i0 = i, j0 = j;
      std::int64_t a = 1, b = 1;
      if (i < x.shape.size()) a = x.shape[i++];
      if (j < out.size()) b = out[j++];
      while (a != b) {
        if (a < b && i < x.shape.size()) {
          a *= x.shape[i++];
        } else if (j < out.size()) {
          b *= out[j++];
        } else {
          break;
        }
      }
      const auto at = static_cast<std::size_t>(cut.dim);
      if (at < i0 || at >= i) continue;
      cut.before *= product(x.shape, i0, at);
      cut.after *= product(x.shape, at + 1, i);
      const bool heads = i - i0 == 1 && i == x.shape.size() && j - j0 == 2 && cut.before == 1 && cut.after == 1;
      if (heads && out[j0] == 1 && cut.whole != 1) return fail(errors_.torn_head(1));
      auto placed = place(cut, out, j0, j);
      if (!placed) return tl::unexpected(placed.error());
      if (name_ == "unflatten")
        rewrite_sizes(2, "sizes", *placed, out, wrap(integer_argument(op_, 1, "dim", 0), x.shape.size()));
      else if (name_ != "flatten")
        rewrite_sizes(1, name_ == "reshape" ? "shape" : "size", *placed, out);
      return Cuts{*placed};
    }
    return fail(errors_.mixes("no dimension of the result is the one that is cut"));
  }

  static Cut of_dimension(Cut cut, std::size_t dim, const Shape& out) {
    cut.dim = static_cast<std::int32_t>(dim);
    cut.before = cut.after = 1;
    cut.whole = out[dim];
    return cut;
  }

  /// The dimension of `out` between `begin` and `end` that takes the cut up.
  Result<Cut> place(Cut cut, const Shape& out, std::size_t begin, std::size_t end) const {
    for (std::size_t d = begin; d < end; ++d) {
      const std::int64_t ahead = product(out, begin, d);
      const std::int64_t behind = product(out, d + 1, end);
      if (out[d] == 1 && cut.whole != 1) continue;
      if (ahead == cut.before && out[d] % cut.whole == 0 && cut.after == out[d] / cut.whole * behind) {
        cut.dim = static_cast<std::int32_t>(d);
        cut.after = out[d] / cut.whole;
        cut.before = 1;
        return cut;
      }
      if (ahead == cut.before && cut.whole % out[d] == 0) {  // cut into pieces: whole ones for every rank
        // What nothing takes apart are heads in groups, of which there may be too few.
        const bool parts = parts_.contains(static_cast<std::int32_t>(d));
        if (parts && end - d > 2 && out[d + 1] % group_.ranks == 0) {
          cut.apart = true;  // [parts, heads, width]: of every part an equal share, by a module that counts its heads
          return of_dimension(cut, d + 1, out);
        }
        if (out[d] % group_.ranks != 0) return tl::unexpected(errors_.torn_head(out[d]));
        return of_dimension(cut, d, out);
      }
      if (begin + 1 == end || (ahead < cut.before && cut.before % ahead == 0 &&
                               ahead * out[d] >= cut.before * cut.whole && end - d == 1)) {  // merged
        cut.dim = static_cast<std::int32_t>(d);
        cut.before /= ahead;
        return cut;
      }
    }
    return tl::unexpected(errors_.mixes("the reshape tears the cut dimension apart"));
  }

  /// `first`: the dimension that the list begins with.
  void rewrite_sizes(std::size_t position, std::string_view name, const Cut& cut, const Shape& out,
                     std::int32_t first = 0) {
    Arg* arg = const_cast<Arg*>(argument(op_, position, name));
    auto* list = arg == nullptr ? nullptr : std::get_if<ArgList>(&arg->value);
    if (list == nullptr || cut.dim < first || static_cast<std::size_t>(cut.dim - first) >= list->size()) return;
    auto* size = std::get_if<std::int64_t>(&(*list)[static_cast<std::size_t>(cut.dim - first)].value);
    if (size != nullptr && *size != -1) *size = local_shape(out, cut, group_)[static_cast<std::size_t>(cut.dim)];
  }

  Result<Cuts> permuted() {
    const CutTensor& x = args_.front();
    Cut cut = x.cut;
    const auto order = order_of(op_, x.shape.size());
    const auto at = static_cast<std::size_t>(cut.dim);
    cut.dim = static_cast<std::int32_t>(std::find(order.begin(), order.end(), at) - order.begin());
    return Cuts{cut};
  }

  Result<Cuts> stretched() {
    const CutTensor& x = args_.front();
    const Shape& out = results_.front();
    Cut cut = x.cut;
    if (name_ == "unsqueeze") {
      const std::int64_t given = integer_argument(op_, 1, "dim", 0);
      const std::int32_t at = wrap(given, x.shape.size() + 1);
      if (at <= cut.dim) ++cut.dim;
    } else if (name_ == "squeeze") {
      auto dims = integers(op_, 1, "dim");
      const std::int32_t before = cut.dim;
      for (std::size_t d = 0; d < x.shape.size() && static_cast<std::int32_t>(d) < before; ++d) {
        const bool named = dims.empty() || std::any_of(dims.begin(), dims.end(), [&](std::int64_t one) {
                             return wrap(one, x.shape.size()) == static_cast<std::int32_t>(d);
                           });
        if (named && x.shape[d] == 1) --cut.dim;
      }
    } else {
      cut.dim += static_cast<std::int32_t>(out.size() - x.shape.size());
      rewrite_sizes(1, "size", cut, out);
    }
    return Cuts{cut};
  }

  Result<Cuts> parts() {
    const CutTensor& x = args_.front();
    Cut cut = x.cut;
    const std::int32_t dim = wrap(integer_argument(op_, 1, "dim", 0), x.shape.size());
    if (dim == cut.dim) {
      const bool all = name_ == "slice" && results_.front() == x.shape;
      if (!all) return fail(errors_.mixes("it takes a part of the cut dimension"));
      return Cuts{cut};
    }
    if (name_ == "select" && dim < cut.dim) --cut.dim;
    return Cuts{cut};
  }

  Result<Cuts> pieces() {
    const CutTensor& x = args_.front();
    Cut cut = x.cut;
    const std::int32_t dim = wrap(integer_argument(op_, name_ == "unbind" ? 1 : 2, "dim", 0), x.shape.size());
    if (dim == cut.dim) return fused();
    if (name_ == "unbind" && dim < cut.dim) --cut.dim;
    return Cuts(results_.size(), cut);
  }

  /// The parts of a fused projection: a module sees its rank's rows alone and takes an equal share of them for each.
  Result<Cuts> fused() {
    const CutTensor& x = args_.front();
    if (name_ == "unbind" || x.cut.before != 1) return fail(errors_.mixes("it splits the cut dimension"));
    const auto at = static_cast<std::size_t>(x.cut.dim);
    Cuts out;
    for (const Shape& shape : results_) {
      const std::int64_t whole = shape[at] / x.cut.after;
      if (shape[at] % x.cut.after != 0 || whole % group_.ranks != 0) return fail(errors_.does_not_divide(shape[at]));
      out.push_back(x.cut);
      out.back().whole = whole;
      out.back().apart = true;
    }
    Arg* sizes = const_cast<Arg*>(argument(op_, 1, name_ == "split_with_sizes" ? "split_sizes" : "split_size"));
    if (sizes == nullptr || name_ == "chunk") return out;  // a number of parts is that of any rank
    if (auto* one = std::get_if<std::int64_t>(&sizes->value)) *one /= group_.ranks;
    if (auto* list = std::get_if<ArgList>(&sizes->value)) {
      for (Arg& arg : *list)
        if (auto* size = std::get_if<std::int64_t>(&arg.value)) *size /= group_.ranks;
    }
    return out;
  }

  Result<Cuts> joined() {
    const std::size_t rank = results_.front().size();
    const std::int32_t dim = wrap(integer_argument(op_, 1, "dim", 0), rank);
    const auto empty = [](const CutTensor& x) { return x.shape == Shape{0}; };  // joins anything (torch.tensor([]))
    const auto first = std::find_if_not(args_.begin(), args_.end(), empty);
    const Cut cut = first == args_.end() ? Cut() : first->cut;
    for (const CutTensor& x : args_)
      if (!empty(x) && !(x.cut == cut)) return fail(errors_.mixes("its parts are cut differently"));
    if (name_ == "stack") {  // along a dimension of its own
      Cut out = cut;
      if (dim <= cut.dim) ++out.dim;
      return Cuts{out};
    }
    if (dim == cut.dim) return fail(errors_.mixes("it joins along the cut dimension"));
    return Cuts{cut};
  }

  Result<Cuts> same_dim(const CutTensor& x) {
    if (static_cast<std::size_t>(x.cut.dim) + 1 >= x.shape.size() && name_ == "view_as_complex")
      return fail(errors_.mixes("pairs of the cut dimension"));
    return Cuts{x.cut};
  }

  // --- products ---

  Result<Cuts> multiplied() {
    const bool biased = args_.size() == 3;
    const CutTensor &a = args_[biased ? 1 : 0], &b = args_[biased ? 2 : 1];
    const auto rank = static_cast<std::int32_t>(a.shape.size());
    Cut out;
    if (rank == 3 && a.cut.dim == 0 && b.cut.dim == 0) {
      out = a.cut;
    } else if (a.cut.dim == rank - 1 && b.cut.dim == rank - 2) {
      if (a.shape.back() % group_.ranks != 0) return tl::unexpected(errors_.uneven_sum(a.shape.back()));
      out.term = true;
    } else if (a.cut.dim == rank - 2 && !b.cut.cut()) {
      if (a.cut.spread) return fail(errors_.outside_plan());
      out = a.cut;
    } else if (b.cut.dim == rank - 1 && !a.cut.cut()) {
      out = b.cut;
    } else {
      return fail(errors_.mixes("only one side of the product's inner dimension is cut"));
    }
    return Cuts{out};
  }

  /// matmul: what it is of depends on its operands' dimensions; those before the last two are a batch.
  Result<Cuts> batched() {
    const CutTensor &a = args_[0], &b = args_[1];
    const auto left = static_cast<std::int32_t>(a.shape.size()), right = static_cast<std::int32_t>(b.shape.size());
    const auto rank = static_cast<std::int32_t>(results_.front().size());
    if (left < 2 || right < 2) return fail(errors_.mixes("a product of vectors"));
    Cut out;
    if (a.cut.cut() && b.cut.cut() && a.cut.dim < left - 2 && left - a.cut.dim == right - b.cut.dim) {
      out = a.cut;
      out.dim += rank - left;
    } else if (a.cut.dim == left - 1 && b.cut.dim == right - 2) {
      if (a.shape.back() % group_.ranks != 0) return tl::unexpected(errors_.uneven_sum(a.shape.back()));
      out.term = true;
    } else if (a.cut.cut() && a.cut.dim < left - 1 && !b.cut.cut() && (right == 2 || a.cut.dim == left - 2)) {
      out = a.cut;
      out.dim += rank - left;
    } else if (b.cut.dim == right - 1 && !a.cut.cut()) {
      out = b.cut;
      out.dim = rank - 1;
    } else {
      return fail(errors_.mixes("only one side of the product's inner dimension is cut"));
    }
    return Cuts{out};
  }

  /// Each element of the dimension becomes several neighbours.
  Result<Cuts> repeated() {
    const CutTensor& x = args_.front();
    const std::int64_t times = integer_argument(op_, 1, "repeats", 0), none = static_cast<std::int64_t>(x.shape.size());
    const std::int64_t dim = integer_argument(op_, 2, "dim", none);
    if (times < 1 || dim == none) return fail(errors_.mixes("it repeats elements of all dimensions at once"));
    Cut cut = x.cut;
    if (wrap(dim, x.shape.size()) == cut.dim) cut.after *= times;
    return Cuts{cut};
  }

  Result<Cuts> linear() {
    const CutTensor &x = args_[0], &w = args_[1];
    const auto last = static_cast<std::int32_t>(x.shape.size()) - 1;
    Cut out;
    if (x.cut.dim == last && w.cut.dim == 1) {
      if (x.shape.back() % group_.ranks != 0) return tl::unexpected(errors_.uneven_sum(x.shape.back()));
      out.term = true;
    } else if (x.cut.cut() && x.cut.dim != last && !w.cut.cut()) {
      if (x.cut.spread) return fail(errors_.outside_plan());
      out = x.cut;
    } else if (!x.cut.cut() && w.cut.dim == 0) {
      out = w.cut;
      out.dim = last;
    } else {
      return fail(errors_.mixes("only one side of the product's inner dimension is cut"));
    }
    return Cuts{out};
  }

  Result<Cuts> looked_up() {
    const CutTensor &w = args_[0], &ids = args_[1];
    Cut out;
    if (w.cut.dim == 0) {
      out.term = true;
    } else if (w.cut.dim == 1) {
      out = w.cut;
      out.dim = static_cast<std::int32_t>(ids.shape.size());
    } else {
      out = ids.cut;
    }
    return Cuts{out};
  }

  Result<Cuts> attended() {
    const Cut cut = args_[0].cut;
    const bool by_rows =
        std::all_of(args_.begin(), args_.begin() + 3, [](const CutTensor& x) { return x.cut.dim == 0; });
    if (by_rows) {  // sequences of the rank's own; of random states there are two
      Cuts out;
      for (const Shape& shape : results_)
        out.push_back(shape.size() > 1 && shape.front() == args_[0].shape.front() ? cut : Cut());
      return out;
    }
    for (std::size_t i = 0; i < 3; ++i) {
      if (args_[i].cut.dim != 1) return fail(errors_.mixes("attention is cut by heads alone"));
    }
    if (args_[0].cut.whole * args_[0].cut.after % group_.ranks != 0)
      return tl::unexpected(errors_.does_not_divide(args_[0].shape[1]));
    Cuts out;
    for (const Shape& shape : results_) {
      const bool by_head = shape.size() >= 3 && shape[1] == args_[0].shape[1];
      out.push_back(by_head ? cut : Cut());
    }
    return out;
  }

  // --- over dimensions ---

  Result<Cuts> normalised() {
    const CutTensor& x = args_.front();
    const auto dims = integers(op_, 1, "normalized_shape").size();
    if (!x.cut.cut() || static_cast<std::size_t>(x.cut.dim) + dims >= x.shape.size())
      return fail(errors_.mixes("it normalises over the cut dimension"));
    return Cuts(results_.size(), x.cut);
  }

  Result<Cuts> padded() {
    const CutTensor& x = args_.front();
    const auto padding = integers(op_, 1, "pad");
    const std::size_t from_end = x.shape.size() - 1 - static_cast<std::size_t>(x.cut.dim);
    if (2 * from_end + 1 < padding.size() && (padding[2 * from_end] != 0 || padding[2 * from_end + 1] != 0))
      return fail(errors_.mixes("it pads the cut dimension"));
    return Cuts{x.cut};
  }

  /// Sizes that a module takes from its local tensors.
  Result<Cuts> fresh() {
    const CutTensor& x = args_.front();
    const Shape& out = results_.front();
    const auto at = static_cast<std::size_t>(x.cut.dim);
    if (out.size() != x.shape.size() || out[at] != x.shape[at]) return Cuts{Cut()};
    rewrite_sizes(1, "size", x.cut, out);
    return Cuts{x.cut};
  }

  bool reduces() const {
    static constexpr std::array<std::string_view, 22> kReductions{
        "sum",      "mean",    "amax",         "amin",        "var",           "std",       "linalg_vector_norm",
        "norm",     "max",     "min",          "argmax",      "argmin",        "logsumexp", "cumsum",
        "_softmax", "softmax", "_log_softmax", "log_softmax", "_safe_softmax", "topk",      "sort",
        "all"};
    return std::find(kReductions.begin(), kReductions.end(), name_) != kReductions.end();
  }

  Result<Cuts> reduced() {
    const CutTensor& x = args_.front();
    const std::size_t rank = x.shape.size();
    const std::size_t position = name_ == "linalg_vector_norm" || name_ == "norm" || name_ == "topk" ? 2 : 1;
    const auto dims = integers(op_, position, "dim");
    const bool all = dims.empty();
    const bool over_cut =
        all || std::any_of(dims.begin(), dims.end(), [&](std::int64_t dim) { return wrap(dim, rank) == x.cut.dim; });
    if (group_.own_rows && over_cut) return Cuts(results_.size());
    std::int32_t gone = 0;
    for (const std::int64_t dim : dims) {
      if (wrap(dim, rank) == x.cut.dim) {
        if (name_ == "sum") return Cuts{summed()};
        return fail(errors_.mixes("it reduces the cut dimension"));
      }
      if (wrap(dim, rank) < x.cut.dim) ++gone;
    }
    if (all && (name_ == "sum" || name_ == "mean")) return Cuts{summed()};
    if (all) return fail(errors_.mixes("it reduces the cut dimension"));
    Cuts out;
    for (const Shape& shape : results_) {
      Cut cut = x.cut;
      if (shape.size() < rank) cut.dim -= gone;
      out.push_back(cut);
    }
    return out;
  }
  static Cut summed() {
    Cut cut;
    cut.term = true;
    return cut;
  }

  Result<Cuts> pointwise_cuts() {
    Cuts out;
    for (const Shape& shape : results_) {
      Cut cut;
      for (const CutTensor& x : args_) {
        if (!x.cut.cut()) continue;
        Cut here = x.cut;
        here.dim += static_cast<std::int32_t>(shape.size() - x.shape.size());
        if (cut.cut() && here.dim != cut.dim)
          return fail(errors_.mixes("its operands are cut along different dimensions"));
        if (!cut.cut()) cut = here;
      }
      for (const CutTensor& x : args_) {  // the others are broadcast along it, or have the same part
        const std::int32_t own = cut.dim - static_cast<std::int32_t>(shape.size() - x.shape.size());
        if (x.cut.cut() || own < 0 || x.shape[static_cast<std::size_t>(own)] == 1) continue;
        return fail(errors_.mixes("one operand is cut and the other is whole"));
      }
      cut.replica = false;
      out.push_back(cut);
    }
    return out;
  }

  Op& op_;
  const std::vector<CutTensor>& args_;
  const std::vector<Shape>& results_;
  const Group& group_;
  const CutErrors errors_;
  std::string_view name_;
  const std::set<std::int32_t>& parts_;
  bool spread_ = false;
};

}  // namespace

std::string_view base_name(std::string_view name) {
  if (name.starts_with("aten.")) name.remove_prefix(5);
  return name.substr(0, name.find('.'));
}

std::int64_t integer_argument(const Op& op, std::size_t position, std::string_view name, std::int64_t fallback) {
  const Arg* arg = argument(op, position, name);
  const auto* number = arg == nullptr ? nullptr : std::get_if<std::int64_t>(&arg->value);
  return number == nullptr ? fallback : *number;
}

std::int64_t begin_of(std::int64_t whole, const Group& group) {
  const std::int64_t rows = (whole + group.ranks - 1) / group.ranks;
  return std::min(whole, rows * group.place);
}

std::int64_t part_of(std::int64_t whole, const Group& group) {
  const std::int64_t rows = (whole + group.ranks - 1) / group.ranks;
  return std::min(rows, whole - begin_of(whole, group));
}

Shape local_shape(const Shape& whole, const Cut& cut, const Group& group) {
  Shape local = whole;
  if (cut.cut()) local[static_cast<std::size_t>(cut.dim)] = cut.before * part_of(cut.whole, group) * cut.after;
  return local;
}

Result<std::vector<Cut>> carry_on(Op& op, const std::vector<CutTensor>& args, const std::vector<Shape>& results,
                                  const Group& group, const std::string& place, const std::set<std::int32_t>& parts) {
  Cut whole;
  whole.zero = makes_zeros(base_name(op.name));
  if (args.empty()) return std::vector<Cut>(results.size(), whole);
  return Carrier(op, args, results, group, place, parts).run();
}

}  // namespace foreshard::mesh
