// Plans written by hand for the simulator's tests: a few lines each, uneven sizes, no builder involved.
#pragma once

#include <string>
#include <utility>

#include "core/model/model.h"
#include "core/plan.h"
#include "sim/machine/profile.h"
#include "sim/simulate.h"

namespace foreshard::testing_sim {

/// One iteration of instructions over units "a" and "b" of a model with one parameter each.
class HandMadePlan {
 public:
  HandMadePlan() {
    plan.runtime = Runtime::Fsdp1;
    plan.world_size = 4;
    plan.groups.shard = {0, 1, 2, 3};
    plan.groups.replicate = {0};
    plan.communicators = {{"world", "shard", {0, 1, 2, 3}}};
    for (const char* name : {"", "a", "b"}) {
      ModuleInfo module;
      module.fqn = name;
      module.parent = model.modules.empty() ? ModuleId() : ModuleId(0);
      model.modules.push_back(module);
    }
    job.cluster.world_size = 4;
    job.fsdp.runtime = Runtime::Fsdp1;
    job.fsdp.use_orig_params = false;
    plan.iterations.emplace_back();
  }

  UnitId unit(const std::string& name, Numel numel) {
    ParamInfo param;
    param.fqn = name + ".weight";
    param.shape = {numel};
    param.owner = ModuleId(0);
    model.params.push_back(param);
    plan.param_names.push_back(param.fqn);
    PlanUnit unit;
    unit.name = name;
    unit.params = {ParamId(model.params.size() - 1)};
    unit.shard_size = 4;
    unit.numel = unit.flat_numel = numel;
    unit.shard_numel = ceil_div(numel, 4);
    unit.padded_numel = unit.shard_numel * 4;
    plan.units.push_back(unit);
    return UnitId(plan.units.size() - 1);
  }

  Instruction& add(InstructionKind kind, Stream stream, Phase phase = Phase::Forward, UnitId unit = {}) {
    Instruction& i = plan.iterations.back().instructions.emplace_back();
    i.kind = kind;
    i.stream = stream;
    i.phase = phase;
    i.unit = unit;
    return i;
  }
  void kernel(Stream stream, Bytes bytes, Phase phase = Phase::Forward) {
    add(InstructionKind::Cast, stream, phase).bytes = bytes;
  }
  void collective(InstructionKind kind, Stream stream, Bytes bytes, Phase phase = Phase::Forward) {
    Instruction& i = add(kind, stream, phase);
    i.bytes = bytes;
    i.communicator = CommunicatorId(0);
  }
  void record(Stream stream, int event) { add(InstructionKind::RecordEvent, stream).event = EventId(event); }
  void wait(Stream stream, int event) { add(InstructionKind::WaitEvent, stream).event = EventId(event); }
  void host_wait(int event) { add(InstructionKind::HostWait, Stream::Host).event = EventId(event); }
  void wait_stream(Stream stream, Stream other) { add(InstructionKind::WaitStream, stream).other = other; }
  void alloc(Stream pool, BufferWhat what, UnitId of, Bytes bytes) {
    Instruction& i = add(InstructionKind::Alloc, pool);
    i.buffer = {what, of, {}};
    i.bytes = bytes;
  }
  void free(Stream pool, BufferWhat what, UnitId of) { add(InstructionKind::Free, pool).buffer = {what, of, {}}; }
  void note_use(Stream pool, Stream other, BufferWhat what, UnitId of) {
    Instruction& i = add(InstructionKind::NoteUse, pool);
    i.other = other;
    i.buffer = {what, of, {}};
  }

  Result<Prediction> run(const std::string& profile_id = "virtual", SimulateOptions options = {}) const {
    auto profile = load_profile(profile_id);
    if (!profile) return tl::unexpected(profile.error());
    return simulate(plan, model, LoweredProgram{}, job, *profile, options);
  }

  Plan plan;
  Model model;
  Job job;
};

/// "U 5000-30000 all_gather" a line, lane by lane, host left out.
inline std::string device_lines(const Timeline& timeline) {
  std::string text;
  for (const Span& span : timeline.spans) {
    const std::string& stream = timeline.lanes[span.lane.index()].stream;
    if (stream == "host") continue;
    text += stream + " " + std::to_string(span.start) + "-" + std::to_string(span.start + span.duration) + " " +
            std::string(timeline.name_of(span.name)) + "\n";
  }
  return text;
}

}  // namespace foreshard::testing_sim
