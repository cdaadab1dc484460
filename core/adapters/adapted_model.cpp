#include "core/adapters/adapted_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/adapters/adapted_plan.h"
#include "core/adapters/adapted_tree.h"
#include "core/operators/program_writer.h"
#include "core/plan/units/units.h"

namespace foreshard {
namespace {

using adapters::AdaptedLayer;
using adapters::AdaptedTree;
using families::ProgramWriter;
using families::Tensor;

Error adapter_error(ErrorCode code, std::string key, std::string message, std::string expected, std::string got,
                    std::string hint) {
  return {code, std::move(message), {}, "adapters." + key, std::move(expected), std::move(got), std::move(hint)};
}

/// The dtypes that an adapter's operators meet.
struct AdapterTypes {
  DType seen = DType::Float32;  // of the weight while the layer's forward looks at it: what x is cast to
  DType used = DType::Float32;  // of the weight in its own forward
  bool casts_input = false;     // its unit's hooks cast what comes in
};

/// One run of a target's operators: where it ends, what it takes and what it hands on.
struct LayerCall {
  std::int32_t first = -1, last = -1;
  ModuleId target;
  Arg input;  // a value, a buffer, or a parameter of another module
  ValueId result;
  bool without_grad = false;  // in no_grad: what it reads, it reads through a detach
};

class ProgramMaker {
 public:
  ProgramMaker(const Model& base, AdaptedTree tree, const Job& job, const UnitTable& units, ProgramDevice device)
      : base_(base),
        tree_(std::move(tree)),
        job_(job),
        units_(units),
        kernels_({.fused_dropout = device == ProgramDevice::Cuda,
                  .autocast = job.model.autocast,
                  .wide_autocast = device != ProgramDevice::Cpu}),
        replaced_(base.values.size()) {}

  Result<Model> make() {
    Model& model = tree_.model;
    model.values = base_.values;
    for (ValueInfo& value : model.values)
      if (value.held.by.valid()) value.held.by = tree_.called[value.held.by.index()];
    model.inputs = base_.inputs;
    model.opaques = base_.opaques;
    model.params_cast = job_.fsdp.runtime != Runtime::None && job_.fsdp.mixed_precision.param.has_value();
    stands_for_.resize(base_.ops.size());
    if (auto found = find_calls(); !found) return tl::unexpected(found.error());
    op_of_.assign(base_.ops.size() + 1, 0);
    last_of_.assign(base_.ops.size(), 0);
    std::size_t next = 0;
    for (std::size_t i = 0; i < base_.ops.size(); ++i) {
      op_of_[i] = static_cast<std::int32_t>(model.ops.size());
      const bool called = next < calls_.size() && calls_[next].first <= static_cast<std::int32_t>(i);
      const bool packed = called && tree_.packed[calls_[next].target.index()].valid();
      const bool ends = called && calls_[next].last == static_cast<std::int32_t>(i);
      if (stands_for_[i].valid())
        stand_for(base_.ops[i], stands_for_[i]);
      else if (!packed)
        copy(base_.ops[i], static_cast<std::int32_t>(i));
      if (ends) {
        if (auto done = end_call(calls_[next++], base_.ops[i]); !done) return tl::unexpected(done.error());
      }
      last_of_[i] = static_cast<std::int32_t>(model.ops.size()) - 1;
    }
    op_of_.back() = static_cast<std::int32_t>(model.ops.size());
    if (job_.checkpointing.policy != CheckpointPolicy::None && job_.checkpointing.reentrant) require_input_gradients();
    move_facts();
    return std::move(model);
  }

 private:
  Error unlike_linear(ModuleId target) const {
    return adapter_error(ErrorCode::Unsupported, "targets",
                         fmt::format("{} does not run as a linear layer does", base_.modules[target.index()].fqn),
                         "one tensor in and one out, by operators of its own", "another program",
                         "leave the layer out of adapters.targets");
  }

  /// Runs of targets' operators, in order. What a run takes is made before it, what it hands on is read behind it.
  Result<void> find_calls() {
    std::vector<std::int32_t> made(base_.values.size(), -1), read(base_.values.size(), -1);
    for (std::size_t i = 0; i < base_.ops.size(); ++i) {
      const Op& op = base_.ops[i];
      each_value(op, [&](ValueId id) { read[id.index()] = static_cast<std::int32_t>(i); });
      for (const ValueId id : op.out)
        if (id.valid() && made[id.index()] < 0) made[id.index()] = static_cast<std::int32_t>(i);
    }
    for (const ValueId id : base_.outputs)
      if (id.valid()) read[id.index()] = static_cast<std::int32_t>(base_.ops.size());
    for (std::size_t first = 0; first < base_.ops.size();) {
      const Op& op = base_.ops[first];
      std::size_t end = first + 1;
      while (end < base_.ops.size() && base_.ops[end].module == op.module && base_.ops[end].call == op.call &&
             is_changed(op.module) && !begins_again(first, end))
        ++end;
      if (is_changed(op.module)) {
        if (auto call = call_of(first, end, made, read); !call) return call;
      }
      first = end;
    }
    return {};
  }

  bool is_changed(ModuleId module) const {
    return tree_.layer[module.index()].layer.valid() || tree_.packed[module.index()].valid();
  }

  Result<void> end_call(const LayerCall& call, const Op& last) {
    if (tree_.packed[call.target.index()].valid()) add_packed_product(call, last);
    if (!tree_.layer[call.target.index()].layer.valid()) return {};
    if (auto done = add_adapter(call, last); !done) return done;
    // What the layer was called with is named until it returns: by its caller, and by itself.
    if (const auto* given = std::get_if<ValueRef>(&call.input.value))
      named_inputs_.emplace_back(now(given->id), static_cast<std::int32_t>(tree_.model.ops.size()) - 1);
    return {};
  }

  /// The layer's operators as one, with the matrix as it is stored.
  void add_packed_product(const LayerCall& call, const Op& last) {
    const ModuleInfo& linear = base_.modules[call.target.index()];
    Op& op = tree_.model.ops.emplace_back();
    op.name = job_.adapters.base == "int8" ? "bitsandbytes.matmul_8bit_lt.default" : "bitsandbytes.matmul_4bit.default";
    op.module = tree_.module[call.target.index()];
    op.call = last.call;
    op.region = last.region;
    op.args.push_back(call.input);
    move(op.args.back());
    op.args.push_back(Arg{ParamRef{tree_.packed[call.target.index()]}});
    for (std::size_t i = 1; i < linear.params.size(); ++i)
      op.args.push_back(Arg{ParamRef{tree_.param[linear.params[i].index()]}});
    op.out = {call.result};
  }

  /// A builder that does not count calls: the second one begins with the operator that the first one began with.
  bool begins_again(std::size_t first, std::size_t at) const {
    return base_.ops[at].name == base_.ops[first].name && base_.ops[at].args == base_.ops[first].args;
  }

  Result<void> call_of(std::size_t first, std::size_t end, const std::vector<std::int32_t>& made,
                       const std::vector<std::int32_t>& read) {
    LayerCall call;
    call.first = static_cast<std::int32_t>(first);
    call.last = static_cast<std::int32_t>(end) - 1;
    call.target = base_.ops[first].module;
    bool simple = true, given = false;
    for (std::size_t i = first; i < end; ++i) {
      const Op& op = base_.ops[i];
      each_input(op, made, static_cast<std::int32_t>(first), [&](const Arg& input) {
        simple = simple && (!given || call.input == input);
        call.input = input;
        given = true;
      });
      const bool cut = op.name == "aten.detach.default" && !op.args.empty();
      call.without_grad = call.without_grad || (cut && std::holds_alternative<ParamRef>(op.args.front().value));
      for (const ValueId id : op.out) {
        if (!id.valid() || read[id.index()] < static_cast<std::int32_t>(end)) continue;
        const ValueId before = std::exchange(call.result, id);
        simple = simple && (!before.valid() || before == id || is_looked_at_again(before, id, end));
      }
    }
    if (!simple || !given || !call.result.valid()) return fail(unlike_linear(call.target));
    calls_.push_back(call);
    return {};
  }

  /// A write to the layer's result, a view, was one to its base (`nn.ReLU(inplace=True)` behind three dimensions),
  /// whose view was taken anew. The result is a sum now, written itself: what was written stands for that view.
  bool is_looked_at_again(ValueId base, ValueId result, std::size_t end) {
    ValueId now = result;
    for (std::size_t i = end; i < base_.ops.size(); ++i) {
      const Op& op = base_.ops[i];
      const auto* first = op.args.empty() ? nullptr : std::get_if<ValueRef>(&op.args.front().value);
      bool reads = false;
      each_value(op, [&](ValueId id) { reads = reads || id == base; });
      if (reads) {
        const bool again = op.name == "aten.view.default" && first != nullptr && first->id == base;
        if (!again || base_.values[op.out.front().index()].shape != base_.values[result.index()].shape) return false;
        stands_for_[i] = std::exchange(now, op.out.front());
      } else if (first != nullptr && first->id == now && writes_in_place(op)) {
        now = op.out.front();
      }
    }
    return true;
  }

  static bool writes_in_place(const Op& op) {
    const auto overload = op.name.rfind('.');
    return overload != std::string::npos && overload > 0 && op.name[overload - 1] == '_' && !op.out.empty();
  }

  /// The value in place of what `op` made: named as long.
  void stand_for(const Op& op, ValueId value) {
    std::vector<ValueInfo>& values = tree_.model.values;
    const ValueId made = op.out.front();
    replaced_[made.index()] = now(value);
    Hold& held = values[now(value).index()].held;
    if (held.until == Hold::Until::LastUse) held = values[made.index()].held;
  }

  /// What an operator of a run that begins at `first` takes from outside: parameters of its own module aside.
  template <class Visit>
  void each_input(const Op& op, const std::vector<std::int32_t>& made, std::int32_t first, const Visit& visit) const {
    const std::vector<ParamId>& own = base_.modules[op.module.index()].params;
    const auto is_own = [&](ParamId id) {  // by any of its names
      return std::any_of(own.begin(), own.end(),
                         [&](ParamId one) { return base_.storage_of(one) == base_.storage_of(id); });
    };
    for (const Arg& arg : op.args) {
      const auto* param = std::get_if<ParamRef>(&arg.value);
      if (param != nullptr && !is_own(param->id)) visit(arg);
      if (std::holds_alternative<BufferRef>(arg.value)) visit(arg);
    }
    each_value(op, [&](ValueId id) {
      if (made[id.index()] < first) visit(Arg{ValueRef{id}});
    });
  }

  template <class Visit>
  static void each_value(const Arg& arg, const Visit& visit) {
    if (const auto* value = std::get_if<ValueRef>(&arg.value)) visit(value->id);
    if (const auto* list = std::get_if<ArgList>(&arg.value))
      for (const Arg& item : *list) each_value(item, visit);
  }
  template <class Visit>
  static void each_value(const Op& op, const Visit& visit) {
    for (const Arg& arg : op.args) each_value(arg, visit);
    for (const NamedArg& named : op.kwargs) each_value(named.arg, visit);
  }

  ValueId now(ValueId id) const {
    const bool moved = id.valid() && id.index() < replaced_.size() && replaced_[id.index()].valid();
    return moved ? replaced_[id.index()] : id;
  }

  void move(Arg& arg) const {
    if (auto* value = std::get_if<ValueRef>(&arg.value)) value->id = now(value->id);
    if (auto* param = std::get_if<ParamRef>(&arg.value)) param->id = tree_.param[param->id.index()];
    if (auto* list = std::get_if<ArgList>(&arg.value))
      for (Arg& item : *list) move(item);
  }

  void copy(const Op& op, std::int32_t index) {
    Op& moved = tree_.model.ops.emplace_back(op);
    const bool script = base_.loss_begin >= 0 && index >= base_.loss_begin && op.module.value == 0;
    moved.module = script ? ModuleId(std::size_t{0}) : tree_.module[op.module.index()];
    for (Arg& arg : moved.args) move(arg);
    for (NamedArg& named : moved.kwargs) move(named.arg);
  }

  AdapterTypes types_of(const AdaptedLayer& layer) const {
    const DType created = tree_.model.params[layer.down_weight.index()].dtype;
    const UnitId unit = units_.unit_of_param[layer.down_weight.index()];
    AdapterTypes types{created, created, false};
    if (!unit.valid() || job_.fsdp.runtime == Runtime::None) return types;
    const MixedPrecision& precision = units_.precision[unit.index()];
    types.used = precision.param.value_or(created);
    // A unit of its own is still sharded, as created, while the layer's forward looks at the weight.
    const bool own = units_.unit_of_module[layer.down.index()] == unit;
    types.seen = own ? created : types.used;
    const bool by_default = job_.fsdp.runtime != Runtime::Fsdp1;
    types.casts_input = own && precision.param && precision.cast_forward_inputs.value_or(by_default);
    return types;
  }

  /// PyTorch's words for a dtype in C++.
  static std::string_view scalar_name(DType dtype) {
    switch (dtype) {
      case DType::Float32: return "float";
      case DType::BFloat16: return "c10::BFloat16";
      case DType::Float16: return "c10::Half";
      case DType::Float64: return "double";
      default: return dtype_name(dtype);
    }
  }

  Result<void> check_types(const AdapterTypes& types, const AdaptedLayer& layer) const {
    if (types.seen == types.used || types.casts_input || job_.model.autocast) return {};
    return fail(adapter_error(
        ErrorCode::Inconsistent, "dtype",
        fmt::format("{}: the layer casts its input to the adapter's own dtype, the adapter's unit casts its weight to "
                    "another (RuntimeError: expected mat1 and mat2 to have the same dtype, but got: {} != {})",
                    tree_.model.modules[layer.layer.index()].fqn, scalar_name(types.seen), scalar_name(types.used)),
        std::string(dtype_name(types.used)), std::string(dtype_name(types.seen)),
        "set adapters.dtype to fsdp.mixed_precision.param, fsdp.mixed_precision.cast_forward_inputs = true, or "
        "model.autocast"));
  }

  Tensor tensor(ValueId id) const {
    const ValueInfo& info = tree_.model.values[id.index()];
    const families::Dims sizes = families::Dims::of(info.shape);
    return {Tensor::Kind::Value, info.dtype, id.value, sizes,
            info.strides.empty() ? ProgramWriter::contiguous_strides(sizes) : families::Dims::of(info.strides)};
  }

  Tensor input_of(const LayerCall& call, const ProgramWriter& w) const {
    if (const auto* value = std::get_if<ValueRef>(&call.input.value)) return tensor(now(value->id));
    if (const auto* buffer = std::get_if<BufferRef>(&call.input.value)) return w.buffer(buffer->index);
    const ParamId param = tree_.param[std::get<ParamRef>(call.input.value).id.index()];
    Tensor given = w.param(param);
    const UnitId unit = units_.unit_of_param[param.index()];
    const bool cast = unit.valid() && job_.fsdp.runtime != Runtime::None;
    const DType created = tree_.model.params[param.index()].dtype;
    given.dtype = cast ? units_.precision[unit.index()].param.value_or(created) : created;
    return given;
  }

  /// Without a bias. In no_grad the program says so: autograd begins at what it reads.
  static Tensor product(ProgramWriter& w, const Tensor& x, ParamId weight, bool without_grad) {
    return without_grad ? w.product_with(x, w.unary("aten.detach.default", w.param(weight))) : w.linear(x, weight, {});
  }

  /// result + up(down(x)) * scaling, in the result's dtype.
  Result<void> add_adapter(const LayerCall& call, const Op& last) {
    const AdaptedLayer& layer = tree_.layer[call.target.index()];
    const AdapterTypes types = types_of(layer);
    if (auto fits = check_types(types, layer); !fits) return fits;
    Model& model = tree_.model;
    const std::size_t begin = model.ops.size();
    ProgramWriter w(model, types.used, kernels_);
    const Tensor result = tensor(call.result);
    const bool packed = tree_.packed[call.target.index()].valid();
    const bool converts = !packed || !job_.model.autocast;  // PEFT's own layer for 4 bits leaves it to autocast
    w.enter(layer.layer);
    Tensor given = input_of(call, w);
    if (call.without_grad) given = w.unary("aten.detach.default", given);
    Tensor x = converts ? w.to(given, types.seen) : given;
    if (x.index != given.index) w.hold(x, Hold::Until::Call, layer.layer);  // the layer's own `x`
    w.enter(layer.dropout);
    x = w.dropout(x, job_.adapters.dropout);
    w.enter(layer.down);
    if (types.casts_input) x = w.to(x, types.used);
    const Tensor narrow = product(w, x, layer.down_weight, call.without_grad);
    w.enter(layer.up);
    const Tensor wide = product(w, narrow, layer.up_weight, call.without_grad);
    w.enter(layer.layer);
    const double scaling = job_.adapters.alpha / static_cast<double>(job_.adapters.rank);
    const Tensor base = packed ? w.clone(result) : result;
    const Tensor scaled = w.with_scalar("aten.mul.Tensor", wide, Arg{scaling});
    const Tensor sum = w.add(base, packed && converts ? w.to(scaled, result.dtype) : scaled);
    const Tensor made = packed && !converts ? sum : w.to(sum, result.dtype);
    for (std::size_t i = begin; i < model.ops.size(); ++i) {
      model.ops[i].call = last.call;
      model.ops[i].region = last.region;
    }
    // Python's names go over to what the layer returns.
    std::swap(model.values[static_cast<std::size_t>(made.index)].held, model.values[call.result.index()].held);
    replaced_[call.result.index()] = ValueId(made.index);
    return {};
  }

  /// enable_input_require_grads: a reentrant checkpoint trains nothing unless one of its inputs requires a gradient.
  void require_input_gradients() {
    for (const Op& op : tree_.model.ops) {
      if (op.name != "aten.embedding.default") continue;
      tree_.model.values[op.out.front().index()].requires_grad = true;
      return;
    }
  }

  std::int32_t new_place(std::int32_t op) const { return op < 0 ? op : op_of_[static_cast<std::size_t>(op)]; }
  /// Until an operator has run, and what stands beside it now.
  std::int32_t new_end(std::int32_t op) const { return op < 0 ? op : last_of_[static_cast<std::size_t>(op)]; }

  void hold_inputs() {
    for (const auto& [value, op] : named_inputs_) {
      Hold& held = tree_.model.values[value.index()].held;
      if (held.until == Hold::Until::LastUse) held = {Hold::Until::Op, op, {}};
      if (held.until == Hold::Until::Op) held.op = std::max(held.op, op);
    }
  }

  /// What is said of values and operators beside the program.
  void move_facts() {
    Model& model = tree_.model;
    std::int32_t autocast_end = -1;
    for (ValueInfo& value : model.values) {
      if (value.held.until != Hold::Until::Next) value.held.op = new_end(value.held.op);
      if (value.held.until == Hold::Until::Autocast) autocast_end = std::max(autocast_end, value.held.op);
    }
    for (ValueInfo& value : model.values)  // casts of adapters lie in the same autocast
      if (value.held.until == Hold::Until::Autocast) value.held.op = autocast_end;
    hold_inputs();
    for (const ValueId id : base_.outputs) model.outputs.push_back(now(id));
    for (ModuleCall call : base_.module_calls) {
      call.module = tree_.called[call.module.index()];
      for (ValueId& id : call.args) id = now(id);
      model.module_calls.push_back(std::move(call));
    }
    for (Region region : base_.regions) {
      region.module = tree_.module[region.module.index()];
      for (ValueId& id : region.args) id = now(id);
      for (std::int32_t& op : region.save) op = new_place(op);
      model.regions.push_back(std::move(region));
    }
    if (base_.loss_begin >= 0) model.loss_begin = new_place(base_.loss_begin);
  }

  const Model& base_;
  AdaptedTree tree_;
  const Job& job_;
  const UnitTable& units_;
  ProgramWriter::Kernels kernels_;
  std::vector<ValueId> replaced_;  // by value of the plain program: what its layer returns now
  std::vector<LayerCall> calls_;
  std::vector<ValueId> stands_for_;    // by operator of the plain program: in its place, what value; invalid: it stays
  std::vector<std::int32_t> op_of_;    // by operator of the plain program, and one behind
  std::vector<std::int32_t> last_of_;  // by operator of the plain program: the last that stands for it
  std::vector<std::pair<ValueId, std::int32_t>> named_inputs_;  // of adapted layers, and how long
};

Result<void> check_options(const Model& base, const Job& job) {
  if (base.ops.empty()) {
    return fail(adapter_error(ErrorCode::Unsupported, "kind", "the model has no operator program to adapt",
                              "a config.json, a .pt2 archive or a model.json with ops", "calls of modules alone",
                              "set adapters.kind = \"none\""));
  }
  if (job.mesh.tensor > 1 && job.adapters.base != "model.dtype") {
    return fail(adapter_error(ErrorCode::Unsupported, "base", "packed matrices are not cut over tensor ranks",
                              "model.dtype beside mesh.tensor", job.adapters.base,
                              "set adapters.base = \"model.dtype\", or mesh.tensor = 1"));
  }
  return {};
}

/// FlatParamHandle flattens floating-point parameters alone; fully_shard puts a DTensor in the place of an Int8Params,
/// whose scales are attributes of the object.
Result<void> check_integers(const Job& job) {
  if (job.fsdp.runtime == Runtime::None) return {};
  const bool flat = job.fsdp.runtime == Runtime::Fsdp1;
  return fail(adapter_error(
      ErrorCode::Unsupported, "base",
      flat ? "fsdp1 cannot flatten matrices of 8-bit integers (ValueError: Cannot flatten integer dtype tensors)"
           : "fsdp2 shards matrices of 8-bit integers without their scales: Int8Params keeps them as attributes that "
             "no DTensor has",
      "nf4, whose elements lie in words that are sharded, or fsdp.runtime = \"none\"", "int8",
      "set adapters.base = \"nf4\""));
}

/// Words of 4-bit elements must go through FSDP as they are.
Result<void> check_storage(const Model& base, const Job& job) {
  if (job.adapters.base == "int8") return check_integers(job);
  if (job.adapters.base == "model.dtype" || base.params.empty()) return {};
  const DType words = base.params.front().dtype;
  std::optional<DType> param = job.fsdp.mixed_precision.param;
  for (const UnitOverride& one : job.fsdp.overrides) {
    const std::optional<MixedPrecision>& own = one.mixed_precision;
    if (own && own->param && *own->param != words) param = own->param;
  }
  if (job.fsdp.runtime == Runtime::None || !param || *param == words) return {};
  return fail(adapter_error(ErrorCode::Inconsistent, "base",
                            "4-bit elements are stored in words of the base's dtype, which FSDP would cast to another "
                            "as if they were numbers",
                            fmt::format("fsdp.mixed_precision.param = \"{}\"", dtype_name(words)),
                            std::string(dtype_name(*param)),
                            fmt::format("set model.dtype = \"{}\"", dtype_name(*param))));
}

Result<void> check_matrices(const Model& base, const std::vector<bool>& targets) {
  for (std::size_t m = 0; m < targets.size(); ++m) {
    if (!targets[m]) continue;
    const ModuleInfo& module = base.modules[m];
    if (!module.params.empty() && base.params[module.params.front().index()].shape.size() == 2) continue;
    return fail(adapter_error(ErrorCode::Unsupported, "targets",
                              fmt::format("{} has no weight matrix of its own", module.fqn), "a linear layer",
                              module.class_name, "leave it out of adapters.targets"));
  }
  return {};
}

/// PEFT trains a rank beyond a matrix's own (a router's of eight rows, beside others); beyond every target's it adds
/// nothing to training these layers whole. `targets` have matrices.
Result<void> check_rank(const Model& base, const std::vector<bool>& targets, std::int64_t rank) {
  std::int64_t most = 0;
  for (std::size_t m = 0; m < targets.size(); ++m) {
    if (!targets[m]) continue;
    const ParamInfo& matrix = base.params[base.modules[m].params.front().index()];
    if (!is_floating(matrix.dtype)) return {};  // words, which have other sides
    most = std::max(most, std::min(matrix.shape[0], matrix.shape[1]));
  }
  if (most == 0 || rank <= most) return {};
  return fail(adapter_error(ErrorCode::OutOfRange, "rank",
                            "the rank is larger than a dimension of every layer that is adapted",
                            fmt::format("1 to {}", most), std::to_string(rank),
                            "a smaller one, or no adapters: these layers have fewer parameters themselves"));
}

/// A matrix of words or integers cannot require a gradient.
Result<void> check_copies(const Model& base, std::vector<bool> copied, const std::vector<bool>& packed,
                          const std::string& stored) {
  for (std::size_t m = 0; m < copied.size(); ++m) {
    const ModuleInfo& module = base.modules[m];
    if (module.parent.valid() && copied[module.parent.index()]) copied[m] = true;
    if (!copied[m] || !packed[m]) continue;
    return fail(adapter_error(
        ErrorCode::Unsupported, "modules_to_save",
        fmt::format("{} is stored in {} bits, of which nothing can be trained", module.fqn, stored == "int8" ? 8 : 4),
        "modules in the base's own dtype", stored, "leave it out, or set adapters.base = \"model.dtype\""));
  }
  return {};
}

}  // namespace

Job as_adapters_see(Job job) {
  for (UnitOverride& one : job.fsdp.overrides) one.reshard_after_forward.reset();
  std::erase_if(job.fsdp.overrides, [](const UnitOverride& one) { return one == UnitOverride{.units = one.units}; });
  const bool reentrant = job.checkpointing.policy != CheckpointPolicy::None && job.checkpointing.reentrant;
  job.checkpointing = {};
  if (reentrant) job.checkpointing = {.policy = CheckpointPolicy::Block, .reentrant = true};
  return job;
}

Result<Model> adapted_model(Model base, const Job& given, ProgramDevice device) {
  if (!has_adapters(given.adapters)) return base;
  const Job job = as_adapters_see(given);  // experts' units, which it may name, are made of a rank's model alone
  if (auto fits = check_options(base, job); !fits) return tl::unexpected(fits.error());
  const auto targets = adapter_targets(base, job.adapters);
  if (!targets) return tl::unexpected(targets.error());
  if (auto fits = check_matrices(base, *targets); !fits) return tl::unexpected(fits.error());
  if (auto fits = check_rank(base, *targets, job.adapters.rank); !fits) return tl::unexpected(fits.error());
  if (auto fits = check_storage(base, job); !fits) return tl::unexpected(fits.error());
  std::vector<bool> packed = packed_layers(base, job.adapters);
  auto copied = copied_modules(base, job.adapters);
  if (!copied) return tl::unexpected(copied.error());
  if (auto fits = check_copies(base, *copied, packed, job.adapters.base); !fits) return tl::unexpected(fits.error());
  AdaptedTree tree = adapters::adapted_tree(base, job, {*targets, std::move(packed), std::move(*copied)});
  if (job.mesh.tensor > 1 || job.mesh.expert > 1) {
    const auto styles = module_styles(base, job.mesh);
    if (!styles) return tl::unexpected(styles.error());
    tree.model.parallel = adapters::adapted_plan(tree, *styles);
  }
  const auto units = build_units(tree.model, job);
  if (!units) return tl::unexpected(units.error());
  return ProgramMaker(base, std::move(tree), job, *units, device).make();
}

}  // namespace foreshard
