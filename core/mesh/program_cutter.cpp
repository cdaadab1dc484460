#include "core/mesh/program_cutter.h"

#include <algorithm>
#include <utility>

#include "core/mesh/own_code.h"
#include "core/mesh/terms.h"
#include "core/model/module_kind.h"

namespace foreshard::mesh {
namespace {

/// Its gradient comes as no part of the parameter's own placement: a term of the ranks' sum, or of all rows.
bool placed_in_backward(const ParamInfo& info) {
  return info.requires_grad && info.part.gradient != MeshPart::Gradient::Part;
}

/// Part of a cross entropy of logits that stay cut along their classes (loss_parallel).
bool is_spread_loss(const Op& op, const std::vector<CutTensor>& args) {
  if (args.empty() || !args.front().cut.spread) return false;
  const bool last = args.front().cut.dim == static_cast<std::int32_t>(args.front().shape.size()) - 1;
  return last && (op.name == "aten._log_softmax.default" || op.name == "aten.nll_loss_forward.default");
}

void make_spread_loss(Op& op, const Cut& classes, const TensorOptions& options) {
  op.name = op.name == "aten._log_softmax.default" ? "mesh.log_softmax" : "mesh.nll_loss";
  op.kwargs.push_back({"mesh", Arg{static_cast<std::int64_t>(options.dimension)}});
  op.kwargs.push_back({"begin", Arg{begin_of(classes.whole, options.group)}});
  op.kwargs.push_back({"whole", Arg{classes.whole}});
}

/// Of zeros that an operator reads.
void may_be_written(const Op& op, Cut& cut) { cut.zero = cut.zero && leaves_zeros(base_name(op.name)); }

bool is_split(const Op& op) {
  return op.name == "aten.chunk.default" ||
         (op.name.starts_with("aten.split") &&
          (op.name == "aten.split.Tensor" || op.name == "aten.split_with_sizes.default"));
}

}  // namespace

const Op* maker_of(const std::vector<Op>& ops, std::int32_t value) {
  for (std::size_t k = ops.size(); k-- > 0;) {
    const Op& op = ops[k];
    const auto* into = op.args.empty() ? nullptr : std::get_if<ValueRef>(&op.args.front().value);
    if (into != nullptr && into->id.value == value) continue;
    for (const ValueId id : op.out)
      if (id.value == value) return &op;
  }
  return nullptr;
}

namespace {

/// How a value lies in this rank's memory, as far as reshapes and expansions made it; `turned`: transpositions too.
Layout layout_here(const Model& model, const std::vector<Op>& ops, std::int32_t value, bool turned = false) {
  const ValueInfo& info = model.values[static_cast<std::size_t>(value)];
  Layout layout = contiguous_layout(dims_of(info.shape), info.dtype);
  const Op* op = maker_of(ops, value);
  const auto* from = op == nullptr || op->args.empty() ? nullptr : std::get_if<ValueRef>(&op->args.front().value);
  if (from == nullptr) return layout;
  const Layout base = layout_here(model, ops, from->id.value, turned);
  const std::int32_t lead = layout.sizes.n - base.sizes.n;
  if (op->name == "aten.expand.default" && lead >= 0) {
    layout.strides = broadcast_strides(base, layout.sizes);
  } else if (op->name == "aten.view.default" || op->name == "aten._unsafe_view.default" ||
             op->name == "aten.unsqueeze.default") {
    Dims strides;
    if (view_strides(base, layout.sizes, strides)) layout.strides = strides;
  } else if (turned && (op->name == "aten.transpose.int" || op->name == "aten.permute.default")) {
    const std::vector<std::size_t> order = order_of(*op, static_cast<std::size_t>(base.sizes.n));
    for (std::int32_t d = 0; d < base.sizes.n; ++d)
      layout.strides[d] = base.strides[static_cast<std::int32_t>(order[static_cast<std::size_t>(d)])];
  }
  return layout;
}

/// Whether this reads a copy, the latest operator's, of what can be viewed as it is.
bool is_view_here(const Model& model, const std::vector<Op>& ops, const Op& op) {
  if (op.name != "aten._unsafe_view.default" || ops.empty() || ops.back().name != "aten.clone.default") return false;
  const auto* copied = std::get_if<ValueRef>(&op.args.front().value);
  const auto* from = std::get_if<ValueRef>(&ops.back().args.front().value);
  if (copied == nullptr || from == nullptr || ops.back().out.front() != copied->id) return false;
  const Layout base = layout_here(model, ops, from->id.value);
  Dims strides;
  return !base.contiguous() && view_strides(base, dims_of(model.values[op.out.front().index()].shape), strides);
}

/// Whether this reads rows that lie in memory once for all that they are repeated for, and cannot be viewed so.
bool copies_repeated(const Model& model, const std::vector<Op>& ops, const Op& op) {
  if (op.name != "aten.view.default" && op.name != "aten._unsafe_view.default") return false;
  const auto* from = std::get_if<ValueRef>(&op.args.front().value);
  const Op* maker = from == nullptr ? nullptr : maker_of(ops, from->id.value);
  if (maker == nullptr || (maker->name != "aten.expand.default" && maker->name != "aten.transpose.int")) return false;
  const Layout base = layout_here(model, ops, from->id.value, true);
  bool repeats = false;
  for (std::int32_t d = 0; d < base.sizes.n; ++d) repeats = repeats || (base.strides[d] == 0 && base.sizes[d] > 1);
  Dims strides;
  return repeats && !view_strides(base, dims_of(model.values[op.out.front().index()].shape), strides);
}

}  // namespace

ProgramCutter::ProgramCutter(Model& model, const std::vector<ModuleStyle>& styles, std::vector<Cut> params,
                             const TensorOptions& options)
    : RankProgram(model, options), styles_(styles), params_(std::move(params)), old_(std::move(model.ops)) {
  model.ops.clear();
}

Result<void> ProgramCutter::run() {
  ops_.reserve(old_.size() + old_.size() / 8);
  place_.reserve(old_.size());
  find_homes();
  if (auto rows = cut_inputs(); !rows) return rows;
  for (std::size_t i = 0; i < old_.size(); ++i) {
    region_ = ops_.empty() ? -1 : ops_.back().region;  // of what closes
    if (auto opened = open_modules(old_[i], static_cast<std::int32_t>(i)); !opened) return opened;
    region_ = old_[i].region;
    if (const auto due = due_.find(static_cast<std::int32_t>(i)); due != due_.end()) {
      for (const ParamId param : due->second)
        placed_.emplace(param.value, placed_parameter(param, options_.home[param.index()], 0, -1));
    }
    place_.push_back(static_cast<std::int32_t>(ops_.size()));
    if (auto done = carry(static_cast<std::int32_t>(i)); !done) return done;
  }
  if (auto closed = close_until(0); !closed) return closed;
  for (const std::int32_t param : partial_.lacking())
    if (model_.params[static_cast<std::size_t>(param)].requires_grad) note_partial(model_, ParamId(param));
  renumber();
  model_.ops = std::move(ops_);
  return {};
}

const std::string& place_of(const Model& model, const Op& op) {
  static const std::string kRoot = "the root";
  return op.module.valid() ? model.modules[op.module.index()].fqn : kRoot;
}

// ------------------------------------------------------------------------------------------------ calls of modules

Result<void> ProgramCutter::open_modules(const Op& op, std::int32_t index) {
  if (op.module == chain_module_ && op.call == chain_call_) return {};
  std::vector<ModuleId> chain;
  chain.reserve(chain_.size() + 4);
  for (ModuleId m = op.module; m.valid(); m = model_.modules[m.index()].parent) chain.push_back(m);
  std::reverse(chain.begin(), chain.end());
  std::size_t common = 0;
  while (common < chain.size() && common < chain_.size() && chain[common] == chain_[common]) ++common;
  if (common == chain.size() && op.module == chain_module_ && common > 0) --common;  // called again
  std::size_t styled = 0;
  for (std::size_t k = 0; k < common; ++k)
    styled += styles_[chain[k].index()] != ModuleStyle::None ? std::size_t{1} : std::size_t{0};
  if (auto closed = close_until(styled); !closed) return closed;
  for (std::size_t k = common; k < chain.size(); ++k) {
    if (styles_[chain[k].index()] == ModuleStyle::None) continue;
    open_.push_back({chain[k], index, chain[k] == op.module ? op.call : 0, {}});
  }
  chain_ = std::move(chain);
  chain_module_ = op.module;
  chain_call_ = op.call;
  return {};
}

Result<void> ProgramCutter::close_until(std::size_t depth) {
  while (open_.size() > depth) {
    if (inside(ModuleStyle::Experts)) {
      if (auto done = combine(open_.back()); !done) return done;
    } else if (inside(ModuleStyle::Split)) {
      finish_split(open_.back());
    } else {
      finish_rowwise(open_.back());
    }
    open_.pop_back();
  }
  return {};
}

/// The innermost styled module whose call is running has that style.
bool ProgramCutter::inside(ModuleStyle style) const {
  return !open_.empty() && styles_[open_.back().module.index()] == style;
}

/// ... or one around it.
bool ProgramCutter::within(ModuleStyle style) const {
  return std::any_of(open_.begin(), open_.end(),
                     [&](const Open& open) { return styles_[open.module.index()] == style; });
}

/// What a module hands on: the sum over the ranks of a rowwise one and of experts, a head's logits.
void ProgramCutter::finish_rowwise(const Open& open) {
  const ModuleStyle style = styles_[open.module.index()];
  const bool rows = is_rowwise(style) || style == ModuleStyle::ExpertTensor;
  const bool sums = style == ModuleStyle::Summed || (rows && !within(ModuleStyle::Summed));
  if (!sums && !is_head(style) && style != ModuleStyle::GatherOutput) return;
  if (ops_.empty() || ops_.back().out.empty() || !ops_.back().out.front().valid()) return;
  const std::int32_t result = ops_.back().out.front().value;
  Cut& cut = cuts_[static_cast<std::size_t>(result)];
  if (style == ModuleStyle::GatherOutput) {
    if (along_sequence(result)) now_[result] = gather(result, true, false, open.module, open.call);
  } else if (cut.term) {
    now_[result] = reduce(result, open.module, open.call, style != ModuleStyle::RowwiseReduced);
  } else if (is_head(style) && cut.cut()) {
    if (style == ModuleStyle::HeadGathered) {
      gathered_later_.insert(result);
    } else if (options_.loss && style == ModuleStyle::Head &&
               kind_of(model_.modules[open.module.index()]) != ModuleKind::Embedding) {
      cut.spread = true;
    } else {
      now_[result] = gather(result, true, false, open.module, open.call);
    }
  }
}

/// A copy of logits that stayed cut is the loss's full_tensor(): a gather. Whether it is one.
bool ProgramCutter::gathers(const Op& op, std::int32_t index) {
  if (gathered_later_.empty()) return false;
  const auto* from = op.args.empty() ? nullptr : std::get_if<ValueRef>(&op.args.front().value);
  if (from == nullptr || op.name != "aten.clone.default" || !gathered_later_.contains(from->id.value)) return false;
  const std::int32_t value = from->id.value, copy = op.out.front().value;
  const Hold held = model_.values[static_cast<std::size_t>(value)].held;
  const Hold of_copy = model_.values[static_cast<std::size_t>(copy)].held;
  place_.back() = static_cast<std::int32_t>(ops_.size());
  const std::int32_t made = now_[copy] = gather(value, true, false, op.module, op.call);
  model_.values[static_cast<std::size_t>(value)].held = held;
  model_.values[static_cast<std::size_t>(made)].held = of_copy;
  made_at_[static_cast<std::size_t>(copy)] = index;
  return true;
}

// ------------------------------------------------------------------------------------------------ new operators

/// DTensor's split along the dimension that is cut (split_strategy, unshard_tensor_dim) takes pieces of the whole,
/// which is gathered; its gradient is summed and cut again.
void ProgramCutter::gather_to_split(Op& op) {
  if (!is_split(op) || op.args.empty()) return;
  auto* from = std::get_if<ValueRef>(&op.args.front().value);
  if (from == nullptr) return;
  const std::int32_t value = from->id.value;
  const Cut& cut = cuts_[static_cast<std::size_t>(value)];
  const auto rank = static_cast<std::int64_t>(whole_[static_cast<std::size_t>(value)].size());
  const std::int64_t dim = integer_argument(op, 2, "dim", 0);
  if (!cut.spread || cut.dim != kSequenceDim || rank < 3 || (dim < 0 ? dim + rank : dim) != kSequenceDim) return;
  const Hold held = model_.values[static_cast<std::size_t>(value)].held;
  const std::int32_t made = gather(value, false, true, op.module, op.call);
  model_.values[static_cast<std::size_t>(value)].held = {};
  model_.values[static_cast<std::size_t>(made)].held = held;
  from->id = ValueId(made);
}

/// Which parameters are gathered before which operator: the first of their unit's module.
void ProgramCutter::find_homes() {
  if (!options_.places_gradients || options_.home.empty()) return;
  std::vector<std::int32_t> first(model_.modules.size(), -1);
  for (std::size_t i = 0; i < old_.size(); ++i) {
    for (ModuleId m = old_[i].module; m.valid() && first[m.index()] < 0; m = model_.modules[m.index()].parent)
      first[m.index()] = static_cast<std::int32_t>(i);
  }
  for (std::size_t p = 0; p < model_.params.size(); ++p) {
    const ParamInfo& info = model_.params[p];
    const ModuleId home = options_.home[p];
    if (!placed_in_backward(info) || !home.valid() || first[home.index()] < 0) continue;
    due_[home.index() == 0 ? 0 : first[home.index()]].emplace_back(p);
  }
}

// ------------------------------------------------------------------------------------------------ operators

std::int32_t ProgramCutter::enter(Open& open, std::int32_t value) {
  const ModuleStyle style = styles_[open.module.index()];
  const Cut cut = cuts_[static_cast<std::size_t>(value)];
  const bool of_sequence = along_sequence(value);
  if (style == ModuleStyle::Split) return split(open, value);
  if (!is_floating(model_.values[static_cast<std::size_t>(value)].dtype)) return value;
  const ModuleId module = open.module;
  switch (style) {
    case ModuleStyle::Experts: return dispatch(open, value);
    case ModuleStyle::Gather:
      return options_.sequence && of_sequence ? gather(value, false, true, module, open.call) : value;
    case ModuleStyle::Colwise:
    case ModuleStyle::ColwiseGathered:
    case ModuleStyle::Head:
    case ModuleStyle::HeadGathered:
      if (of_sequence) return gather(value, false, true, module, open.call);
      if (cut.cut() || cut.replica || cut.term || (cut.spread && !partial_.arrives(value))) return value;
      return copied(value, {module, open.call}, true);
    case ModuleStyle::Rowwise:
    case ModuleStyle::RowwiseReduced: {
      const auto last = static_cast<std::int32_t>(whole_[static_cast<std::size_t>(value)].size()) - 1;
      return cut.cut() || cut.term ? value : parted(value, {module, open.call}, last);
    }
    case ModuleStyle::Part: {  // of what it reads first: tables of positions beside it stay whole
      const bool has_sequence = whole_[static_cast<std::size_t>(value)].size() > 2;
      const bool whole = !cut.cut() && !cut.term && has_sequence && open.inputs.empty();
      return whole ? parted(value, {module, open.call}, kSequenceDim) : value;
    }
    case ModuleStyle::Replicate: return enter_replicated(open, value);
    case ModuleStyle::ExpertTensor: return cut.cut() || cut.term ? value : copied(value, {module, open.call}, false);
    case ModuleStyle::GatherLocal:
    case ModuleStyle::Summed: {  // a local tensor, whose gradient is taken to be whole
      if (!options_.sequence || !of_sequence) return value;
      const Hold held = model_.values[static_cast<std::size_t>(value)].held;
      const std::int32_t made = gather(value, true, false, module, open.call);
      model_.values[static_cast<std::size_t>(value)].held = held;
      model_.values[static_cast<std::size_t>(made)].held = {Hold::Until::Call, -1, module};
      return made;
    }
    default: return value;
  }
}

std::int32_t ProgramCutter::seen(std::int32_t value) {
  const std::int32_t made = made_at_[static_cast<std::size_t>(value)];
  value = latest(value);
  for (Open& open : open_) {
    if (made >= open.begin) continue;
    const auto known = open.inputs.find(value);
    if (known != open.inputs.end()) {
      value = known->second;
      continue;
    }
    const std::int32_t inside = enter(open, value);
    open.inputs.emplace(value, inside);
    value = inside;
  }
  return value;
}

/// Operators that PyTorch itself runs otherwise where their tensors are cut.
void ProgramCutter::special(Op& op, const std::vector<CutTensor>& args) {
  const auto with_dimension = [&](const char* name) {
    op.name = name;
    op.kwargs.push_back({"mesh", Arg{static_cast<std::int64_t>(options_.dimension)}});
  };
  if (op.name.starts_with("torchao.matmul_float8") && args[1].cut.cut()) {  // scales of what ranks have parts of
    op.kwargs.push_back({"mesh", Arg{static_cast<std::int64_t>(options_.dimension)}});
    op.kwargs.push_back({"inner", Arg{static_cast<std::int64_t>(args[1].cut.dim == 1 ? 1 : 0)}});
  }
  if (op.name == "aten.embedding.default" && args[0].cut.dim == 0) {
    with_dimension("mesh.embedding");
    op.kwargs.push_back({"begin", Arg{begin_of(args[0].cut.whole, options_.group)}});
    op.kwargs.push_back({"whole", Arg{args[0].cut.whole}});
  }
}

/// A reshape that copies in the whole model may be a view of a rank's part: one head repeated is an expansion. The
/// other way round, what is a view of the whole model's copy of such rows copies here.
void ProgramCutter::fit_copies(Op& op) {
  if (is_view_here(model_, ops_, op)) {
    op.name = "aten.view.default";
    op.args.front() = ops_.back().args.front();
    ops_.pop_back();
    place_.back() = static_cast<std::int32_t>(ops_.size());
  } else if (copies_repeated(model_, ops_, op)) {
    const std::int32_t value = std::get<ValueRef>(op.args.front().value).id.value;
    const std::int32_t made = add_unheld(value, cuts_[static_cast<std::size_t>(value)]);
    Op& copy = emit("aten.clone.default", value, op.module, op.call);
    copy.kwargs.push_back({"memory_format", Arg{std::string("torch.contiguous_format")}});
    copy.out.push_back(ValueId(made));
    op.name = "aten._unsafe_view.default";
    op.args.front() = value_arg(made);
  }
}

void ProgramCutter::set_results(const Op& op, std::vector<Cut> cuts, std::int32_t index) {
  const bool of_sequence = op.module.valid() && styles_[op.module.index()] == ModuleStyle::Sequence;
  for (std::size_t k = 0; k < op.out.size(); ++k) {
    const ValueId id = op.out[k];
    if (!id.valid()) continue;
    if (of_sequence && cuts[k].dim == part_dim()) cuts[k].spread = true;  // a DTensor: use_local_output is false
    if (inside(ModuleStyle::Replicate) && !cuts[k].cut()) {
      cuts[k].spread = true;  // a DTensor too
      cuts[k].replica = false;
    }
    if (made_at_[id.index()] < 0) made_at_[id.index()] = index;
    set_local(id.value, cuts[k]);
  }
}

/// What an operator reads; parameters whose gradients are placed by the program become values.
std::vector<CutTensor> ProgramCutter::tensors_of(Op& op) {
  std::vector<CutTensor> args;
  args.reserve(op.args.size());
  each_arg(op, [&](Arg& arg) {
    if (auto* value = std::get_if<ValueRef>(&arg.value)) {
      const std::int32_t id = value->id.value;
      args.push_back({whole_[static_cast<std::size_t>(id)], cuts_[static_cast<std::size_t>(id)],
                      is_floating(model_.values[static_cast<std::size_t>(id)].dtype), id});
    } else if (const auto* param = std::get_if<ParamRef>(&arg.value)) {
      const ParamInfo& info = model_.params[param->id.index()];
      Shape whole = info.shape;
      if (info.part.dim >= 0) whole[static_cast<std::size_t>(info.part.dim)] = info.part.whole;
      args.push_back({std::move(whole), params_[param->id.index()], true});
      if (!options_.places_gradients || !placed_in_backward(info)) return;
      const auto known = placed_.find(param->id.value);
      const ParamId id = param->id;  // of the argument that is replaced
      arg = value_arg(known != placed_.end() ? known->second : placed_parameter(id, op.module, op.call, op.region));
    } else if (const auto* buffer = std::get_if<BufferRef>(&arg.value)) {
      args.push_back({model_.buffers[static_cast<std::size_t>(buffer->index)].shape, {}, true});
    }
  });
  return args;
}

Result<void> ProgramCutter::carry(std::int32_t index) {
  if (within(ModuleStyle::Local)) return carry_local(index);
  Op op = std::move(old_[static_cast<std::size_t>(index)]);
  each_arg(op, [&](Arg& arg) {
    auto* value = std::get_if<ValueRef>(&arg.value);
    if (value == nullptr) return;
    may_be_written(op, cuts_[value->id.index()]);
    value->id = ValueId(seen(value->id.value));
    may_be_written(op, cuts_[value->id.index()]);
  });
  if (wrong_) return fail(std::move(*wrong_));
  if (gathers(op, index)) return {};
  exchange_rows(op);
  gather_to_split(op);
  part_whole_operands(op);
  share_gradients(op);
  const std::vector<CutTensor> args = tensors_of(op);
  whole_params_.read(model_, op, args, options_.dimension);
  if (std::any_of(args.begin(), args.end(), [this](const CutTensor& x) { return torn_.contains(x.value); }))
    return fail(
        not_local(place_of(model_, op), "this reads what the ranks of the tensor dimension chose each", op.name));
  place_.back() = static_cast<std::int32_t>(ops_.size());  // after what its arguments needed
  std::vector<Shape> results;
  results.reserve(op.out.size());
  for (const ValueId id : op.out) results.push_back(id.valid() ? whole_[id.index()] : Shape());
  grow(op, args, results);
  std::vector<Cut> cuts;
  if (is_spread_loss(op, args)) {
    cuts.resize(results.size());
    if (op.name == "aten._log_softmax.default") cuts.front() = args.front().cut;
    make_spread_loss(op, args.front().cut, options_);
  } else if (auto rows = carry_rows(op, args, results)) {
    cuts = std::move(*rows);
  } else if (auto parts = carry_opaque(model_, op, args, results, options_.group)) {
    cuts = std::move(*parts);
  } else {
    const auto taken = parts_of_result(model_, op, old_, static_cast<std::size_t>(index));
    auto carried = carry_on(op, args, results, options_.group, place_of(model_, op), taken);
    if (!carried) return tl::unexpected(refused_in_experts(std::move(carried.error())));
    cuts = std::move(*carried);
    special(op, args);
    if (!cuts.empty() && cuts.front().apart && !args.front().cut.apart)
      note_once(model_, {place_of(model_, op), "fused"});
    follow_rows(op, args, results, cuts);
  }
  set_results(op, std::move(cuts), index);
  if (std::any_of(args.begin(), args.end(), [this](const CutTensor& x) { return gathered_later_.contains(x.value); }))
    for (const ValueId id : op.out)
      if (id.valid() && cuts_[id.index()].cut()) gathered_later_.insert(id.value);
  partial_.follow(
      op, args,
      inside(ModuleStyle::Replicate) ? model_.modules[open_.back().module.index()].params : std::vector<ParamId>());
  tell_sizes(op);
  fit_copies(op);
  ops_.push_back(std::move(op));
  const bool keeps =
      inside(ModuleStyle::Rowwise) || inside(ModuleStyle::RowwiseReduced) || inside(ModuleStyle::ExpertTensor);
  if (!keeps && !within(ModuleStyle::Summed)) finish_results(ops_.back());
  return {};
}

/// Terms of a sum outside of a rowwise module and of experts are summed at once.
void ProgramCutter::finish_results(const Op& op) {
  const auto is_term = [this](ValueId id) { return id.valid() && cuts_[id.index()].term; };
  if (std::none_of(op.out.begin(), op.out.end(), is_term)) return;
  const std::vector<ValueId> out = op.out;
  const ModuleId module = op.module;
  const std::int32_t call = op.call;
  for (const ValueId id : out) {
    if (is_term(id)) now_[id.value] = reduce(id.value, module, call);
  }
}

void ProgramCutter::renumber() {
  const auto moved = [this](std::int32_t op) {
    return op >= 0 && static_cast<std::size_t>(op) < place_.size() ? place_[static_cast<std::size_t>(op)] : op;
  };
  for (ValueInfo& value : model_.values)
    if (value.held.until == Hold::Until::Op || value.held.until == Hold::Until::Autocast)
      value.held.op = moved(value.held.op);
  if (model_.loss_begin >= 0) {
    const auto begin = static_cast<std::size_t>(model_.loss_begin);
    // A head's collective runs in its module's call, not in the script.
    model_.loss_begin = begin < place_.size() ? place_[begin] : static_cast<std::int32_t>(ops_.size());
  }
  const auto current = [this](ValueId id) { return id.valid() ? ValueId(latest(id.value)) : id; };
  for (ValueId& id : model_.outputs) id = current(id);
  for (ModuleCall& call : model_.module_calls)
    for (ValueId& id : call.args) id = current(id);
  for (Region& region : model_.regions) {
    for (ValueId& id : region.args) id = current(id);
    for (std::int32_t& op : region.save) op = moved(op);
  }
}

}  // namespace foreshard::mesh
