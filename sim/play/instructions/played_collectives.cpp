#include "sim/play/instructions/played_collectives.h"

#include <algorithm>

#include "core/instruction_spans.h"
#include "core/plan/process_groups.h"
#include "sim/network/links.h"
#include "sim/network/plain_links.h"
#include "sim/play/core_sharing.h"

namespace foreshard {
namespace {

CollectiveKind collective_kind(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::AllGather: return CollectiveKind::AllGather;
    case InstructionKind::ReduceScatter: return CollectiveKind::ReduceScatter;
    case InstructionKind::AllReduce: return CollectiveKind::AllReduce;
    default: return CollectiveKind::Broadcast;
  }
}

CollectiveKind kind_of_collective(KernelCollective collective) {
  switch (collective) {
    case KernelCollective::AllGather: return CollectiveKind::AllGather;
    case KernelCollective::ReduceScatter: return CollectiveKind::ReduceScatter;
    case KernelCollective::AllReduce: return CollectiveKind::AllReduce;
    case KernelCollective::Exchange: return CollectiveKind::SendReceive;
    default: return CollectiveKind::AllToAll;
  }
}

bool sends_alone(KernelCollective collective) {
  return collective == KernelCollective::AllToAll || collective == KernelCollective::Exchange;
}

SpanKind span_of_collective(KernelCollective collective) {
  switch (collective) {
    case KernelCollective::AllGather: return SpanKind::AllGather;
    case KernelCollective::ReduceScatter: return SpanKind::ReduceScatter;
    case KernelCollective::AllReduce: return SpanKind::AllReduce;
    default: return SpanKind::SendRecv;
  }
}

InstructionKind instruction_of(KernelCollective collective) {
  switch (collective) {
    case KernelCollective::ReduceScatter: return InstructionKind::ReduceScatter;
    case KernelCollective::AllReduce: return InstructionKind::AllReduce;
    default: return InstructionKind::AllGather;
  }
}

}  // namespace

PlayedCollectives::PlayedCollectives(PlayContext& context, StreamOrder& order)
    : context_(context),
      order_(order),
      measured_(is_network_measured(context.device.profile)),
      gathered_from_(context.plan.units.size(), 1) {
  for (const PlanCommunicator& one : context.plan.communicators) {
    communicators_.push_back({place_group(one.ranks, context.job.cluster.ranks_per_node)});
  }
}

// ------------------------------------------------------------------------------------------------ of the plan

PlayedCollectives::KnownDuration& PlayedCollectives::known(CollectiveKind kind, const GroupPlacement& placement,
                                                           Bytes bytes) {
  for (KnownDuration& one : durations_) {
    if (one.bytes == bytes && one.kind == kind && one.placement == placement) return one;
  }
  const HardwareProfile& profile = context_.device.profile;
  SimDuration time = collective_time(profile, kind, placement, bytes);
  if (symmetric_memory()) time = std::max(time / 2, time - saved_by_symmetric_memory(profile, kind, placement, bytes));
  durations_.push_back({kind, placement, bytes, time});
  return durations_.back();
}

SimDuration PlayedCollectives::duration_of(const Instruction& i) {
  return known(collective_kind(i.kind), communicators_[i.communicator.index()].placement, instruction_bytes(i)).time;
}

double PlayedCollectives::at_half(CollectiveKind kind, const GroupPlacement& placement, Bytes bytes) {
  if (placement.nodes <= 1 || measured_) return 0;
  const HardwareProfile& profile = context_.device.profile;
  KnownDuration& one = known(kind, placement, bytes);
  if (one.at_half >= 0) return one.at_half;
  if (!half_) {
    half_ = profile;
    half_->scale_out_gb_per_s /= 2;
  }
  const auto alone = static_cast<double>(collective_time(profile, kind, placement, bytes));
  const auto slower = static_cast<double>(collective_time(*half_, kind, placement, bytes));
  one.at_half = alone > 0 ? std::max(slower / alone, 1.0) : 1.0;
  return one.at_half;
}

CollectiveMeeting PlayedCollectives::offer(const Instruction& i) {
  const Device& device = context_.device;
  const SimDuration host = device.cost.launch_ns() + 2 * device.cost.call_ns();
  const SimTime busy = device.cost.takes_from(communicators_[i.communicator.index()].tail);
  const SimTime ready = std::max({device.clock.host() + host, device.clock.tail(index_of(i.stream)), busy});
  return {i.communicator, ready, duration_of(i)};
}

void PlayedCollectives::play(const Instruction& i) {
  if (!i.communicator.valid()) return;  // V16 says so
  Device& device = context_.device;
  PlacedCommunicator& communicator = communicators_[i.communicator.index()];
  if (i.kind == InstructionKind::AllGather && i.unit.valid())
    gathered_from_[i.unit.index()] = context_.plan.group_size(i);
  // What an optimizer gathers has its one place behind all that is reduced.
  const bool of_units = i.kind == InstructionKind::AllGather && i.phase != Phase::Clip && i.phase != Phase::Optimizer;
  const bool waived = context_.waived == Waived::Gathers && of_units;
  const SimDuration time = waived ? 0 : met_ ? agreed_time_ : duration_of(i);
  SimTime not_before = device.cost.takes_from(communicator.tail);  // R4: in issue order
  if (met_) not_before = std::max(not_before, agreed_start_);
  const SimDuration host = device.cost.launch_ns() + 2 * device.cost.call_ns();
  ActivitySpan what = context_.span_of(i, work_span_kind(i.kind));
  what.bytes = instruction_bytes(i);
  if (IssueTape* tape = device.clock.tape()) {
    tape->set_load(host_load(device.profile, collective_kind(i.kind), communicator.placement, what.bytes));
  }
  const WorkSpan run = device.launch(i.stream, host, time, what, not_before, i.communicator.value);
  communicator.tail = run.end;
  // Copy engines take no multiprocessors.
  const bool copied = i.kind == InstructionKind::AllGather && symmetric_memory() &&
                      copies_over_switch(device.profile, communicator.placement);
  if (i.stream != Stream::D && !copied) device.interference.collective(run.start, run.end);
  CollectiveRun kept{run.start, run.end, what.bytes, i.kind, i.phase, context_.instruction()};
  kept.on_compute = i.stream == Stream::D;
  kept.after_host_wait = order_.take_host_waited();
  kept.at_half = at_half(collective_kind(i.kind), communicator.placement, what.bytes);
  device.activity.collectives.push_back(kept);
}

// ------------------------------------------------------------------------------------------------ of the program

std::int32_t PlayedCollectives::communicator_of(const Kernel& kernel) const {
  if (kernel.collective == KernelCollective::None) return -1;
  const MeshDimension& dimension = context_.model.mesh[static_cast<std::size_t>(kernel.dimension)];
  return communicator_along(context_.plan, dimension.name, dimension.ranks).value;
}

/// Sends and receives run at once, but where the links say otherwise.
SimDuration PlayedCollectives::time_of(const Kernel& kernel) const {
  const HardwareProfile& profile = context_.device.profile;
  const GroupPlacement& group = communicators_[static_cast<std::size_t>(communicator_of(kernel))].placement;
  if (sends_alone(kernel.collective)) {
    if (const auto time = one_after_the_other(profile, group, kernel.vector_bytes)) return *time;
  }
  return collective_time(profile, kind_of_collective(kernel.collective), group, kernel.vector_bytes);
}

void PlayedCollectives::play_kernel(const Kernel& kernel, std::int32_t of, SimDuration time, ActivitySpan what) {
  Device& device = context_.device;
  PlacedCommunicator& communicator = communicators_[static_cast<std::size_t>(of)];
  const SimDuration call = device.cost.call_ns();
  device.clock.host_cost(2 * call);
  if (sends_alone(kernel.collective))
    device.clock.host_cost(device.cost.further_sends(2 * communicator.placement.ranks - 1));
  device.clock.stream_wait(index_of(Stream::M), device.clock.record(index_of(Stream::D)));
  what.kind = span_of_collective(kernel.collective);
  what.communicator = of;
  what.name = kernel.op;
  what.op = -1;
  what.bytes = kernel.vector_bytes;
  const SimTime not_before = device.cost.takes_from(communicator.tail);
  const WorkSpan run = device.launch(Stream::M, device.cost.launch_ns(), time, what, not_before);
  communicator.tail = run.end;
  device.clock.host_cost(3 * call);
  device.clock.stream_wait(index_of(Stream::D), device.clock.record(index_of(Stream::M)));
  device.interference.collective(run.start, run.end);
  CollectiveRun kept{run.start, run.end, what.bytes, instruction_of(kernel.collective), what.phase, what.instruction};
  kept.at_half = at_half(kind_of_collective(kernel.collective), communicator.placement, kernel.vector_bytes);
  device.activity.collectives.push_back(kept);
}

}  // namespace foreshard
