#include "tests/sim/schedule/exact_parts.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <stdexcept>

#include "core/plan/build_plan.h"
#include "core/plan/units/groups.h"
#include "sim/device/interference.h"
#include "sim/network/collectives.h"
#include "sim/schedule/candidate.h"
#include "sim/search/prepare_job.h"
#include "sim/search/shared_parts.h"

namespace foreshard::testing {
namespace {

/// One step with links, memory and host for nothing.
struct Alone {
  JobParts parts;
  Prediction prediction;
  Bytes after_forward = 0;
};

constexpr Bytes kNoLimit = Bytes{1} << 50;

Alone alone(Job job) {
  SharedParts shared;
  Workbench bench(shared);
  job.cluster.memory = kNoLimit;
  job.schedule.budget = 0;
  auto parts = bench.prepare(job);
  if (!parts) throw std::runtime_error(to_text(parts.error()));
  HardwareProfile profile = *parts->profile;
  for (double* rate : {&profile.scale_up_gb_per_s, &profile.scale_out_gb_per_s, &profile.channel_gb_per_s})
    *rate *= 1e9;
  SimulateOptions options;
  options.memory = kNoLimit;
  options.timeline = true;
  auto prediction = simulate(*parts->plan, *parts->model, *parts->lowered, job, profile, options);
  if (!prediction) throw std::runtime_error(to_text(prediction.error()));
  Alone result{std::move(*parts), std::move(*prediction), 0};
  for (const PhaseMemory& phase : result.prediction.iterations.back().phases)
    if (phase.name == "forward") result.after_forward = phase.end_allocated;
  return result;
}

/// Compute time of each instruction of the last iteration.
std::vector<double> computed(const Alone& one) {
  const Plan& plan = *one.parts.plan;
  const auto& instructions = plan.iterations.back().instructions;
  std::size_t begin = 0;
  for (std::size_t k = 0; k + 1 < one.prediction.iterations.size(); ++k)
    begin += plan.iterations[std::min(k, plan.iterations.size() - 1)].instructions.size();
  std::vector<double> time(instructions.size());
  const Timeline& timeline = one.prediction.timeline;
  for (const Span& span : timeline.spans) {
    if (timeline.lanes[span.lane.index()].stream != "D" || !span.instruction.valid()) continue;
    const auto at = static_cast<std::size_t>(span.instruction.value);
    if (at >= begin && at - begin < time.size()) time[at - begin] += static_cast<double>(span.duration);
  }
  return time;
}

void add_compute(const UnitFrame& frame, const Alone& one, ExactParts& parts) {
  const Plan& plan = *one.parts.plan;
  const std::vector<double> time = computed(one);
  const std::size_t units = frame.forward.size();
  parts.forward_ns.assign(units, 0);
  parts.backward_ns.assign(units, 0);
  parts.reduces_after.assign(units, 0);
  int forward = -1, backward = -1, over = 0;  // places; units whose backward began after another's
  const auto& instructions = plan.iterations.back().instructions;
  for (std::size_t k = 0; k < instructions.size(); ++k) {
    const Instruction& i = instructions[k];
    const std::string_view name = i.kind == InstructionKind::Mark ? plan.name_of(i.name) : std::string_view();
    const int place = i.unit.valid() ? frame.forward_at[i.unit.index()] : -1;
    if (name == "begin pre_forward" && place >= 0) forward = std::max(forward, place);
    if (name == "begin pre_backward" && place >= 0 &&
        std::find(parts.backward_order.begin(), parts.backward_order.end(), place) == parts.backward_order.end()) {
      over = backward < 0 ? 0 : over + 1;
      backward = place;
      parts.backward_order.push_back(place);
    }
    if (i.kind == InstructionKind::ReduceScatter && place >= 0)
      parts.reduces_after[static_cast<std::size_t>(place)] = place == backward ? over + 1 : over;
    if (i.phase == Phase::Clip || i.phase == Phase::Optimizer)
      parts.last_ns += time[k];
    else if (backward >= 0)
      parts.backward_ns[static_cast<std::size_t>(backward)] += time[k];
    else if (forward >= 0)
      parts.forward_ns[static_cast<std::size_t>(forward)] += time[k];
  }
}

double collective_ns(const UnitFrame& frame, const HardwareProfile& profile, CollectiveKind kind, std::size_t unit) {
  const PlanUnit& one = frame.plan->units[unit];
  const DType dtype = kind == CollectiveKind::AllGather ? one.param_dtype : one.reduce_dtype;
  const GroupPlacement placement = place_group(frame.plan->groups.shard, frame.job.cluster.ranks_per_node);
  return static_cast<double>(collective_time(profile, kind, placement, one.padded_numel * itemsize(dtype)));
}

}  // namespace

Job exact_job(const ExactCase& one, const std::string& folder) {
  HardwareProfile profile = load_profile(one.profile).value();
  profile.launch_ns = profile.op_ns = profile.call_ns = profile.driver_alloc_ns = 0;
  profile.extra[kTakenMultiprocessors] = 0;
  profile.extra["launch_queue"] = 0;
  const std::string at = folder + one.profile + ".toml", config = folder + one.name + ".json";
  std::ofstream(at) << profile_text(profile);
  std::ofstream(config) << R"({"model_type": "llama", "hidden_size": )" << one.width << R"(, "intermediate_size": )"
                        << one.inner << R"(, "num_hidden_layers": )" << one.layers
                        << R"(, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": )" << one.vocab
                        << R"(, "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
                              "max_position_embeddings": 8192})";
  Job job;
  job.model.source = config;
  job.model.batch = one.batch;
  job.model.seq = one.seq;
  job.model.seq_given = true;
  job.fsdp.runtime = Runtime::Planned;
  job.cluster.profile = at;
  job.cluster.world_size = one.world;
  job.cluster.ranks_per_node = one.ranks_per_node;
  job.checkpointing.policy = CheckpointPolicy::Block;
  return job;
}

ExactParts measure_parts(const Job& job, Bytes budget) {
  Job kept = job, again = job;
  for (Job* one : {&kept, &again}) {
    one->schedule.objective = "given";
    one->fsdp.reshard_after_forward = ReshardAfterForward{ReshardAfterForward::Kind::False, 0};
  }
  kept.checkpointing.policy = CheckpointPolicy::None;
  again.checkpointing.policy = CheckpointPolicy::Block;
  const Alone all = alone(kept), lean = alone(again);
  const Model& model = *all.parts.model;
  const UnitFrame frame = frame_of_units(kept, model, all.parts.plan, block_modules(model, kept),
                                         std::vector<bool>(model.modules.size(), false));
  ExactParts parts;
  add_compute(frame, all, parts);
  const auto blocks = static_cast<double>(std::count(frame.block.begin(), frame.block.end(), true));
  const auto saved =
      static_cast<double>(lean.prediction.iterations.back().compute - all.prediction.iterations.back().compute);
  parts.free_bytes = static_cast<double>(budget - lean.after_forward);
  for (const int unit : frame.forward) {
    const auto u = static_cast<std::size_t>(unit);
    parts.units.push_back(frame.names[u]);
    parts.recompute_ns.push_back(frame.block[u] ? saved / blocks : 0);
    parts.activations.push_back(frame.block[u] ? static_cast<double>(all.after_forward - lean.after_forward) / blocks
                                               : 0);
    parts.gather_ns.push_back(collective_ns(frame, *all.parts.profile, CollectiveKind::AllGather, u));
    parts.reduce_ns.push_back(collective_ns(frame, *all.parts.profile, CollectiveKind::ReduceScatter, u));
    parts.bytes.push_back(static_cast<double>(frame.bytes[u]));
    parts.free_bytes += static_cast<double>(frame.bytes[u]);
  }
  return parts;
}

}  // namespace foreshard::testing
