#include "sim/search/shared_parts.h"

#include <algorithm>
#include <utility>

#include "core/adapters/adapted_model.h"
#include "core/compiled/pointwise_fusion.h"
#include "core/job/optimizer_facts.h"
#include "core/mesh/rank_model.h"
#include "core/plan/build_plan.h"
#include "core/plan/units/differentiated.h"
#include "core/plan/units/full_precision.h"
#include "sim/play/prepared_plan.h"
#include "sim/schedule/schedule_search.h"
#include "sim/search/auto_wrap.h"
#include "sim/search/prepare_job.h"

namespace foreshard {
namespace {

// A lowered program of a large model takes some megabytes.
constexpr std::size_t kMostOnShelf = 64;

bool alike(const ArgList& a, const ArgList& b);

bool alike(const Arg& a, const Arg& b) {
  if (a.value.index() != b.value.index()) return false;
  if (std::holds_alternative<std::int64_t>(a.value)) return true;
  if (const auto* list = std::get_if<ArgList>(&a.value)) return alike(*list, std::get<ArgList>(b.value));
  return a == b;
}

bool alike(const ArgList& a, const ArgList& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Arg& x, const Arg& y) { return alike(x, y); });
}

bool alike(const Op& a, const Op& b) {
  return a.name == b.name && a.module == b.module && a.call == b.call && a.region == b.region && a.out == b.out &&
         alike(a.args, b.args) &&
         std::equal(a.kwargs.begin(), a.kwargs.end(), b.kwargs.begin(), b.kwargs.end(),
                    [](const NamedArg& x, const NamedArg& y) { return x.name == y.name && alike(x.arg, y.arg); });
}

}  // namespace

bool plans_alike(const Model& a, const Model& b) {
  const auto same_value = [](const ValueInfo& x, const ValueInfo& y) {
    return x.name == y.name && x.dtype == y.dtype && x.requires_grad == y.requires_grad;
  };
  const auto same_buffer = [](const BufferInfo& x, const BufferInfo& y) {
    return x.fqn == y.fqn && x.dtype == y.dtype && x.owner == y.owner && x.persistent == y.persistent;
  };
  return a.name == b.name && a.modules == b.modules && a.params == b.params && a.inputs == b.inputs &&
         a.outputs == b.outputs && a.calls == b.calls && a.regions == b.regions && a.mesh == b.mesh &&
         a.architecture == b.architecture && a.block_class == b.block_class && a.has_loss == b.has_loss &&
         a.compute_dtype == b.compute_dtype &&
         std::equal(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(), same_value) &&
         std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(), same_buffer) &&
         std::equal(a.ops.begin(), a.ops.end(), b.ops.begin(), b.ops.end(),
                    [](const Op& x, const Op& y) { return alike(x, y); });
}

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
  if (auto can = check_card(job, profile); !can) return fail(can.error());  // no key knows cards and nodes
  const ProgramOptions program = job_program(job, profile);
  ModelKey key{job.model, program.compute_dtype, program.buffer_dtype, program.device, program.cudnn, job.mesh};
  if (is_cut(job.mesh)) {
    key.world_size = job.cluster.world_size;
    key.rank = job.cluster.rank;
    key.runtime = job.fsdp.runtime;
    key.wraps_root = job.fsdp.wrap.root;
    if (job.fsdp.runtime == Runtime::Fsdp1) key.units = units_key(job);  // where its program copies hangs on units
  }
  key.full_norms = keeps_norms_in_full_precision(job);
  if (!has_adapters(job.adapters)) return find(models_, key)->get([&] { return load_job_model(job, profile); });
  const Job known = as_adapters_see(job);  // what is wrong with the rest, the plan says
  key.units = units_key(known);
  key.units->checkpointing = known.checkpointing;
  return find(models_, key)->get([&] { return load_job_model(known, profile); });
}

std::shared_ptr<const Model> SharedParts::planned_as(const std::shared_ptr<const Model>& model) {
  const std::lock_guard lock(mutex_);
  auto at = std::find_if(planned_as_.begin(), planned_as_.end(), [&](const auto& one) { return one.first == model; });
  if (at != planned_as_.end()) {
    planned_as_.splice(planned_as_.begin(), planned_as_, at);
    return planned_as_.front().second;
  }
  at = std::find_if(planned_as_.begin(), planned_as_.end(),
                    [&](const auto& one) { return plans_alike(*one.second, *model); });
  planned_as_.emplace_front(model, at != planned_as_.end() ? at->second : model);
  if (planned_as_.size() > kMostOnShelf) planned_as_.pop_back();
  return planned_as_.front().second;
}

Result<std::shared_ptr<const LoweredProgram>> SharedParts::lowered(const std::shared_ptr<const Model>& model,
                                                                   const std::vector<SegmentRange>& ranges,
                                                                   const std::vector<bool>& trainable,
                                                                   const LoweringOptions& options) {
  const LoweredKey key{model, ranges, trainable, options};
  return find(lowered_, key)->get([&]() -> Result<LoweredProgram> {
    if (model->ops.empty()) return LoweredProgram{};
    auto made = lower(*model, ranges, trainable, options);
    if (made && options.keep_only_needed) return compile_blocks(*made, *model, ranges, trainable);
    return made;
  });
}

Job plan_key(const Job& job) {
  Job key = job;
  key.allocator = {};
  key.cluster.memory = 0;
  key.cluster.init.clear();
  key.cluster.profile.clear();
  key.schedule.budget = 0;
  key.schedule.objective.clear();
  key.schedule.arena = false;
  const TrainOptions& train = job.train;
  key.train = {};
  key.train.micro_batches = train.micro_batches;
  key.train.no_sync = train.no_sync;
  key.train.clip_grad_norm = train.clip_grad_norm;
  key.train.zero_grad = train.zero_grad;
  key.train.script = train.script;
  key.train.grad_scaler = train.grad_scaler;
  // Muon and steps in backward are instructions; what an optimizer cannot do is refused with the plan.
  key.train.optimizer.name = train.optimizer.name;
  const bool asked_how = steps_in_backward(train.optimizer.impl) || train.grad_scaler.enabled ||
                         train.optimizer.name == OptimizerKind::Adafactor || is_other_elementwise(train.optimizer.name);
  if (asked_how) key.train.optimizer.impl = train.optimizer.impl;
  return key;
}

Result<Workbench::Graph*> Workbench::graph(const std::shared_ptr<const Model>& model, const std::vector<bool>& boundary,
                                           const std::vector<CheckpointKind>& checkpoint, bool inside,
                                           const std::vector<bool>& differentiated) {
  const auto at = std::find_if(graphs_.begin(), graphs_.end(), [&](const Graph& known) {
    return known.model == model && known.inside == inside && known.boundary == boundary &&
           known.checkpoint == checkpoint && known.differentiated == differentiated;
  });
  if (at != graphs_.end()) {
    graphs_.splice(graphs_.begin(), graphs_, at);
    return &graphs_.front();
  }
  auto made = build_module_graph(*model, boundary, checkpoint, inside, differentiated);
  if (!made) return fail(made.error());
  graphs_.push_front(
      {model, boundary, checkpoint, inside, differentiated, std::make_shared<const ModuleGraph>(std::move(*made)), {}});
  if (graphs_.size() > kKept) graphs_.pop_back();
  return &graphs_.front();
}

Result<Workbench::Planned> Workbench::plan(const Job& job, const Job& key, const std::shared_ptr<const Model>& model) {
  PlanParts parts;
  parts.checks = false;  // they say nothing that a prediction needs
  parts.graph = [&](const std::vector<bool>& boundary, const std::vector<CheckpointKind>& checkpoint, bool inside,
                    const std::vector<bool>& differentiated) -> Result<std::shared_ptr<const ModuleGraph>> {
    auto made = graph(model, boundary, checkpoint, inside, differentiated);
    if (!made) return fail(made.error());
    parts.autograd = &(*made)->autograd;
    return (*made)->graph;
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
  auto prepared = std::make_shared<const PreparedPlan>(*plan, *model);
  return Planned{key,
                 model,
                 std::make_shared<const Plan>(std::move(*plan)),
                 std::move(prepared),
                 std::make_shared<std::vector<PoolTape>>(),
                 parts.units,
                 std::move(parts.checkpointed),
                 {}};
}

Result<std::shared_ptr<const LoweredProgram>> Workbench::lowered(Planned& planned,
                                                                 const std::shared_ptr<const Model>& model,
                                                                 const LoweringOptions& options) {
  const auto known = std::find_if(planned.lowered.begin(), planned.lowered.end(),
                                  [&](const Lowered& one) { return one.model == model && one.options == options; });
  if (known != planned.lowered.end()) return known->program;
  auto made = shared_.lowered(model, segment_ranges(*model, *planned.plan, planned.checkpointed),
                              differentiated_params(*planned.units, planned.key.fsdp.runtime), options);
  if (!made) return made;
  planned.lowered.push_front({model, options, *made});
  if (planned.lowered.size() > kKeptTapes) planned.lowered.pop_back();
  return made;
}

Result<Workbench::Wrapped> Workbench::wrapped(const Job& job, const std::shared_ptr<const Model>& model,
                                              const HardwareProfile& profile) {
  const auto at = std::find_if(wrapped_.begin(), wrapped_.end(),
                               [&](const Wrapped& known) { return known.model == model && known.key == job; });
  if (at != wrapped_.end()) return *at;
  SettledJob settled{job, {}};
  if (wants_wrap_search(job) && !model->block_class.empty()) {
    auto found = search_wrap(job, *model, profile, *this);
    if (!found) return fail(found.error());
    settled = {std::move(found->job), {std::move(found->text)}};
  }
  auto scheduled = settle_schedule(settled.job, *model, profile, *this);
  if (!scheduled) return fail(scheduled.error());
  settled.texts.insert(settled.texts.end(), scheduled->texts.begin(), scheduled->texts.end());
  wrapped_.push_front({job, model, std::move(scheduled->job), std::move(settled.texts)});
  if (wrapped_.size() > kKept) wrapped_.pop_back();
  return wrapped_.front();
}

Result<JobParts> Workbench::prepare(const Job& job) {
  const auto profile = shared_.profile(job.cluster.profile);
  if (!profile) return fail(profile.error());
  const auto model = shared_.model(job, **profile);
  if (!model) return fail(model.error());
  if ((wants_wrap_search(job) && !(*model)->block_class.empty()) || wants_schedule_search(job)) {
    const auto searched = wrapped(job, *model, **profile);
    if (!searched) return fail(searched.error());
    auto parts = prepare(searched->job);
    if (!parts) return parts;
    Plan plan = *parts->plan;
    plan.warnings.insert(plan.warnings.end(), searched->texts.begin(), searched->texts.end());
    parts->plan = std::make_shared<const Plan>(std::move(plan));
    return parts;
  }
  const auto planned_as = shared_.planned_as(*model);
  Job key = plan_key(job);
  key.model = {};
  key.model.source = job.model.source;
  auto at = std::find_if(planned_.begin(), planned_.end(),
                         [&](const Planned& known) { return known.model == planned_as && known.key == key; });
  if (at == planned_.end()) {
    auto made = plan(job, key, planned_as);
    if (!made) return fail(made.error());
    planned_.push_front(std::move(*made));
    if (planned_.size() > kKept) planned_.pop_back();
    at = planned_.begin();
  } else {
    planned_.splice(planned_.begin(), planned_, at);
  }
  const auto program = lowered(*at, *model, lowering_options(**profile, job));
  if (!program) return fail(program.error());
  return JobParts{*profile, *model, at->plan, *program, at->prepared, at->others};
}

namespace {

/// fsdp1 gives blocks back when other streams are done with them: another prefetch, another order.
bool has_tapes(const Job& job) { return job.fsdp.runtime != Runtime::Fsdp1; }

}  // namespace

void Workbench::use_tapes_of_others(const Job& job, const JobParts& parts, SimulateOptions& options) {
  if (!has_tapes(job)) return;
  if (parts.others->empty())
    options.record_others = parts.others.get();
  else
    options.follow_others = parts.others.get();
}

void Workbench::use_tape(const Job& job, const JobParts& parts, bool at_once, SimulateOptions& options) {
  if (!has_tapes(job)) return;
  Job key = plan_key(job);
  key.fsdp.prefetch = {};
  key.schedule.arena = job.schedule.arena;
  key.allocator = job.allocator;
  key.train.optimizer = job.train.optimizer;
  key.cluster.init = job.cluster.init;
  const auto at = std::find_if(tapes_.begin(), tapes_.end(),
                               [&](const Taped& one) { return one.lowered == parts.lowered && one.key == key; });
  if (at != tapes_.end()) {
    tapes_.splice(tapes_.begin(), tapes_, at);
    if (at->tape != nullptr) {
      options.follow_pools = at->tape.get();
      return;
    }
  } else {
    if (tapes_.size() >= kKeptTapes) tapes_.pop_back();
    tapes_.push_front({std::move(key), parts.lowered, nullptr});
    if (!at_once) return;
  }
  tapes_.front().tape = std::make_shared<PoolTape>();
  options.record_pools = tapes_.front().tape.get();
}

Result<Prediction> Workbench::played(const Job& job, const JobParts& parts, SimulateOptions options) {
  options.per_kernel = false;
  options.prepared = parts.prepared.get();
  return simulate(*parts.plan, *parts.model, *parts.lowered, job, *parts.profile, options);
}

Result<Prediction> Workbench::predict(const Job& job) {
  const auto parts = prepare(job);
  if (!parts) return fail(parts.error());
  SimulateOptions options = simulate_options(job);
  if (keeps_tapes_) {
    use_tapes_of_others(job, *parts, options);
    use_tape(job, *parts, /*at_once=*/true, options);
  }
  return played(job, *parts, options);
}

Result<Prediction> Workbench::predict_candidate(const Job& job, double below_ns) {
  const auto parts = prepare(job);
  if (!parts) return fail(parts.error());
  SimulateOptions options = simulate_options(job);
  options.below_ns = below_ns;
  use_tape(job, *parts, /*at_once=*/false, options);
  return played(job, *parts, options);
}

}  // namespace foreshard
