#include "tests/oracle/memory/work_comparison.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/instruction_spans.h"
#include "core/model/mesh_dimension.h"
#include "core/plan/process_groups.h"
#include "core/plan/units/flat_layout.h"
#include "sim/play/plan_player.h"

namespace foreshard::oracle {
namespace {

/// Numbers between dots become N.
std::string pattern_of(const std::string& name) {
  std::string pattern;
  for (std::size_t at = 0; at < name.size();) {
    std::size_t end = at;
    while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
    const bool number = end > at && end < name.size() && name[end] == '.' && at > 0 && name[at - 1] == '.';
    pattern += number ? std::string("N") : name.substr(at, std::max(end, at + 1) - at);
    at = std::max(end, at + 1);
  }
  return pattern;
}

Numel position_in_group(const Plan& plan) {
  const auto& ranks = plan.groups.shard;
  return std::find(ranks.begin(), ranks.end(), plan.rank) - ranks.begin();
}

class Params {
 public:
  Json take() {
    Json list = Json::array();
    for (const auto& [entry, count] : entries_) {
      list.push_back(entry);
      list.back().push_back(count);
    }
    return list;
  }
  void add(const std::string& name, const Json& shape, Numel stored, DType dtype, const Json& placements) {
    Json entry = {pattern_of(name), shape, stored, dtype_name(dtype), placements};
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& e) { return e.first == entry; });
    if (found == entries_.end())
      entries_.emplace_back(std::move(entry), 1);
    else
      ++found->second;
  }

 private:
  std::vector<std::pair<Json, int>> entries_;
};

struct Stored {
  Numel numel = 0;
  Json shape, placements;
};

/// By parameter: what this rank holds of it.
std::map<ParamId, Stored> stored_by_param(const Model& model, const Plan& plan) {
  std::map<ParamId, Stored> stored;
  for (const PlanUnit& unit : plan.units) {
    for (const ShardedParam& p : unit.sharded) {
      Json placements = Json::array();
      if (unit.strategy == Strategy::HybridShard) placements.push_back("R");
      const MeshPart& part = model.params[p.param.index()].part;
      const auto shown = [](const char* kind, std::int32_t dim, std::size_t ranks) {
        const std::string size = ranks > 0 ? ", " + std::to_string(ranks) : std::string();
        return kind + ("(" + std::to_string(dim) + size) + ")";
      };
      if (part.dimension >= 0 && part.dim == p.shard_dim) {
        placements.push_back(
            shown("_S", p.shard_dim, model.mesh[static_cast<std::size_t>(part.dimension)].ranks.size()));
      } else {
        placements.push_back(shown("S", p.shard_dim, 0));
      }
      if (part.dimension >= 0) placements.push_back(part.dim >= 0 ? Json(shown("S", part.dim, 0)) : Json("R"));
      stored[p.param] = {numel_of(p.local_shape), whole_shape(model.params[p.param.index()]), placements};
    }
    if (unit.flat.empty()) continue;
    const bool whole = unit.strategy == Strategy::NoShard;
    const RankShard shard = rank_shard(unit, static_cast<std::int32_t>(position_in_group(plan)));
    for (std::size_t k = 0; k < unit.params.size(); ++k) {
      const ParamId id = unit.params[k];
      const Shape& shape = model.params[id.index()].shape;
      const Numel numel = whole ? numel_of(shape) : shard.params[k].in_shard ? shard.params[k].numel_in_shard : 0;
      stored[id] = {numel, whole ? Json(shape) : Json::array({numel}), nullptr};
    }
  }
  return stored;
}

const char* role_of(const Plan& plan, Stream stream) {
  const bool fsdp1 = plan.runtime == Runtime::Fsdp1;
  switch (stream) {
    case Stream::C: return "all_gather_copy_in";
    case Stream::A: return "all_gather";
    case Stream::S: return "reduce_scatter";
    case Stream::U: return "unshard";
    case Stream::G: return "post_backward";
    case Stream::Q: return "pre_unshard";
    case Stream::H: return "all_reduce";
    default: return fsdp1 || stream == Stream::D ? "default" : "?";
  }
}

const char* collective_name(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::AllGather: return "AllGather";
    case InstructionKind::ReduceScatter: return "ReduceScatter";
    case InstructionKind::AllReduce: return "AllReduce";
    case InstructionKind::Broadcast: return "Broadcast";
    default: return nullptr;
  }
}

const char* reduce_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::Avg: return "avg";
    case ReduceOp::Max: return "max";
    case ReduceOp::None: return "";
    default: return "sum";
  }
}

/// A communicator as the recordings name it: nobody names a unit's own group of fewer ranks, its number does.
Json name_of(const Plan& plan, CommunicatorId id, const GroupNames& names) {
  const PlanCommunicator& communicator = plan.communicators[id.index()];
  if (const auto at = names.find(communicator.name); at != names.end()) return at->second;
  if (communicator.name.find(':') != std::string::npos || communicator.kind == "post_forward") return id.value;
  return communicator.name;
}

struct PhaseWork {
  Json collectives = Json::array();
  std::int64_t products = 0;
  Flops flops = 0;
};

class Work {
 public:
  Work(const PredictedRow& row, const Model& model, const GroupNames& names)
      : plan_(row.plan), lowered_(row.lowered), model_(model), names_(names) {}

  Json steps() {
    Json steps = Json::array();
    for (std::size_t k = 0; k < plan_.iterations.size(); ++k) {
      phases_ = {{"start", {}}};
      phase_ = "start";
      for (const Instruction& i : plan_.iterations[k].instructions) instruction(i);
      Json step = {{"step", k}};
      for (const auto& [name, work] : phases_) {
        step[name] = {{"collectives", work.collectives}, {"gemm", {{"count", work.products}, {"flop", work.flops}}}};
      }
      steps.push_back(std::move(step));
    }
    return steps;
  }

 private:
  void enter(const Instruction& i) {
    const LoopPhase next = loop_phase_of(i);
    if (next == LoopPhase::None || next == LoopPhase::End) return;
    const std::string name(loop_phase_name(next));
    // Recomputation runs forward hooks in backward; a new forward begins with the root's.
    const bool root = i.phase == Phase::RootPreForward && i.unit.value <= 0;
    if (phase_ == "backward" && name == "forward" && !root) return;
    phase_ = name;
    const bool known = std::any_of(phases_.begin(), phases_.end(), [&](const auto& p) { return p.first == name; });
    if (!known) phases_.emplace_back(name, PhaseWork{});
  }
  PhaseWork& now() {
    return std::find_if(phases_.begin(), phases_.end(), [&](const auto& p) { return p.first == phase_; })->second;
  }

  void instruction(const Instruction& i) {
    enter(i);
    if (collective_name(i.kind) != nullptr) return collective(i);
    if (i.kind == InstructionKind::OptimizerStep && i.name.valid() && i.arg > 0) {  // a product of the step's own
      ++now().products;
      now().flops += 2 * i.numel * i.arg;
    }
    if (!i.segment.valid() || i.segment.index() >= lowered_.instances.size()) return;
    const SegmentTemplate& made =
        lowered_.templates[static_cast<std::size_t>(lowered_.instances[i.segment.index()].lowered)];
    if (i.kind == InstructionKind::Forward) products(made.forward);
    if (i.kind == InstructionKind::Recompute) products(made.recompute);
    if (i.kind == InstructionKind::Backward) products(made.backward);
  }
  void products(const KernelList& list) {
    for (const Kernel& kernel : list.kernels) {
      if (kernel.collective != KernelCollective::None) of_program(kernel);
      if (kernel.kind != KernelClass::Gemm || kernel.convolution || kernel.launches == 0) continue;
      // CUTLASS's kernel, a launch like any other to the virtual device, which counts what cuBLAS is asked for.
      if (lowered_.op_names[static_cast<std::size_t>(kernel.op)] == "aten._grouped_mm.default") continue;
      ++now().products;
      now().flops += kernel.flops;
    }
  }
  void collective(const Instruction& i) {
    const Bytes bytes = instruction_bytes(i);
    const std::int32_t ranks = plan_.group_size(i);
    if (ranks == 1 || !i.communicator.valid()) return;
    const Json group = name_of(plan_, i.communicator, names_);
    const bool functional = (plan_.runtime == Runtime::Fsdp2 && i.phase == Phase::Clip) || i.stream == Stream::M;
    const bool exchange = plan_.name_of(i.name) == "all_to_all";
    Json entry = {{"op", exchange ? "AlltoAll" : collective_name(i.kind)},
                  {"group", group},
                  {"stream", functional ? "nccl " + group.get<std::string>() : std::string(role_of(plan_, i.stream))},
                  {"ranks", ranks},
                  {"elem", itemsize(i.dtype)}};
    if (const std::string reduce = reduce_name(i.reduce_op); !reduce.empty()) entry["reduce"] = reduce;
    count(entry, bytes);
  }
  /// What a segment's program meets others in.
  void of_program(const Kernel& kernel) {
    const MeshDimension& dimension = model_.mesh[static_cast<std::size_t>(kernel.dimension)];
    const Json group = name_of(plan_, communicator_along(plan_, dimension.name, dimension.ranks), names_);
    const char* const names[] = {"", "AllGather", "ReduceScatter", "AllReduce", "Send", "Send"};
    Json entry = {{"op", names[static_cast<std::size_t>(kernel.collective)]},
                  {"group", group},
                  {"stream", "nccl " + group.get<std::string>()},
                  {"ranks", dimension.ranks.size()},
                  {"elem", itemsize(kernel.dtype)}};
    if (kernel.collective == KernelCollective::ReduceScatter || kernel.collective == KernelCollective::AllReduce)
      entry["reduce"] = kernel.maximum ? "max" : "sum";
    if (kernel.collective == KernelCollective::AllToAll || kernel.collective == KernelCollective::Exchange) {
      // A group of as many sends and receives as there are ranks; of a ring's one each has bytes.
      const auto ranks = static_cast<std::int64_t>(dimension.ranks.size());
      for (const char* op : {"Send", "Recv"}) {
        Json one = entry;
        one["op"] = op;
        count(one, kernel.vector_bytes, ranks);
      }
      return;
    }
    count(entry, kernel.vector_bytes);
  }
  void count(Json& entry, Bytes bytes, std::int64_t times = 1) {
    for (Json& known : now().collectives) {
      Json key = known;
      key.erase("count");
      key.erase("bytes");
      if (key != entry) continue;
      known["count"] = known["count"].get<std::int64_t>() + times;
      known["bytes"] = known["bytes"].get<Bytes>() + bytes;
      return;
    }
    entry["count"] = times;
    entry["bytes"] = bytes;
    now().collectives.push_back(std::move(entry));
  }

  const Plan& plan_;
  const LoweredProgram& lowered_;
  const Model& model_;
  const GroupNames& names_;
  std::vector<std::pair<std::string, PhaseWork>> phases_;
  std::string phase_;
};

/// A row that ends in an error numbers its groups and streams: groups are compared by number, streams not at all.
Json numbered(Json collectives, const Json& expected, const Json& communicators) {
  for (std::size_t k = 0; k < collectives.size(); ++k) {
    if (k >= expected.size() || !expected[k].at("group").is_number() || !collectives[k]["group"].is_string()) continue;
    for (const Json& one : communicators)
      if (one["group"] == collectives[k]["group"]) collectives[k]["group"] = one["comm"];
    collectives[k]["stream"] = expected[k].at("stream");
  }
  return collectives;
}

/// To the host, of a micro-batch's forward: how many copies and how many bytes.
Json offloaded(const LoweredProgram& lowered, std::int64_t micro_batches) {
  std::int64_t count = 0;
  Bytes bytes = 0;
  for (const SegmentInstance& instance : lowered.instances) {
    for (const Kernel& kernel : lowered.templates[static_cast<std::size_t>(instance.lowered)].forward.kernels) {
      if (kernel.offload != OffloadStep::ToHost) continue;
      ++count;
      bytes += kernel.read;
    }
  }
  return {micro_batches * count, micro_batches * bytes};
}

void compare_step(MemoryComparison& comparison, const std::string& place, const Json& expected, const Json& got,
                  const Json& communicators) {
  for (const auto& [phase, work] : expected.items()) {
    if (phase == "step") {
      comparison.exact(place, work, got.value("step", Json()));
      continue;
    }
    const Json ours = got.value(phase, Json::object());
    comparison.only(work, {"collectives", "gemm", "launches", "copies"});
    comparison.exact(place + " " + phase + " collectives", work.at("collectives"),
                     numbered(ours.value("collectives", Json::array()), work.at("collectives"), communicators));
    comparison.exact(place + " " + phase + " gemm", work.at("gemm"), ours.value("gemm", Json()));
  }
}

}  // namespace

Json stored_params(const Model& model, const Job& job, const Plan& plan) {
  Params params;
  const std::map<ParamId, Stored> stored = stored_by_param(model, plan);
  const bool flat = job.fsdp.runtime == Runtime::Fsdp1 && !job.fsdp.use_orig_params;
  std::set<ParamId> seen;
  for (std::size_t k = 0; k < model.params.size(); ++k) {
    const ParamInfo& info = model.params[k];
    const ParamId id(k);
    if (info.shares.valid()) continue;
    const auto found = stored.find(id);
    if (found == stored.end()) {
      params.add(info.fqn, whole_shape(info), numel_of(info.shape), info.dtype, nullptr);
      continue;
    }
    if (!flat) {
      params.add(info.fqn, found->second.shape, found->second.numel, info.dtype, found->second.placements);
      continue;
    }
    const auto unit = std::find_if(plan.units.begin(), plan.units.end(), [&](const PlanUnit& u) {
      return std::find(u.params.begin(), u.params.end(), id) != u.params.end();
    });
    if (unit == plan.units.end() || !seen.insert(unit->params.front()).second) continue;
    params.add(unit->name + (unit->name.empty() ? "" : ".") + "_flat_param", {unit->shard_numel}, unit->shard_numel,
               info.dtype, nullptr);
  }
  return params.take();
}

Json work_of(const PredictedRow& row, const Model& model, const GroupNames& names) {
  return Work(row, model, names).steps();
}

Json communicators_of(const Plan& plan, const GroupNames& names) {
  Json made = Json::array();
  for (std::size_t k = 0; k < plan.communicators.size(); ++k) {
    const std::vector<std::int32_t>& ranks = plan.communicators[k].ranks;
    const Json name = name_of(plan, CommunicatorId(k), names);
    made.push_back({{"comm", k},
                    {"group", name.is_string() ? name : Json()},
                    {"ranks", ranks.size()},
                    {"rank", std::find(ranks.begin(), ranks.end(), plan.rank) - ranks.begin()}});
  }
  return made;
}

Json stream_roles(const Plan& plan) {
  std::set<std::string> roles{"default"};
  for (const StreamInfo& info : plan.streams) roles.insert(role_of(plan, info.stream));
  return roles;
}

void compare_work(MemoryComparison& comparison, const Json& result, const Model& model, const Job& job,
                  const PredictedRow& row, const GroupNames& names) {
  const Json params = stored_params(model, job, row.plan);
  for (std::size_t k = 0; k < std::max(params.size(), result.at("params").size()); ++k) {
    comparison.exact("params[" + std::to_string(k) + "]", k < result["params"].size() ? result["params"][k] : Json(),
                     k < params.size() ? params[k] : Json());
  }
  const Json work = work_of(row, model, names);
  const Json& steps = result.at("work");
  for (std::size_t k = 0; k < steps.size(); ++k) {
    compare_step(comparison, "work step " + std::to_string(k), steps[k], k < work.size() ? work[k] : Json::object(),
                 communicators_of(row.plan, names));
    if (row.lowered.offloads && steps[k].contains("forward"))
      comparison.exact("work step " + std::to_string(k) + " offloaded", steps[k]["forward"]["copies"]["DtoH"],
                       offloaded(row.lowered, job.train.micro_batches));
  }
  const bool ended = result.at("steps").back().contains("error");  // what follows was not recorded
  comparison.exact("work (steps)", steps.size(), ended ? std::min(steps.size(), work.size()) : work.size());
  Json communicators = communicators_of(row.plan, names);
  const Json& recorded = result.at("communicators");
  for (std::size_t k = 0; k < std::min(recorded.size(), communicators.size()); ++k)
    if (ended && recorded[k].at("group").is_null()) communicators[k]["group"] = nullptr;
  comparison.exact("communicators", recorded, communicators);
  if (ended) return;
  std::set<std::string> roles;
  for (const auto& [number, role] : result.at("streams").items()) {
    if (!role.get<std::string>().starts_with("nccl ")) roles.insert(role.get<std::string>());
  }
  Json planned = stream_roles(row.plan);
  if (row.lowered.offloads) {
    std::set<std::string> with = planned.get<std::set<std::string>>();
    with.insert("offload");
    planned = with;
  }
  comparison.exact("streams", Json(roles), planned);
}

}  // namespace foreshard::oracle
