#include "core/model/families/experts.h"

#include <utility>

namespace foreshard::families {
namespace {

/// x[index] along the first dimension.
Tensor rows_at(ProgramWriter& w, const Tensor& x, const Tensor& index) {
  Dims sizes = x.sizes;
  sizes[0] = index.sizes[0];
  return one(w, "aten.index.Tensor", {ProgramWriter::arg(x), Arg{ArgList{ProgramWriter::arg(index)}}}, sizes, x.dtype);
}

Tensor grouped_mm(ProgramWriter& w, const Tensor& rows, const Tensor& weights, const Tensor& ends) {
  return one(w, "aten._grouped_mm.default",
             {ProgramWriter::arg(rows), ProgramWriter::arg(weights), ProgramWriter::arg(ends)},
             {rows.sizes[0], weights.sizes[2]}, rows.dtype);
}

Routing write_router(ProgramWriter& w, const ExpertsConfig& c, const ExpertsModules& m, const Tensor& rows) {
  w.enter(m.router);
  const Tensor logits = w.linear(w.view(rows, {-1, c.hidden}), m.router_weight, {});
  const bool from_cpp = c.narrow_weights;  // softmax(dtype=...) casts in C++, .float() in Python
  const Tensor scores =
      w.softmax("aten._softmax.default", w.to(logits, DType::Float32, from_cpp), {number(-1), Arg{false}});
  const Dims sizes{rows.sizes[0], c.chosen}, strides = ProgramWriter::contiguous_strides(sizes);
  const auto best = w.emit("aten.topk.default", {ProgramWriter::arg(scores), number(c.chosen)}, {},
                           {{sizes, strides, scores.dtype}, {sizes, strides, DType::Int64}});
  Tensor weights = best[0];
  if (c.normalized) {
    const Tensor total =
        one(w, "aten.sum.dim_IntList", {ProgramWriter::arg(weights), ProgramWriter::arg(Dims{-1}), Arg{true}},
            {sizes[0], 1}, weights.dtype);
    weights = w.divide_in_place(weights, total);
  }
  if (c.narrow_weights) weights = w.to(weights, logits.dtype);
  return {weights, best[1]};
}

void add_weights(ModelTree& tree, const ExpertsConfig& c, ExpertsModules& m) {
  m.experts = tree.module(m.block, "experts", c.prefix + "Experts");
  m.gate_up = tree.param(m.experts, "gate_up_proj", {c.experts, 2 * c.width, c.hidden});
  m.down = tree.param(m.experts, "down_proj", {c.experts, c.hidden, c.width});
  m.activation = tree.module(m.experts, "act_fn", activation_class(c.activation));
}

}  // namespace

ExpertsModules add_routed_experts(ModelTree& tree, const ExpertsConfig& c, ModuleId block) {
  ExpertsModules m;
  m.block = block;
  add_weights(tree, c, m);
  return m;
}

ExpertsModules add_experts(ModelTree& tree, const ExpertsConfig& c, ModuleId parent) {
  ExpertsModules m;
  m.block = tree.module(parent, "mlp", c.prefix + "SparseMoeBlock");
  const auto add_router = [&] {
    m.router = tree.module(m.block, "gate", c.prefix + "TopKRouter");
    m.router_weight = tree.param(m.router, "weight", {c.experts, c.hidden});
  };
  if (!c.experts_first) add_router();
  add_weights(tree, c, m);
  if (c.experts_first) add_router();
  if (c.shared_width > 0) {
    m.shared = tree.module(m.block, "shared_expert", c.prefix + "MLP");
    m.shared_gate_proj = tree.linear(m.shared, "gate_proj", c.hidden, c.shared_width, false);
    m.shared_up = tree.linear(m.shared, "up_proj", c.hidden, c.shared_width, false);
    m.shared_down = tree.linear(m.shared, "down_proj", c.shared_width, c.hidden, false);
    m.shared_activation = tree.module(m.shared, "act_fn", activation_class(c.activation));
    m.shared_gate = tree.linear(m.block, "shared_expert_gate", c.hidden, 1, false);
  }
  return m;
}

/// grouped_mm_experts_forward: sort the (token, choice) pairs by expert, two grouped products, put them back, add up.
Tensor write_routed_experts(ProgramWriter& w, const ExpertsConfig& c, const ExpertsModules& m, const Tensor& rows,
                            const Routing& routing) {
  w.enter(m.experts);
  const std::int64_t pairs = rows.sizes[0] * c.chosen;
  const Dims flat{pairs}, step{1};
  const Tensor weights = w.view(routing.weights, {-1});
  const Tensor experts = w.view(routing.experts, {-1});
  const auto sorted = w.emit("aten.sort.default", {ProgramWriter::arg(experts)}, {},
                             {{flat, step, DType::Int64}, {flat, step, DType::Int64}});
  const Tensor &by_expert = sorted[0], &order = sorted[1];
  const Tensor tokens = w.with_scalar("aten.floor_divide.default", order, number(c.chosen));
  const Tensor inputs = rows_at(w, rows, tokens);
  const Tensor shares = rows_at(w, weights, order);
  // histc takes no integers on a CPU
  const Tensor ids = w.to(by_expert, w.kernels().integer_histogram ? DType::Int32 : DType::Float32);
  const Tensor loads =
      one(w, "aten.histc.default", {ProgramWriter::arg(ids), number(c.experts), number(0), number(c.experts - 1)},
          {c.experts}, ids.dtype);
  const Tensor ends = one(w, "aten.cumsum.default", {ProgramWriter::arg(loads), number(0)}, {c.experts}, DType::Int32,
                          {{"dtype", Arg{DType::Int32}}});
  const Tensor gate_up = grouped_mm(w, inputs, w.transpose(w.param(m.gate_up), -2, -1), ends);
  const std::vector<Tensor> halves = w.split(gate_up, c.width, -1);
  w.enter(m.activation);
  const Tensor active = write_activation(w, c.activation, halves[0]);
  w.enter(m.experts);
  const Tensor inner = w.mul(active, halves[1]);
  const Tensor outputs = grouped_mm(w, inner, w.transpose(w.param(m.down), -2, -1), ends);
  const Tensor weighted = w.mul(outputs, w.unsqueeze(shares, -1));
  const Tensor back = w.unary("aten.empty_like.default", order);
  w.index_put_in_place(back, order, w.arange(pairs));
  const Tensor unsorted = rows_at(w, weighted, back);
  const Tensor per_token = w.view(unsorted, {rows.sizes[0], c.chosen, c.hidden});
  const Tensor sum = one(w, "aten.sum.dim_IntList", {ProgramWriter::arg(per_token), ProgramWriter::arg(Dims{1})},
                         rows.sizes, per_token.dtype);
  // The function's own names, one of which (`weighted_out`) is given twice.
  for (const Tensor* local :
       {&by_expert, &order, &inputs, &shares, &ids, &loads, &ends, &outputs, &back, &unsorted, &sum})
    w.hold(*local);
  return w.to(sum, rows.dtype);
}

Tensor write_experts(ProgramWriter& w, const ExpertsConfig& c, const ExpertsModules& m, const Tensor& x) {
  w.enter(m.block);
  const Tensor rows = w.view(x, {-1, c.hidden});
  Tensor shared;
  if (m.shared.valid()) {
    const Tensor gate = write_linear(w, m.shared_gate_proj, rows);
    w.enter(m.shared_activation);
    const Tensor active = write_activation(w, c.activation, gate);
    const Tensor up = write_linear(w, m.shared_up, rows);
    w.enter(m.shared);
    shared = write_linear(w, m.shared_down, w.mul(active, up));
  }
  Tensor y = write_routed_experts(w, c, m, rows, write_router(w, c, m, rows));
  if (m.shared.valid()) {
    const Tensor gate = write_linear(w, m.shared_gate, rows);
    w.enter(m.block);
    const Tensor weighted = w.mul(w.unary("aten.sigmoid.default", gate), shared);
    y = w.add(y, weighted);
  }
  w.enter(m.block);
  return w.view(y, x.sizes);
}

}  // namespace foreshard::families
