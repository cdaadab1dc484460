// Over 600 lines: one rewrite for each exported operator that eager mode runs as others, read as a list.
#include "core/model/pt2_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "core/json_input.h"
#include "core/model/program_writer.h"

namespace foreshard {
namespace {

using families::Dims;
using families::ProgramWriter;
using families::Tensor;

constexpr std::int64_t kLargestTensor = std::int64_t{1} << 48;
constexpr int kDeepestSplice = 16;

/// What a graph name stands for while operators are written.
struct Bound {
  Arg arg;
  Tensor tensor;       // sizes, strides, dtype; kind and index as in `arg`
  bool exact = false;  // `tensor` holds it: a tensor of at most Dims::kMaxRank dimensions
};
using Names = std::unordered_map<std::string, Bound>;

std::string op_name(std::string_view target) {
  constexpr std::string_view kPrefix = "torch.ops.";
  return std::string(target.starts_with(kPrefix) ? target.substr(kPrefix.size()) : target);
}

/// aten.add_.Tensor writes into its first argument; aten.__and__.Tensor does not.
bool is_in_place(std::string_view name) {
  const std::size_t overload = name.rfind('.');
  const std::string_view base = name.substr(0, overload);
  return overload != name.npos && base.ends_with('_') && !base.ends_with("__");
}

class OpsWriter {
 public:
  OpsWriter(const Pt2Program& program, const std::string& file, const Pt2Tree& tree, const SymbolValues& symbols,
            const ProgramOptions& options, Model& model)
      : program_(program),
        file_(file),
        tree_(tree),
        symbols_(symbols),
        options_(options),
        model_(model),
        writer_(model, model.compute_dtype,
                {.fused_dropout = options.device == ProgramDevice::Cuda,
                 .wide_norm_statistics = options.device != ProgramDevice::Cpu}) {}

  Result<void> run() {
    Names names;
    if (!bind_inputs(names)) return fail(std::move(error_));
    find_needed();
    if (!write_graph(program_.graphs[0], names, 0) || !set_outputs(names)) return fail(std::move(error_));
    return {};
  }

 private:
  bool stop(ErrorCode code, std::string place, std::string message, std::string expected, std::string got,
            std::string hint = {}) {
    error_ = {code, std::move(message), file_, std::move(place), std::move(expected), std::move(got), std::move(hint)};
    return false;
  }

  // --- sizes ---

  bool size_of(const Pt2Dim& dim, const std::string& name, std::int64_t& out) {
    out = dim.value;
    if (dim.expr < 0) return true;
    const auto value = evaluate(program_.exprs[static_cast<std::size_t>(dim.expr)], symbols_);
    if (value) out = *value;
    if (out >= 0) return true;
    return stop(ErrorCode::Unsupported, "sizes of " + in_quotes(name), "a size depends on data or has no value here",
                "sizes that follow from the inputs", "an unbacked symbol, or a negative size",
                "export with sizes that do not depend on data");
  }

  bool shape_of(const Pt2Tensor& tensor, const std::string& name, Shape& shape) {
    std::int64_t numel = 1;
    for (const Pt2Dim& dim : tensor.sizes) {
      std::int64_t size = 0;
      if (!size_of(dim, name, size)) return false;
      if (__builtin_mul_overflow(numel, size, &numel) || numel > kLargestTensor)
        return stop(ErrorCode::TooLarge, "sizes of " + in_quotes(name), "the tensor is too large", "sizes that fit",
                    "more");
      shape.push_back(size);
    }
    return true;
  }

  /// Fills the layout of a bound tensor from the archive's description.
  bool describe(const Pt2Tensor& tensor, const Shape& shape, const std::string& name, Bound& bound) {
    bound.exact = shape.size() <= static_cast<std::size_t>(Dims::kMaxRank);
    if (!bound.exact) return true;
    bound.tensor.dtype = tensor.dtype;
    bound.tensor.sizes = Dims::of(shape);
    bound.tensor.strides = ProgramWriter::contiguous_strides(bound.tensor.sizes);
    if (tensor.strides.size() != shape.size()) return true;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (!size_of(tensor.strides[i], name, bound.tensor.strides[static_cast<int>(i)])) return false;
    }
    return true;
  }

  bool add_value(const Pt2Graph& graph, const std::string& name, Bound& bound, bool input) {
    const Pt2Tensor& tensor = graph.tensors.at(name);
    ValueInfo info{unique_name(name), {}, tensor.dtype, input && tensor.requires_grad};
    if (!shape_of(tensor, name, info.shape) || !describe(tensor, info.shape, name, bound)) return false;
    const ValueId id(model_.values.size());
    model_.values.push_back(std::move(info));
    bound.arg = Arg{ValueRef{id}};
    bound.tensor.kind = Tensor::Kind::Value;
    bound.tensor.index = id.value;
    return true;
  }

  /// Spliced graphs repeat names of the outer one.
  std::string unique_name(const std::string& name) {
    std::string unique = name;
    for (int i = 1; !used_names_.insert(unique).second; ++i) unique = name + "_" + std::to_string(i);
    return unique;
  }

  // --- inputs and outputs ---

  bool bind_inputs(Names& names) {
    const Pt2Graph& root = program_.graphs[0];
    for (std::size_t i = 0; i < root.inputs.size(); ++i) {
      const Pt2Arg& arg = root.inputs[i];
      if (arg.kind == Pt2Arg::Kind::Symbol) names.emplace(arg.text, scalar(root, arg.text));
      if (arg.kind != Pt2Arg::Kind::Tensor) continue;
      Bound bound;
      if (const auto param = tree_.params.find(arg.text); param != tree_.params.end()) {
        const Shape& shape = model_.params[param->second.index()].shape;
        if (!describe(root.tensors.at(arg.text), shape, arg.text, bound)) return false;
        bound.arg = Arg{ParamRef{param->second}};
        bound.tensor.kind = Tensor::Kind::Param;
        bound.tensor.index = param->second.value;
      } else if (const auto buffer = tree_.buffers.find(arg.text); buffer != tree_.buffers.end()) {
        const Shape& shape = model_.buffers[static_cast<std::size_t>(buffer->second)].shape;
        if (!describe(root.tensors.at(arg.text), shape, arg.text, bound)) return false;
        bound.arg = Arg{BufferRef{buffer->second}};
        bound.tensor.kind = Tensor::Kind::Buffer;
        bound.tensor.index = buffer->second;
      } else {
        if (!add_value(root, arg.text, bound, true)) return false;
        model_.inputs.push_back(std::get<ValueRef>(bound.arg.value).id);
      }
      names.insert_or_assign(arg.text, std::move(bound));
    }
    return true;
  }

  Bound scalar(const Pt2Graph& graph, const std::string& name) {
    Bound bound;
    const auto dim = graph.scalars.find(name);
    if (dim == graph.scalars.end()) return bound;
    std::optional<std::int64_t> value;
    if (dim->second.expr >= 0) value = evaluate(program_.exprs[static_cast<std::size_t>(dim->second.expr)], symbols_);
    if (value || dim->second.value >= 0) bound.arg = Arg{value.value_or(dim->second.value)};
    return bound;
  }

  /// A joint export holds the backward too; training runs its own. Only what the loss needs is the forward.
  void find_needed() {
    const bool joint = std::any_of(program_.outputs.begin(), program_.outputs.end(),
                                   [](const Pt2OutputSpec& spec) { return spec.kind.starts_with("gradient_to_"); });
    if (!joint) return;
    only_needed_ = true;
    for (const Pt2OutputSpec& spec : program_.outputs) {
      if (!spec.kind.starts_with("gradient_to_")) needed_.insert(spec.arg.text);
    }
    const auto need = [&](const auto& self, const Pt2Arg& arg) -> void {
      if (arg.kind == Pt2Arg::Kind::Tensor) needed_.insert(arg.text);
      for (const Pt2Arg& item : arg.items) self(self, item);
    };
    const auto& nodes = program_.graphs[0].nodes;
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      if (!is_needed(*node)) continue;
      for (const Pt2Input& input : node->inputs) need(need, input.arg);
    }
  }

  bool is_needed(const Pt2Node& node) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(), [&](const Pt2Arg& out) {
      return needed_.contains(out.text) || std::any_of(out.items.begin(), out.items.end(),
                                                       [&](const Pt2Arg& item) { return needed_.contains(item.text); });
    });
  }

  bool set_outputs(const Names& names) {
    std::vector<ValueId> rest;
    ValueId loss;
    for (const Pt2OutputSpec& spec : program_.outputs) {
      if (spec.kind != "user_output" && spec.kind != "loss_output") continue;
      const auto bound = names.find(spec.arg.text);
      if (spec.arg.kind != Pt2Arg::Kind::Tensor || bound == names.end()) continue;
      const auto* value = std::get_if<ValueRef>(&bound->second.arg.value);
      if (value == nullptr) continue;
      const ValueInfo& info = model_.values[value->id.index()];
      const bool scalar_loss = info.shape.empty() && is_floating(info.dtype);
      if (!loss.valid() && scalar_loss) {
        loss = value->id;
      } else {
        rest.push_back(value->id);
      }
    }
    model_.has_loss = loss.valid();
    if (loss.valid()) model_.outputs.push_back(loss);
    model_.outputs.insert(model_.outputs.end(), rest.begin(), rest.end());
    return true;
  }

  // --- nodes ---

  bool write_graph(const Pt2Graph& graph, Names& names, int depth) {
    for (const Pt2Node& node : graph.nodes) {
      if (depth == 0 && only_needed_ && !is_needed(node)) continue;
      if (!write_node(graph, node, names, depth)) return false;
    }
    return true;
  }

  void enter(const Pt2Node& node) {
    module_ = ModuleId(0);
    call_ = 0;
    if (node.stack >= 0) {
      const auto& stack = program_.stacks[static_cast<std::size_t>(node.stack)];
      if (!stack.empty()) {
        const auto found = tree_.modules.find(module_fqn(stack.back().path));
        if (found != tree_.modules.end()) module_ = found->second;
        call_ = stack.back().call;
      }
    }
    writer_.enter(module_);
  }

  bool write_node(const Pt2Graph& graph, const Pt2Node& node, Names& names, int depth) {
    const std::string name = op_name(node.target);
    if (node.outputs.empty() && (name.starts_with("aten._assert") || name.starts_with("aten.sym_constrain")))
      return true;
    enter(node);
    const std::size_t first = model_.ops.size();
    bool done = false;
    const bool written =
        write_scalar(graph, node, name, names, done) && (done || write_region(node, name, names, depth, done)) &&
        (done || write_composite(node, name, names, done)) && (done || write_plain(graph, node, name, names));
    for (std::size_t i = first; i < model_.ops.size() && !spliced_; ++i) model_.ops[i].call = call_;
    spliced_ = false;
    return written;
  }

  /// Arithmetic on sizes runs on the host and is folded; reading an element back makes the host wait.
  bool write_scalar(const Pt2Graph& graph, const Pt2Node& node, const std::string& name, Names& names, bool& done) {
    const bool symbols =
        !node.outputs.empty() && std::all_of(node.outputs.begin(), node.outputs.end(),
                                             [](const Pt2Arg& out) { return out.kind == Pt2Arg::Kind::Symbol; });
    if (!symbols) return true;
    done = true;
    for (const Pt2Arg& out : node.outputs) names.insert_or_assign(out.text, scalar(graph, out.text));
    if (name != "aten.item.default" && name != "aten._local_scalar_dense.default") return true;
    Op op{name, module_, 0, {}, {}, {ValueId{}}};
    for (const Pt2Input& input : node.inputs) op.args.push_back(arg_of(input.arg, names));
    model_.ops.push_back(std::move(op));
    return true;
  }

  Arg arg_of(const Pt2Arg& arg, const Names& names) const {
    using Kind = Pt2Arg::Kind;
    switch (arg.kind) {
      case Kind::Tensor:
      case Kind::Symbol: {
        const auto found = names.find(arg.text);
        return found == names.end() ? Arg{} : found->second.arg;
      }
      case Kind::Int:
      case Kind::Enum: return Arg{arg.integer};
      case Kind::Float: return Arg{arg.real};
      case Kind::Bool: return Arg{arg.integer != 0};
      case Kind::Text:
      case Kind::Graph: return Arg{arg.text};
      case Kind::DType: return Arg{static_cast<DType>(arg.integer)};
      case Kind::List: {
        ArgList list;
        for (const Pt2Arg& item : arg.items) list.push_back(arg_of(item, names));
        return Arg{std::move(list)};
      }
      case Kind::None: break;
    }
    return Arg{};
  }

  bool write_plain(const Pt2Graph& graph, const Pt2Node& node, const std::string& name, Names& names) {
    Op op{name, module_, 0, {}, {}, {}};
    for (const Pt2Input& input : node.inputs) {
      if (input.name == "device" || input.name == "pin_memory") continue;  // the exporting machine's
      Arg arg = arg_of(input.arg, names);
      if (input.keyword) {
        op.kwargs.push_back({input.name, std::move(arg)});
      } else {
        op.args.push_back(std::move(arg));
      }
    }
    const Bound* target = nullptr;  // what an operator in place writes into
    if (is_in_place(name) && !node.inputs.empty() && node.inputs[0].arg.kind == Pt2Arg::Kind::Tensor) {
      const auto found = names.find(node.inputs[0].arg.text);
      if (found != names.end() && !std::holds_alternative<ParamRef>(found->second.arg.value)) target = &found->second;
    }
    const auto write = [&](const auto& self, const Pt2Arg& out) -> bool {
      for (const Pt2Arg& item : out.items) {
        if (!self(self, item)) return false;
      }
      if (out.kind == Pt2Arg::Kind::List) return true;
      Bound bound;
      if (out.kind == Pt2Arg::Kind::Symbol) bound = scalar(graph, out.text);
      if (out.kind == Pt2Arg::Kind::Tensor && target == nullptr && !add_value(graph, out.text, bound, false))
        return false;
      if (target != nullptr) bound = *target;
      const auto* value = std::get_if<ValueRef>(&bound.arg.value);
      op.out.push_back(value != nullptr ? value->id : ValueId{});
      if (!out.text.empty()) names.insert_or_assign(out.text, bound);
      return true;
    };
    for (const Pt2Arg& out : node.outputs) {
      if (!write(write, out)) return false;
    }
    model_.ops.push_back(std::move(op));
    return true;
  }

  // --- regions ---

  bool write_region(const Pt2Node& node, const std::string& name, Names& names, int depth, bool& done) {
    const bool grad_mode = name == "higher_order.wrap_with_set_grad_enabled";
    const bool autocast = name == "higher_order.wrap_with_autocast";
    const std::size_t at = grad_mode ? 1 : 4;
    if ((!grad_mode && !autocast) || node.inputs.size() <= at || node.inputs[at].arg.kind != Pt2Arg::Kind::Graph)
      return true;
    const Pt2Graph& inner = program_.graphs[static_cast<std::size_t>(node.inputs[at].arg.integer)];
    if (inner.inputs.size() != node.inputs.size() - at - 1 || inner.outputs.size() < flattened(node.outputs).size())
      return true;
    if (depth >= kDeepestSplice)
      return stop(ErrorCode::TooDeep, node.name, "regions are nested too deep", std::to_string(kDeepestSplice), "more");
    done = true;
    const bool detached = grad_mode && node.inputs[0].arg.integer == 0;
    const std::size_t before = model_.ops.size();
    Names local;
    for (std::size_t i = 0; i < inner.inputs.size(); ++i) {
      if (inner.inputs[i].text.empty()) continue;
      const auto outer = names.find(node.inputs[at + 1 + i].arg.text);
      Bound bound = outer != names.end() ? outer->second : Bound{arg_of(node.inputs[at + 1 + i].arg, names), {}, false};
      // Nothing inside is saved or differentiated: a detached view of each operand says so.
      if (detached && bound.exact && is_floating(bound.tensor.dtype))
        bound = bound_to(writer_.alias(bound.tensor), "aten.detach.default");
      local.insert_or_assign(inner.inputs[i].text, std::move(bound));
    }
    for (std::size_t i = before; i < model_.ops.size(); ++i) model_.ops[i].call = call_;
    const std::optional<DType> outer_cast = autocast_;
    if (autocast) {
      const bool enabled = node.inputs[2].arg.integer != 0;
      const bool known = node.inputs[1].arg.kind == Pt2Arg::Kind::DType;
      autocast_ = enabled && known ? std::optional(static_cast<DType>(node.inputs[1].arg.integer)) : std::nullopt;
    }
    const bool written = write_graph(inner, local, depth + 1);
    autocast_ = outer_cast;
    const auto outs = flattened(node.outputs);
    for (std::size_t i = 0; i < outs.size() && written; ++i) {
      const auto found = local.find(inner.outputs[i].text);
      if (!outs[i]->text.empty() && found != local.end()) names.insert_or_assign(outs[i]->text, found->second);
    }
    spliced_ = true;
    return written;
  }

  static std::vector<const Pt2Arg*> flattened(const std::vector<Pt2Arg>& outs) {
    std::vector<const Pt2Arg*> list;
    for (const Pt2Arg& out : outs) {
      if (out.kind != Pt2Arg::Kind::List) list.push_back(&out);
      for (const Pt2Arg& item : out.items) list.push_back(&item);
    }
    return list;
  }

  // --- composites, as eager PyTorch runs them ---

  /// A result of the writer under another operator's name (same form, same arguments).
  Bound bound_to(const Tensor& tensor, std::string_view rename = {}) {
    if (!rename.empty()) model_.ops.back().name = rename;
    return {ProgramWriter::arg(tensor), tensor, true};
  }

  const Pt2Arg* input(const Pt2Node& node, std::string_view name) const {
    for (const Pt2Input& in : node.inputs) {
      if (in.name == name) return &in.arg;
    }
    return nullptr;
  }
  const Tensor* tensor(const Pt2Node& node, std::string_view name, const Names& names) const {
    const Pt2Arg* arg = input(node, name);
    if (arg == nullptr || arg->kind != Pt2Arg::Kind::Tensor) return nullptr;
    const auto found = names.find(arg->text);
    return found == names.end() || !found->second.exact ? nullptr : &found->second.tensor;
  }
  static double number(const Pt2Arg* arg, double otherwise) {
    if (arg == nullptr) return otherwise;
    return arg->kind == Pt2Arg::Kind::Float  ? arg->real
           : arg->kind == Pt2Arg::Kind::None ? otherwise
                                             : static_cast<double>(arg->integer);
  }

  bool write_composite(const Pt2Node& node, const std::string& name, Names& names, bool& done) {
    if (node.outputs.size() != 1 || node.outputs[0].kind != Pt2Arg::Kind::Tensor) return true;
    std::optional<Bound> result;
    if (autocast_) cast_inputs(node, name, names);
    if (name == "aten.dropout.default") result = dropout(node, names);
    if (name == "aten.to.dtype" || name == "aten.to.dtype_layout") result = to(node, names);
    if (name == "aten.linear.default") result = linear(node, names);
    if (name == "aten.layer_norm.default") result = layer_norm(node, names);
    if (name == "aten.matmul.default") result = matmul(node, names);
    if (name == "aten.softmax.int") result = softmax(node, names);
    if (name == "aten.cross_entropy_loss.default") result = cross_entropy(node, names);
    if (name == "aten.scaled_dot_product_attention.default") result = attention(node, names);
    if (!result) return true;
    done = true;
    names.insert_or_assign(node.outputs[0].text, std::move(*result));
    return true;
  }

  std::optional<Bound> dropout(const Pt2Node& node, const Names& names) {
    const Tensor* x = tensor(node, "input", names);
    const double p = number(input(node, "p"), 0.5);
    if (x == nullptr || !(p >= 0.0 && p < 1.0)) return std::nullopt;
    const bool train = number(input(node, "train"), 1.0) != 0.0;
    return bound_to(train ? writer_.dropout(*x, p) : *x);
  }

  std::optional<Bound> to(const Pt2Node& node, const Names& names) {
    const Tensor* x = tensor(node, "self", names);
    const Pt2Arg* dtype = input(node, "dtype");
    const bool copy = number(input(node, "copy"), 0.0) != 0.0;
    if (x == nullptr || copy || (dtype != nullptr && dtype->kind != Pt2Arg::Kind::DType)) return std::nullopt;
    return bound_to(dtype == nullptr ? *x : writer_.to(*x, static_cast<DType>(dtype->integer)));
  }

  /// A plain parameter of the dtype that the program computes in, with this many dimensions.
  bool is_param(const Tensor* x, int rank) const {
    return x != nullptr && x->kind == Tensor::Kind::Param && x->dtype == writer_.dtype() && x->sizes.rank() == rank &&
           x->is_contiguous();
  }

  std::optional<Bound> linear(const Pt2Node& node, const Names& names) {
    const Tensor* x = tensor(node, "input", names);
    const Tensor* weight = tensor(node, "weight", names);
    const Tensor* bias = tensor(node, "bias", names);
    const Pt2Arg* bias_arg = input(node, "bias");
    const bool biased = bias_arg != nullptr && bias_arg->kind != Pt2Arg::Kind::None;
    if (x == nullptr || !is_param(weight, 2) || x->dtype != writer_.dtype() || x->sizes.rank() < 2) return std::nullopt;
    if (biased && (!is_param(bias, 1) || bias->sizes[0] != weight->sizes[0])) return std::nullopt;
    if (x->sizes.product() == 0 || x->sizes[-1] != weight->sizes[1]) return std::nullopt;
    if (!ProgramWriter::can_view(*x, {x->sizes.product() / x->sizes[-1], x->sizes[-1]})) return std::nullopt;
    return bound_to(writer_.linear(*x, ParamId(weight->index), biased ? ParamId(bias->index) : ParamId{}));
  }

  std::optional<Bound> layer_norm(const Pt2Node& node, const Names& names) {
    const Tensor* x = tensor(node, "input", names);
    const Tensor* weight = tensor(node, "weight", names);
    const Tensor* bias = tensor(node, "bias", names);
    const Pt2Arg* shape = input(node, "normalized_shape");
    if (x == nullptr || shape == nullptr || shape->items.size() != 1 || x->sizes.rank() < 1) return std::nullopt;
    const auto plain = [&](const Tensor* p, std::string_view key) {
      return p == nullptr ? input(node, key) == nullptr || input(node, key)->kind == Pt2Arg::Kind::None
                          : is_param(p, 1);
    };
    if (!plain(weight, "weight") || !plain(bias, "bias")) return std::nullopt;
    const auto id = [](const Tensor* p) { return p == nullptr ? ParamId{} : ParamId(p->index); };
    return bound_to(writer_.layer_norm(*x, id(weight), id(bias), number(input(node, "eps"), 1e-5)));
  }

  std::optional<Bound> matmul(const Pt2Node& node, const Names& names) {
    const Tensor* a = tensor(node, "self", names);
    const Tensor* b = tensor(node, "other", names);
    if (a == nullptr || b == nullptr || a->sizes.rank() != b->sizes.rank() || a->dtype != b->dtype) return std::nullopt;
    const int rank = a->sizes.rank();
    if (rank < 2 || rank > 4 || a->sizes[-1] != b->sizes[-2] || a->sizes.product() == 0) return std::nullopt;
    for (int i = 0; i < rank - 2; ++i) {
      if (a->sizes[i] != b->sizes[i]) return std::nullopt;
    }
    return bound_to(rank == 2 ? writer_.mm(*a, *b) : rank == 3 ? writer_.bmm(*a, *b) : writer_.matmul(*a, *b));
  }

  std::optional<Bound> softmax(const Pt2Node& node, const Names& names) {
    const Tensor* x = tensor(node, "self", names);
    const Pt2Arg* dim = input(node, "dim");
    const Pt2Arg* dtype = input(node, "dtype");
    if (x == nullptr || dim == nullptr) return std::nullopt;
    Tensor in = *x;
    if (dtype != nullptr && dtype->kind == Pt2Arg::Kind::DType) in = writer_.to(in, static_cast<DType>(dtype->integer));
    return bound_to(writer_.softmax("aten._softmax.default", in, {Arg{dim->integer}, Arg{false}}));
  }

  std::optional<Bound> cross_entropy(const Pt2Node& node, const Names& names) {
    const Tensor* x = tensor(node, "self", names);
    const Tensor* target = tensor(node, "target", names);
    if (x == nullptr || target == nullptr || x->sizes.rank() != 2 || is_floating(target->dtype)) return std::nullopt;
    const Pt2Arg* weight = input(node, "weight");
    if ((weight != nullptr && weight->kind != Pt2Arg::Kind::None) || number(input(node, "reduction"), 1.0) != 1.0 ||
        number(input(node, "label_smoothing"), 0.0) != 0.0)
      return std::nullopt;
    const Tensor log = writer_.softmax("aten._log_softmax.default", *x, {Arg{std::int64_t{1}}, Arg{false}});
    return bound_to(writer_.nll_loss(log, *target));
  }

  /// PyTorch's choice among the fused kernels; what none of them takes stays whole.
  std::optional<Bound> attention(const Pt2Node& node, const Names& names) {
    const Tensor* q = tensor(node, "query", names);
    const Tensor* k = tensor(node, "key", names);
    const Tensor* v = tensor(node, "value", names);
    if (q == nullptr || k == nullptr || v == nullptr || options_.device != ProgramDevice::Cuda) return std::nullopt;
    if (q->sizes.rank() != 4 || k->sizes.rank() != 4 || v->sizes.rank() != 4 || q->sizes.product() == 0)
      return std::nullopt;
    const Pt2Arg* mask_arg = input(node, "attn_mask");
    const Tensor* mask = tensor(node, "attn_mask", names);
    if (mask == nullptr && mask_arg != nullptr && mask_arg->kind != Pt2Arg::Kind::None) return std::nullopt;
    const bool half = q->dtype == DType::BFloat16 || q->dtype == DType::Float16;
    const std::int64_t width = q->sizes[3];
    const bool same_width = width == k->sizes[3] && width == v->sizes[3];
    if (half && mask == nullptr && same_width && width <= 256 && width % 8 == 0) return flash(node, *q, *k, *v);
    const bool aligned = width % (half ? 8 : 4) == 0 && v->sizes[3] % (half ? 8 : 4) == 0;
    const bool same_heads = q->sizes[1] == k->sizes[1] && k->sizes[1] == v->sizes[1];
    if ((half || q->dtype == DType::Float32) && aligned && same_heads) return efficient(node, *q, *k, *v, mask);
    return std::nullopt;
  }

  ArgList attention_args(const Pt2Node& node, ArgList args) const {
    const double p = number(input(node, "dropout_p"), 0.0);
    const bool causal = number(input(node, "is_causal"), 0.0) != 0.0;
    if (p > 0.0 || causal) args.push_back(Arg{p});
    if (causal) args.push_back(Arg{true});
    return args;
  }
  Arg scale_of(const Pt2Node& node, const Tensor& q) const {
    return Arg{number(input(node, "scale"), 1.0 / std::sqrt(static_cast<double>(q.sizes[3])))};
  }

  Bound flash(const Pt2Node& node, const Tensor& q, const Tensor& k, const Tensor& v) {
    const Dims rows{q.sizes[0], q.sizes[1], q.sizes[2]};
    const Dims strides{q.sizes[1] * q.sizes[2] * q.sizes[3], q.sizes[3], q.sizes[1] * q.sizes[3], 1};
    const auto made =
        writer_.emit("aten._scaled_dot_product_flash_attention.default",
                     attention_args(node, {ProgramWriter::arg(q), ProgramWriter::arg(k), ProgramWriter::arg(v)}),
                     {{"scale", scale_of(node, q)}},
                     {{q.sizes, strides, q.dtype},
                      {rows, ProgramWriter::contiguous_strides(rows), DType::Float32},
                      {.tensor = false},
                      {.tensor = false},
                      {.tensor = false},
                      {.tensor = false},
                      {{2}, {1}, DType::Int64},
                      {{}, {}, DType::Int64},
                      {{0}, {1}, q.dtype}});
    return bound_to(made[0]);
  }

  Bound efficient(const Pt2Node& node, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor* mask) {
    Arg bias;
    if (mask != nullptr) {
      Tensor given = *mask;
      if (given.dtype == DType::Bool) {  // convert_boolean_attn_mask
        const Tensor low = writer_.scalar(-std::numeric_limits<double>::infinity(), q.dtype, false);
        const Tensor zero = writer_.scalar(0.0, q.dtype, true);
        given = writer_.where(given, zero, low);
      }
      bias = ProgramWriter::arg(writer_.expand(given, {q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]}));
    }
    const Dims sizes{q.sizes[0], q.sizes[1], q.sizes[2], v.sizes[3]};
    const Dims strides{sizes[1] * sizes[2] * sizes[3], sizes[3], sizes[1] * sizes[3], 1};
    const Dims rows{sizes[0], sizes[1], (sizes[2] + 31) / 32 * 32};
    const auto made = writer_.emit(
        "aten._scaled_dot_product_efficient_attention.default",
        attention_args(node, {ProgramWriter::arg(q), ProgramWriter::arg(k), ProgramWriter::arg(v), bias, Arg{true}}),
        {{"scale", scale_of(node, q)}},
        {{sizes, strides, q.dtype},
         {rows, ProgramWriter::contiguous_strides(rows), DType::Float32},
         {{}, {}, DType::Int64},
         {{}, {}, DType::Int64}});
    return bound_to(made[0]);
  }

  /// Autocast casts the inputs of matrix products down, of losses and norms up; the archive does not write the casts.
  void cast_inputs(const Pt2Node& node, const std::string& name, Names& names) {
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
    const DType dtype = low ? *autocast_ : DType::Float32;
    for (const Pt2Input& in : node.inputs) {
      const auto found = names.find(in.arg.text);
      if (in.arg.kind != Pt2Arg::Kind::Tensor || found == names.end() || !found->second.exact) continue;
      const Tensor x = found->second.tensor;
      if (!is_floating(x.dtype) || x.dtype == dtype || x.dtype == DType::Float64) continue;
      found->second = bound_to(writer_.to(x, dtype));  // autocast keeps casts of parameters for the region
    }
  }

  const Pt2Program& program_;
  const std::string& file_;
  const Pt2Tree& tree_;
  const SymbolValues& symbols_;
  const ProgramOptions& options_;
  Model& model_;
  ProgramWriter writer_;
  Error error_;
  ModuleId module_;
  std::int32_t call_ = 0;
  std::optional<DType> autocast_;
  bool spliced_ = false, only_needed_ = false;
  std::set<std::string, std::less<>> needed_;
  std::set<std::string> used_names_;
};

}  // namespace

Result<void> write_pt2_ops(const Pt2Program& program, const std::string& file, const Pt2Tree& tree,
                           const SymbolValues& symbols, const ProgramOptions& options, Model& model) {
  return OpsWriter(program, file, tree, symbols, options, model).run();
}

}  // namespace foreshard
