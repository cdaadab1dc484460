#include "core/model/families/deepseek/grouped_router.h"

#include <limits>
#include <utility>
#include <vector>

namespace foreshard::families {
namespace {

using Scoring = GroupedRouterConfig::Scoring;

struct Best {
  Tensor values, indices;
};

Best write_best(ProgramWriter& w, std::string_view op, ArgList args, const Dims& sizes, DType dtype) {
  const Dims strides = ProgramWriter::contiguous_strides(sizes);
  const auto found = w.emit(op, std::move(args), {}, {{sizes, strides, dtype}, {sizes, strides, DType::Int64}});
  return {found[0], found[1]};
}

/// torch.topk(x, k, dim=-1, sorted=False)
Best write_unsorted(ProgramWriter& w, const Tensor& x, std::int64_t k) {
  Dims sizes = x.sizes;
  sizes[-1] = k;
  return write_best(w, "aten.topk.default", {ProgramWriter::arg(x), number(k), number(-1), Arg{true}, Arg{false}},
                    sizes, x.dtype);
}

Tensor write_sum(ProgramWriter& w, const Tensor& x, bool keep) {
  Dims sizes = x.sizes;
  ArgList args{ProgramWriter::arg(x), ProgramWriter::arg(Dims{-1})};
  if (keep) {
    sizes[-1] = 1;
    args.push_back(Arg{true});
  } else {
    sizes.erase(sizes.rank() - 1);
  }
  return w.emit("aten.sum.dim_IntList", std::move(args), {},
                {{sizes, ProgramWriter::contiguous_strides(sizes), x.dtype}})[0];
}

/// How good each group is: its best expert, or its best two together.
Tensor write_group_scores(ProgramWriter& w, const GroupedRouterConfig& c, const Tensor& scores) {
  const Tensor grouped = w.view(scores, {-1, c.groups, c.experts / c.groups});
  const Dims sizes{grouped.sizes[0], c.groups};
  if (c.scoring == Scoring::GroupedSoftmax)
    return write_best(w, "aten.max.dim", {ProgramWriter::arg(grouped), number(-1)}, sizes, scores.dtype).values;
  const Dims two{grouped.sizes[0], c.groups, 2};
  return write_sum(
      w, write_best(w, "aten.topk.default", {ProgramWriter::arg(grouped), number(2)}, two, scores.dtype).values, false);
}

/// Scores with those of the groups that are not chosen replaced.
Tensor write_limited(ProgramWriter& w, const GroupedRouterConfig& c, const Tensor& scores, double otherwise) {
  const std::int64_t rows = scores.sizes[0], size = c.experts / c.groups;
  const Tensor groups = write_group_scores(w, c, scores);
  w.hold(groups);  // the library's forward names all of these
  const Tensor chosen = write_unsorted(w, groups, c.chosen_groups).indices;
  w.hold(chosen);
  const Tensor mask = w.unary("aten.zeros_like.default", groups);
  w.hold(mask);
  w.scatter_value_in_place(mask, 1, chosen, number(1));
  const Tensor wide = w.expand(w.unsqueeze(mask, -1), {-1, c.groups, size});
  const Dims flat{rows, c.experts};
  const Tensor all = ProgramWriter::can_view(wide, flat)
                         ? w.view(wide, wide.is_contiguous() ? Dims{-1, c.experts} : flat)
                         : w.unsafe_view(w.clone(wide), flat);
  w.hold(all);
  const Tensor hidden = w.unary("aten.bitwise_not.default", w.to(all, DType::Bool));
  return w.emit("aten.masked_fill.Scalar", {ProgramWriter::arg(scores), ProgramWriter::arg(hidden), Arg{otherwise}}, {},
                {{scores.sizes, ProgramWriter::like_strides(scores), scores.dtype}})[0];
}

Tensor write_gathered(ProgramWriter& w, const Tensor& x, const Tensor& indices) {
  return w.emit("aten.gather.default", {ProgramWriter::arg(x), number(1), ProgramWriter::arg(indices)}, {},
                {{indices.sizes, ProgramWriter::contiguous_strides(indices.sizes), x.dtype}})[0];
}

/// V3: chosen by corrected scores, weighted by the scores themselves.
Routing write_corrected(ProgramWriter& w, const GroupedRouterConfig& c, const GroupedRouterModules& m,
                        const Tensor& logits) {
  const Tensor scores = w.unary("aten.sigmoid.default", logits);
  const Tensor corrected = w.add(scores, w.buffer(m.correction));
  const Tensor limited = write_limited(w, c, corrected, -std::numeric_limits<double>::infinity());
  w.hold(limited);
  const Tensor indices = write_unsorted(w, limited, c.chosen).indices;
  Tensor weights = write_gathered(w, scores, indices);
  if (c.normalized) {
    const Tensor total = w.with_scalar("aten.add.Tensor", write_sum(w, weights, true), Arg{1e-20});
    w.hold(total);
    weights = w.divide_in_place(weights, total);
  }
  return {weights, indices};
}

Routing write_softmax(ProgramWriter& w, const GroupedRouterConfig& c, const Tensor& logits) {
  Tensor scores = w.softmax("aten._softmax.default", w.to(logits, DType::Float32, true), {number(-1), Arg{false}});
  if (c.scoring == Scoring::GroupedSoftmax) {
    scores = write_limited(w, c, scores, 0.0);
    w.hold(scores);
  }
  const Best best = write_unsorted(w, scores, c.chosen);
  return {best.values, best.indices};
}

}  // namespace

GroupedRouterModules add_grouped_router(ModelTree& tree, const GroupedRouterConfig& c, ModuleId block,
                                        std::string_view class_name, const ProgramOptions& program) {
  GroupedRouterModules m;
  m.module = tree.module(block, "gate", class_name);
  m.weight = tree.param(m.module, "weight", {c.experts, c.hidden});
  if (c.scoring == Scoring::CorrectedSigmoid) {
    m.correction = tree.buffer(m.module, "e_score_correction_bias", {c.experts},
                               program.buffer_dtype.value_or(tree.dtype()), true);
  }
  return m;
}

Routing write_grouped_router(ProgramWriter& w, const GroupedRouterConfig& c, const GroupedRouterModules& m,
                             const Tensor& x, ModuleId block) {
  w.enter(m.module);
  const Tensor rows = w.to(w.view(x, {-1, c.hidden}), DType::Float32);
  const Tensor logits = w.mm(rows, w.t(w.to(w.param(m.weight), DType::Float32)));
  w.hold(logits, Hold::Until::Call, block);  // returned and named beside what is used
  Routing routing =
      c.scoring == Scoring::CorrectedSigmoid ? write_corrected(w, c, m, logits) : write_softmax(w, c, logits);
  routing.weights = w.with_scalar("aten.mul.Tensor", routing.weights, Arg{c.scale});
  w.hold(routing.weights, Hold::Until::Call, block);
  w.hold(routing.experts, Hold::Until::Call, block);
  return routing;
}

}  // namespace foreshard::families
