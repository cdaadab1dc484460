#include "sim/search/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "core/job/job_file.h"
#include "sim/search/explain_findings.h"
#include "sim/search/mesh_degrees.h"
#include "sim/search/shared_parts.h"

namespace foreshard {
namespace {

struct Window {
  SimTime begin = 0, end = 0;
};

/// When the compute stream of the timeline stood idle between two marks.
std::vector<Window> idle_windows(const Timeline& timeline, const Window& within) {
  std::vector<Window> idle;
  SimTime busy = within.begin;
  for (const Span& span : timeline.spans) {
    const Lane& lane = timeline.lanes[span.lane.index()];
    if (lane.stream != "D" || span.start + span.duration <= within.begin || span.start >= within.end) continue;
    if (span.kind == SpanKind::AllGather || span.kind == SpanKind::ReduceScatter || span.kind == SpanKind::AllReduce)
      continue;  // communication on the compute stream is exposed too
    if (span.start > busy) idle.push_back({busy, span.start});
    busy = std::max(busy, span.start + span.duration);
  }
  if (busy < within.end) idle.push_back({busy, within.end});
  return idle;
}

bool is_collective(SpanKind kind) {
  return kind == SpanKind::AllGather || kind == SpanKind::ReduceScatter || kind == SpanKind::AllReduce ||
         kind == SpanKind::Broadcast;
}

/// Exposed collectives of the last iteration by kind, unit and phase.
std::vector<ExposedCollective> exposed_collectives(const Timeline& timeline, const Window& last) {
  const std::vector<Window> idle = idle_windows(timeline, last);
  std::map<std::tuple<SpanKind, std::int32_t, std::int32_t>, ExposedCollective> groups;
  for (const Span& span : timeline.spans) {
    if (!is_collective(span.kind) || span.start < last.begin || span.start >= last.end) continue;
    SimDuration exposed = 0;
    auto gap = std::lower_bound(idle.begin(), idle.end(), span.start,
                                [](const Window& window, SimTime start) { return window.end <= start; });
    for (; gap != idle.end() && gap->begin < span.start + span.duration; ++gap)
      exposed += std::min(span.start + span.duration, gap->end) - std::max(span.start, gap->begin);
    if (exposed <= 0) continue;
    ExposedCollective& group = groups[{span.kind, span.unit, span.phase}];
    if (group.count++ == 0) {
      group.kind = std::string(span_kind_name(span.kind));
      if (span.unit >= 0 && static_cast<std::size_t>(span.unit) < timeline.units.size())
        group.unit = timeline.units[static_cast<std::size_t>(span.unit)];
      group.phase = std::string(phase_name(static_cast<Phase>(span.phase)));
    }
    group.exposed += exposed;
  }
  std::vector<ExposedCollective> list;
  for (auto& [key, group] : groups) list.push_back(std::move(group));
  std::stable_sort(list.begin(), list.end(),
                   [](const ExposedCollective& a, const ExposedCollective& b) { return a.exposed > b.exposed; });
  return list;
}

/// A change of the job, or of the machine where no setting does it.
struct ChangeCandidate {
  std::string text;
  std::vector<std::string> set;
  ExposureCause cause = ExposureCause::Link;
  Job job;
  HardwareProfile profile;
};

class Candidates {
 public:
  Candidates(const Job& job, const HardwareProfile& profile, const MeshDegrees& degrees)
      : job_(job), profile_(profile) {
    if (job.fsdp.runtime == Runtime::Fsdp1) fsdp1();
    if (job.fsdp.runtime == Runtime::Fsdp2) fsdp2();
    if (job.fsdp.runtime != Runtime::None) sharding();
    for (const MeshAxis& axis : degrees.axes) mesh(axis);
    work();
    thread_blocks();
    machine();
  }

  const std::vector<ChangeCandidate>& list() const { return list_; }

 private:
  template <class Apply>
  void add(ExposureCause cause, std::string text, std::vector<std::string> set, const Apply& apply) {
    ChangeCandidate candidate{std::move(text), std::move(set), cause, job_, profile_};
    apply(candidate.job);
    if (validate_job(candidate.job)) list_.push_back(std::move(candidate));
  }
  template <class Apply>
  void add_machine(ExposureCause cause, std::string text, const Apply& apply) {
    ChangeCandidate candidate{std::move(text), {}, cause, job_, profile_};
    apply(candidate.profile);
    list_.push_back(std::move(candidate));
  }

  void fsdp1() {
    if (job_.fsdp.limit_all_gathers) {
      add(ExposureCause::Limiter, "do not limit gathers", {"fsdp.limit_all_gathers=false"},
          [](Job& j) { j.fsdp.limit_all_gathers = false; });
    }
    if (!job_.fsdp.forward_prefetch) {
      add(ExposureCause::Prefetch, "prefetch in forward", {"fsdp.forward_prefetch=true"},
          [](Job& j) { j.fsdp.forward_prefetch = true; });
    }
    if (job_.fsdp.backward_prefetch != BackwardPrefetch::Pre) {
      add(ExposureCause::Prefetch, "prefetch before the backward of a unit", {"fsdp.backward_prefetch=BACKWARD_PRE"},
          [](Job& j) { j.fsdp.backward_prefetch = BackwardPrefetch::Pre; });
    }
    if (job_.fsdp.strategy == Strategy::FullShard) {
      add(ExposureCause::Link, "keep parameters between forward and backward", {"fsdp.strategy=SHARD_GRAD_OP"},
          [](Job& j) { j.fsdp.strategy = Strategy::ShardGradOp; });
    }
  }

  void fsdp2() {
    for (const std::int64_t depth : {1, 2, 3}) {
      const PrefetchOptions& now = job_.fsdp.prefetch;
      if (now.forward_depth >= depth && now.backward_depth >= depth) continue;
      add(ExposureCause::Prefetch,
          fmt::format("prefetch {} ahead explicitly", depth == 1 ? "one unit" : fmt::format("{} units", depth)),
          {fmt::format("fsdp.prefetch.forward_depth={}", depth), fmt::format("fsdp.prefetch.backward_depth={}", depth)},
          [&](Job& j) {
            j.fsdp.prefetch = {};
            j.fsdp.prefetch.forward_depth = j.fsdp.prefetch.backward_depth = depth;
          });
    }
    if (!job_.schedule.separate_reduce_communicator) {
      add(ExposureCause::Link, "reduce gradients on a communicator of their own",
          {"schedule.separate_reduce_communicator=true"},
          [](Job& j) { j.schedule.separate_reduce_communicator = true; });
    }
    if (!job_.fsdp.symmetric_memory && job_.cluster.world_size <= job_.cluster.ranks_per_node) {
      add(ExposureCause::Interference, "gather by copy engines over symmetric memory", {"fsdp.symmetric_memory=true"},
          [](Job& j) { j.fsdp.symmetric_memory = true; });
    }
    if (job_.fsdp.reshard_after_forward.kind != ReshardAfterForward::Kind::False) {
      add(ExposureCause::Link, "keep parameters between forward and backward", {"fsdp.reshard_after_forward=false"},
          [](Job& j) {
            j.fsdp.reshard_after_forward = {ReshardAfterForward::Kind::False, 0};
          });
    }
  }

  void sharding() {
    const bool hybrid = job_.fsdp.strategy == Strategy::HybridShard || job_.fsdp.strategy == Strategy::HybridShardZero2;
    if (!hybrid && job_.cluster.world_size > job_.cluster.ranks_per_node) {
      add(ExposureCause::Link, "shard inside each node, replicate between nodes", {"fsdp.strategy=HYBRID_SHARD"},
          [](Job& j) { j.fsdp.strategy = Strategy::HybridShard; });
    }
    if (job_.fsdp.mixed_precision.reduce == DType::Float32 && job_.fsdp.mixed_precision.param == DType::BFloat16) {
      add(ExposureCause::Link, "reduce gradients in bfloat16 (changes results)",
          {"fsdp.mixed_precision.reduce=bfloat16"}, [](Job& j) { j.fsdp.mixed_precision.reduce = DType::BFloat16; });
    }
    if (job_.train.micro_batches > 1 && !job_.train.no_sync) {
      add(ExposureCause::Link, "hold gradients between micro-batches", {"train.no_sync=true"},
          [](Job& j) { j.train.no_sync = true; });
    }
  }

  /// The next degree on either side, with as many tokens a step.
  void mesh(const MeshAxis& axis) {
    const std::int64_t now = degree_of(job_, axis.key);
    for (std::int64_t degree : axis.degrees) {
      if (degree == 2 * now) mesh_at(axis.key, degree);
    }
    if (now > 1 && now % 2 == 0) mesh_at(axis.key, now / 2);
  }

  void mesh_at(const std::string& key, std::int64_t degree) {
    std::vector<std::string> set = settings_of_degree(job_, key, degree);
    Job cut = job_;
    for (const std::string& text : set) {
      const auto settings = parse_setting(text);
      if (!settings) return;
      for (const JobSetting& setting : *settings)
        if (!apply_setting(setting, cut)) return;
    }
    if (set.empty()) return;
    add(ExposureCause::Link, fmt::format("{} over {}", mesh_word(key), ranks_word(degree)), std::move(set),
        [&](Job& j) { j = cut; });
  }

  static std::string ranks_word(std::int64_t degree) {
    return degree == 1 ? std::string("one rank") : fmt::format("{} ranks", degree);
  }
  static const char* mesh_word(const std::string& key) {
    return key == "mesh.tensor" ? "tensors cut" : key == "mesh.context" ? "sequences cut" : "experts spread";
  }

  void work() {
    if (job_.checkpointing.policy != CheckpointPolicy::None) {
      add(ExposureCause::Link, "no activation checkpointing", {"checkpointing.policy=none"},
          [](Job& j) { j.checkpointing = {}; });
    }
    if (!job_.allocator.expandable_segments) {
      add(ExposureCause::HostLate, "expandable segments", {"allocator.expandable_segments=true"},
          [](Job& j) { j.allocator.expandable_segments = true; });
    }
  }

  /// A collective in fewer thread blocks takes longer and leaves more multiprocessors to what runs beside it.
  void thread_blocks() {
    if (profile_.kind != "gpu" || job_.cluster.world_size < 2) return;
    for (const std::int64_t ctas : {8, 4}) {
      if (ctas >= profile_.channels || (job_.cluster.nccl_max_ctas > 0 && ctas >= job_.cluster.nccl_max_ctas)) continue;
      add(ExposureCause::Interference, fmt::format("collectives in {} thread blocks", ctas),
          {fmt::format("cluster.nccl_max_ctas={}", ctas)}, [&](Job& j) { j.cluster.nccl_max_ctas = ctas; });
    }
  }

  void machine() {
    add_machine(ExposureCause::HostLate, "a host that takes no time",
                [](HardwareProfile& p) { p.launch_ns = p.op_ns = p.call_ns = p.driver_alloc_ns = 0; });
    add_machine(ExposureCause::Link, "links twice as fast", [](HardwareProfile& p) {
      p.scale_up_gb_per_s *= 2;
      p.scale_out_gb_per_s *= 2;
      p.channel_gb_per_s *= 2;
    });
  }

  const Job& job_;
  const HardwareProfile& profile_;
  std::vector<ChangeCandidate> list_;
};

SimDuration steady_exposed(const Prediction& prediction) {
  return prediction.iterations.empty() ? 0 : prediction.iterations.back().exposed_comm;
}

std::optional<ChangeEffect> try_candidate(Workbench& bench, const ChangeCandidate& candidate, const Explanation& now) {
  const auto parts = bench.prepare(candidate.job);
  if (!parts) return std::nullopt;  // a trap, or a job that cannot be: no change to offer
  SimulateOptions options = simulate_options(candidate.job);
  options.per_kernel = false;
  const auto prediction =
      simulate(*parts->plan, *parts->model, *parts->lowered, candidate.job, candidate.profile, options);
  if (!prediction || !prediction->deadlock.empty()) return std::nullopt;
  ChangeEffect effect;
  effect.text = candidate.text;
  effect.set = candidate.set;
  effect.cause = candidate.cause;
  effect.fits = prediction->fits;
  effect.peak_reserved = prediction->memory.reserved;
  effect.step_time = static_cast<SimDuration>(prediction->step_time_ns.value);
  if (effect.fits) {
    effect.removed_time = now.step_time - effect.step_time;
    effect.removed_exposed = now.exposed_time - steady_exposed(*prediction);
  }
  return effect;
}

/// Changes that remove something, those that do not fit left in: they say what memory would buy.
std::vector<ChangeEffect> useful(std::vector<ChangeEffect> effects) {
  std::erase_if(effects, [](const ChangeEffect& effect) { return !effect.fits || effect.removed_time <= 0; });
  std::stable_sort(effects.begin(), effects.end(), [](const ChangeEffect& a, const ChangeEffect& b) {
    return std::tuple(a.set.empty(), -a.removed_time) < std::tuple(b.set.empty(), -b.removed_time);
  });
  return effects;
}

}  // namespace

std::string_view exposure_cause_name(ExposureCause cause) {
  switch (cause) {
    case ExposureCause::HostLate: return "host_late";
    case ExposureCause::Limiter: return "limiter";
    case ExposureCause::Prefetch: return "prefetch";
    case ExposureCause::Link: return "link";
    case ExposureCause::Interference: return "interference";
  }
  return "link";
}

Result<Explanation> explain(const Job& job, const Prepared& prepared) {
  SimulateOptions options = simulate_options(job);
  options.timeline = true;
  options.holders = true;
  options.per_kernel = true;
  const auto prediction = simulate(prepared.plan, prepared.model, prepared.lowered, job, prepared.profile, options);
  if (!prediction) return fail(prediction.error());
  Explanation explanation;
  explanation.holders = prediction->memory.holders;
  SharedParts shared;
  Workbench bench(shared);
  if (prediction->fits && prediction->deadlock.empty() && !prediction->iterations.empty()) {
    const IterationResult& steady = prediction->iterations.back();
    explanation.step_time = steady.step_time;
    explanation.exposed_time = steady.exposed_comm;
    SimTime end = 0;
    for (const Span& span : prediction->timeline.spans) end = std::max(end, span.start + span.duration);
    explanation.exposed = exposed_collectives(prediction->timeline, {end - steady.step_time, end});
    std::vector<ChangeEffect> effects;
    MeshDegrees degrees = mesh_degrees(job, prepared.model, prepared.profile);
    const Candidates candidates(job, prepared.profile, degrees);
    explanation.not_tried = std::move(degrees.refused);
    for (const ChangeCandidate& candidate : candidates.list()) {
      if (auto effect = try_candidate(bench, candidate, explanation)) effects.push_back(std::move(*effect));
    }
    explanation.changes = useful(std::move(effects));
  }
  explanation.findings = find_needs({job, prepared, *prediction, bench});
  return explanation;
}

}  // namespace foreshard
