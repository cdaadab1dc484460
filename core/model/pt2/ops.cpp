#include "core/model/pt2/ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "core/model/json_input.h"
#include "core/model/pt2/composites/composites.h"
#include "core/model/pt2/lifetimes.h"
#include "core/operators/op_names.h"
#include "core/operators/program_writer.h"

namespace foreshard {
namespace {

using families::Dims;
using families::ProgramWriter;
using families::Tensor;
using pt2::Bound;
using pt2::CompositeWriter;
using pt2::Names;

constexpr std::int64_t kLargestTensor = std::int64_t{1} << 48;
constexpr int kDeepestSplice = 16;

class OpsWriter {
 public:
  OpsWriter(const Pt2Program& program, const Pt2Program& written, const std::string& file, const Pt2Tree& tree,
            const SymbolValues& symbols, const ProgramOptions& options, Model& model)
      : program_(program),
        written_(written),
        file_(file),
        tree_(tree),
        symbols_(symbols),
        options_(options),
        model_(model),
        writer_(model, model.compute_dtype,
                {.fused_dropout = options.device == ProgramDevice::Cuda,
                 .wide_norm_statistics = options.device != ProgramDevice::Cpu}),
        composites_(writer_, model, options) {}

  Result<void> run() {
    Names names;
    if (!bind_inputs(names)) return fail(std::move(error_));
    origins_.resize(model_.ops.size());  // casts of inputs stand in no line
    find_needed();
    if (!write_graph(program_.graphs[0], names, 0)) return fail(std::move(error_));
    write_buffer_updates(names);
    set_outputs(names);
    assume_lifetimes(program_, origins_, model_);
    for (const ValueId id : model_.outputs) {  // the script names what it is handed; the loss, always
      if (id != model_.outputs.front() || !model_.has_loss)
        model_.values[id.index()].held = {Hold::Until::Step, -1, {}};
    }
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
        cast_input(arg.text, bound);
      }
      names.insert_or_assign(arg.text, std::move(bound));
    }
    return true;
  }

  /// The batch keeps its type; the cast of it is an argument of the root's forward, named until that returns.
  void cast_input(const std::string& name, Bound& bound) {
    const auto before = written_.graphs[0].tensors.find(name);
    if (before == written_.graphs[0].tensors.end() || !bound.exact || before->second.dtype == bound.tensor.dtype)
      return;
    const DType low = bound.tensor.dtype;
    model_.values[static_cast<std::size_t>(bound.tensor.index)].dtype = bound.tensor.dtype = before->second.dtype;
    writer_.enter(ModuleId(0));
    const Tensor cast = writer_.to(bound.tensor, low);
    writer_.hold(cast, Hold::Until::Forward);
    bound = composites_.bound_to(cast);
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

  /// A functional program returns what a buffer becomes; running it puts that back.
  void write_buffer_updates(const Names& names) {
    writer_.enter(ModuleId(0));
    for (const Pt2OutputSpec& spec : program_.outputs) {
      if (spec.kind != "buffer_mutation") continue;
      const auto value = names.find(spec.arg.text);
      const auto buffer = std::find_if(model_.buffers.begin(), model_.buffers.end(),
                                       [&](const BufferInfo& info) { return info.fqn == spec.target; });
      if (value == names.end() || buffer == model_.buffers.end()) continue;
      const auto index = static_cast<std::int32_t>(buffer - model_.buffers.begin());
      if (const auto* same = std::get_if<BufferRef>(&value->second.arg.value); same && same->index == index) continue;
      model_.ops.push_back(
          {"aten.copy_.default", buffer->owner, 0, {Arg{BufferRef{index}}, value->second.arg}, {}, {ValueId{}}});
    }
  }

  void set_outputs(const Names& names) {
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
  }

  // --- nodes ---

  bool write_graph(const Pt2Graph& graph, Names& names, int depth) {
    for (const Pt2Node& node : graph.nodes) {
      if (depth == 0 && only_needed_ && !is_needed(node)) continue;
      if (!write_node(graph, node, names, depth)) return false;
    }
    return true;
  }

  /// Operators of a region that name no module are those of whoever called it.
  void enter(const Pt2Node& node, int depth) {
    if (depth > 0 && node.stack < 0) return writer_.enter(module_);
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
    enter(node, depth);
    const std::size_t first = model_.ops.size();
    bool done = false;
    const bool written =
        write_scalar(graph, node, name, names, done) && (done || write_region(node, name, names, depth, done)) &&
        (done || write_composite(graph, node, name, names, done)) &&
        (done || write_batch_norm(graph, node, name, names, done)) && (done || write_whole(graph, node, name, names));
    for (std::size_t i = first; i < model_.ops.size() && !spliced_; ++i) model_.ops[i].call = call_;
    spliced_ = false;
    origins_.resize(model_.ops.size(), {node.trace, node.stack});
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

  /// What decomposition made of a batch norm in training is written as the kernel that it was, which moves the running
  /// statistics itself: putting them back afterwards would spoil what autograd keeps of them.
  bool write_batch_norm(const Pt2Graph& graph, const Pt2Node& node, const std::string& name, Names& names, bool& done) {
    constexpr std::size_t kMean = 3, kVar = 4;  // among the arguments and the results
    if (name != "aten._native_batch_norm_legit_functional.default" || node.inputs.size() < 8 ||
        node.outputs.size() != 5)
      return true;
    for (const std::size_t i : {kMean, kVar}) {
      const bool put_back =
          std::any_of(program_.outputs.begin(), program_.outputs.end(), [&](const Pt2OutputSpec& spec) {
            return spec.kind == "buffer_mutation" && spec.arg.text == node.outputs[i].text;
          });
      if (!put_back || !std::holds_alternative<BufferRef>(arg_of(node.inputs[i].arg, names).value)) return true;
    }
    done = true;
    Op op{"aten.native_batch_norm.default", module_, 0, {}, {}, {}};
    for (const Pt2Input& input : node.inputs) op.args.push_back(arg_of(input.arg, names));
    for (std::size_t i = 0; i < kMean; ++i) {
      const std::string& text = node.outputs[i].text;
      Bound bound;
      if (!text.empty() && !add_value(graph, text, bound, false)) return false;
      op.out.push_back(text.empty() ? ValueId{} : std::get<ValueRef>(bound.arg.value).id);
      if (!text.empty()) names.insert_or_assign(text, std::move(bound));
    }
    for (const std::size_t i : {kMean, kVar})
      names.insert_or_assign(node.outputs[i].text, Bound(names.at(node.inputs[i].arg.text)));
    model_.ops.push_back(std::move(op));
    return true;
  }

  /// The operator itself. Who reads the overwritten tensor later gets the result.
  bool write_whole(const Pt2Graph& graph, const Pt2Node& node, const std::string& name, Names& names) {
    const std::string kept = without_overwriting(name);
    if (kept.empty() || node.inputs.size() != 1 || node.outputs.size() != 1)
      return write_plain(graph, node, name, names);
    if (!write_plain(graph, node, kept, names)) return false;
    const auto result = names.find(node.outputs[0].text);
    if (result != names.end()) names.insert_or_assign(node.inputs[0].arg.text, Bound(result->second));
    return true;
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
    if (name == "higher_order.cond") return write_cond(node, names, depth, done);
    const bool grad_mode = name == "higher_order.wrap_with_set_grad_enabled";
    const bool autocast = name == "higher_order.wrap_with_autocast";
    const std::size_t at = grad_mode ? 1 : 4;
    if ((!grad_mode && !autocast) || node.inputs.size() <= at || node.inputs[at].arg.kind != Pt2Arg::Kind::Graph)
      return true;
    const Pt2Graph& inner = graph_of(node.inputs[at].arg);
    std::vector<const Pt2Arg*> operands;
    for (std::size_t i = at + 1; i < node.inputs.size(); ++i) operands.push_back(&node.inputs[i].arg);
    const auto outs = flattened(node.outputs);
    if (inner.inputs.size() != operands.size() || inner.outputs.size() < outs.size()) return true;
    done = true;
    const std::optional<DType> outer_cast = autocast_;
    if (autocast) {
      const bool enabled = node.inputs[2].arg.integer != 0;
      const bool known = node.inputs[1].arg.kind == Pt2Arg::Kind::DType;
      autocast_ = enabled && known ? std::optional(static_cast<DType>(node.inputs[1].arg.integer)) : std::nullopt;
    }
    std::vector<Bound> results;
    const bool detached = grad_mode && node.inputs[0].arg.integer == 0;
    const bool written = splice(node, inner, operands, detached, names, depth, results);
    autocast_ = outer_cast;
    for (std::size_t i = 0; i < outs.size() && written; ++i)
      if (!outs[i]->text.empty()) names.insert_or_assign(outs[i]->text, std::move(results[i]));
    spliced_ = true;
    return written;
  }

  /// [Note: torch.cond] Which branch runs is data. Both are planned and both are run, and the predicate picks from
  /// their results: never too little memory or work, and the same numbers, unless the branch that is not taken makes
  /// infinities, whose gradient times nothing is not a number. A predicate that is no tensor picks here.
  bool write_cond(const Pt2Node& node, Names& names, int depth, bool& done) {
    using Kind = Pt2Arg::Kind;
    if (node.inputs.size() != 4 || node.inputs[1].arg.kind != Kind::Graph || node.inputs[2].arg.kind != Kind::Graph ||
        node.inputs[3].arg.kind != Kind::List)
      return true;
    std::vector<const Pt2Arg*> operands;
    for (const Pt2Arg& item : node.inputs[3].arg.items) operands.push_back(&item);
    const auto outs = flattened(node.outputs);
    for (const std::size_t branch : {1U, 2U}) {
      const Pt2Graph& inner = graph_of(node.inputs[branch].arg);
      if (inner.inputs.size() != operands.size() || inner.outputs.size() < outs.size()) return true;
    }
    const Arg predicate = arg_of(node.inputs[0].arg, names);
    const auto* flag = std::get_if<bool>(&predicate.value);
    const auto* number = std::get_if<std::int64_t>(&predicate.value);
    const auto* value = std::get_if<ValueRef>(&predicate.value);
    const Bound* tensor = value != nullptr ? &names.at(node.inputs[0].arg.text) : nullptr;
    if (flag == nullptr && number == nullptr && (tensor == nullptr || !tensor->exact)) return true;
    const ModuleId module = module_;
    done = true;
    std::array<std::vector<Bound>, 2> results;
    const bool taken = flag != nullptr ? *flag : number != nullptr && *number != 0;
    for (const std::size_t branch : {0U, 1U}) {
      if (tensor == nullptr && taken != (branch == 0)) continue;
      const Pt2Graph& inner = graph_of(node.inputs[branch + 1].arg);
      if (!splice(node, inner, operands, false, names, depth, results[branch])) return false;
    }
    writer_.enter(module);
    for (std::size_t i = 0; i < outs.size(); ++i) {
      if (outs[i]->text.empty()) continue;
      Bound chosen = tensor == nullptr ? results[taken ? 0 : 1][i] : results[0][i];
      const Bound& other = results[1].size() > i ? results[1][i] : chosen;
      if (tensor != nullptr && chosen.exact && other.exact)
        chosen = composites_.bound_to(writer_.where(tensor->tensor, chosen.tensor, other.tensor));
      names.insert_or_assign(outs[i]->text, std::move(chosen));
    }
    spliced_ = true;
    return true;
  }

  const Pt2Graph& graph_of(const Pt2Arg& arg) const { return program_.graphs[static_cast<std::size_t>(arg.integer)]; }

  /// Writes an inner graph in place of `node`. `results` as the graph's outputs. REQUIRES an operand for every input.
  bool splice(const Pt2Node& node, const Pt2Graph& inner, const std::vector<const Pt2Arg*>& operands, bool detached,
              const Names& names, int depth, std::vector<Bound>& results) {
    if (depth >= kDeepestSplice)
      return stop(ErrorCode::TooDeep, node.name, "regions are nested too deep", std::to_string(kDeepestSplice), "more");
    const std::size_t before = model_.ops.size();
    Names local;
    for (std::size_t i = 0; i < inner.inputs.size(); ++i) {
      if (inner.inputs[i].text.empty()) continue;
      const auto outer = names.find(operands[i]->text);
      Bound bound = outer != names.end() ? outer->second : Bound{arg_of(*operands[i], names), {}, false};
      // Nothing inside is saved or differentiated: a detached view of each operand says so.
      if (detached && bound.exact && is_floating(bound.tensor.dtype))
        bound = composites_.bound_to(writer_.alias(bound.tensor), "aten.detach.default");
      local.insert_or_assign(inner.inputs[i].text, std::move(bound));
    }
    for (std::size_t i = before; i < model_.ops.size(); ++i) model_.ops[i].call = call_;
    if (!write_graph(inner, local, depth + 1)) return false;
    for (const Pt2Arg& out : inner.outputs) {
      const auto found = local.find(out.text);
      results.push_back(found != local.end() ? found->second : Bound{arg_of(out, local), {}, false});
    }
    return true;
  }

  static std::vector<const Pt2Arg*> flattened(const std::vector<Pt2Arg>& outs) {
    std::vector<const Pt2Arg*> list;
    for (const Pt2Arg& out : outs) {
      if (out.kind != Pt2Arg::Kind::List) list.push_back(&out);
      for (const Pt2Arg& item : out.items) list.push_back(&item);
    }
    return list;
  }

  /// A composite, as eager PyTorch runs it; `done` stays false where it is to be written whole.
  bool write_composite(const Pt2Graph& graph, const Pt2Node& node, const std::string& name, Names& names, bool& done) {
    if (autocast_) composites_.cast_inputs(node, name, *autocast_, names);
    const std::vector<const Pt2Arg*> outs = flattened(node.outputs);
    if (outs.empty() || !composites_.knows(name)) return true;
    std::vector<Tensor> described;
    for (const Pt2Arg* out : outs) {
      if (out->kind != Pt2Arg::Kind::Tensor) return true;
      const Pt2Tensor& tensor = graph.tensors.at(out->text);
      Shape shape;
      Bound bound;
      if (!shape_of(tensor, out->text, shape) || !describe(tensor, shape, out->text, bound)) return false;
      if (!bound.exact) return true;
      described.push_back(bound.tensor);
    }
    std::optional<std::vector<Bound>> results = composites_.write(node, name, names, described);
    if (!results) return true;
    done = true;
    if (is_in_place(name) && node.inputs[0].arg.kind == Pt2Arg::Kind::Tensor)  // who reads what was overwritten
      names.insert_or_assign(node.inputs[0].arg.text, Bound(results->front()));
    for (std::size_t i = 0; i < outs.size(); ++i) names.insert_or_assign(outs[i]->text, std::move((*results)[i]));
    return true;
  }

  const Pt2Program& program_;
  const Pt2Program& written_;
  const std::string& file_;
  const Pt2Tree& tree_;
  const SymbolValues& symbols_;
  const ProgramOptions& options_;
  Model& model_;
  ProgramWriter writer_;
  CompositeWriter composites_;
  Error error_;
  ModuleId module_;
  std::int32_t call_ = 0;
  std::optional<DType> autocast_;
  bool spliced_ = false, only_needed_ = false;
  std::set<std::string, std::less<>> needed_;
  std::set<std::string> used_names_;
  std::vector<Pt2Origin> origins_;  // by operator
};

}  // namespace

Result<void> write_pt2_ops(const Pt2Program& program, const Pt2Program& written, const std::string& file,
                           const Pt2Tree& tree, const SymbolValues& symbols, const ProgramOptions& options,
                           Model& model) {
  return OpsWriter(program, written, file, tree, symbols, options, model).run();
}

}  // namespace foreshard
