// What the JSON and the text form of a plan have in common: which members its parts have. A sink decides how they are
// spelt.
//
// A sink has key, text, integer, number, boolean, null and begin_/end_ for objects and lists. Members that follow from
// others (managed_bytes, counts, ops, a collective's group and group_size) are written for the reader's sake and
// ignored when a plan is read (core/plan/form/plan_reader.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan.h"

namespace foreshard::detail {

inline bool is_kernel(InstructionKind kind) {
  return kind >= InstructionKind::Cast && kind <= InstructionKind::Accumulate;
}
inline bool is_copy(InstructionKind kind) { return kind == InstructionKind::H2d || kind == InstructionKind::D2h; }
inline bool is_memory(InstructionKind kind) {
  return kind >= InstructionKind::Alloc && kind <= InstructionKind::NoteUse;
}
inline bool is_segment_run(InstructionKind kind) {
  return kind >= InstructionKind::Forward && kind <= InstructionKind::Recompute;
}
inline bool is_update(InstructionKind kind) {
  return kind >= InstructionKind::Clip && kind <= InstructionKind::OptimizerStep;
}
inline bool is_event_use(InstructionKind kind) {
  return kind >= InstructionKind::RecordEvent && kind <= InstructionKind::LimiterCheck;
}

/// The member that holds Instruction::name: what the text means depends on the kind.
inline std::string_view name_key(InstructionKind kind) {
  if (kind == InstructionKind::Mark || is_collective(kind)) return "name";
  return is_event_use(kind) || kind == InstructionKind::WaitStream ? "label" : "op";
}

std::string_view reduce_op_name(ReduceOp op);
std::string_view check_status_name(CheckStatus status);
std::string event_name(EventId event);  // "e12"

template <class Sink>
void put(Sink& sink, std::string_view key, std::string_view text) {
  sink.key(key);
  sink.text(text);
}
template <class Sink>
void put_integer(Sink& sink, std::string_view key, std::int64_t value) {
  sink.key(key);
  sink.integer(value);
}
template <class Sink>
void put_number(Sink& sink, std::string_view key, double value) {
  sink.key(key);
  sink.number(value);
}
template <class Sink>
void put_flag(Sink& sink, std::string_view key, bool value) {
  sink.key(key);
  sink.boolean(value);
}
template <class Sink>
void put_null(Sink& sink, std::string_view key) {
  sink.key(key);
  sink.null();
}

template <class Sink, class T>
void put_integers(Sink& sink, std::string_view key, const std::vector<T>& values) {
  sink.key(key);
  sink.begin_list();
  for (const T value : values) sink.integer(static_cast<std::int64_t>(value));
  sink.end_list();
}
template <class Sink>
void put_texts(Sink& sink, std::string_view key, const std::vector<std::string>& values) {
  sink.key(key);
  sink.begin_list();
  for (const std::string& value : values) sink.text(value);
  sink.end_list();
}
template <class Sink>
void put_params(Sink& sink, std::string_view key, const Plan& plan, const std::vector<ParamId>& params) {
  sink.key(key);
  sink.begin_list();
  for (const ParamId param : params) sink.text(plan.param_names[param.index()]);
  sink.end_list();
}
template <class Sink>
void put_units(Sink& sink, std::string_view key, const Plan& plan, const std::vector<UnitId>& units) {
  sink.key(key);
  sink.begin_list();
  for (const UnitId unit : units) sink.text(plan.units[unit.index()].name);
  sink.end_list();
}
template <class Sink>
void put_unit(Sink& sink, std::string_view key, const Plan& plan, UnitId unit) {
  if (unit.valid()) {
    put(sink, key, plan.units[unit.index()].name);
  } else {
    put_null(sink, key);
  }
}

template <class Sink>
void write_reshard(Sink& sink, const ReshardAfterForward& reshard) {
  if (reshard.kind == ReshardAfterForward::Kind::GroupSize) {
    put_integer(sink, "reshard_after_forward", reshard.group_size);
  } else {
    put_flag(sink, "reshard_after_forward", reshard.kind == ReshardAfterForward::Kind::True);
  }
}

template <class Sink>
void write_layout(Sink& sink, const Plan& plan, const PlanUnit& unit) {
  sink.key("flat");
  sink.begin_list();
  for (const FlatEntry& entry : unit.flat) {
    sink.begin_object();
    if (entry.param.valid()) {
      put(sink, "fqn", plan.param_names[entry.param.index()]);
    } else {
      put_null(sink, "fqn");
    }
    put_integer(sink, "offset", entry.offset);
    put_integer(sink, "numel", entry.numel);
    sink.end_object();
  }
  sink.end_list();
  sink.key("sharded");
  sink.begin_list();
  for (const ShardedParam& param : unit.sharded) {
    sink.begin_object();
    put(sink, "fqn", plan.param_names[param.param.index()]);
    put_integer(sink, "shard_dim", param.shard_dim);
    put_integers(sink, "local_shape", param.local_shape);
    put_integers(sink, "padded_local_shape", param.padded_local_shape);
    sink.end_object();
  }
  sink.end_list();
}

template <class Sink>
void write_unit(Sink& sink, const Plan& plan, std::size_t index) {
  const PlanUnit& unit = plan.units[index];
  put_integer(sink, "id", static_cast<std::int64_t>(index));
  put(sink, "module", unit.name);
  sink.key("module_ids");
  sink.begin_list();
  for (const ModuleId module : unit.modules) sink.integer(module.value);
  sink.end_list();
  put(sink, "strategy", strategy_name(unit.strategy));
  put_params(sink, "params", plan, unit.params);
  put_integer(sink, "numel", unit.numel);
  put_integer(sink, "flat_numel", unit.flat_numel);
  put_integer(sink, "padded_numel", unit.padded_numel);
  put_integer(sink, "shard_numel", unit.shard_numel);
  put_integer(sink, "shard_size", unit.shard_size);
  put_integer(sink, "managed_bytes", unit.numel * itemsize(unit.orig_dtype));
  put_flag(sink, "requires_grad", unit.requires_grad);
  put_integer(sink, "align_padding", unit.align_padding);
  put_integer(sink, "world_padding", unit.world_padding);
  sink.key("shared");
  sink.begin_list();
  for (const SharedName& shared : unit.shared) {
    sink.begin_object();
    put(sink, "fqn", plan.param_names[shared.name.index()]);
    put(sink, "of", plan.param_names[shared.of.index()]);
    sink.end_object();
  }
  sink.end_list();
  put(sink, "orig_dtype", dtype_name(unit.orig_dtype));
  put(sink, "param_dtype", dtype_name(unit.param_dtype));
  put(sink, "reduce_dtype", dtype_name(unit.reduce_dtype));
  put_flag(sink, "keep_low_precision_grads", unit.keep_low_precision_grads);
  write_reshard(sink, unit.reshard_after_forward);
  if (unit.wrapped_twice) put_flag(sink, "wrapped_twice", true);
  write_layout(sink, plan, unit);
}

template <class Sink>
void put_ops(Sink& sink, const Segment& segment) {
  sink.key("ops");
  sink.begin_list();
  sink.integer(segment.op_begin);
  sink.integer(segment.op_end);
  sink.end_list();
}

template <class Sink>
void write_communicator(Sink& sink, const Plan& plan, std::size_t index) {
  const PlanCommunicator& communicator = plan.communicators[index];
  put_integer(sink, "id", static_cast<std::int64_t>(index));
  put(sink, "name", communicator.name);
  put(sink, "kind", communicator.kind);
  put_integers(sink, "ranks", communicator.ranks);
}

template <class Sink>
void write_segment(Sink& sink, const Plan& plan, std::size_t index) {
  const Segment& segment = plan.segments[index];
  put_integer(sink, "id", static_cast<std::int64_t>(index));
  put(sink, "label", segment.label);
  put_integer(sink, "module_id", segment.module.value);
  put_unit(sink, "unit", plan, segment.unit);
  put_ops(sink, segment);
  put_params(sink, "params", plan, segment.params);
  put_flag(sink, "checkpointed", segment.checkpointed);
}

template <class Sink>
void write_buffer(Sink& sink, const Plan& plan, const Instruction& instruction) {
  const BufferName& buffer = instruction.buffer;
  if (buffer == BufferName{}) return;
  put(sink, "buffer", buffer_name(plan, buffer));
  // The name leaves out the unit of a parameter's buffer, and cannot tell the root's buffer from nobody's.
  if (buffer.param.valid() ? buffer.unit != instruction.unit : !buffer.unit.valid()) {
    put_unit(sink, "buffer_unit", plan, buffer.unit);
  }
}

/// All members but id, kind, stream, unit, phase and origin.
template <class Sink>
void write_instruction_details(Sink& sink, const Plan& plan, const Instruction& i) {
  const InstructionKind kind = i.kind;
  const bool collective = is_collective(kind), kernel = is_kernel(kind);
  if (i.other != Stream::Host || kind == InstructionKind::WaitStream || kind == InstructionKind::NoteUse) {
    put(sink, "other", stream_name(i.other));
  }
  if (i.event.valid()) put(sink, "event", event_name(i.event));
  write_buffer(sink, plan, i);
  if (i.bytes != 0 || collective || is_copy(kind) || kind == InstructionKind::Alloc)
    put_integer(sink, "bytes", i.bytes);
  if (i.numel != 0 || collective || kernel) put_integer(sink, "numel", i.numel);
  if (i.dtype != DType::Float32 || collective || kernel) put(sink, "dtype", dtype_name(i.dtype));
  if (i.factor != 0.0 || kind == InstructionKind::Divide) put_number(sink, "factor", i.factor);
  if (i.communicator.valid()) {
    put_integer(sink, "communicator", i.communicator.value);
    put(sink, "group", plan.communicators[i.communicator.index()].kind);
    put_integer(sink, "group_size", plan.group_size(i));
  }
  if (i.reduce_op != ReduceOp::None) put(sink, collective ? "op" : "reduce_op", reduce_op_name(i.reduce_op));
  if (i.name.valid()) put(sink, name_key(kind), plan.name_of(i.name));
  if (i.arg != 0) put_integer(sink, "arg", i.arg);
  if (i.blocking || is_copy(kind)) put_flag(sink, "blocking", i.blocking);
  if (i.pinned || is_copy(kind)) put_flag(sink, "pinned", i.pinned);
  if (i.on_host || is_update(kind)) put_flag(sink, "host", i.on_host);
  if (i.segment.valid()) {
    put_integer(sink, "segment", i.segment.value);
    const Segment& segment = plan.segments[i.segment.index()];
    if (segment.op_end > segment.op_begin) put_ops(sink, segment);
  }
}

template <class Sink>
void write_iteration_end(Sink& sink, const Plan& plan, const PlanIteration& iteration) {
  put_units(sink, "pre_forward", plan, iteration.pre_order);
  put_units(sink, "post_forward", plan, iteration.post_order);
  sink.key("limiter_queue");
  sink.begin_list();
  for (const EventId event : iteration.limiter_queue) sink.text(event_name(event));
  sink.end_list();
}

template <class Sink>
void write_check(Sink& sink, const PlanCheck& check) {
  put(sink, "name", check.name);
  put(sink, "status", check_status_name(check.status));
  put(sink, "where", check.where);
  put(sink, "text", check.text);
}

template <class Sink>
void write_trap(Sink& sink, const Trap& trap) {
  put_integer(sink, "number", trap.number);
  put(sink, "name", trap.name);
  put(sink, "rules", trap.rules);
  put_texts(sink, "units", trap.units);
  put(sink, "text", trap.text);
  put(sink, "remedy", trap.remedy);
  put_flag(sink, "refused", trap.refused);
}

template <class Sink>
void write_failure(Sink& sink, const PlanFailure& failure) {
  put_integer(sink, "iteration", failure.iteration);
  put(sink, "action", failure.action);
  put(sink, "error_class", failure.error_class);
  put(sink, "text", failure.text);
}

}  // namespace foreshard::detail
