#include "core/plan/actions/action_writer.h"

#include <algorithm>

#include "core/model/mesh_dimension.h"
#include "core/plan/actions/mesh_state.h"
#include "core/plan/build_plan.h"
#include "core/plan/units/differentiated.h"

namespace foreshard::actions {

ActionWriter::ActionWriter(Plan& plan, const StateSource& source) : plan_(plan), source_(source) {
  groups_.set_experts(ranks_of_experts(source));
}

void ActionWriter::start(const ActionRequest& request, Phase phase) {
  PlanIteration iteration;
  iteration.index = static_cast<std::int32_t>(plan_.iterations.size());
  iteration.micro_batches = 0;
  iteration.actions = {action_text(request)};
  plan_.iterations.push_back(std::move(iteration));
  phase_ = phase;
}

NameId ActionWriter::intern(std::string_view text) {
  const auto it = std::find(plan_.names.begin(), plan_.names.end(), text);
  if (it != plan_.names.end()) return NameId(static_cast<std::size_t>(it - plan_.names.begin()));
  plan_.names.emplace_back(text);
  return NameId(plan_.names.size() - 1);
}

void ActionWriter::adopt_end(const Plan& other) {
  plan_.streams = other.streams;
  for (const std::string& warning : other.warnings) {
    const bool known = std::find(plan_.warnings.begin(), plan_.warnings.end(), warning) != plan_.warnings.end();
    if (!known) plan_.warnings.push_back(warning);
  }
  if (other.iterations.empty()) return;
  plan_.iterations.back().limiter_queue = other.iterations.back().limiter_queue;
}

void ActionWriter::adopt(const Plan& other, const Instruction& instruction) {
  Instruction& added = plan_.iterations.back().instructions.emplace_back(instruction);
  added.phase = phase_;
  if (added.name.valid()) added.name = intern(other.name_of(instruction.name));
  if (added.communicator.valid()) {
    const PlanCommunicator& theirs = other.communicators[instruction.communicator.index()];
    added.communicator = enter_communicator(plan_, theirs.name, theirs.kind, theirs.ranks);
  }
}

Instruction& ActionWriter::add(InstructionKind kind, Stream stream, UnitId unit) {
  Instruction& instruction = plan_.iterations.back().instructions.emplace_back();
  instruction.kind = kind;
  instruction.stream = stream;
  instruction.phase = phase_;
  instruction.unit = unit;
  return instruction;
}

void ActionWriter::mark(std::string_view name, UnitId unit, std::int32_t arg) {
  const NameId id = intern(name);
  Instruction& instruction = add(InstructionKind::Mark, Stream::Host, unit);
  instruction.name = id;
  instruction.arg = arg;
}

void ActionWriter::host_wait(UnitId unit) { add(InstructionKind::HostWait, Stream::Host, unit); }

Instruction& ActionWriter::alloc(Stream pool, BufferName buffer, Numel numel, DType dtype, std::int32_t instance) {
  Instruction& instruction = add(InstructionKind::Alloc, pool, buffer.unit);
  instruction.buffer = buffer;
  instruction.arg = instance;
  instruction.numel = numel;
  instruction.dtype = dtype;
  instruction.bytes = numel * itemsize(dtype);
  return instruction;
}

void ActionWriter::free(Stream pool, BufferName buffer, std::int32_t instance) {
  Instruction& instruction = add(InstructionKind::Free, pool, buffer.unit);
  instruction.buffer = buffer;
  instruction.arg = instance;
}

Instruction& ActionWriter::work(InstructionKind kind, Stream stream, BufferName buffer, Numel numel, DType dtype,
                                std::string_view kernel) {
  const NameId name = kernel.empty() ? NameId() : intern(kernel);
  Instruction& instruction = add(kind, stream, buffer.unit);
  instruction.buffer = buffer;
  instruction.numel = numel;
  instruction.dtype = dtype;
  instruction.bytes = numel * itemsize(dtype);
  instruction.name = name;
  return instruction;
}

Instruction& ActionWriter::gather(UnitId id, BufferName buffer, Numel numel, DType dtype) {
  Instruction& instruction = work(InstructionKind::AllGather, Stream::D, buffer, numel, dtype);
  instruction.unit = id;
  instruction.communicator = group_of(id);
  return instruction;
}

CommunicatorId ActionWriter::group_of(UnitId id) {
  if (!id.valid() || unit(id).strategy == Strategy::NoShard) return groups_.world(plan_);
  const std::vector<ParamId>& params = unit(id).params;
  if (!params.empty() && experts_of(source_.model, params.front()) != nullptr) return groups_.expert_shard(plan_);
  return groups_.shard(plan_, unit(id).shard_size);
}

Instruction& ActionWriter::transfer(InstructionKind kind, BufferName buffer, Numel numel, DType dtype) {
  Instruction& instruction = work(kind, Stream::D, buffer, numel, dtype);
  instruction.blocking = true;
  return instruction;
}

Result<Plan> ActionWriter::play(const std::vector<std::vector<std::string>>& texts) {
  Job job = source_.job;
  job.train.script = played_;
  job.train.script.insert(job.train.script.end(), texts.begin(), texts.end());
  const Result<Script> script = script_of(job);
  if (!script) return tl::unexpected(script.error());
  const Result<std::vector<CheckpointKind>> checkpoint = checkpointed_modules(source_.model, job, source_.table);
  if (!checkpoint) return tl::unexpected(checkpoint.error());
  std::vector<bool> boundary(source_.model.modules.size(), false);
  for (const PlanUnit& unit : source_.table.units) {
    for (const ModuleId module : unit.modules) boundary[module.index()] = true;
  }
  const Result<ModuleGraph> graph = build_module_graph(source_.model, boundary, *checkpoint, !job.checkpointing.outside,
                                                       differentiated_params(source_.table, job.fsdp.runtime));
  if (!graph) return tl::unexpected(graph.error());
  Result<Plan> plan = build_fsdp1_plan({source_.model, job, source_.table, *graph, *script});
  if (!plan) return plan;
  if (!plan->failure) {
    plan->iterations.erase(plan->iterations.begin(),
                           plan->iterations.begin() + static_cast<std::ptrdiff_t>(played_.size()));
    played_ = std::move(job.train.script);
    return plan;
  }
  return fail({.code = ErrorCode::Unsupported,
               .message = "PyTorch raises " + plan->failure->error_class + ": " + plan->failure->text,
               .file = job.model.source,
               .place = "--action",
               .expected = "arguments that PyTorch takes together",
               .got = plan->failure->action,
               .hint = "leave one of the options away"});
}

std::vector<std::vector<std::size_t>> broadcast_buckets(const std::vector<BroadcastTensor>& tensors, Bytes limit) {
  struct Open {
    DType dtype;
    Bytes bytes = 0;
    std::vector<std::size_t> tensors;
  };
  std::vector<Open> open;
  std::vector<std::vector<std::size_t>> buckets;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    auto it = std::find_if(open.begin(), open.end(), [&](const Open& o) { return o.dtype == tensors[t].dtype; });
    if (it == open.end()) it = open.insert(open.end(), Open{tensors[t].dtype});
    it->tensors.push_back(t);
    it->bytes += tensors[t].bytes();
    if (it->bytes < limit) continue;
    buckets.push_back(std::move(it->tensors));
    *it = Open{tensors[t].dtype};
  }
  for (Open& rest : open) {
    if (!rest.tensors.empty()) buckets.push_back(std::move(rest.tensors));
  }
  std::sort(buckets.begin(), buckets.end(), [](const auto& a, const auto& b) { return a.front() < b.front(); });
  return buckets;
}

void broadcast(ActionWriter& out, const std::vector<BroadcastTensor>& tensors, UnitId unit,
               CommunicatorId communicator) {
  const std::vector<std::vector<std::size_t>> buckets = broadcast_buckets(tensors, kBroadcastBucketBytes);
  const auto name = [&](std::size_t bucket) {
    // A bucket of one tensor is sent from where it lies: flattening is a view.
    return buckets[bucket].size() == 1 ? tensors[buckets[bucket][0]].buffer : BufferName{BufferWhat::Bucket, unit, {}};
  };
  const auto finish = [&](std::size_t bucket) {
    if (buckets[bucket].size() == 1) return;
    for (const std::size_t t : buckets[bucket]) {
      Instruction& copy = out.work(InstructionKind::CopyOut, Stream::D, tensors[t].buffer, tensors[t].numel,
                                   tensors[t].dtype, "aten.copy_");
      copy.arg = tensors[t].instance;
    }
    out.free(Stream::D, name(bucket), static_cast<std::int32_t>(bucket));
  };
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    Numel numel = 0;
    for (const std::size_t t : buckets[b]) numel += tensors[t].numel;
    const DType dtype = tensors[buckets[b][0]].dtype;
    const auto instance = static_cast<std::int32_t>(b);
    if (buckets[b].size() > 1) {
      out.alloc(Stream::D, name(b), numel, dtype, instance);
      out.work(InstructionKind::Concat, Stream::D, name(b), numel, dtype, "aten.cat").arg = instance;
    }
    Instruction& send = out.work(InstructionKind::Broadcast, Stream::D, name(b), numel, dtype);
    send.unit = unit;
    send.arg = buckets[b].size() > 1 ? instance : tensors[buckets[b][0]].instance;
    send.communicator = communicator;
    if (b > 0) finish(b - 1);  // two in flight: the older one is finished before a third is issued
  }
  if (!buckets.empty()) finish(buckets.size() - 1);
}

std::vector<UnitId> enclosing_units(const StateSource& source) {
  std::vector<UnitId> around(source.table.units.size());
  for (std::size_t u = 0; u < source.table.units.size(); ++u) {
    const PlanUnit& unit = source.table.units[u];
    if (u == 0 || unit.modules.empty()) continue;
    ModuleId module = source.model.modules[unit.modules.front().index()].parent;
    while (module.valid() && !source.table.unit_of_module[module.index()].valid()) {
      module = source.model.modules[module.index()].parent;
    }
    around[u] = module.valid() ? source.table.unit_of_module[module.index()] : UnitId(0);
  }
  return around;
}

Error refused(const ActionRequest& request, std::string message, std::string expected, std::string hint) {
  return {.code = ErrorCode::Unsupported,
          .message = std::move(message),
          .file = {},
          .place = "--action",
          .expected = std::move(expected),
          .got = action_text(request),
          .hint = std::move(hint)};
}

}  // namespace foreshard::actions
