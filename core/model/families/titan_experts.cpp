#include "core/model/families/titan_experts.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace foreshard::families {
namespace {

/// What one expert takes of `tokens`.
std::int64_t capacity_of(const TitanExpertsConfig& c, std::int64_t tokens) {
  const double share = c.capacity * static_cast<double>(tokens) * static_cast<double>(c.chosen) /
                       static_cast<double>(std::max<std::int64_t>(c.experts, 1));
  return static_cast<std::int64_t>(std::clamp(share, 1.0, static_cast<double>(std::max<std::int64_t>(tokens, 1))));
}

}  // namespace

TitanExpertsConfig read_titan_experts(ConfigReader& config) {
  TitanExpertsConfig c;
  std::optional<ConfigReader> own = config.inside("moe");
  if (!own) return c;
  c.experts = own->integer("experts", 1, 1 << 16);
  c.chosen = own->integer_or("top_k", 2, 1, 1 << 16);
  c.width = own->integer("ffn", 1, kMaxWidth);
  c.every = own->integer_or("every", 1, 1, kMaxLayers);
  c.capacity = own->number_or("capacity", 1.0, 1e-6, 1e6);
  config.adopt(*own);
  return c;
}

void check_titan_experts(ConfigReader& config, const TitanExpertsConfig& c, std::int64_t tokens) {
  if (c.experts == 0 || c.capacity * static_cast<double>(c.chosen) <= static_cast<double>(c.experts)) return;
  const double taken = c.capacity * static_cast<double>(tokens * c.chosen) / static_cast<double>(c.experts);
  if (taken < static_cast<double>(tokens) + 1) return;
  config.fail_with(
      ErrorCode::Inconsistent, "moe",
      "an expert is to take more tokens than there are (PyTorch: RuntimeError: selected index k out of range)",
      "capacity * top_k of at most experts = " + std::to_string(c.experts),
      std::to_string(c.capacity * static_cast<double>(c.chosen)), "choose a smaller capacity or top_k");
}

TitanExpertsModules add_titan_experts(ModelTree& tree, const TitanExpertsConfig& c, ModuleId block, std::int64_t dim) {
  TitanExpertsModules m;
  m.moe = tree.module(block, "moe", "Moe");
  m.gate = tree.linear(m.moe, "gate", dim, c.experts, false);
  m.experts = tree.module(m.moe, "experts", "Experts");
  m.w1 = tree.param(m.experts, "w1", {c.experts, dim, c.width});
  m.w2 = tree.param(m.experts, "w2", {c.experts, c.width, dim});
  m.w3 = tree.param(m.experts, "w3", {c.experts, dim, c.width});
  return m;
}

Tensor write_titan_experts(ProgramWriter& w, const TitanExpertsConfig& c, const TitanExpertsModules& m,
                           const Tensor& given) {
  w.enter(m.moe);
  const std::int64_t dim = given.sizes[-1];
  const Tensor x = w.view(given, {-1, dim});
  const std::int64_t taken = capacity_of(c, x.sizes[0]);
  const Tensor scores = w.to(write_linear(w, m.gate, x), DType::Float32);
  w.enter(m.moe);
  const Tensor score = w.softmax("aten._softmax.default", scores, {number(1), Arg{false}});
  w.hold(score);
  const Dims chosen{c.experts, taken}, step = ProgramWriter::contiguous_strides(chosen);
  const auto best = w.emit("aten.topk.default", {ProgramWriter::arg(w.t(score)), number(taken), number(1)}, {},
                           {{chosen, step, DType::Float32}, {chosen, step, DType::Int64}});
  w.hold(best[0]);
  w.hold(best[1]);
  const Tensor rows = w.view(best[1], {-1});
  const Tensor sent = one(w, "aten.index_select.default", {ProgramWriter::arg(x), number(0), ProgramWriter::arg(rows)},
                          {c.experts * taken, dim}, x.dtype);
  w.hold(sent);
  const Tensor input = w.view(sent, {c.experts, taken, dim});
  w.enter(m.experts);
  const Tensor gate = w.unary("aten.silu.default", w.bmm(input, w.param(m.w1)));
  const Tensor inner = w.mul(gate, w.bmm(input, w.param(m.w3)));
  const Tensor output = w.bmm(inner, w.param(m.w2));
  w.enter(m.moe);
  const Tensor y = w.view(output, {c.experts * taken, dim});
  const Tensor weights = w.to(w.view(best[0], {-1, 1}), y.dtype);
  const Tensor weighted = w.mul(y, weights);
  w.hold_until_here(y);
  w.hold(weighted);
  const Tensor zeros = w.unary("aten.zeros_like.default", x);
  const Tensor places = w.view(best[1], {-1});
  const Tensor sum =
      one(w, "aten.index_add.default",
          {ProgramWriter::arg(zeros), number(0), ProgramWriter::arg(places), ProgramWriter::arg(weighted)}, x.sizes,
          x.dtype);
  return w.view(sum, given.sizes);
}

}  // namespace foreshard::families
