// Layers as ATen writes them (Convolution.cpp, Pooling.cpp, UpSample.cpp, Normalization.cpp, Dropout.cpp,
// LinearAlgebra.cpp, EmbeddingBag.cu of PyTorch 2.11), part by part.
#include <algorithm>
#include <cmath>

#include "core/model/pt2/composites/composite_call.h"

namespace foreshard::pt2 {
namespace {

using families::Dims;
using families::ProgramWriter;
using families::Tensor;

Dims zeros(int rank) {
  Dims out;
  for (int i = 0; i < rank; ++i) out.insert(i, 0);
  return out;
}

// --- convolutions ---

/// Which of ATen's own kernels runs where there is no cuDNN (ConvBackend).
std::string own_kernel(const Tensor& x, const Tensor& weight, std::int64_t groups, bool transposed, bool dilated) {
  const bool volume = weight.sizes.rank() == 5;  // a line is a picture of one row
  const std::string size = volume ? "3d" : "2d";
  if (transposed) return "slowtranspose" + size;
  if (groups > 1 && x.sizes[1] == groups) return "cudadepthwise" + size;
  return (dilated || volume ? "slowdilated" : "slow") + size;
}

/// A convolution of a batch, or of one picture that becomes a batch of one. `padding` is empty for the operator's own.
CompositeResults convolved(const Call& c, const Tensor& given, const Dims* padding, bool transposed) {
  const Tensor *weight = c.tensor("weight"), *bias = c.tensor("bias");
  if (weight == nullptr || (bias == nullptr && !c.none("bias"))) return std::nullopt;
  const int spatial = weight->sizes.rank() - 2;
  const bool alone = given.sizes.rank() == spatial + 1;
  if (spatial < 1 || (!alone && given.sizes.rank() != spatial + 2) || given.sizes.rank() >= Dims::kMaxRank)
    return std::nullopt;
  const Tensor x = alone ? c.writer.unsqueeze(given, 0) : given;
  Dims sizes = c.described.sizes;
  if (alone) sizes.insert(0, 1);
  const auto whole = [&](std::string_view name, std::int64_t otherwise) {
    return ProgramWriter::arg(c.sizes(name, otherwise, spatial));
  };
  const Tensor y = c.made(
      "aten.convolution.default",
      {ProgramWriter::arg(x), ProgramWriter::arg(*weight), bias != nullptr ? ProgramWriter::arg(*bias) : Arg{},
       whole("stride", 1), padding != nullptr ? ProgramWriter::arg(*padding) : whole("padding", 0),
       whole("dilation", 1), Arg{transposed},
       transposed ? whole("output_padding", 0) : ProgramWriter::arg(zeros(spatial)), Arg{c.integer("groups", 1)}},
      {{sizes, x.dtype}})[0];
  if (c.on_gpu() && !c.options.cudnn) {
    const Dims dilation = c.sizes("dilation", 1, spatial);
    bool dilated = false;
    for (int i = 0; i < spatial; ++i) dilated = dilated || dilation[i] != 1;
    c.model.ops.back().kwargs.push_back(
        {"backend", Arg{own_kernel(x, *weight, c.integer("groups", 1), transposed, dilated)}});
  }
  return {{alone ? c.squeeze(y, 0) : y}};
}

CompositeResults convolution(const Call& c) {
  const Tensor* x = c.tensor("input");
  return x == nullptr ? std::nullopt : convolved(c, *x, nullptr, false);
}

CompositeResults transposed_convolution(const Call& c) {
  const Tensor* x = c.tensor("input");
  return x == nullptr ? std::nullopt : convolved(c, *x, nullptr, true);
}

/// padding="same": where the two sides differ the picture is padded first.
CompositeResults padded_convolution(const Call& c) {
  const Tensor *x = c.tensor("input"), *weight = c.tensor("weight");
  const Pt2Arg* padding = c.input("padding");
  if (x == nullptr || weight == nullptr || padding == nullptr) return std::nullopt;
  const int spatial = weight->sizes.rank() - 2;
  Dims sides = zeros(std::max(spatial, 0)), extra = zeros(std::max(2 * spatial, 0));
  bool uneven = false;
  if (padding->text == "same") {
    const Dims dilation = c.sizes("dilation", 1, spatial);
    for (int i = 0; i < spatial; ++i) {
      const std::int64_t total = dilation[i] * (weight->sizes[i + 2] - 1);
      sides[i] = total / 2;
      extra[2 * (spatial - 1 - i) + 1] = total % 2;
      uneven = uneven || total % 2 != 0;
    }
  }
  if (uneven && 2 * spatial > Dims::kMaxRank) return std::nullopt;
  return convolved(c, uneven ? c.writer.pad(*x, extra, 0.0) : *x, &sides, false);
}

// --- pictures ---

/// upsample_*.vec: the same operator with sizes that are worked out.
CompositeResults upsample(const Call& c) {
  const Tensor* x = c.tensor("input");
  if (x == nullptr) return std::nullopt;
  std::string name = c.node.target.substr(c.node.target.find("aten."));
  const bool corners = c.input("align_corners") != nullptr;
  name.replace(name.rfind('.'), std::string::npos, ".default");
  Dims sizes;
  for (int i = 2; i < c.described.sizes.rank(); ++i) sizes.insert(sizes.rank(), c.described.sizes[i]);
  ArgList args{ProgramWriter::arg(*x), ProgramWriter::arg(sizes)};
  if (corners) args.push_back(Arg{c.flag("align_corners", false)});
  return {c.made(name, std::move(args), {{c.described.sizes, x->dtype}})};
}

CompositeResults max_pool3d(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr) return std::nullopt;
  const Dims kernel = c.sizes("kernel_size", 1, 3);
  const bool own = !c.list("stride").empty();
  return {
      {c.made("aten.max_pool3d_with_indices.default",
              {ProgramWriter::arg(*x), ProgramWriter::arg(kernel),
               ProgramWriter::arg(own ? c.sizes("stride", 1, 3) : kernel), ProgramWriter::arg(c.sizes("padding", 0, 3)),
               ProgramWriter::arg(c.sizes("dilation", 1, 3)), Arg{c.flag("ceil_mode", false)}},
              {{c.described.sizes, x->dtype}, {c.described.sizes, DType::Int64}})[0]}};
}

/// A line is a picture of one row.
CompositeResults max_pool1d(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr || x->sizes.rank() < 2) return std::nullopt;
  const auto line = [&](std::string_view name, std::int64_t otherwise, std::int64_t other) {
    return ProgramWriter::arg(Dims{other, c.sizes(name, otherwise, 1)[0]});
  };
  const bool own = !c.list("stride").empty();
  Dims sizes = c.described.sizes;
  sizes.insert(sizes.rank() - 1, 1);
  const std::vector<Tensor> made =
      c.made("aten.max_pool2d_with_indices.default",
             {ProgramWriter::arg(c.writer.unsqueeze(*x, x->sizes.rank() - 1)), line("kernel_size", 1, 1),
              line(own ? "stride" : "kernel_size", 1, 1), line("padding", 0, 0), line("dilation", 1, 1),
              Arg{c.flag("ceil_mode", false)}},
             {{sizes, x->dtype}, {sizes, DType::Int64}});
  std::vector<Tensor> out{c.squeeze(made[0], -2)};
  if (c.results.size() > 1) out.push_back(c.squeeze(made[1], -2));
  return out;
}

CompositeResults adaptive_max_pool1d(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr || x->sizes.rank() < 2) return std::nullopt;
  Dims sizes = c.described.sizes;
  sizes.insert(sizes.rank() - 1, 1);
  const std::vector<Tensor> made = c.made("aten.adaptive_max_pool2d.default",
                                          {ProgramWriter::arg(c.writer.unsqueeze(*x, x->sizes.rank() - 1)),
                                           ProgramWriter::arg(Dims{1, c.sizes("output_size", 1, 1)[0]})},
                                          {{sizes, x->dtype}, {sizes, DType::Int64}});
  std::vector<Tensor> out{c.squeeze(made[0], -2)};
  if (c.results.size() > 1) out.push_back(c.squeeze(made[1], -2));
  return out;
}

CompositeResults adaptive_average3d(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr || x->sizes.rank() < 4) return std::nullopt;
  const Dims asked = c.sizes("output_size", 1, 3);
  if (asked == Dims{1, 1, 1}) return {{c.reduced("aten.mean.dim", *x, Dims{-1, -2, -3}, true)}};
  return {c.made("aten._adaptive_avg_pool3d.default", {ProgramWriter::arg(*x), ProgramWriter::arg(asked)},
                 {{c.described.sizes, x->dtype}})};
}

/// pad with what stands at the edge, or mirrored there.
CompositeResults edge_padding(const Call& c) {
  const Tensor* x = c.tensor("self");
  const Pt2Arg *mode = c.input("mode"), *padding = c.input("pad");
  if (x == nullptr || mode == nullptr || padding == nullptr || (mode->text != "reflect" && mode->text != "replicate"))
    return std::nullopt;
  const auto sides = static_cast<int>(padding->items.size());
  if (sides < 2 || sides > 6 || sides % 2 != 0) return std::nullopt;
  const std::string name = (mode->text == "reflect" ? "aten.reflection_pad" : "aten.replication_pad") +
                           std::to_string(sides / 2) + "d.default";
  return {c.made(name, {ProgramWriter::arg(*x), ProgramWriter::arg(c.sizes("pad", 0, sides))},
                 {{c.described.sizes, x->dtype}})};
}

CompositeResults grid_sampler(const Call& c) {
  const Tensor *x = c.tensor("input"), *grid = c.tensor("grid");
  if (x == nullptr || grid == nullptr) return std::nullopt;
  const char* name = x->sizes.rank() == 4 ? "aten.grid_sampler_2d.default" : "aten.grid_sampler_3d.default";
  return {c.made(name,
                 {ProgramWriter::arg(*x), ProgramWriter::arg(*grid), Arg{c.integer("interpolation_mode", 0)},
                  Arg{c.integer("padding_mode", 0)}, Arg{c.flag("align_corners", false)}},
                 {{c.described.sizes, x->dtype}})};
}

// --- norms ---

/// One batch norm over all pictures' channels side by side. Weights are repeated for each picture, statistics too, and
/// their mean goes back.
CompositeResults instance_norm(const Call& c) {
  const Tensor* x = c.tensor("input");
  if (x == nullptr || x->sizes.rank() < 2 || x->sizes.product() == 0) return std::nullopt;
  const std::int64_t batch = x->sizes[0], channels = x->sizes[1];
  Dims side = x->sizes;
  side[0] = 1;
  side[1] = batch * channels;
  ArgList args;
  const Tensor* means[2] = {};
  std::vector<Tensor> repeated;
  bool weights = true;
  for (const std::string_view name : {"weight", "bias", "running_mean", "running_var"}) {
    const Tensor* part = c.tensor(name);
    if (part == nullptr && !c.none(name)) return std::nullopt;
    const bool statistic = name.starts_with("running");
    if (statistic) means[name == "running_var" ? 1 : 0] = part;
    weights = weights && (statistic || part != nullptr);
    if (part == nullptr) {
      args.push_back(Arg{});
      continue;
    }
    repeated.push_back(c.made("aten.repeat.default", {ProgramWriter::arg(*part), ProgramWriter::arg(Dims{batch})},
                              {{Dims{batch * channels}, part->dtype}})[0]);
    args.push_back(ProgramWriter::arg(repeated.back()));
  }
  const Tensor flat = c.writer.view(c.writer.contiguous(*x), side);
  const bool own = c.flag("use_input_stats", true);
  const bool cudnn = c.on_gpu() && c.options.cudnn && weights && x->dtype == DType::Float32 && x->sizes.rank() >= 3 &&
                     ((means[0] != nullptr) == (means[1] != nullptr)) && (means[0] != nullptr || own);
  args.insert(args.begin(), ProgramWriter::arg(flat));
  args.push_back(Arg{own});
  args.push_back(Arg{c.number("momentum", 0.1)});
  args.push_back(Arg{c.number("eps", 1e-5)});
  const Dims kept{own ? batch * channels : 0};
  const DType wide = c.on_gpu() ? DType::Float32 : x->dtype;
  const Tensor y = cudnn ? c.made("aten.cudnn_batch_norm.default", std::move(args),
                                  {{side, x->dtype}, {kept, wide}, {kept, wide}, {Dims{0}, DType::UInt8}})[0]
                         : c.made("aten.native_batch_norm.default", std::move(args),
                                  {{side, x->dtype}, {kept, wide}, {kept, wide}})[0];
  const Tensor made = c.writer.view(y, x->sizes);
  for (const Tensor& part : repeated) c.writer.hold_until_here(part);
  return {{made}};
}

// --- dropout ---

/// _dropout_impl (ATen/native/Dropout.cpp).
struct Noise {
  bool features = false;  // for each channel of each picture, else for each element
  bool alpha = false;
  bool in_place = false;  // into the input
};
CompositeResults noisy(const Call& c, const Noise& kind) {
  const Tensor* x = c.tensor(kind.in_place ? "self" : "input");
  const double p = c.number("p", 0.5);
  if (x == nullptr || !(p >= 0.0 && p < 1.0)) return std::nullopt;
  if (p == 0.0 || !c.flag("train", true) || x->sizes.product() == 0) return {{*x}};
  Dims sizes = x->sizes;
  for (int i = kind.features ? 2 : sizes.rank(); i < sizes.rank(); ++i) sizes[i] = 1;
  const auto times = [&](const Tensor& by) {
    return kind.in_place ? c.in_place("aten.mul_.Tensor", *x, {ProgramWriter::arg(by)})
                         : c.two("aten.mul.Tensor", *x, by);
  };
  const Tensor noise = kind.features
                           ? c.made("aten.empty.memory_format", {ProgramWriter::arg(sizes)}, {{sizes, x->dtype}})[0]
                           : c.one("aten.empty_like.default", *x);
  c.in_place("aten.bernoulli_.float", noise, {Arg{1 - p}});
  if (!kind.alpha) {
    c.in_place("aten.div_.Scalar", noise, {Arg{1 - p}});
    return {{times(noise)}};
  }
  const Tensor shift = c.num("aten.add.Scalar", noise, -1.0);
  c.in_place("aten.mul_.Scalar", shift, {Arg{1.0}});
  c.in_place("aten.add_.Scalar", shift, {Arg{1.0}});
  c.in_place("aten.mul_.Scalar", noise, {Arg{1.0}});
  const Tensor y = times(noise);
  return {{c.in_place("aten.add_.Tensor", y, {ProgramWriter::arg(shift)})}};
}
CompositeResults feature_dropout(const Call& c) { return noisy(c, {.features = true}); }
CompositeResults alpha_dropout(const Call& c) { return noisy(c, {.alpha = true}); }
CompositeResults feature_alpha_dropout(const Call& c) { return noisy(c, {.features = true, .alpha = true}); }
CompositeResults dropout_in_place(const Call& c) { return noisy(c, {.in_place = true}); }
CompositeResults feature_dropout_in_place(const Call& c) { return noisy(c, {.features = true, .in_place = true}); }
CompositeResults alpha_dropout_in_place(const Call& c) { return noisy(c, {.alpha = true, .in_place = true}); }
CompositeResults feature_alpha_dropout_in_place(const Call& c) {
  return noisy(c, {.features = true, .alpha = true, .in_place = true});
}

CompositeResults prelu(const Call& c) {
  const Tensor *x = c.tensor("self"), *weight = c.tensor("weight");
  if (x == nullptr || weight == nullptr || x->dtype != weight->dtype) return std::nullopt;
  Dims shape;
  for (int i = 0; i < x->sizes.rank(); ++i) shape.insert(i, i == 1 ? weight->sizes.product() : 1);
  if (x->sizes.rank() < 2 && weight->sizes.product() != 1) return std::nullopt;
  const Tensor wide = weight->sizes == shape ? *weight : c.writer.view(*weight, shape);
  return {{c.two("aten._prelu_kernel.default", *x, wide)}};
}

CompositeResults rrelu(const Call& c) {
  const Tensor* x = c.tensor("self");
  if (x == nullptr) return std::nullopt;
  if (!c.flag("training", false)) return {{c.num("aten.leaky_relu.default", *x, 0.2)}};
  const Tensor noise = c.one("aten.empty_like.default", *x);
  return {{c.two("aten.rrelu_with_noise.default", *x, noise)}};
}

// --- products ---

bool has_gradient(const Call& c, const Tensor& x) {
  if (x.kind != Tensor::Kind::Value) return x.kind == Tensor::Kind::Param && is_floating(x.dtype);
  const auto& inputs = c.model.inputs;
  return is_floating(x.dtype) && std::find(inputs.begin(), inputs.end(), ValueId(x.index)) == inputs.end();
}

/// A product that folds the larger side's batch into its rows.
bool folds(const Call& c, const Tensor& a, const Tensor& b) {
  const bool first = a.sizes.rank() >= b.sizes.rank();
  Tensor large = first ? a : b;
  const Tensor& small = first ? b : a;
  if (large.sizes.rank() < 3 || small.sizes.rank() > 2) return false;
  if (has_gradient(c, small)) return true;
  if (a.sizes.rank() == 2) return false;
  if (!first) {
    std::swap(large.sizes[-1], large.sizes[-2]);
    std::swap(large.strides[-1], large.strides[-2]);
  }
  for (int i = 0; i + 2 < large.sizes.rank(); ++i)
    if (large.strides[i] != large.strides[i + 1] * large.sizes[i + 1]) return false;
  return true;
}

Tensor folded(const Call& c, const Tensor& a, const Tensor& b) {
  const bool turned = b.sizes.rank() > a.sizes.rank();
  const Tensor large = turned ? c.writer.transpose(b, b.sizes.rank() - 2, b.sizes.rank() - 1) : a;
  const Tensor small = !turned ? b : a.sizes.rank() == 2 ? c.writer.t(a) : a;
  Dims sizes = large.sizes;
  const std::int64_t last = sizes[-1], rows = sizes.product() / last;
  sizes.erase(sizes.rank() - 1);
  const Tensor flat = c.reshape(large, {rows, last});
  if (small.sizes.rank() == 1) {
    const Tensor y =
        c.made("aten.mv.default", {ProgramWriter::arg(flat), ProgramWriter::arg(small)}, {{Dims{rows}, a.dtype}})[0];
    return c.writer.unsafe_view(y, sizes);
  }
  sizes.insert(sizes.rank(), small.sizes[1]);
  const Tensor y = c.writer.unsafe_view(c.writer.mm(flat, small), sizes);
  return turned ? c.writer.contiguous(c.writer.transpose(y, y.sizes.rank() - 2, y.sizes.rank() - 1)) : y;
}

std::optional<Tensor> product(const Call& c, const Tensor& a, const Tensor& b) {
  const int left = a.sizes.rank(), right = b.sizes.rank();
  if (left < 1 || right < 1 || a.dtype != b.dtype || a.sizes.product() == 0 || b.sizes.product() == 0)
    return std::nullopt;
  if (a.sizes[-1] != (right == 1 ? b.sizes[0] : b.sizes[-2])) return std::nullopt;
  if (left == 1 && right == 1)
    return c.made("aten.dot.default", {ProgramWriter::arg(a), ProgramWriter::arg(b)}, {{Dims{}, a.dtype}})[0];
  if (left == 2 && right == 1)
    return c.made("aten.mv.default", {ProgramWriter::arg(a), ProgramWriter::arg(b)}, {{Dims{a.sizes[0]}, a.dtype}})[0];
  if (left == 1 && right == 2) return c.squeeze(c.writer.mm(c.writer.unsqueeze(a, 0), b), 0);
  if (left == 2 && right == 2) return c.writer.mm(a, b);
  if (folds(c, a, b)) return folded(c, a, b);
  const auto batch_of = [](const Tensor& x) {
    Dims out;
    for (int i = 0; i + 2 < x.sizes.rank(); ++i) out.insert(i, x.sizes[i]);
    return out;
  };
  Dims batch = broadcast_sizes(batch_of(a), batch_of(b)), out = batch;
  if (batch.rank() + 2 > Dims::kMaxRank) return std::nullopt;
  const std::int64_t count = batch.product(), inner = a.sizes[-1], rows = left > 1 ? a.sizes[-2] : 1,
                     columns = right > 1 ? b.sizes[-1] : 1;
  const auto wide = [&](const Tensor& x, std::initializer_list<std::int64_t> rest) {
    Dims sizes = batch;
    for (const std::int64_t size : rest) sizes.insert(sizes.rank(), size);
    return c.writer.expand(x, sizes);
  };
  const Tensor first = c.reshape(wide(a, {rows, inner}), {count, rows, inner});
  const Tensor second = right == 1 ? c.writer.unsqueeze(c.reshape(wide(b, {inner}), {count, inner}), 2)
                                   : c.reshape(wide(b, {inner, columns}), {count, inner, columns});
  Tensor y = c.writer.bmm(first, second);
  if (right == 1) y = c.squeeze(y, -1);
  if (left > 1) out.insert(out.rank(), rows);
  if (right > 1) out.insert(out.rank(), columns);
  return c.writer.unsafe_view(y, out);
}

/// What the usual linear layer is not: a weight that is no parameter, an input that cannot be seen as rows.
CompositeResults linear(const Call& c) {
  const Tensor *x = c.tensor("input"), *weight = c.tensor("weight"), *bias = c.tensor("bias");
  if (x == nullptr || weight == nullptr || (bias == nullptr && !c.none("bias"))) return std::nullopt;
  if (weight->sizes.rank() != 2 || x->sizes.rank() < 1 || x->dtype != weight->dtype || x->sizes.product() == 0 ||
      x->sizes[-1] != weight->sizes[1])
    return std::nullopt;
  if (bias != nullptr && x->sizes.rank() == 2) return {{c.writer.addmm(*bias, *x, c.writer.t(*weight))}};
  if (bias != nullptr && x->is_contiguous()) {
    Dims sizes = x->sizes;
    sizes[-1] = weight->sizes[0];
    const Tensor rows = c.writer.view(*x, {x->sizes.product() / x->sizes[-1], x->sizes[-1]});
    return {{c.writer.view(c.writer.addmm(*bias, rows, c.writer.t(*weight)), sizes)}};
  }
  const std::optional<Tensor> y = product(c, *x, c.writer.t(*weight));
  if (!y) return std::nullopt;
  return {{bias == nullptr ? *y : c.in_place("aten.add_.Tensor", *y, {ProgramWriter::arg(*bias)})}};
}

CompositeResults matmul(const Call& c) {
  const Tensor *a = c.tensor("self"), *b = c.tensor("other");
  if (a == nullptr || b == nullptr) return std::nullopt;
  const std::optional<Tensor> made = product(c, *a, *b);
  if (!made) return std::nullopt;
  return {{*made}};
}

CompositeResults inner(const Call& c) {
  const Tensor *a = c.tensor("self"), *b = c.tensor("other");
  if (a == nullptr || b == nullptr || a->dtype != b->dtype) return std::nullopt;
  if (a->sizes.rank() == 0 || b->sizes.rank() == 0) return {{c.two("aten.mul.Tensor", *a, *b)}};
  if (a->sizes.rank() != 1 || b->sizes.rank() != 1) return std::nullopt;
  return {{*product(c, *a, *b)}};
}

CompositeResults bilinear(const Call& c) {
  const Tensor *a = c.tensor("input1"), *b = c.tensor("input2"), *w = c.tensor("weight"), *bias = c.tensor("bias");
  if (a == nullptr || b == nullptr || w == nullptr || (bias == nullptr && !c.none("bias"))) return std::nullopt;
  if (w->sizes.rank() != 3 || a->sizes.product() == 0) return std::nullopt;
  Dims out = a->sizes;
  out[-1] = w->sizes[0];
  const auto rows = [&](const Tensor& x) { return c.reshape(x, {x.sizes.product() / x.sizes[-1], x.sizes[-1]}); };
  const Tensor left = rows(*a), right = rows(*b);
  const Dims flat{left.sizes[0], w->sizes[0]};
  Tensor y = c.made(
      "aten._trilinear.default",
      {ProgramWriter::arg(left), ProgramWriter::arg(*w), ProgramWriter::arg(right), ProgramWriter::arg(Dims{1, 3}),
       ProgramWriter::arg(Dims{0}), ProgramWriter::arg(Dims{1, 2}), ProgramWriter::arg(Dims{2, 3})},
      {{flat, a->dtype}})[0];
  y = c.writer.view(y, out);
  return {{bias != nullptr ? c.two("aten.add.Tensor", y, *bias) : y}};
}

// --- gathers ---

/// On a GPU it always notes which bag every index belongs to.
CompositeResults embedding_bag(const Call& c) {
  const Tensor *weight = c.tensor("weight"), *indices = c.tensor("indices"), *offsets = c.tensor("offsets");
  const Tensor* scale = c.tensor("per_sample_weights");
  if (weight == nullptr || indices == nullptr || offsets == nullptr || weight->sizes.rank() != 2) return std::nullopt;
  if ((scale == nullptr && !c.none("per_sample_weights")) || !c.on_gpu() || indices->sizes.rank() != 1)
    return std::nullopt;
  const std::int64_t mode = c.integer("mode", 0);
  const Dims out = c.described.sizes;
  return c.made("aten._embedding_bag.default",
                {ProgramWriter::arg(*weight), ProgramWriter::arg(*indices), ProgramWriter::arg(*offsets),
                 Arg{c.flag("scale_grad_by_freq", false)}, Arg{mode}, Arg{c.flag("sparse", false)},
                 scale != nullptr ? ProgramWriter::arg(*scale) : Arg{}, Arg{c.flag("include_last_offset", false)},
                 Arg{c.integer("padding_idx", -1)}},
                {{out, weight->dtype},
                 {indices->sizes, indices->dtype},
                 {offsets->sizes, indices->dtype},
                 {mode == 2 ? out : Dims{0}, indices->dtype}});
}

/// A weight by its direction and its length: one kernel, which keeps the lengths, where they are those of the first or
/// the last dimension (WeightNorm.cpp).
CompositeResults weight_norm(const Call& c) {
  const Tensor* const v = c.tensor("v");
  const Tensor* const g = c.tensor("g");
  if (v == nullptr || g == nullptr || v->sizes.rank() == 0) return std::nullopt;
  const int rank = static_cast<int>(v->sizes.rank()), dim = c.dim("dim", 0, rank);
  if (dim != 0 && dim != rank - 1) return std::nullopt;
  const bool half = v->dtype == DType::BFloat16 || v->dtype == DType::Float16;
  return std::vector<Tensor>{c.made("aten._weight_norm_interface.default",
                                    {ProgramWriter::arg(*v), ProgramWriter::arg(*g), Arg{std::int64_t{dim}}},
                                    {{v->sizes, v->dtype}, {g->sizes, half ? DType::Float32 : g->dtype}})[0]};
}

constexpr CompositeRow kLayersRows[] = {
    {"aten._weight_norm.default", &weight_norm},
    {"aten.conv1d.default", &convolution},
    {"aten.conv2d.default", &convolution},
    {"aten.conv3d.default", &convolution},
    {"aten.conv1d.padding", &padded_convolution},
    {"aten.conv2d.padding", &padded_convolution},
    {"aten.conv3d.padding", &padded_convolution},
    {"aten.conv_transpose1d.default", &transposed_convolution},
    {"aten.conv_transpose2d.input", &transposed_convolution},
    {"aten.conv_transpose3d.input", &transposed_convolution},
    {"aten.upsample_nearest1d.vec", &upsample},
    {"aten.upsample_nearest2d.vec", &upsample},
    {"aten.upsample_nearest3d.vec", &upsample},
    {"aten._upsample_nearest_exact1d.vec", &upsample},
    {"aten._upsample_nearest_exact2d.vec", &upsample},
    {"aten._upsample_nearest_exact3d.vec", &upsample},
    {"aten.upsample_linear1d.vec", &upsample},
    {"aten.upsample_bilinear2d.vec", &upsample},
    {"aten.upsample_trilinear3d.vec", &upsample},
    {"aten.upsample_bicubic2d.vec", &upsample},
    {"aten._upsample_bilinear2d_aa.vec", &upsample},
    {"aten._upsample_bicubic2d_aa.vec", &upsample},
    {"aten.max_pool1d.default", &max_pool1d},
    {"aten.max_pool1d_with_indices.default", &max_pool1d},
    {"aten.max_pool3d.default", &max_pool3d},
    {"aten.adaptive_max_pool1d.default", &adaptive_max_pool1d},
    {"aten.adaptive_avg_pool3d.default", &adaptive_average3d},
    {"aten.pad.default", &edge_padding},
    {"aten.grid_sampler.default", &grid_sampler},
    {"aten.instance_norm.default", &instance_norm},
    {"aten.feature_dropout.default", &feature_dropout},
    {"aten.alpha_dropout.default", &alpha_dropout},
    {"aten.feature_alpha_dropout.default", &feature_alpha_dropout},
    {"aten.dropout_.default", &dropout_in_place},
    {"aten.feature_dropout_.default", &feature_dropout_in_place},
    {"aten.alpha_dropout_.default", &alpha_dropout_in_place},
    {"aten.feature_alpha_dropout_.default", &feature_alpha_dropout_in_place},
    {"aten.prelu.default", &prelu},
    {"aten.rrelu.default", &rrelu},
    {"aten.linear.default", &linear},
    {"aten.matmul.default", &matmul},
    {"aten.inner.default", &inner},
    {"aten.bilinear.default", &bilinear},
    {"aten.embedding_bag.padding_idx", &embedding_bag},
    {"aten.embedding_bag.default", &embedding_bag},
};

}  // namespace

std::span<const CompositeRow> layer_composites() { return kLayersRows; }

}  // namespace foreshard::pt2
