#include "core/plan/fsdp1/runtime.h"

#include <algorithm>
#include <array>

namespace foreshard::fsdp1 {
namespace {

constexpr std::array<const char*, kMarkCount> kMarkNames{
    "enter",          "lazy_init",     "skip",           "stop",
    "no_gradient",    "held_gradient", "saved_gradient", "cleared_gradient",
    "prefetch_begin", "prefetch_end",  "unpack",         "no_sync_enter",
    "no_sync_exit",   "summon_enter",  "summon_entered", "summon_exit",
    "unshard",        "wait_unshard",  "eval",           "train",
    "copy_to_host",   "comm_hook"};

/// Work on the device: after it, the stream's tail is another one (R26).
bool launches(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::Cast:
    case InstructionKind::CopyIn:
    case InstructionKind::CopyOut:
    case InstructionKind::Concat:
    case InstructionKind::Fill:
    case InstructionKind::Pad:
    case InstructionKind::Divide:
    case InstructionKind::Accumulate:
    case InstructionKind::H2d:
    case InstructionKind::D2h:
    case InstructionKind::AllGather:
    case InstructionKind::ReduceScatter:
    case InstructionKind::AllReduce:
    case InstructionKind::Forward:
    case InstructionKind::Backward:
    case InstructionKind::Recompute: return true;
    default: return false;  // an addition is counted by the engine or by accumulate()
  }
}

bool reshards_after_forward(Strategy strategy) {
  return strategy == Strategy::FullShard || strategy == Strategy::HybridShard;
}

}  // namespace

Runtime::Runtime(const PlanRequest& request)
    : request_(request),
      job_(request.job),
      model_(request.model),
      graph_(request.graph),
      node_autograd_(request.model, request.graph, request.table.trainable),
      autograd_(next_event_) {
  make_units();
  make_segments();
  plan_.names.assign(kMarkNames.begin(), kMarkNames.end());
  plan_.param_names.reserve(model_.params.size());
  for (const ParamInfo& param : model_.params) plan_.param_names.push_back(param.fqn);
  env_.resize(graph_.tensors.size());
  unmanaged_.assign(model_.params.size(), autograd::kNoNode);
  trapped_.assign(16, false);
}

void Runtime::make_units() {
  const UnitTable& table = request_.table;
  plan_.runtime = Runtime::kRuntime;
  plan_.world_size = static_cast<std::int32_t>(job_.cluster.world_size);
  plan_.rank = static_cast<std::int32_t>(job_.cluster.rank);
  plan_.units = table.units;
  plan_.groups = table.groups;
  plan_.pre_divide = table.pre_divide;
  plan_.post_divide = table.post_divide;
  plan_.warnings = table.warnings;
  read_comm_hook();
  units_.resize(plan_.units.size());
  place_of_param_.resize(model_.params.size());
  bool any_hybrid = false;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const PlanUnit& unit = plan_.units[i];
    UnitState& u = units_[i];
    u.id = UnitId(i);
    u.unit = &unit;
    u.has_handle = !unit.params.empty();
    u.is_root = i == 0;
    u.sharded = unit.strategy != Strategy::NoShard;
    u.hybrid = unit.strategy == Strategy::HybridShard || unit.strategy == Strategy::HybridShardZero2;
    any_hybrid = any_hybrid || u.hybrid;
    u.reshard_after_forward = reshards_after_forward(unit.strategy);
    u.casts_params = unit.param_dtype != unit.orig_dtype;
    u.offload = job_.fsdp.cpu_offload;
    u.use_orig_params = job_.fsdp.use_orig_params;
    u.backward_prefetch = job_.fsdp.backward_prefetch;
    for (const UnitOverride& change : job_.fsdp.overrides) {
      const bool meant = std::any_of(change.units.begin(), change.units.end(),
                                     [&](const std::string& pattern) { return matches_pattern(pattern, unit.name); });
      if (meant && change.backward_prefetch) u.backward_prefetch = *change.backward_prefetch;
    }
    u.data_dtype = unit.orig_dtype;
    u.data_on_host = u.offload;
    u.views.assign(unit.params.size(), autograd::kNoNode);
    u.entry_of_param.assign(unit.params.size(), 0);
    std::size_t next = 0;
    const Numel begin = u.sharded ? unit.shard_numel * position_in_shard_group() : 0;
    const Numel end = u.sharded ? begin + unit.shard_numel : unit.flat_numel;
    u.any_in_shard = false;
    for (std::size_t e = 0; e < unit.flat.size(); ++e) {
      const FlatEntry& entry = unit.flat[e];
      if (!entry.param.valid()) continue;
      if (next < u.entry_of_param.size()) u.entry_of_param[next++] = static_cast<std::int32_t>(e);
      const bool here = entry.offset < end && entry.offset + entry.numel > begin;
      u.any_in_shard = u.any_in_shard || (here && request_.table.trainable[model_.storage_of(entry.param).index()]);
    }
    for (std::size_t p = 0; p < unit.params.size(); ++p) {
      place_of_param_[unit.params[p].index()] = {static_cast<std::int32_t>(i), static_cast<std::int32_t>(p)};
    }
    // Construction makes views too, and moves what is offloaded; reentrant checkpointing compares the numbers of two
    // threads (R16).
    if (u.has_handle && unit.requires_grad) autograd_.skip_number(unit.params.size() + (u.offload ? 2 : 1));
    number_shard_views(u);
    // R26: without original parameters NO_SHARD keeps the accumulation node of its construction, made on D.
    if (u.has_handle && !u.sharded && !u.use_orig_params && unit.requires_grad) {
      u.accumulation = autograd_.add_accumulation(kAccumulate, static_cast<std::int32_t>(i), Stream::D);
    }
  }
  for (const PlanUnit& unit : plan_.units) {
    for (const SharedName& shared : unit.shared) {
      place_of_param_[shared.name.index()] = place_of_param_[shared.of.index()];
    }
  }
  // R2: three streams, four with hybrid; priority -1 if the limiter is on and some unit is hybrid.
  const std::int32_t priority = any_hybrid && job_.fsdp.limit_all_gathers ? -1 : 0;
  plan_.streams = {{Stream::U, priority}, {Stream::G, priority}, {Stream::Q, priority}};
  if (any_hybrid) plan_.streams.push_back({Stream::H, 0});
}

std::int64_t Runtime::position_in_shard_group() const {
  const std::vector<std::int32_t>& ranks = plan_.groups.shard;
  const auto it = std::find(ranks.begin(), ranks.end(), plan_.rank);
  return it == ranks.end() ? 0 : it - ranks.begin();
}

void Runtime::make_segments() {
  unit_of_node_.assign(graph_.nodes.size(), 0);
  node_checkpointed_.assign(graph_.nodes.size(), false);
  if (!graph_.calls.empty()) note_unit_of_nodes(0, 0, false);
  plan_.segments.reserve(graph_.nodes.size());
  layers_.reserve(graph_.nodes.size());
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
    const GraphNode& node = graph_.nodes[i];
    Segment segment;
    segment.label = node.label;
    segment.module = node.module;
    segment.unit = UnitId(unit_of_node_[i]);
    segment.op_begin = node.op_begin;
    segment.op_end = node.op_end;
    segment.params = node.params;
    segment.checkpointed = node_checkpointed_[i];
    plan_.segments.push_back(std::move(segment));
    layers_.push_back(layer_of(node));
  }
}

void Runtime::note_unit_of_nodes(std::int32_t call_index, std::int32_t unit, bool checkpointed) {
  const GraphCall& call = graph_.calls[static_cast<std::size_t>(call_index)];
  if (const UnitState* own = unit_of_module(call.hooked())) unit = own->id.value;
  checkpointed = checkpointed || call.checkpoint != CheckpointKind::None;
  for (const GraphStep& step : call.steps) {
    if (step.is_call) {
      note_unit_of_nodes(step.index, unit, checkpointed);
    } else {
      unit_of_node_[static_cast<std::size_t>(step.index)] = unit;
      node_checkpointed_[static_cast<std::size_t>(step.index)] = checkpointed;
    }
  }
}

const UnitState* Runtime::unit_of_module(ModuleId module) const {
  if (!module.valid()) return nullptr;
  const ModuleId alias = model_.modules[module.index()].alias_of;
  const UnitId unit = request_.table.unit_of_module[(alias.valid() ? alias : module).index()];
  return unit.valid() ? &units_[unit.index()] : nullptr;
}

UnitState* Runtime::unit_of_module(ModuleId module) {
  return const_cast<UnitState*>(std::as_const(*this).unit_of_module(module));
}

Instruction& Runtime::emit(InstructionKind kind, Stream stream) {
  Instruction& i = out_->emplace_back();
  i.kind = kind;
  i.stream = stream;
  i.phase = phase_;
  if (launches(kind)) autograd_.launch(stream);
  return i;
}

Instruction& Runtime::emit(InstructionKind kind, Stream stream, const UnitState& u) {
  Instruction& i = emit(kind, stream);
  i.unit = u.id;
  return i;
}

void Runtime::mark(MarkName name) {
  emit(InstructionKind::Mark, Stream::Host).name = NameId(static_cast<std::int32_t>(name));
}

void Runtime::mark(MarkName name, const UnitState& u) {
  emit(InstructionKind::Mark, Stream::Host, u).name = NameId(static_cast<std::int32_t>(name));
}

void Runtime::enter(Phase phase, const UnitState& u) { enter(phase, u, MarkName::Enter); }

void Runtime::enter(Phase phase, const UnitState& u, MarkName name) {
  phase_ = phase;
  mark(name, u);
}

void Runtime::wait_stream(Stream stream, Stream other) { emit(InstructionKind::WaitStream, stream).other = other; }

void Runtime::alloc(Stream pool, const UnitState& u, BufferWhat what, Numel numel, DType dtype) {
  Instruction& i = emit(InstructionKind::Alloc, pool, u);
  i.buffer = {what, u.id, {}};
  i.numel = numel;
  i.dtype = dtype;
  i.bytes = numel * itemsize(dtype);
}

void Runtime::free(Stream pool, const UnitState& u, BufferWhat what) {
  emit(InstructionKind::Free, pool, u).buffer = {what, u.id, {}};
}

void Runtime::note_use(Stream pool, Stream other, const UnitState& u, BufferWhat what) {
  Instruction& i = emit(InstructionKind::NoteUse, pool, u);
  i.other = other;
  i.buffer = {what, u.id, {}};
}

// What autograd does around a node becomes instructions of its own origin.
void Runtime::emit_actions() {
  for (const autograd::Action& action : actions_) {
    switch (action.kind) {
      case autograd::Action::Kind::Record:
        emit(InstructionKind::RecordEvent, action.stream).event = action.event;
        break;
      case autograd::Action::Kind::WaitTail:
        emit(InstructionKind::WaitStream, action.stream).other = action.other;
        break;
      case autograd::Action::Kind::WaitEvent: {
        Instruction& i = emit(InstructionKind::WaitEvent, action.stream);
        i.other = action.other;
        i.event = action.event;
        break;
      }
      case autograd::Action::Kind::Add: {
        const std::int32_t kind = autograd_.kind(action.node);
        if (kind == kView || kind == kAccumulate) {
          emit_gradient_add(action);
        } else {
          emit(InstructionKind::Add, action.stream);  // activation gradients that meet
        }
        break;
      }
    }
    out_->back().origin = Origin::Autograd;
  }
  actions_.clear();
}

void Runtime::emit_gradient_add(const autograd::Action& action) {
  const std::int32_t data = autograd_.data(action.node);
  const bool piece = autograd_.kind(action.node) == kView;
  const UnitState& u = units_[static_cast<std::size_t>(piece ? data >> kPieceBits : data)];
  Instruction& i = emit(InstructionKind::Add, action.stream, u);
  i.dtype = u.view_dtype;
  if (piece) {
    const ParamId param = u.unit->params[static_cast<std::size_t>(data & kPieceMask)];
    i.buffer = {BufferWhat::GradPiece, u.id, param};
    i.numel = numel_of(model_.params[param.index()].shape);
  } else {
    i.buffer = {u.grad == GradKind::Unsharded ? BufferWhat::GradPiece : BufferWhat::Grad, u.id, {}};
    i.numel = u.unit->flat_numel;
  }
  i.bytes = i.numel * itemsize(i.dtype);
  i.origin = Origin::Autograd;
  if (piece) {
    free_piece(u, i.buffer.param, Stream::D, action.stream);
  } else {
    free(Stream::U, u, BufferWhat::AccumulatedGrad);
  }
}

// PyTorch records an event for every gradient that changes streams; one that is waited for while it still is the tail
// is covered by the wait itself, so only the others stay in the plan.
void Runtime::drop_unused_records(std::vector<Instruction>& instructions) const {
  std::int32_t first = next_event_;
  for (const Instruction& i : instructions) {
    if (i.kind == InstructionKind::RecordEvent) {
      first = i.event.value;
      break;
    }
  }
  std::vector<bool> used(static_cast<std::size_t>(next_event_ - first), false);
  for (const Instruction& i : instructions) {
    if (i.kind == InstructionKind::WaitEvent && i.event.value >= first) {
      used[static_cast<std::size_t>(i.event.value - first)] = true;
    }
  }
  std::erase_if(instructions, [&](const Instruction& i) {
    return i.kind == InstructionKind::RecordEvent && i.origin == Origin::Autograd &&
           !used[static_cast<std::size_t>(i.event.value - first)];
  });
}

void Runtime::fail(std::string error_class, std::string text) {
  if (failed()) return;
  plan_.failure = PlanFailure{script_iteration_, {}, std::move(error_class), std::move(text)};
}

}  // namespace foreshard::fsdp1
