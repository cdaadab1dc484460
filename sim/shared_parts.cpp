#include "sim/shared_parts.h"

#include <algorithm>
#include <utility>

#include "core/plan/build_plan.h"
#include "sim/auto_wrap.h"
#include "sim/prepare_job.h"

namespace foreshard {
namespace {

// A lowered program of a large model takes some megabytes.
constexpr std::size_t kMostOnShelf = 64;

}  // namespace

template <class Key, class T>
std::shared_ptr<MadeOnce<T>> SharedParts::find(Shelf<Key, T>& shelf, const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(shelf.begin(), shelf.end(), [&](const auto& entry) { return entry.first == key; });
  if (at != shelf.end()) {
    shelf.splice(shelf.begin(), shelf, at);
  } else {
    shelf.emplace_front(key, std::make_shared<MadeOnce<T>>());
    if (shelf.size() > kMostOnShelf) shelf.pop_back();
  }
  return shelf.front().second;
}

Result<std::shared_ptr<const HardwareProfile>> SharedParts::profile(const std::string& id) {
  return find(profiles_, id)->get([&] { return load_profile(id); });
}

Result<std::shared_ptr<const Model>> SharedParts::model(const Job& job, const HardwareProfile& profile) {
  const ProgramOptions program = job_program(job, profile);
  const ModelKey key{job.model, program.compute_dtype, program.buffer_dtype, program.device};
  return find(models_, key)->get([&] { return load_model(job.model, program); });
}

Result<std::shared_ptr<const LoweredProgram>> SharedParts::lowered(const std::shared_ptr<const Model>& model,
                                                                   const std::vector<SegmentRange>& ranges,
                                                                   const std::vector<bool>& trainable,
                                                                   const LoweringOptions& options) {
  const LoweredKey key{model, ranges, trainable, options};
  return find(lowered_, key)->get([&]() -> Result<LoweredProgram> {
    if (model->ops.empty()) return LoweredProgram{};
    return lower(*model, ranges, trainable, options);
  });
}

Job plan_key(const Job& job) {
  Job key = job;
  key.allocator = {};
  key.cluster.memory = 0;
  key.cluster.init.clear();
  key.cluster.profile.clear();
  const TrainOptions& train = job.train;
  key.train = {};
  key.train.micro_batches = train.micro_batches;
  key.train.no_sync = train.no_sync;
  key.train.clip_grad_norm = train.clip_grad_norm;
  key.train.zero_grad = train.zero_grad;
  key.train.script = train.script;
  return key;
}

Result<std::shared_ptr<const ModuleGraph>> Workbench::graph(const std::shared_ptr<const Model>& model,
                                                            const std::vector<bool>& boundary,
                                                            const std::vector<CheckpointKind>& checkpoint,
                                                            bool inside) {
  const auto at = std::find_if(graphs_.begin(), graphs_.end(), [&](const Graph& known) {
    return known.model == model && known.inside == inside && known.boundary == boundary &&
           known.checkpoint == checkpoint;
  });
  if (at != graphs_.end()) {
    graphs_.splice(graphs_.begin(), graphs_, at);
    return at->graph;
  }
  auto made = build_module_graph(*model, boundary, checkpoint, inside);
  if (!made) return fail(made.error());
  graphs_.push_front({model, boundary, checkpoint, inside, std::make_shared<const ModuleGraph>(std::move(*made))});
  if (graphs_.size() > kKept) graphs_.pop_back();
  return graphs_.front().graph;
}

Result<Workbench::Planned> Workbench::plan(const Job& job, const Job& key, const std::shared_ptr<const Model>& model,
                                           const HardwareProfile& profile) {
  Planned made{key, model, nullptr, nullptr, profile.sm_count};
  PlanParts parts;
  parts.checks = false;  // they say nothing that a prediction needs
  parts.graph = [&](const std::vector<bool>& boundary, const std::vector<CheckpointKind>& checkpoint, bool inside) {
    return graph(model, boundary, checkpoint, inside);
  };
  const Job units = units_key(job);
  const auto known = std::find_if(units_.begin(), units_.end(),
                                  [&](const Units& one) { return one.model == model && one.key == units; });
  if (known != units_.end()) {
    parts.units = known->units;
    units_.splice(units_.begin(), units_, known);
  }
  auto plan = build_plan(*model, job, parts);
  if (!plan) return fail(plan.error());
  if (units_.empty() || units_.front().units != parts.units) units_.push_front({units, model, parts.units});
  if (units_.size() > kKept) units_.pop_back();
  auto lowered = shared_.lowered(model, segment_ranges(*model, *plan, parts.checkpointed), parts.units->trainable,
                                 lowering_options(profile));
  if (!lowered) return fail(lowered.error());
  made.plan = std::make_shared<const Plan>(std::move(*plan));
  made.lowered = *lowered;
  return made;
}

Result<Workbench::Wrapped> Workbench::wrapped(const Job& job, const std::shared_ptr<const Model>& model,
                                              const HardwareProfile& profile) {
  const auto at = std::find_if(wrapped_.begin(), wrapped_.end(),
                               [&](const Wrapped& known) { return known.model == model && known.key == job; });
  if (at != wrapped_.end()) return *at;
  auto found = search_wrap(job, *model, profile, *this);
  if (!found) return fail(found.error());
  wrapped_.push_front({job, model, std::move(found->job), std::move(found->text)});
  if (wrapped_.size() > kKept) wrapped_.pop_back();
  return wrapped_.front();
}

Result<JobParts> Workbench::prepare(const Job& job) {
  const auto profile = shared_.profile(job.cluster.profile);
  if (!profile) return fail(profile.error());
  const auto model = shared_.model(job, **profile);
  if (!model) return fail(model.error());
  if (wants_wrap_search(job) && !(*model)->block_class.empty()) {
    const auto searched = wrapped(job, *model, **profile);
    if (!searched) return fail(searched.error());
    auto parts = prepare(searched->job);
    if (!parts) return parts;
    Plan plan = *parts->plan;
    plan.warnings.push_back(searched->text);
    parts->plan = std::make_shared<const Plan>(std::move(plan));
    return parts;
  }
  const Job key = plan_key(job);
  auto at = std::find_if(planned_.begin(), planned_.end(), [&](const Planned& known) {
    return known.model == *model && known.multiprocessors == (*profile)->sm_count && known.key == key;
  });
  if (at == planned_.end()) {
    auto made = plan(job, key, *model, **profile);
    if (!made) return fail(made.error());
    planned_.push_front(std::move(*made));
    if (planned_.size() > kKept) planned_.pop_back();
    at = planned_.begin();
  } else {
    planned_.splice(planned_.begin(), planned_, at);
  }
  return JobParts{*profile, *model, at->plan, at->lowered};
}

void Workbench::use_tape(const Job& job, const JobParts& parts, SimulateOptions& options) {
  // fsdp1 gives blocks back when other streams are done with them: another prefetch, another order.
  if (job.fsdp.runtime == Runtime::Fsdp1) return;
  Job key = plan_key(job);
  key.fsdp.prefetch = {};
  key.allocator = job.allocator;
  key.train.optimizer = job.train.optimizer;
  key.cluster.init = job.cluster.init;
  const auto at = std::find_if(tapes_.begin(), tapes_.end(),
                               [&](const Taped& one) { return one.lowered == parts.lowered && one.key == key; });
  if (at != tapes_.end()) {
    tapes_.splice(tapes_.begin(), tapes_, at);
    options.follow_pools = at->tape.get();
    return;
  }
  if (tapes_.size() >= kKept) tapes_.pop_back();
  tapes_.push_front({std::move(key), parts.lowered, std::make_shared<PoolTape>()});
  options.record_pools = tapes_.front().tape.get();
}

Result<Prediction> Workbench::predict(const Job& job) {
  const auto parts = prepare(job);
  if (!parts) return fail(parts.error());
  SimulateOptions options = simulate_options(job);
  options.per_kernel = false;
  use_tape(job, *parts, options);
  return simulate(*parts->plan, *parts->model, *parts->lowered, job, *parts->profile, options);
}

}  // namespace foreshard
