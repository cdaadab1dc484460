#include "core/mesh/rank_program.h"

#include <algorithm>
#include <utility>

namespace foreshard::mesh {
namespace {

/// Strides of the whole tensor's order of dimensions, without holes, for another shape.
Shape strides_like(const Shape& strides, const Shape& shape) {
  std::vector<std::size_t> order(shape.size());
  for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return strides[a] > strides[b]; });
  Shape out(shape.size());
  std::int64_t step = 1;
  for (std::size_t k = order.size(); k-- > 0;) {
    out[order[k]] = step;
    step *= std::max<std::int64_t>(shape[order[k]], 1);
  }
  return out;
}

}  // namespace

RankProgram::RankProgram(Model& model, const TensorOptions& options) : model_(model), options_(options) {
  const std::size_t room = model.values.size() + model.values.size() / 8;
  model.values.reserve(room);
  whole_.reserve(room);
  cuts_.reserve(room);
  cuts_.resize(model.values.size());
  made_at_.assign(model.values.size(), -1);
  for (const ValueInfo& value : model.values) whole_.push_back(value.shape);
}

Op& RankProgram::emit(const char* name, std::int32_t from, ModuleId module, std::int32_t call) {
  Op& op = ops_.emplace_back();
  op.name = name;
  op.module = module;
  op.call = call;
  op.region = region_;
  op.args.push_back(value_arg(from));
  return op;
}

std::int32_t RankProgram::add_value(std::int32_t like, const Cut& cut) {
  const auto id = static_cast<std::int32_t>(model_.values.size());
  ValueInfo made = model_.values[static_cast<std::size_t>(like)];
  made.name += ".mesh";
  made.strides.clear();
  model_.values[static_cast<std::size_t>(like)].held = {};  // Python names what comes out
  model_.values.push_back(std::move(made));
  whole_.push_back(whole_[static_cast<std::size_t>(like)]);
  cuts_.push_back(cut);
  made_at_.push_back(static_cast<std::int32_t>(place_.size()) - 1);
  set_local(id, cut);
  return id;
}

void RankProgram::set_local(std::int32_t value, const Cut& cut) {
  ValueInfo& info = model_.values[static_cast<std::size_t>(value)];
  const Shape& whole = whole_[static_cast<std::size_t>(value)];
  cuts_[static_cast<std::size_t>(value)] = cut;
  if (cut.cut())
    info.shape = local_shape(whole, cut, options_.group);
  else if (info.shape != whole)
    info.shape = whole;
  if (!info.strides.empty() && cut.cut()) info.strides = strides_like(info.strides, info.shape);
}

/// Of inputs that all ranks' rows make up each rank has its own; a table of positions, of one row, is everybody's.
Result<void> RankProgram::cut_inputs() {
  for (const ValueId id : options_.group.own_rows ? model_.inputs : std::vector<ValueId>()) {
    const Shape& whole = whole_[id.index()];
    if (whole.empty() || whole.front() == 1) continue;
    if (whole.front() % options_.group.ranks != 0) {
      return fail({ErrorCode::Inconsistent,
                   "each rank brings as many rows of this input",
                   {},
                   model_.values[id.index()].name,
                   "rows of all ranks, as many as " + std::to_string(options_.group.ranks) + " divides",
                   std::to_string(whole.front()),
                   "capture the model with all ranks' rows, or leave \"rows\" out of mesh.plan"});
    }
    Cut cut;
    cut.dim = 0;
    cut.whole = whole.front();
    set_local(id.value, cut);
  }
  return {};
}

/// What stands for a value now: what was summed may have been gathered since.
std::int32_t RankProgram::latest(std::int32_t value) const {
  for (auto at = now_.find(value); at != now_.end(); at = now_.find(value)) value = at->second;
  return value;
}

/// A rank has its part of the sequence.
bool RankProgram::along_sequence(std::int32_t value) const {
  const auto at = static_cast<std::size_t>(value);
  return cuts_[at].dim == part_dim() && (options_.group.own_rows || whole_[at].size() > 2);
}

/// All-gather along the cut dimension; backward scatters the gradients' sum, or takes this rank's slice of it.
std::int32_t RankProgram::gather(std::int32_t value, bool slices, bool replica, ModuleId module, std::int32_t call) {
  const Cut from = cuts_[static_cast<std::size_t>(value)];
  const Hold held = model_.values[static_cast<std::size_t>(value)].held;
  Cut to;
  to.replica = replica;
  const std::int32_t made = add_value(value, to);
  if (!slices) {  // an input: Python names what it handed over
    model_.values[static_cast<std::size_t>(value)].held = held;
    model_.values[static_cast<std::size_t>(made)].held = {Hold::Until::Call, -1, module};  // the call's argument
  }
  Op& op = emit("mesh.all_gather", value, module, call);
  op.args.push_back(Arg{static_cast<std::int64_t>(options_.dimension)});
  op.args.push_back(Arg{static_cast<std::int64_t>(from.dim)});
  op.args.push_back(Arg{from.before * from.whole * from.after});
  op.args.push_back(Arg{std::string(slices ? "slice" : "reduce_scatter")});
  op.out.push_back(ValueId(made));
  return made;
}

/// Made of a value that whoever holds it goes on holding.
std::int32_t RankProgram::add_unheld(std::int32_t value, const Cut& cut) {
  const Hold held = model_.values[static_cast<std::size_t>(value)].held;
  const std::int32_t made = add_value(value, cut);
  model_.values[static_cast<std::size_t>(value)].held = held;
  model_.values[static_cast<std::size_t>(made)].held = {};
  return made;
}

/// The same tensor, whose gradients the ranks sum where it is read. "share": a whole gradient becomes terms of itself.
std::int32_t RankProgram::copied(std::int32_t value, const Caller& caller, bool replica, const char* backward) {
  Cut same = cuts_[static_cast<std::size_t>(value)];
  same.replica = replica;
  const std::int32_t made = add_unheld(value, same);
  Op& copy = emit("mesh.copy", value, caller.module, caller.call);
  copy.args.push_back(Arg{static_cast<std::int64_t>(options_.dimension)});
  if (backward != nullptr) copy.args.push_back(Arg{std::string(backward)});
  copy.out.push_back(ValueId(made));
  return made;
}

/// This rank's part of what every rank has, along a dimension (Replicate to Shard); its gradients are gathered.
std::int32_t RankProgram::parted(std::int32_t value, const Caller& caller, std::int32_t dim) {
  const Shape& whole = whole_[static_cast<std::size_t>(value)];
  Cut cut;
  cut.dim = dim;
  cut.whole = whole[static_cast<std::size_t>(dim)];
  const std::int32_t made = add_unheld(value, cut);
  Op& op = emit("mesh.part", value, caller.module, caller.call);
  op.args.push_back(Arg{static_cast<std::int64_t>(options_.dimension)});
  op.args.push_back(Arg{static_cast<std::int64_t>(cut.dim)});
  op.args.push_back(Arg{cut.whole});
  op.out.push_back(ValueId(made));
  return made;
}

/// A parameter whose gradient is the sum of the ranks', or of all rows, of which this rank takes its own.
std::int32_t RankProgram::placed_parameter(ParamId param, ModuleId module, std::int32_t call, std::int32_t region) {
  const ParamInfo& info = model_.params[param.index()];
  const auto id = static_cast<std::int32_t>(model_.values.size());
  ValueInfo made;
  made.name = info.fqn + ".mesh";
  made.shape = info.shape;
  made.dtype = is_floating(info.dtype) ? model_.compute_dtype : info.dtype;
  model_.values.push_back(std::move(made));
  whole_.push_back(info.shape);
  cuts_.emplace_back();
  made_at_.push_back(static_cast<std::int32_t>(place_.size()) - 1);
  Op& op = ops_.emplace_back();
  op.name = "mesh.copy";
  op.module = module;
  op.call = call;
  op.region = region;
  op.args.push_back(Arg{ParamRef{param}});
  op.args.push_back(Arg{static_cast<std::int64_t>(options_.dimension)});
  if (info.part.gradient == MeshPart::Gradient::Whole) op.args.push_back(Arg{std::string("slice")});
  op.out.push_back(ValueId(id));
  return id;
}

/// A row for each position of a sequence, looked up once for all sequences.
bool RankProgram::is_of_positions(std::int32_t value) const {
  const Shape& whole = whole_[static_cast<std::size_t>(value)];
  if (whole.size() != 2 || ops_.empty() || ops_.back().name != "mesh.embedding") return false;
  return std::any_of(model_.inputs.begin(), model_.inputs.end(), [&](ValueId id) {
    const Shape& tokens = whole_[id.index()];
    return !is_floating(model_.values[id.index()].dtype) && tokens.size() == 2 && tokens[kSequenceDim] == whole[0];
  });
}

/// The sum over the ranks: whole on each, or cut along the sequence where there is one and it `scatters`.
std::int32_t RankProgram::reduce(std::int32_t value, ModuleId module, std::int32_t call, bool scatters) {
  Cut to;
  const Shape whole = whole_[static_cast<std::size_t>(value)];
  const bool positions = scatters && options_.sequence && !options_.group.own_rows && is_of_positions(value);
  const bool scatter = positions || (scatters && (options_.group.own_rows || (options_.sequence && whole.size() > 2)));
  if (scatter) {
    to.dim = positions ? 0 : part_dim();
    to.whole = whole[static_cast<std::size_t>(to.dim)];
  }
  const std::int32_t made = add_value(value, to);
  Op& op = emit(scatter ? "mesh.reduce_scatter" : "mesh.all_reduce", value, module, call);
  op.args.push_back(Arg{static_cast<std::int64_t>(options_.dimension)});
  if (scatter) {
    op.args.push_back(Arg{static_cast<std::int64_t>(to.dim)});
    op.args.push_back(Arg{to.whole});
  }
  op.out.push_back(ValueId(made));
  return made;
}

std::int32_t RankProgram::shaped(const char* name, std::int32_t from, const Shape& shape, ArgList args,
                                 const Caller& caller) {
  const auto id = static_cast<std::int32_t>(model_.values.size());
  ValueInfo made = model_.values[static_cast<std::size_t>(from)];
  made.shape = shape;
  made.strides.clear();
  made.held = {};
  model_.values.push_back(std::move(made));
  whole_.push_back(shape);
  cuts_.emplace_back();
  made_at_.push_back(static_cast<std::int32_t>(place_.size()) - 1);
  Op& op = emit(name, from, caller.module, caller.call);
  for (Arg& arg : args) op.args.push_back(std::move(arg));
  op.out.push_back(ValueId(id));
  return id;
}

/// x.view(sizes).transpose(0, 1).reshape(to): a copy where both of the exchanged dimensions count.
std::int32_t RankProgram::swapped(std::int32_t value, const Shape& sizes, const Shape& to, const Caller& caller) {
  const std::int32_t viewed = shaped("aten.view.default", value, sizes, {numbers_arg(sizes)}, caller);
  Shape turned = sizes;
  std::swap(turned[0], turned[1]);
  const std::int32_t moved = shaped("aten.transpose.int", viewed, turned, {number_arg(0), number_arg(1)}, caller);
  ValueInfo& info = model_.values[static_cast<std::size_t>(moved)];
  info.strides = {sizes[2] * sizes[3], sizes[1] * sizes[2] * sizes[3], sizes[3], 1};
  if (sizes[0] == 1 || sizes[1] == 1) return shaped("aten.view.default", moved, to, {numbers_arg(to)}, caller);
  const std::int32_t copied = shaped("aten.clone.default", moved, turned, {}, caller);
  ops_.back().kwargs.push_back({"memory_format", Arg{std::string("torch.contiguous_format")}});
  return shaped("aten._unsafe_view.default", copied, to, {numbers_arg(to)}, caller);
}

}  // namespace foreshard::mesh
