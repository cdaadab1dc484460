#include "exec/operators/mesh_operators.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "exec/operators/ring_attention.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

using torch::autograd::variable_list;
using Group = std::shared_ptr<Communicator>;

thread_local const MeshGroups* groups_here = nullptr;

Group group_along(std::int64_t dimension) {
  if (groups_here == nullptr || dimension < 0 || static_cast<std::size_t>(dimension) >= groups_here->size())
    throw std::runtime_error(fmt::format("nobody to meet along dimension {} of the mesh", dimension));
  return (*groups_here)[static_cast<std::size_t>(dimension)];
}

std::int64_t ranks_of(const Group& group) { return group == nullptr ? 1 : group->size(); }
std::int64_t place_in(const Group& group) { return group == nullptr ? 0 : group->rank(); }

DType dtype_of(const at::Tensor& tensor) {
  for (std::size_t value = 0; value < kDTypeCount; ++value) {
    if (scalar_type_of(static_cast<DType>(value)) == tensor.scalar_type()) return static_cast<DType>(value);
  }
  throw std::runtime_error("ranks cannot meet over tensors of this type");
}

/// `whole` rows over the group: every rank but the last ones has as many as the first.
struct Rows {
  std::int64_t each = 0, begin = 0, own = 0;
};
Rows rows_of(std::int64_t whole, const Group& group) {
  Rows rows;
  rows.each = (whole + ranks_of(group) - 1) / ranks_of(group);
  rows.begin = std::min(whole, rows.each * place_in(group));
  rows.own = std::min(rows.each, whole - rows.begin);
  return rows;
}

at::Tensor padded(const at::Tensor& x, std::int64_t dim, std::int64_t size) {
  if (x.size(dim) >= size) return x;
  auto shape = x.sizes().vec();
  shape[static_cast<std::size_t>(dim)] = size - x.size(dim);
  return at::cat({x, x.new_zeros(shape)}, dim);
}

// ---------------------------------------------------------------- without a graph

at::Tensor gathered(const Group& group, const at::Tensor& x, std::int64_t dim, std::int64_t whole) {
  if (group == nullptr) return x.clone();
  const at::Tensor own = padded(x, dim, rows_of(whole, group).each).contiguous();
  auto shape = own.sizes().vec();
  shape.insert(shape.begin(), ranks_of(group));
  const at::Tensor all = own.new_empty(shape);
  group->all_gather(all.data_ptr(), own.data_ptr(), own.numel(), dtype_of(own));
  return at::cat(all.unbind(0), dim).narrow(dim, 0, whole).contiguous();
}

at::Tensor scattered(const Group& group, const at::Tensor& x, std::int64_t dim, std::int64_t whole) {
  if (group == nullptr) return x.clone();
  const Rows rows = rows_of(whole, group);
  const at::Tensor parts = at::stack(padded(x, dim, rows.each * ranks_of(group)).chunk(ranks_of(group), dim));
  const at::Tensor own = parts.new_empty(parts.sizes().slice(1));
  group->reduce_scatter(own.data_ptr(), parts.data_ptr(), own.numel(), dtype_of(own), ReduceOp::Sum);
  return own.narrow(dim, 0, rows.own).contiguous();
}

at::Tensor reduced(const Group& group, const at::Tensor& x, ReduceOp op = ReduceOp::Sum) {
  const at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  if (group != nullptr) group->all_reduce(sum.data_ptr(), sum.numel(), dtype_of(sum), op);
  return sum;
}

/// Rows of the first dimension to every rank, and from every rank; empty: equal parts.
struct Splits {
  std::vector<Numel> to, from;
  Splits turned() const { return {from, to}; }
};

at::Tensor exchanged(const Group& group, const at::Tensor& x, const Splits& rows) {
  if (group == nullptr) return x.clone();
  const at::Tensor sent = x.contiguous();
  const auto ranks = static_cast<std::size_t>(group->size());
  std::vector<Numel> to(ranks, sent.numel() / group->size()), from = to;
  auto shape = sent.sizes().vec();
  if (!rows.to.empty()) {
    const std::int64_t width = c10::multiply_integers(sent.sizes().slice(1));
    for (std::size_t r = 0; r < ranks; ++r) {
      to[r] = rows.to[r] * width;
      from[r] = rows.from[r] * width;
    }
    shape.front() = std::accumulate(rows.from.begin(), rows.from.end(), Numel{0});
  }
  const at::Tensor out = sent.new_empty(shape);
  group->all_to_all(out.data_ptr(), sent.data_ptr(), to, from, dtype_of(sent));
  return out;
}

// ---------------------------------------------------------------- with one

/// A node of autograd with one result; a function makes the gradients of what went in.
struct Backward final : torch::autograd::Node {
  std::function<variable_list(const at::Tensor&)> gradients;  // of all inputs

  variable_list apply(variable_list&& grads) override {
    at::NoGradGuard no_grad;
    if (!grads[0].defined()) return variable_list(num_outputs());
    return gradients(grads[0]);
  }
  void release_variables() override { gradients = nullptr; }  // with what it has saved
};

at::Tensor no_graph(const std::function<at::Tensor()>& make) {
  at::NoGradGuard no_grad;
  return make();
}

/// `result`, made without a graph, as the function of `inputs` whose gradients are `gradients`.
template <class... Inputs>
at::Tensor with_gradients(const at::Tensor& result, std::function<variable_list(const at::Tensor&)> gradients,
                          const Inputs&... inputs) {
  if (!at::GradMode::is_enabled() || !(inputs.requires_grad() || ...)) return result;
  std::shared_ptr<Backward> node(new Backward(), torch::autograd::deleteNode);
  node->gradients = std::move(gradients);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs...));
  torch::autograd::set_history(result, node);
  return result;
}

at::Tensor with_backward(const at::Tensor& result, const at::Tensor& input,
                         std::function<at::Tensor(const at::Tensor&)> gradient) {
  return with_gradients(
      result, [gradient = std::move(gradient)](const at::Tensor& g) { return variable_list{gradient(g)}; }, input);
}

at::Tensor all_gather(const at::Tensor& x, std::int64_t mesh, std::int64_t dim, std::int64_t whole,
                      const std::string& backward) {
  const Group group = group_along(mesh);
  const at::Tensor out = no_graph([&] { return gathered(group, x, dim, whole); });
  if (backward == "reduce_scatter")
    return with_backward(out, x, [=](const at::Tensor& g) { return scattered(group, g, dim, whole); });
  return with_backward(out, x, [=](const at::Tensor& g) {
    const Rows rows = rows_of(whole, group);
    return g.narrow(dim, rows.begin, rows.own).contiguous();
  });
}

at::Tensor reduce_scatter(const at::Tensor& x, std::int64_t mesh, std::int64_t dim, std::int64_t whole) {
  const Group group = group_along(mesh);
  return with_backward(no_graph([&] { return scattered(group, x, dim, whole); }), x,
                       [=](const at::Tensor& g) { return gathered(group, g, dim, whole); });
}

at::Tensor part(const at::Tensor& x, std::int64_t mesh, std::int64_t dim, std::int64_t whole) {
  const Group group = group_along(mesh);
  const Rows rows = rows_of(whole, group);
  return with_backward(
      no_graph([&] { return x.narrow(dim, rows.begin, rows.own).clone(at::MemoryFormat::Contiguous); }), x,
      [=](const at::Tensor& g) { return gathered(group, g, dim, whole); });
}

at::Tensor all_reduce(const at::Tensor& x, std::int64_t mesh) {
  const Group group = group_along(mesh);
  return with_backward(no_graph([&] { return reduced(group, x); }), x, [](const at::Tensor& g) { return g; });
}

/// `splits`: [2, ranks], what mesh::splits made. `back`: rows return to the ranks from which they came.
at::Tensor all_to_all(const at::Tensor& x, std::int64_t mesh, std::optional<std::int64_t> /*expected*/,
                      const std::optional<at::Tensor>& splits, bool back) {
  const Group group = group_along(mesh);
  Splits rows;
  if (splits) {
    const auto row = [&](std::int64_t which) {
      const std::int64_t* first = splits->data_ptr<std::int64_t>() + which * splits->size(1);
      return std::vector<Numel>(first, first + splits->size(1));
    };
    rows = {row(back ? 1 : 0), row(back ? 0 : 1)};
  }
  return with_backward(no_graph([&] { return exchanged(group, x, rows); }), x,
                       [=](const at::Tensor& g) { return exchanged(group, g, rows.turned()); });
}

/// Head and tail of a shared sequence lie on one rank (SequenceShare).
at::Tensor own_positions(const at::Tensor& counted, std::int64_t place, std::int64_t ranks) {
  const std::int64_t piece = counted.size(0) / 2, last = 2 * ranks - 1 - place;
  at::Tensor positions = counted + place * piece;
  positions.narrow(0, piece, counted.size(0) - piece).add_((last - 1 - place) * piece);
  return positions;
}

// ---------------------------------------------------------------- rows whose numbers are the run's

at::Tensor loads_of(const at::Tensor& ends) { return at::diff(ends, 1, 0, ends.new_zeros({1})); }

/// Read by the host, which waits for the device here.
at::Tensor splits(const at::Tensor& sent, const at::Tensor& received, std::int64_t ranks) {
  const auto rows = [&](const at::Tensor& loads) { return loads.to(at::kLong).view({ranks, -1}).sum(1); };
  return at::stack({rows(sent), rows(received)}).to(at::kCPU);
}

at::Tensor align_sizes(const at::Tensor& sizes, std::int64_t multiple) {
  const at::Tensor blocks = at::ceil(sizes.to(at::kDouble) / multiple).clamp_min_(1);
  return sizes.copy_(blocks.mul_(multiple));
}

/// Received rows lie by sender, then by expert.
at::Tensor expert_order(const at::Tensor& by_rank, std::int64_t multiple, std::int64_t /*expected*/) {
  const at::Tensor loads = by_rank.to(at::kCPU, at::kLong).contiguous();
  const std::int64_t ranks = loads.size(0), experts = loads.size(1);
  const std::int64_t* const load = loads.data_ptr<std::int64_t>();
  std::vector<std::int64_t> first(static_cast<std::size_t>(ranks * experts));
  std::exclusive_scan(load, load + ranks * experts, first.begin(), std::int64_t{0});
  std::vector<std::int32_t> order;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::size_t begin = order.size();
    for (std::int64_t r = 0; r < ranks; ++r) {
      const std::int64_t at = r * experts + e;
      for (std::int64_t row = 0; row < load[at]; ++row)
        order.push_back(static_cast<std::int32_t>(first[static_cast<std::size_t>(at)] + row));
    }
    const auto blocks = (static_cast<std::int64_t>(order.size() - begin) + multiple - 1) / multiple;
    order.resize(begin + static_cast<std::size_t>(std::max<std::int64_t>(blocks, 1) * multiple), -1);
  }
  return at::tensor(order, at::kInt).to(by_rank.device());
}

at::Tensor received_rows(const at::Tensor& x, const at::Tensor& splits, std::int64_t /*expected*/) {
  auto shape = x.sizes().vec();
  shape.front() = splits[1].sum().item<std::int64_t>() + 1;
  return x.new_empty(shape);
}

/// A table's gradient is this rank's part already: rows that lie elsewhere are masked.
at::Tensor copy(const at::Tensor& x, std::int64_t mesh, const std::string& backward) {
  if (backward == "slice") return x.view_as(x);
  const Group group = group_along(mesh);
  if (backward == "share")
    return with_backward(x.detach(), x, [=](const at::Tensor& g) { return g / ranks_of(group); });
  return with_backward(x.detach(), x, [=](const at::Tensor& g) { return reduced(group, g); });
}

/// Flash attention of a sequence that ranks share.
std::tuple<at::Tensor, at::Tensor> flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                   double dropout, bool causal, std::optional<double> scale,
                                                   std::int64_t mesh, const std::string& rotate) {
  if (dropout != 0 || !causal) throw std::runtime_error("attention over ranks is causal, and draws no numbers");
  const RingAttention ring{group_along(mesh), rotate != "alltoall", scale};
  const bool records = at::GradMode::is_enabled();
  at::NoGradGuard no_grad;
  const auto [out, sums] = ring_attention(ring, q, k, v);
  at::AutoGradMode graph(records);
  const auto backward = [ring, q = q.detach(), k = k.detach(), v = v.detach(), out = out.detach(),
                         sums = sums](const at::Tensor& g) {
    const auto [dq, dk, dv] = ring_attention_backward(ring, g, q, k, v, out, sums);
    return variable_list{dq, dk, dv};
  };
  return {with_gradients(out, backward, q, k, v), sums};
}

/// Indices of rows that lie elsewhere, and all of them as this rank's rows count.
struct Masked {
  at::Tensor elsewhere, ids;
};
Masked masked(const at::Tensor& ids, std::int64_t begin, std::int64_t rows) {
  Masked made;
  made.elsewhere = at::bitwise_or(ids.lt(begin), ids.ge(begin + rows));
  made.ids = ids.sub(begin).masked_fill_(made.elsewhere, 0);
  return made;
}

/// Terms of a sum over the ranks. The gradient is that of this rank's rows alone.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids, std::int64_t padding, bool by_frequency,
                     bool sparse, std::int64_t /*mesh*/, std::int64_t begin, std::int64_t /*whole*/) {
  const std::int64_t rows = weight.size(0);
  if (rows == 0) {
    auto shape = ids.sizes().vec();
    shape.push_back(weight.size(1));
    return weight.sum() + weight.new_zeros(shape);
  }
  const Masked here = masked(ids, begin, rows);
  const std::int64_t own_padding = padding >= begin && padding < begin + rows ? padding - begin : -1;
  return at::embedding(weight, here.ids, own_padding, by_frequency, sparse)
      .masked_fill(here.elsewhere.unsqueeze(-1), 0);
}

/// torch/distributed/tensor/parallel/loss.py: _log_softmax. The loss's node makes the gradient of what went in here.
at::Tensor log_softmax(const at::Tensor& x, std::int64_t dim, bool /*half_to_float*/, std::int64_t mesh,
                       std::int64_t /*begin*/, std::int64_t /*whole*/) {
  const Group group = group_along(mesh);
  const at::Tensor out = no_graph([&] {
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor none = wide.new_full({}, -std::numeric_limits<float>::infinity());
    const at::Tensor own =
        wide.size(dim) > 0 ? wide.amax(dim, /*keepdim=*/true) : none.expand(wide.sum(dim, /*keepdim=*/true).sizes());
    const at::Tensor shifted = wide - reduced(group, own, ReduceOp::Max);
    const at::Tensor sums = reduced(group, shifted.exp().sum(dim, /*keepdim=*/true));
    return (shifted - sums.log()).to(x.scalar_type());
  });
  return with_backward(out, x, [](const at::Tensor& g) { return g; });
}

constexpr std::int64_t kMean = 1, kSum = 2;

/// The same file's _nll_loss_forward and _nll_loss_and_log_softmax_backward.
std::tuple<at::Tensor, at::Tensor> nll_loss(const at::Tensor& x, const at::Tensor& target,
                                            const std::optional<at::Tensor>& weight, std::int64_t reduction,
                                            std::int64_t ignored, std::int64_t mesh, std::int64_t begin,
                                            std::int64_t /*whole*/) {
  if (weight && weight->defined()) throw std::runtime_error("a loss with class weights is not cut over a mesh");
  if ((reduction != kMean && reduction != kSum) || x.dim() != 2)
    throw std::runtime_error("a loss over a mesh is the mean or the sum over rows of [rows, classes]");
  const Group group = group_along(mesh);
  const bool records = at::GradMode::is_enabled();
  at::NoGradGuard no_grad;
  const std::int64_t classes = x.size(1);
  const at::Tensor counted = target.ne(ignored);
  const Masked here = masked(target.masked_fill(counted.logical_not(), 0), begin, classes);
  at::Tensor picked = x.new_zeros({target.size(0)});
  if (classes > 0) picked = x.gather(1, here.ids.unsqueeze(1)).squeeze(1).masked_fill_(here.elsewhere, 0);
  const at::Tensor each = reduced(group, picked).neg().masked_fill_(counted.logical_not(), 0);
  const at::Tensor total = counted.sum().to(x.scalar_type());
  const at::Tensor loss = reduction == kMean ? each.sum() / total : each.sum();
  at::AutoGradMode graph(records);
  const at::Tensor logs = x.detach();
  at::Tensor out = with_backward(loss, x, [=](const at::Tensor& g) {
    const at::Tensor scale = (reduction == kMean ? g / total : g).expand(counted.sizes()).clone();
    const at::Tensor row_scale = scale.masked_fill_(counted.logical_not(), 0).unsqueeze(1);
    at::Tensor gradient = logs.exp();
    if (classes > 0)
      gradient.scatter_add_(1, here.ids.unsqueeze(1),
                            here.elsewhere.logical_not().to(logs.scalar_type()).neg().unsqueeze(1));
    return gradient.mul_(row_scale);
  });
  return {out, total};
}

}  // namespace

MeshScope::MeshScope(const MeshGroups& groups) : outer_(std::exchange(groups_here, &groups)) {}
MeshScope::~MeshScope() { groups_here = outer_; }

TORCH_LIBRARY(mesh, library) {
  library.def("all_gather(Tensor x, int mesh, int dim, int whole, str backward) -> Tensor", &all_gather);
  library.def("reduce_scatter(Tensor x, int mesh, int dim, int whole) -> Tensor", &reduce_scatter);
  library.def("part(Tensor x, int mesh, int dim, int whole) -> Tensor", &part);
  library.def("all_reduce(Tensor x, int mesh) -> Tensor", &all_reduce);
  library.def("all_to_all(Tensor x, int mesh, int? rows=None, Tensor? splits=None, bool back=False) -> Tensor",
              &all_to_all);
  library.def("own_positions(Tensor counted, int place, int ranks) -> Tensor", &own_positions);
  library.def("loads_of(Tensor ends) -> Tensor", &loads_of);
  library.def("splits(Tensor sent, Tensor received, int ranks) -> Tensor", &splits);
  library.def("align_sizes_(Tensor(a!) sizes, int multiple) -> Tensor(a!)", &align_sizes);
  library.def("expert_order(Tensor by_rank, int multiple, int rows) -> Tensor", &expert_order);
  library.def("received_rows(Tensor x, Tensor splits, int rows) -> Tensor", &received_rows);
  library.def("copy(Tensor x, int mesh, str backward='sum') -> Tensor", &copy);
  library.def(
      "flash_attention_for_cpu(Tensor q, Tensor k, Tensor v, float dropout_p=0.0, bool is_causal=False, *, float? "
      "scale=None, int mesh, str rotate) -> (Tensor, Tensor)",
      &flash_attention);
  library.def(
      "embedding(Tensor weight, Tensor ids, int padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False, *, "
      "int mesh, int begin, int whole) -> Tensor",
      &embedding);
  library.def("log_softmax(Tensor x, int dim, bool half_to_float, *, int mesh, int begin, int whole) -> Tensor",
              &log_softmax);
  library.def(
      "nll_loss(Tensor x, Tensor target, Tensor? weight, int reduction, int ignore_index, *, int mesh, int begin, int "
      "whole) -> (Tensor, Tensor)",
      &nll_loss);
}

}  // namespace foreshard::exec
