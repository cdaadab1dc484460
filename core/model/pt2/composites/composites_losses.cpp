// Losses and distances as ATen writes them (Loss.cpp, LossNLL.cpp, Distance.cpp of PyTorch 2.11), part by part.
#include <algorithm>
#include <numbers>

#include "core/model/pt2/composites/composite_call.h"

namespace foreshard::pt2 {
namespace {

using families::Dims;
using families::ProgramWriter;
using families::Tensor;

CompositeResults l1_loss(const Call& c) {
  const Tensor *x = c.tensor("self"), *y = c.tensor("target");
  if (x == nullptr || y == nullptr) return std::nullopt;
  return {{c.loss(c.one("aten.abs.default", c.two("aten.sub.Tensor", *x, *y)))}};
}

/// With beta = 0 it is the distance itself.
CompositeResults smooth_l1_loss(const Call& c) { return c.number("beta", 1.0) == 0.0 ? l1_loss(c) : std::nullopt; }

CompositeResults kl_div(const Call& c) {
  const Tensor *x = c.tensor("self"), *y = c.tensor("target");
  if (x == nullptr || y == nullptr) return std::nullopt;
  if (c.flag("log_target", false)) {
    const Tensor share = c.one("aten.exp.default", *y);
    return {{c.loss(c.two("aten.mul.Tensor", share, c.two("aten.sub.Tensor", *y, *x)))}};
  }
  const Tensor own = c.two("aten.xlogy.Tensor", *y, *y);
  return {{c.loss(c.two("aten.sub.Tensor", own, c.two("aten.mul.Tensor", *y, *x)))}};
}

CompositeResults poisson_nll_loss(const Call& c) {
  const Tensor *x = c.tensor("input"), *y = c.tensor("target");
  if (x == nullptr || y == nullptr) return std::nullopt;
  Tensor elements;
  if (c.flag("log_input", true)) {
    const Tensor rate = c.one("aten.exp.default", *x);
    elements = c.two("aten.sub.Tensor", rate, c.two("aten.mul.Tensor", *y, *x));
  } else {
    const Tensor log = c.one("aten.log.default", c.num("aten.add.Scalar", *x, c.number("eps", 1e-8)));
    elements = c.two("aten.sub.Tensor", *x, c.two("aten.mul.Tensor", *y, log));
  }
  if (c.flag("full", false)) {  // Stirling's term
    const Tensor product = c.two("aten.mul.Tensor", *y, c.one("aten.log.default", *y));
    const Tensor less = c.two("aten.sub.Tensor", product, *y);
    const Tensor angle = c.num("aten.mul.Scalar", *y, 2 * std::numbers::pi);
    const Tensor half = c.num("aten.mul.Scalar", c.one("aten.log.default", angle), 0.5);
    const Tensor term = c.two("aten.add.Tensor", less, half);
    const Tensor small = c.test("aten.le.Scalar", *y, 1.0);
    const Tensor kept =
        c.writer.emit("aten.masked_fill.Scalar", {ProgramWriter::arg(term), ProgramWriter::arg(small), Arg{0.0}}, {},
                      {{term.sizes, ProgramWriter::like_strides(term), term.dtype}})[0];
    c.in_place("aten.add_.Tensor", elements, {ProgramWriter::arg(kept)});
  }
  return {{c.loss(elements)}};
}

Tensor along(const Call& c, const Tensor& x, int dim) { return c.reduced("aten.sum.dim_IntList", x, Dims{dim}, false); }

CompositeResults cosine_embedding_loss(const Call& c) {
  const Tensor *a = c.tensor("input1"), *b = c.tensor("input2"), *target = c.tensor("target");
  if (a == nullptr || b == nullptr || target == nullptr || a->sizes.rank() < 1) return std::nullopt;
  const int dim = target->sizes.rank() == 0 ? 0 : 1;
  if (dim >= a->sizes.rank()) return std::nullopt;
  const Tensor products = along(c, c.two("aten.mul.Tensor", *a, *b), dim);
  const Tensor first = c.num("aten.add.Scalar", along(c, c.two("aten.mul.Tensor", *a, *a), dim), 1e-12);
  const Tensor second = c.num("aten.add.Scalar", along(c, c.two("aten.mul.Tensor", *b, *b), dim), 1e-12);
  const Tensor size = c.one("aten.sqrt.default", c.two("aten.mul.Tensor", first, second));
  const Tensor cosine = c.two("aten.div.Tensor", products, size);
  const Tensor zeros = c.one("aten.zeros_like.default", cosine);
  const Tensor pos = c.num("aten.rsub.Scalar", cosine, 1.0);
  const Tensor neg = c.num("aten.clamp_min.default", c.num("aten.sub.Scalar", cosine, c.number("margin", 0.0)), 0.0);
  const Tensor alike = c.writer.where(c.test("aten.eq.Scalar", *target, 1), pos, zeros);
  const Tensor apart = c.writer.where(c.test("aten.eq.Scalar", *target, -1), neg, zeros);
  const Tensor all = c.two("aten.add.Tensor", alike, apart);
  for (const Tensor* local : {&products, &first, &second, &size, &cosine, &zeros, &pos, &neg, &alike, &apart})
    c.writer.hold_until_here(*local);
  return {{c.loss(all)}};
}

CompositeResults hinge_embedding_loss(const Call& c) {
  const Tensor *x = c.tensor("self"), *target = c.tensor("target");
  if (x == nullptr || target == nullptr) return std::nullopt;
  const Tensor zeros = c.one("aten.zeros_like.default", *x);
  const Tensor margin = c.num("aten.rsub.Scalar", *x, c.number("margin", 1.0));
  const Tensor clamped = c.in_place("aten.clamp_min_.default", margin, {Arg{0.0}});
  const Tensor apart = c.writer.where(c.test("aten.ne.Scalar", *target, 1), clamped, zeros);
  const Tensor alike = c.writer.where(c.test("aten.ne.Scalar", *target, -1), *x, zeros);
  const Tensor all = c.two("aten.add.Tensor", apart, alike);
  for (const Tensor* local : {&zeros, &margin, &apart, &alike}) c.writer.hold_until_here(*local);
  return {{c.loss(all)}};
}

CompositeResults margin_ranking_loss(const Call& c) {
  const Tensor *a = c.tensor("input1"), *b = c.tensor("input2"), *target = c.tensor("target");
  if (a == nullptr || b == nullptr || target == nullptr) return std::nullopt;
  const Tensor sign = c.one("aten.neg.default", *target);
  const Tensor product = c.two("aten.mul.Tensor", sign, c.two("aten.sub.Tensor", *a, *b));
  const Tensor open = c.num("aten.add.Scalar", product, c.number("margin", 0.0));
  return {{c.loss(c.in_place("aten.clamp_min_.default", open, {Arg{0.0}}))}};
}

Tensor distance(const Call& c, const Tensor& a, const Tensor& b, double p, double eps, bool keep) {
  const Tensor apart = c.num("aten.add.Scalar", c.two("aten.sub.Tensor", a, b), eps);
  const int last = std::max(apart.sizes.rank() - 1, 0);
  return c.reduced("aten.norm.ScalarOpt_dim", apart, Dims{last}, keep, {Arg{p}});
}

CompositeResults pairwise_distance(const Call& c) {
  const Tensor *a = c.tensor("x1"), *b = c.tensor("x2");
  if (a == nullptr || b == nullptr || std::max(a->sizes.rank(), b->sizes.rank()) < 1) return std::nullopt;
  return {{distance(c, *a, *b, c.number("p", 2.0), c.number("eps", 1e-6), c.flag("keepdim", false))}};
}

CompositeResults triplet_margin_loss(const Call& c) {
  const Tensor *anchor = c.tensor("anchor"), *near = c.tensor("positive"), *far = c.tensor("negative");
  if (anchor == nullptr || near == nullptr || far == nullptr || anchor->sizes.rank() < 1) return std::nullopt;
  const double p = c.number("p", 2.0), eps = c.number("eps", 1e-6);
  const Tensor close = distance(c, *anchor, *near, p, eps, false);
  Tensor away = distance(c, *anchor, *far, p, eps, false);
  if (c.flag("swap", false)) away = c.two("aten.minimum.default", away, distance(c, *near, *far, p, eps, false));
  const Tensor margin = c.num("aten.add.Scalar", close, c.number("margin", 1.0));
  const Tensor open = c.num("aten.clamp_min.default", c.two("aten.sub.Tensor", margin, away), 0.0);
  c.writer.hold_until_here(close);
  c.writer.hold_until_here(away);
  return {{c.loss(open)}};
}

/// Each side over its length, which is no less than eps; the clamp is outside autograd.
CompositeResults cosine_similarity(const Call& c) {
  const Tensor *a = c.tensor("x1"), *b = c.tensor("x2");
  if (a == nullptr || b == nullptr || a->dtype != b->dtype) return std::nullopt;
  const Dims sizes = broadcast_sizes(a->sizes, b->sizes);
  if (sizes.rank() < 1) return std::nullopt;
  const int dim = c.dim("dim", 1, sizes.rank());
  const auto length = [&](const Tensor& x) {
    const Tensor norm =
        c.reduced("aten.linalg_vector_norm.default", c.broadcast(x, sizes), Dims{dim}, true, {Arg{2.0}});
    const Tensor copy = c.one("aten.clone.default", norm);
    const Tensor plain = c.one("aten.detach.default", copy);
    c.in_place("aten.clamp_min_.default", plain, {Arg{c.number("eps", 1e-8)}});
    return copy;
  };
  const Tensor first = length(*a), second = length(*b);
  const Tensor left = c.two("aten.div.Tensor", c.broadcast(*a, sizes), first);
  const Tensor right = c.two("aten.div.Tensor", c.broadcast(*b, sizes), second);
  const Tensor product = c.two("aten.mul.Tensor", left, right);
  const Tensor made = along(c, product, dim);
  for (const Tensor* local : {&first, &second, &left, &right, &product}) c.writer.hold_until_here(*local);
  return {{made}};
}

// --- negative log likelihood ---

Tensor picked(const Call& c, const Tensor& x, const Tensor& target, std::int64_t reduction) {
  const bool image = x.sizes.rank() == 4;
  const Tensor* weight = c.tensor("weight");
  const Dims all = reduction == 0 ? target.sizes : Dims{};
  return c.made(
      image ? "aten.nll_loss2d_forward.default" : "aten.nll_loss_forward.default",
      {ProgramWriter::arg(x), ProgramWriter::arg(target), weight != nullptr ? ProgramWriter::arg(*weight) : Arg{},
       Arg{reduction}, Arg{c.integer("ignore_index", -100)}},
      {{all, x.dtype}, {Dims{}, x.dtype}})[0];
}

/// nll_loss_nd: whatever is neither a row nor an image becomes an image of one line.
std::optional<Tensor> nll(const Call& c, const Tensor& x, const Tensor& target) {
  const int rank = x.sizes.rank();
  if (is_floating(target.dtype) || rank < 1 || target.sizes.rank() != std::max(rank - 1, rank == 1 ? 0 : 1))
    return std::nullopt;
  if (c.tensor("weight") == nullptr && !c.none("weight")) return std::nullopt;
  const std::int64_t reduction = c.integer("reduction", 1);
  if (rank <= 2 || rank == 4) return picked(c, x, target, reduction);
  if (x.sizes.product() == 0) return std::nullopt;
  const std::int64_t rows = x.sizes[0], classes = x.sizes[1], places = target.sizes.product() / rows;
  const Tensor flat = c.writer.view(c.writer.contiguous(x), {rows, classes, 1, places});
  const Tensor labels = c.writer.view(c.writer.contiguous(target), {rows, 1, places});
  const Tensor loss = picked(c, flat, labels, reduction);
  return reduction == 0 ? c.writer.view(loss, target.sizes) : loss;
}

CompositeResults nll_loss(const Call& c) {
  const Tensor *x = c.tensor("self"), *target = c.tensor("target");
  if (x == nullptr || target == nullptr) return std::nullopt;
  const std::optional<Tensor> loss = nll(c, *x, *target);
  if (!loss) return std::nullopt;
  return {{*loss}};
}

Tensor log_softmax(const Call& c, const Tensor& x, int dim) {
  return c.writer.softmax("aten._log_softmax.default", x, {Arg{static_cast<std::int64_t>(dim)}, Arg{false}});
}

/// cross_entropy_loss_prob_target: labels are shares of the classes.
CompositeResults soft_cross_entropy(const Call& c, const Tensor& x, const Tensor& target, int dim) {
  if (!c.none("weight")) return std::nullopt;
  const Tensor log = log_softmax(c, x, dim);
  const auto classes = static_cast<double>(x.sizes[dim]);
  const double smoothing = c.number("label_smoothing", 0.0);
  Tensor share = target;
  if (smoothing > 0.0)
    share = c.num("aten.add.Scalar", c.num("aten.mul.Scalar", target, 1 - smoothing), smoothing / classes);
  const Tensor product = c.two("aten.mul.Tensor", log, share);
  const std::int64_t reduction = c.integer("reduction", 1);
  if (reduction == 0) return {{c.one("aten.neg.default", along(c, product, dim))}};
  Tensor loss = c.one("aten.neg.default", c.reduced("aten.sum.default", product));
  if (reduction == 1) loss = c.num("aten.div.Scalar", loss, static_cast<double>(x.sizes.product()) / classes);
  c.writer.hold_until_here(log);
  c.writer.hold_until_here(share);
  return {{loss}};
}

CompositeResults cross_entropy(const Call& c) {
  const Tensor *x = c.tensor("self"), *target = c.tensor("target");
  if (x == nullptr || target == nullptr || x->sizes.rank() < 1) return std::nullopt;
  const int dim = x->sizes.rank() == 1 ? 0 : 1;
  if (is_floating(target->dtype))
    return target->sizes == x->sizes ? soft_cross_entropy(c, *x, *target, dim) : std::nullopt;
  if (c.number("label_smoothing", 0.0) != 0.0) return std::nullopt;
  const bool plain = x->sizes.rank() <= 2 || x->sizes.rank() == 4 || x->sizes.product() > 0;
  if (!plain || target->sizes.rank() != std::max(x->sizes.rank() - 1, 0)) return std::nullopt;
  const Tensor log = log_softmax(c, *x, dim);
  const std::optional<Tensor> loss = nll(c, log, *target);
  if (!loss) return std::nullopt;
  c.writer.hold_until_here(log);
  return {{*loss}};
}

CompositeResults multilabel_margin_loss(const Call& c) {
  const Tensor *x = c.tensor("self"), *target = c.tensor("target");
  if (x == nullptr || target == nullptr) return std::nullopt;
  return {{c.made("aten.multilabel_margin_loss_forward.default",
                  {ProgramWriter::arg(*x), ProgramWriter::arg(*target), Arg{c.integer("reduction", 1)}},
                  {{c.described.sizes, x->dtype}, {target->sizes, x->dtype}})[0]}};
}

CompositeResults log_sigmoid(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr) return std::nullopt;
  // On a GPU its buffer is empty.
  const Dims buffer = c.on_gpu() ? Dims{0} : x->sizes;
  const Dims strides = ProgramWriter::like_strides(*x);
  return {{c.writer.emit("aten.log_sigmoid_forward.default", {ProgramWriter::arg(*x)}, {},
                         {{x->sizes, strides, x->dtype}, {buffer, c.on_gpu() ? Dims{1} : strides, x->dtype}})[0]}};
}

constexpr CompositeRow kLossesRows[] = {
    {"aten.l1_loss.default", &l1_loss},
    {"aten.smooth_l1_loss.default", &smooth_l1_loss},
    {"aten.kl_div.default", &kl_div},
    {"aten.poisson_nll_loss.default", &poisson_nll_loss},
    {"aten.cosine_embedding_loss.default", &cosine_embedding_loss},
    {"aten.hinge_embedding_loss.default", &hinge_embedding_loss},
    {"aten.margin_ranking_loss.default", &margin_ranking_loss},
    {"aten.pairwise_distance.default", &pairwise_distance},
    {"aten.triplet_margin_loss.default", &triplet_margin_loss},
    {"aten.cosine_similarity.default", &cosine_similarity},
    {"aten.nll_loss.default", &nll_loss},
    {"aten.nll_loss_nd.default", &nll_loss},
    {"aten.cross_entropy_loss.default", &cross_entropy},
    {"aten.multilabel_margin_loss.default", &multilabel_margin_loss},
    {"aten.log_sigmoid.default", &log_sigmoid},
};

}  // namespace

std::span<const CompositeRow> loss_composites() { return kLossesRows; }

}  // namespace foreshard::pt2
