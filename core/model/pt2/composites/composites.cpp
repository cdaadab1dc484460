#include "core/model/pt2/composites/composites.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/model/families/family.h"

namespace foreshard::pt2 {
namespace {

using families::AttentionKernel;
using families::AttentionShape;
using families::Dims;
using families::ProgramWriter;
using families::Tensor;

bool is_half(DType dtype) { return dtype == DType::BFloat16 || dtype == DType::Float16; }

}  // namespace

const CompositeWriter::Row CompositeWriter::kRows[] = {
    {"aten.dropout.default", &CompositeWriter::dropout},
    {"aten.to.dtype", &CompositeWriter::to},
    {"aten.to.dtype_layout", &CompositeWriter::to},
    {"aten.to.device", &CompositeWriter::to},
    {"aten.to.other", &CompositeWriter::to_other},
    {"aten.type_as.default", &CompositeWriter::to_other},
    {"aten.linear.default", &CompositeWriter::linear},
    {"aten.layer_norm.default", &CompositeWriter::layer_norm},
    {"aten.rms_norm.default", &CompositeWriter::rms_norm},
    {"aten.group_norm.default", &CompositeWriter::group_norm},
    {"aten.batch_norm.default", &CompositeWriter::batch_norm},
    {"aten.softmax.int", &CompositeWriter::softmax},
    {"aten.log_softmax.int", &CompositeWriter::log_softmax},
    {"aten.cross_entropy_loss.default", &CompositeWriter::cross_entropy},
    {"aten.scaled_dot_product_attention.default", &CompositeWriter::attention},
    {"aten.max_pool2d.default", &CompositeWriter::max_pool},
    {"aten.adaptive_avg_pool1d.default", &CompositeWriter::adaptive_average_of_rows},
    {"aten.adaptive_avg_pool2d.default", &CompositeWriter::adaptive_average},
    {"aten.pad.default", &CompositeWriter::pad},
    {"aten.diff.default", &CompositeWriter::diff},
    {"aten.where.ScalarOther", &CompositeWriter::where_scalar},
    {"aten.where.ScalarSelf", &CompositeWriter::where_scalar},
    {"aten.where.Scalar", &CompositeWriter::where_scalar},
    {"transformers.grouped_mm_fallback.default", &CompositeWriter::grouped_product},
};

namespace {

const CompositeRow* find_row(std::string_view name) {
  static constexpr CompositeRow kEinsum[] = {{"aten.einsum.default", &einsum}};
  for (const std::span<const CompositeRow> rows : {shape_composites(), loss_composites(), layer_composites(),
                                                   recurrent_composites(), std::span<const CompositeRow>(kEinsum)}) {
    const auto at = std::find_if(rows.begin(), rows.end(), [&](const CompositeRow& row) { return row.name == name; });
    if (at != rows.end()) return &*at;
  }
  return nullptr;
}

/// A function's arguments are its caller's until it has returned.
void hold_operands(ProgramWriter& writer, const Pt2Node& node, const Names& names) {
  const auto hold = [&](const auto& self, const Pt2Arg& arg) -> void {
    for (const Pt2Arg& item : arg.items) self(self, item);
    const auto found = arg.kind == Pt2Arg::Kind::Tensor ? names.find(arg.text) : names.end();
    if (found != names.end() && found->second.exact) writer.hold_until_here(found->second.tensor);
  };
  for (const Pt2Input& input : node.inputs) hold(hold, input.arg);
}

}  // namespace

bool CompositeWriter::knows(std::string_view name) {
  return find_row(name) != nullptr ||
         std::any_of(std::begin(kRows), std::end(kRows), [&](const Row& row) { return row.name == name; });
}

std::optional<std::vector<Bound>> CompositeWriter::write(const Pt2Node& node, std::string_view name, const Names& names,
                                                         const std::vector<Tensor>& described) {
  const Call call{node, names, described, writer_, model_, options_};
  const std::size_t ops = model_.ops.size(), values = model_.values.size();
  const Row* row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.name == name; });
  if (row != std::end(kRows)) {
    if (std::optional<Bound> made = (this->*row->write)(call)) {
      if (model_.ops.size() > ops + 1) hold_operands(writer_, node, names);
      return std::vector<Bound>{std::move(*made)};
    }
    model_.ops.resize(ops);
    model_.values.resize(values);
  }
  const CompositeRow* other = find_row(name);
  CompositeResults made = other == nullptr ? std::nullopt : other->write(call);
  if (!made || made->size() != described.size()) {  // a form that nobody rewrites stays whole
    model_.ops.resize(ops);
    model_.values.resize(values);
    return std::nullopt;
  }
  if (model_.ops.size() > ops + 1) hold_operands(writer_, node, names);
  std::vector<Bound> out;
  for (const Tensor& x : *made) out.push_back(Call::bound(x));
  return out;
}

Bound CompositeWriter::bound_to(const Tensor& tensor, std::string_view rename) {
  if (!rename.empty()) model_.ops.back().name = rename;
  return {ProgramWriter::arg(tensor), tensor, true};
}

/// A plain parameter of the dtype that the program computes in, with this many dimensions.
bool CompositeWriter::is_param(const Tensor* x, int rank) const {
  return x != nullptr && x->kind == Tensor::Kind::Param && x->dtype == writer_.dtype() && x->sizes.rank() == rank &&
         x->is_contiguous();
}

// --- copies and shapes ---

std::optional<Bound> CompositeWriter::dropout(const Call& call) {
  const Tensor* x = call.tensor("input");
  const double p = call.number("p", 0.5);
  if (x == nullptr || !(p >= 0.0 && p < 1.0)) return std::nullopt;
  const bool train = call.number("train", 1.0) != 0.0;
  return bound_to(train ? writer_.dropout(*x, p) : *x);
}

/// The device is the exporting machine's: in training everything lies on one.
std::optional<Bound> CompositeWriter::to(const Call& call) {
  const Tensor* x = call.tensor("self");
  const Pt2Arg* dtype = call.input("dtype");
  const bool copy = call.number("copy", 0.0) != 0.0;
  if (x == nullptr || copy) return std::nullopt;
  if (call.none("dtype")) return bound_to(*x);
  if (dtype->kind != Pt2Arg::Kind::DType) return std::nullopt;
  return bound_to(writer_.to(*x, static_cast<DType>(dtype->integer)));
}

std::optional<Bound> CompositeWriter::to_other(const Call& call) {
  const Tensor* x = call.tensor("self");
  const Tensor* other = call.tensor("other");
  if (x == nullptr || other == nullptr || call.number("copy", 0.0) != 0.0) return std::nullopt;
  return bound_to(writer_.to(*x, other->dtype));
}

std::optional<Bound> CompositeWriter::pad(const Call& call) {
  const Tensor* x = call.tensor("self");
  const Pt2Arg* padding = call.input("pad");
  const Pt2Arg* mode = call.input("mode");
  const bool constant = mode == nullptr || mode->text.empty() || mode->text == "constant";
  if (x == nullptr || padding == nullptr || !constant || padding->items.size() > Dims::kMaxRank) return std::nullopt;
  if (static_cast<int>(padding->items.size()) > 2 * x->sizes.rank()) return std::nullopt;
  return bound_to(
      writer_.pad(*x, call.sizes("pad", 0, static_cast<int>(padding->items.size())), call.number("value", 0.0)));
}

/// cat with what stands before and behind, then one slice less the other.
std::optional<Bound> CompositeWriter::diff(const Call& call) {
  const Tensor* x = call.tensor("self");
  if (x == nullptr || call.number("n", 1.0) != 1.0 || x->sizes.rank() < 1 || x->dtype == DType::Bool)
    return std::nullopt;
  const int rank = x->sizes.rank();
  const auto asked = static_cast<int>(call.integer("dim", -1));
  const int dim = asked < 0 ? asked + rank : asked;
  if (dim < 0 || dim >= rank) return std::nullopt;
  std::vector<Tensor> parts;
  for (const std::string_view name : {"prepend", "self", "append"}) {
    const Tensor* part = call.tensor(name);
    if (part == nullptr && !call.none(name)) return std::nullopt;
    if (part != nullptr && part->sizes.rank() != rank) return std::nullopt;
    if (part != nullptr) parts.push_back(*part);
  }
  const Tensor whole = parts.size() == 1 ? *x : writer_.cat(parts, dim);
  const std::int64_t count = whole.sizes[dim] - 1;
  if (count < 0) return std::nullopt;
  const Tensor left = writer_.slice(whole, dim, 0, count);
  const Tensor right = writer_.slice(whole, dim, 1, count + 1);
  return bound_to(writer_.sub(right, left));
}

/// A number among the operands becomes a tensor without dimensions first.
std::optional<Bound> CompositeWriter::where_scalar(const Call& call) {
  const Tensor* condition = call.tensor("condition");
  if (condition == nullptr) return std::nullopt;
  const auto operand = [&](std::string_view name) -> std::optional<Tensor> {
    if (const Tensor* given = call.tensor(name); given != nullptr) return *given;
    const Pt2Arg* arg = call.input(name);
    if (arg == nullptr || arg->kind == Pt2Arg::Kind::Tensor) return std::nullopt;
    return writer_.scalar(call.number(name, 0.0), call.described.dtype, true);
  };
  const std::optional<Tensor> a = operand("self"), b = a ? operand("other") : std::nullopt;
  if (!a || !b) return std::nullopt;
  return bound_to(writer_.where(*condition, *a, *b));
}

// --- products ---

std::optional<Bound> CompositeWriter::linear(const Call& call) {
  const Tensor* x = call.tensor("input");
  const Tensor* weight = call.tensor("weight");
  const Tensor* bias = call.tensor("bias");
  const bool biased = !call.none("bias");
  if (x == nullptr || !is_param(weight, 2) || x->dtype != writer_.dtype() || x->sizes.rank() < 2) return std::nullopt;
  if (biased && (!is_param(bias, 1) || bias->sizes[0] != weight->sizes[0])) return std::nullopt;
  if (x->sizes.product() == 0 || x->sizes[-1] != weight->sizes[1]) return std::nullopt;
  if (!ProgramWriter::can_view(*x, {x->sizes.product() / x->sizes[-1], x->sizes[-1]})) return std::nullopt;
  return bound_to(writer_.linear(*x, ParamId(weight->index), biased ? ParamId(bias->index) : ParamId{}));
}

/// PyTorch's choice among the kernels; what depends on more than shapes stays whole.
std::optional<Bound> CompositeWriter::attention(const Call& call) {
  const Tensor* q = call.tensor("query");
  const Tensor* k = call.tensor("key");
  const Tensor* v = call.tensor("value");
  const Tensor* mask = call.tensor("attn_mask");
  if (q == nullptr || k == nullptr || v == nullptr || device_ != ProgramDevice::Cuda) return std::nullopt;
  if (q->sizes.rank() != 4 || k->sizes.rank() != 4 || v->sizes.rank() != 4) return std::nullopt;
  if (q->sizes.product() == 0 || k->sizes.product() == 0 || (mask == nullptr && !call.none("attn_mask")))
    return std::nullopt;
  if (q->dtype != k->dtype || k->dtype != v->dtype || k->sizes[1] != v->sizes[1]) return std::nullopt;
  const bool half = is_half(q->dtype);
  const std::int64_t width = q->sizes[3], alignment = half ? 8 : 4;
  const bool same_width = width == k->sizes[3] && width == v->sizes[3];
  const bool grouped = q->sizes[1] != k->sizes[1];
  if (grouped && (call.number("enable_gqa", 0.0) == 0.0 || q->sizes[1] % k->sizes[1] != 0)) return std::nullopt;
  AttentionShape shape;
  shape.heads = q->sizes[1];
  shape.key_value_heads = k->sizes[1];
  shape.head_dim = width;
  shape.dropout = call.number("dropout_p", 0.0);
  shape.scale = call.number("scale", 1.0 / std::sqrt(static_cast<double>(width)));
  shape.causal = call.number("is_causal", 0.0) != 0.0;
  if (!(shape.dropout >= 0.0 && shape.dropout < 1.0) || !(shape.scale >= 0.0)) return std::nullopt;
  const bool aligned = width % alignment == 0 && v->sizes[3] % alignment == 0;
  AttentionKernel kernel = AttentionKernel::Math;
  if (half && mask == nullptr && same_width && width <= 256)
    kernel = AttentionKernel::Flash;
  else if ((half || q->dtype == DType::Float32) && aligned && !grouped)
    kernel = AttentionKernel::Efficient;
  if (kernel == AttentionKernel::Efficient && mask != nullptr && mask->sizes.rank() > 4) return std::nullopt;
  if (kernel == AttentionKernel::Math && (k->sizes[0] != q->sizes[0] || v->sizes[0] != q->sizes[0] ||
                                          q->sizes[3] != k->sizes[3] || !is_floating(q->dtype)))
    return std::nullopt;
  return bound_to(families::write_attention_kernel(writer_, kernel, shape, *q, *k, *v, mask));
}

// --- norms and pools ---

std::optional<Bound> CompositeWriter::layer_norm(const Call& call) {
  const Tensor* x = call.tensor("input");
  const Tensor* weight = call.tensor("weight");
  const Tensor* bias = call.tensor("bias");
  const Pt2Arg* shape = call.input("normalized_shape");
  if (x == nullptr || shape == nullptr || shape->items.size() != 1 || x->sizes.rank() < 1) return std::nullopt;
  const auto plain = [&](const Tensor* p, std::string_view key) {
    return p == nullptr ? call.none(key) : is_param(p, 1);
  };
  if (!plain(weight, "weight") || !plain(bias, "bias")) return std::nullopt;
  const auto id = [](const Tensor* p) { return p == nullptr ? ParamId{} : ParamId(p->index); };
  return bound_to(writer_.layer_norm(*x, id(weight), id(bias), call.number("eps", 1e-5)));
}

/// One fused kernel on a GPU; elsewhere it stays whole.
std::optional<Bound> CompositeWriter::rms_norm(const Call& call) {
  const Tensor* x = call.tensor("input");
  const Tensor* weight = call.tensor("weight");
  const Pt2Arg* shape = call.input("normalized_shape");
  if (x == nullptr || shape == nullptr || device_ != ProgramDevice::Cuda || x->sizes.rank() < 1) return std::nullopt;
  if ((weight == nullptr && !call.none("weight")) || (weight != nullptr && weight->dtype != x->dtype))
    return std::nullopt;
  const auto normed = static_cast<int>(shape->items.size());
  if (normed < 1 || normed > x->sizes.rank()) return std::nullopt;
  Dims statistics = x->sizes;
  for (int i = 0; i < normed; ++i) statistics[x->sizes.rank() - 1 - i] = 1;
  return bound_to(writer_.emit("aten._fused_rms_norm.default",
                               {ProgramWriter::arg(*x), ProgramWriter::arg(call.sizes("normalized_shape", 1, normed)),
                                weight != nullptr ? ProgramWriter::arg(*weight) : Arg{},
                                call.none("eps") ? Arg{} : Arg{call.number("eps", 0.0)}},
                               {},
                               {{x->sizes, ProgramWriter::contiguous_strides(x->sizes), x->dtype},
                                {statistics, ProgramWriter::contiguous_strides(statistics), DType::Float32}})[0]);
}

std::optional<Bound> CompositeWriter::group_norm(const Call& call) {
  const Tensor* x = call.tensor("input");
  const Tensor* weight = call.tensor("weight");
  const Tensor* bias = call.tensor("bias");
  if (x == nullptr || x->sizes.rank() < 2 || x->sizes.product() == 0) return std::nullopt;
  if ((weight == nullptr && !call.none("weight")) || (bias == nullptr && !call.none("bias"))) return std::nullopt;
  const std::int64_t batch = x->sizes[0], channels = x->sizes[1], groups = call.integer("num_groups", 1);
  const Tensor in = writer_.contiguous(*x);
  const Dims statistics{batch, groups};
  const Dims strides = ProgramWriter::contiguous_strides(statistics);
  return bound_to(writer_.emit(
      "aten.native_group_norm.default",
      {ProgramWriter::arg(in), weight != nullptr ? ProgramWriter::arg(*weight) : Arg{},
       bias != nullptr ? ProgramWriter::arg(*bias) : Arg{}, Arg{batch}, Arg{channels},
       Arg{x->sizes.product() / (batch * channels)}, Arg{groups}, Arg{call.number("eps", 1e-5)}},
      {}, {{in.sizes, in.strides, in.dtype}, {statistics, strides, in.dtype}, {statistics, strides, in.dtype}})[0]);
}

/// _select_batch_norm_backend: cuDNN takes single precision (and float16 with float32 weights) of three dimensions or
/// more.
std::optional<Bound> CompositeWriter::batch_norm(const Call& call) {
  const Tensor* x = call.tensor("input");
  if (x == nullptr || x->sizes.rank() < 2) return std::nullopt;
  ArgList args{ProgramWriter::arg(*x)};
  bool all = true;
  DType weight_dtype = DType::Float32;
  for (const std::string_view name : {"weight", "bias", "running_mean", "running_var"}) {
    const Tensor* part = call.tensor(name);
    if (part == nullptr && !call.none(name)) return std::nullopt;
    all = all && part != nullptr;
    if (part != nullptr && name == "weight") weight_dtype = part->dtype;
    args.push_back(part != nullptr ? ProgramWriter::arg(*part) : Arg{});
  }
  const bool training = call.number("training", 1.0) != 0.0;
  const bool dtypes = x->dtype == DType::Float32 || (x->dtype == DType::Float16 && weight_dtype == DType::Float32);
  // `cudnn_enabled` is the exporting machine's, as devices are.
  const bool cudnn = device_ == ProgramDevice::Cuda && options_.cudnn && all && dtypes && x->sizes.rank() >= 3;
  args.push_back(Arg{training});
  args.push_back(Arg{call.number("momentum", 0.1)});
  args.push_back(Arg{call.number("eps", 1e-5)});
  const Dims statistics{training ? x->sizes[1] : 0};
  // On a GPU the statistics are float32, elsewhere of the input's type unless that is mixed.
  const DType wide = device_ == ProgramDevice::Cpu ? (all ? weight_dtype : x->dtype) : DType::Float32;
  std::vector<ProgramWriter::Described> results = {
      {x->sizes, ProgramWriter::like_strides(*x), x->dtype}, {statistics, {1}, wide}, {statistics, {1}, wide}};
  if (cudnn) results.push_back({Dims{0}, {1}, DType::UInt8});
  return bound_to(writer_.emit(cudnn ? "aten.cudnn_batch_norm.default" : "aten.native_batch_norm.default",
                               std::move(args), {}, results)[0]);
}

std::optional<Bound> CompositeWriter::max_pool(const Call& call) {
  const Tensor* x = call.tensor("self");
  if (x == nullptr || call.input("kernel_size") == nullptr) return std::nullopt;
  const Dims kernel = call.sizes("kernel_size", 1, 2);
  const Pt2Arg* stride = call.input("stride");
  const bool own = stride != nullptr && !stride->items.empty();
  const Dims strides = ProgramWriter::contiguous_strides(call.described.sizes);
  return bound_to(writer_.emit(
      "aten.max_pool2d_with_indices.default",
      {ProgramWriter::arg(*x), ProgramWriter::arg(kernel),
       ProgramWriter::arg(own ? call.sizes("stride", 1, 2) : kernel), ProgramWriter::arg(call.sizes("padding", 0, 2)),
       ProgramWriter::arg(call.sizes("dilation", 1, 2)), Arg{call.number("ceil_mode", 0.0) != 0.0}},
      {}, {{call.described.sizes, strides, x->dtype}, {call.described.sizes, strides, DType::Int64}})[0]);
}

/// To one element per channel it is a mean.
Tensor CompositeWriter::pooled(const Tensor& x, const Dims& asked) {
  Dims sizes = x.sizes;
  sizes[-2] = asked[0];
  sizes[-1] = asked[1];
  const ProgramWriter::Described made{sizes, ProgramWriter::contiguous_strides(sizes), x.dtype};
  if (asked[0] == 1 && asked[1] == 1)
    return writer_.emit("aten.mean.dim", {ProgramWriter::arg(x), ProgramWriter::arg(Dims{-1, -2}), Arg{true}}, {},
                        {made})[0];
  return writer_.emit("aten._adaptive_avg_pool2d.default", {ProgramWriter::arg(x), ProgramWriter::arg(asked)}, {},
                      {made})[0];
}

std::optional<Bound> CompositeWriter::adaptive_average(const Call& call) {
  const Tensor* x = call.tensor("self");
  if (x == nullptr || x->sizes.rank() < 3 || call.input("output_size") == nullptr) return std::nullopt;
  return bound_to(pooled(*x, call.sizes("output_size", 1, 2)));
}

/// A picture of one line.
std::optional<Bound> CompositeWriter::adaptive_average_of_rows(const Call& call) {
  const Tensor* x = call.tensor("self");
  if (x == nullptr || x->sizes.rank() < 2 || call.input("output_size") == nullptr) return std::nullopt;
  const Tensor picture = pooled(writer_.unsqueeze(*x, -2), Dims{1, call.sizes("output_size", 1, 1)[0]});
  const Tensor& result = call.described;
  return bound_to(writer_.emit("aten.squeeze.dim", {ProgramWriter::arg(picture), Arg{std::int64_t{-2}}}, {},
                               {{result.sizes, ProgramWriter::contiguous_strides(result.sizes), x->dtype}})[0]);
}

/// Exports of expert layers that are not bfloat16 hold Transformers' own operator. It multiplies as PyTorch's does.
std::optional<Bound> CompositeWriter::grouped_product(const Call& call) {
  const Tensor* rows = call.tensor("input");
  const Tensor* weights = call.tensor("weight");
  const Tensor* ends = call.tensor("offs");
  if (rows == nullptr || weights == nullptr || ends == nullptr) return std::nullopt;
  if (rows->sizes.rank() != 2 || weights->sizes.rank() != 3) return std::nullopt;
  const Tensor narrow = writer_.to(*ends, DType::Int32);
  const Dims sizes{rows->sizes[0], weights->sizes[2]};
  return bound_to(writer_.emit("aten._grouped_mm.default",
                               {ProgramWriter::arg(*rows), ProgramWriter::arg(*weights), ProgramWriter::arg(narrow)},
                               {}, {{sizes, ProgramWriter::contiguous_strides(sizes), rows->dtype}})[0]);
}

// --- losses ---

std::optional<Bound> CompositeWriter::softmax(const Call& call) {
  const Tensor* x = call.tensor("self");
  const Pt2Arg* dim = call.input("dim");
  const Pt2Arg* dtype = call.input("dtype");
  if (x == nullptr || dim == nullptr) return std::nullopt;
  Tensor in = *x;
  if (dtype != nullptr && dtype->kind == Pt2Arg::Kind::DType) in = writer_.to(in, static_cast<DType>(dtype->integer));
  return bound_to(writer_.softmax("aten._softmax.default", in, {Arg{dim->integer}, Arg{false}}));
}

std::optional<Bound> CompositeWriter::log_softmax(const Call& call) {
  std::optional<Bound> result = softmax(call);
  if (result) model_.ops.back().name = "aten._log_softmax.default";
  return result;
}

std::optional<Bound> CompositeWriter::cross_entropy(const Call& call) {
  const Tensor* x = call.tensor("self");
  const Tensor* target = call.tensor("target");
  if (x == nullptr || target == nullptr || x->sizes.rank() != 2 || is_floating(target->dtype)) return std::nullopt;
  if (!call.none("weight") || call.number("reduction", 1.0) != 1.0) return std::nullopt;
  const double smoothing = call.number("label_smoothing", 0.0);
  if (smoothing != 0.0 && target->sizes.rank() != 1) return std::nullopt;
  const Tensor log = writer_.softmax("aten._log_softmax.default", *x, {Arg{std::int64_t{1}}, Arg{false}});
  const Tensor loss = writer_.nll_loss(log, *target);
  return bound_to(smoothing == 0.0 ? loss
                                   : smoothed(log, *target, loss, smoothing, call.integer("ignore_index", -100)));
}

/// cross_entropy_loss_label_smoothing: the mean over classes beside the loss, where labels count.
Tensor CompositeWriter::smoothed(const Tensor& log, const Tensor& target, const Tensor& loss, double smoothing,
                                 std::int64_t ignored) {
  const Dims rows{log.sizes[0]};
  const auto total = [&](const Tensor& in, DType dtype) {
    return writer_.emit("aten.sum.default", {ProgramWriter::arg(in)}, {}, {{{}, {}, dtype}})[0];
  };
  const Tensor sums = writer_.emit("aten.sum.dim_IntList", {ProgramWriter::arg(log), ProgramWriter::arg(Dims{1})}, {},
                                   {{rows, {1}, log.dtype}})[0];
  const Tensor smooth = writer_.unary("aten.neg.default", sums);
  const Tensor mask = writer_.with_scalar("aten.eq.Scalar", target, Arg{ignored}, DType::Bool);
  Op& fill = model_.ops.emplace_back();
  fill.name = "aten.masked_fill_.Scalar";
  fill.module = model_.ops[model_.ops.size() - 2].module;
  fill.args = {ProgramWriter::arg(smooth), ProgramWriter::arg(mask), Arg{0.0}};
  fill.out = {ValueId(smooth.index)};
  const Tensor count = total(writer_.unary("aten.bitwise_not.default", mask), DType::Int64);
  const Tensor mean = writer_.binary("aten.div.Tensor", total(smooth, log.dtype), count, log.dtype);
  const double share = smoothing / static_cast<double>(std::max<std::int64_t>(log.sizes[1], 1));
  const Tensor part = writer_.with_scalar("aten.mul.Scalar", mean, Arg{share});
  return writer_.add(writer_.with_scalar("aten.mul.Scalar", loss, Arg{1.0 - smoothing}), part);
}

// --- autocast ---

void CompositeWriter::cast_inputs(const Pt2Node& node, std::string_view name, DType low_dtype, Names& names) {
  static constexpr std::string_view kLow[] = {"aten.linear.default",
                                              "aten.matmul.default",
                                              "aten.mm.default",
                                              "aten.bmm.default",
                                              "aten.addmm.default",
                                              "aten.baddbmm.default",
                                              "aten.conv1d.default",
                                              "aten.conv2d.default",
                                              "aten.conv3d.default",
                                              "aten.conv_transpose2d.input",
                                              "aten.scaled_dot_product_attention.default"};
  static constexpr std::string_view kWide[] = {
      "aten.layer_norm.default", "aten.softmax.int",       "aten.log_softmax.int", "aten.cross_entropy_loss.default",
      "aten.nll_loss.default",   "aten.pow.Tensor_Scalar", "aten.exp.default",     "aten.log.default",
      "aten.rsqrt.default",      "aten.sum.default",       "aten.sum.dim_IntList", "aten.cumsum.default",
      "aten.norm.Scalar"};
  const bool low = std::find(std::begin(kLow), std::end(kLow), name) != std::end(kLow);
  const bool wide = std::find(std::begin(kWide), std::end(kWide), name) != std::end(kWide);
  if (!low && !wide) return;
  const DType dtype = low ? low_dtype : DType::Float32;
  for (const Pt2Input& in : node.inputs) {
    const auto found = names.find(in.arg.text);
    if (in.arg.kind != Pt2Arg::Kind::Tensor || found == names.end() || !found->second.exact) continue;
    const Tensor x = found->second.tensor;
    if (!is_floating(x.dtype) || x.dtype == dtype || x.dtype == DType::Float64) continue;
    found->second = bound_to(writer_.to(x, dtype));  // autocast keeps casts of parameters for the region
  }
}

}  // namespace foreshard::pt2
