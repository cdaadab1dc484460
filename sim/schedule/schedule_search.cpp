#include "sim/schedule/schedule_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "core/plan/build_plan.h"
#include "core/plan/units/units.h"
#include "sim/schedule/schedule_words.h"
#include "sim/schedule/unit_search.h"
#include "sim/schedule/wrappings.h"
#include "sim/search/auto_wrap.h"
#include "sim/search/prepare_job.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostWrappings = 2;  // searched beside the job's own
constexpr double kNoTime = Judged::kNoTime;
constexpr const char* kNothingFits = "no schedule fits the budget";
constexpr double kFull = 0.85;  // of the budget: units that are smaller may be worth their calls

/// Operators of what backward goes through in the last iteration.
std::int64_t differentiated(const Plan& plan) {
  std::vector<bool> seen(plan.segments.size());
  std::int64_t ops = 0;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.kind != InstructionKind::Backward || !i.segment.valid() || seen[i.segment.index()]) continue;
    seen[i.segment.index()] = true;
    const Segment& segment = plan.segments[i.segment.index()];
    ops += segment.op_end - segment.op_begin;
  }
  return ops;
}

/// Whether what recomputes decides what is trained: nothing inside of a reentrant region is where no input requires a
/// gradient.
Result<bool> trains_less_recomputed(const Job& plain, const Plan& plan, Workbench& bench) {
  if (!plain.checkpointing.reentrant || plain.checkpointing.policy == CheckpointPolicy::None) return false;
  Job kept = plain;
  kept.checkpointing = {};
  const auto whole = bench.prepare(kept);
  if (!whole) return fail(whole.error());
  return whole->plan->iterations.empty() || differentiated(*whole->plan) > differentiated(plan);
}

Result<UnitFrame> frame_of(const Job& job, Workbench& bench) {
  Job plain = job;
  plain.fsdp.runtime = Runtime::Fsdp2;
  const auto prepared = bench.prepare(plain);
  if (!prepared) return fail(prepared.error());
  if (prepared->plan->failure || prepared->plan->iterations.empty()) {
    return fail({.code = ErrorCode::Unsupported,
                 .message = "a script that ends in an error cannot be scheduled",
                 .file = {},
                 .place = "train.script",
                 .expected = "iterations that run to their end",
                 .got = prepared->plan->failure ? prepared->plan->failure->text : "no iteration",
                 .hint = "`foreshard plan` shows where it stops"});
  }
  const auto table = build_units(*prepared->model, plain);
  if (!table) return fail(table.error());
  const auto kinds = checkpointed_modules(*prepared->model, plain, *table);
  if (!kinds) return fail(kinds.error());
  std::vector<bool> checkpointed;
  for (const CheckpointKind kind : *kinds) checkpointed.push_back(kind != CheckpointKind::None);
  const auto fixed = trains_less_recomputed(plain, *prepared->plan, bench);
  if (!fixed) return fail(fixed.error());
  std::vector<bool> blocks = block_modules(*prepared->model, plain);
  if (*fixed) blocks.assign(blocks.size(), false);
  return frame_of_units(job, *prepared->model, prepared->plan, blocks, checkpointed);
}

/// The job under another runtime, without a schedule.
Job job_under(Job job, Runtime runtime) {
  job.fsdp.runtime = runtime;
  job.schedule.budget = 0;
  if (runtime == Runtime::Fsdp1) {  // what only fsdp2 knows
    job.fsdp.prefetch = {};
    std::erase_if(job.fsdp.overrides, [](const UnitOverride& o) { return !o.strategy && !o.mixed_precision; });
    for (UnitOverride& o : job.fsdp.overrides) {
      o.reshard_after_forward.reset();
      o.shard_dim.clear();
    }
  }
  return job;
}

/// The step of a job whose allocator is held to the same bytes.
RivalStep rival(const Job& job, Bytes budget, Workbench& bench) {
  const auto prediction = bench.predict(job);
  RivalStep step;
  if (!prediction) {
    step.why_not = prediction.error().message;
  } else if (!prediction->fits || !prediction->deadlock.empty() || prediction->iterations.empty() ||
             prediction->memory.reserved > budget) {
    step.why_not = "does not fit";
  } else {
    step.step_ns = prediction->step_time_ns.value;
    step.compute_ns = static_cast<double>(prediction->iterations.back().compute);
    step.reserved = prediction->memory.reserved;
  }
  return step;
}

/// Whether fsdp2 runs with these units: each is gathered wherever its parameters are read.
bool can_run(const UnitFrame& frame, const Model& model) {
  Job plain = frame.job;
  plain.fsdp.runtime = Runtime::Fsdp2;
  const auto plan = build_plan(model, plain);
  return plan && std::none_of(plan->checks.begin(), plan->checks.end(),
                              [](const PlanCheck& check) { return check.status == CheckStatus::Fail; });
}

/// Part of what units gather that is padding.
double padding_of(const Plan& plan, const Model& model) {
  Numel padded = 0, own = 0;
  for (const PlanUnit& unit : plan.units) {
    padded += unit.padded_numel;
    for (const ParamId param : unit.params) own += numel_of(model.params[param.index()].shape);
  }
  return padded > own ? 1 - static_cast<double>(own) / static_cast<double>(padded) : 0;
}

/// A dimension behind the first that the ranks divide; fsdp2 takes no other.
std::optional<std::int64_t> divided_dimension(const Shape& shape, std::int64_t ranks) {
  for (std::size_t d = 1; d < shape.size(); ++d) {
    if (shape[d] % ranks == 0) return static_cast<std::int64_t>(d);
  }
  return std::nullopt;
}

/// Numbers of layers are alike: "layers.*.w1".
std::string with_any_number(const std::string& name) {
  std::string text;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    text += (text.empty() && begin == 0 ? "" : ".") + (number ? std::string("*") : part);
    begin = end + 1;
  }
  return text;
}

/// What shards along another dimension would change, of a schedule that gathers much padding.
void look_at_other_shards(const Plan& plan, const Model& model, Workbench& bench, FoundSchedule& found) {
  constexpr double kMuchPadding = 0.05;
  if (found.padding <= kMuchPadding) return;
  Job job = found.job;
  job.schedule.budget = found.budget;
  for (const PlanUnit& unit : plan.units) {
    UnitOverride shards;
    for (const ParamId param : unit.params) {
      const ParamInfo& info = model.params[param.index()];
      if (unit.shard_size < 2 || info.shape.empty() || info.shape.front() % unit.shard_size == 0) continue;
      const auto dimension = divided_dimension(info.shape, unit.shard_size);
      if (!dimension) continue;
      shards.shard_dim[info.fqn] = *dimension;
      const std::string said = fmt::format("{} along {}", with_any_number(info.fqn), *dimension);
      std::vector<std::string>& all = found.sharded_otherwise;
      if (std::find(all.begin(), all.end(), said) == all.end()) all.push_back(said);
    }
    if (shards.shard_dim.empty()) continue;
    shards.units.push_back(model.modules[unit.modules.front().index()].fqn);
    job.fsdp.overrides.push_back(std::move(shards));
  }
  if (found.sharded_otherwise.empty()) return;
  found.unpadded = rival(job, found.budget, bench);
  if (found.unpadded.step_ns >= found.step_ns) found.unpadded.step_ns = 0;
}

using Searches = std::vector<std::unique_ptr<UnitSearch>>;

/// What the searches of all ways of wrapping tell together, of the job's own and the few that may follow.
class Progress {
 public:
  explicit Progress(const ScheduleProgress& to) : to_(to) {}

  /// The search outlives it, or tells nothing more.
  void watch(UnitSearch& search) {
    if (!to_) return;
    most_ = std::max(most_, (1 + kMostWrappings) * most_simulations(search.frame()));
    search.tell([this, &search, seen = std::size_t{0}]() mutable {
      simulated_ += search.simulated() - std::exchange(seen, search.simulated());
      if (search.found()) best_ = best_ > 0 ? std::min(best_, search.judged().ns) : search.judged().ns;
      to_(simulated_, std::max(most_, simulated_), best_);
    });
  }

 private:
  const ScheduleProgress& to_;
  std::size_t simulated_ = 0, most_ = 0;
  double best_ = 0;
};

/// Other ways of wrapping, tried; those that begin best come first.
Searches other_searches(const UnitSearch& own, const Model& model, Workbench& bench, double limit, Progress& told) {
  Searches others;
  const bool full =
      !own.found() || static_cast<double>(own.judged().reserved) > kFull * static_cast<double>(own.task().budget);
  const std::vector<Wrapping> all = other_wrappings(own.frame(), model, full);
  std::vector<bool> too_large(all.size());
  for (std::size_t k = 0; k < all.size() && !own.is_late(); ++k) {
    too_large[k] = all[k].joins >= 0 && too_large[static_cast<std::size_t>(all[k].joins)];
    if (too_large[k]) continue;
    auto wrapped = frame_of(all[k].job, bench);
    if (!wrapped) continue;  // units that cannot be planned
    others.push_back(std::make_unique<UnitSearch>(std::move(*wrapped), bench, own.task()));
    told.watch(*others.back());
    others.back()->try_bases(limit);
    too_large[k] = !others.back()->found();
  }
  std::stable_sort(others.begin(), others.end(), [](const auto& a, const auto& b) { return a->beats(*b); });
  return others;
}

/// The few that promise to beat `own` are searched, and the best of all is told.
const UnitSearch& best_search(const UnitSearch& own, const Searches& others, const Model& model, double limit) {
  const UnitSearch* best = &own;
  std::size_t left = kMostWrappings;
  for (const auto& other : others) {
    if (left == 0 || best->is_late()) break;
    if (!other->promises(own) || !can_run(other->frame(), model)) continue;
    --left;
    other->run(limit, best);
    if (other->beats(*best)) best = other.get();
  }
  return *best;
}

/// The same units without the way to the host, where the job's activations go there: what stays on the device is the
/// schedule's to say. nullptr: they stay.
std::unique_ptr<UnitSearch> search_without_copies(const UnitSearch& own, Workbench& bench, double limit,
                                                  Progress& told) {
  Job job = own.frame().job;
  if (!job.checkpointing.offload_activations) return nullptr;
  job.checkpointing.offload_activations = false;
  auto frame = frame_of(job, bench);
  if (!frame) return nullptr;
  auto search = std::make_unique<UnitSearch>(std::move(*frame), bench, own.task());
  told.watch(*search);
  search->try_bases(limit);
  if (search->promises(own)) search->run(limit);
  return search;
}

/// Below a budget, the largest first: multiples of a power of two, which budgets near each other share.
std::vector<Bytes> smaller_limits(Bytes budget) {
  constexpr Bytes kStepsInAll = 128;
  constexpr int kMost = 2;
  Bytes step = kMiB;
  while (2 * step * kStepsInAll <= budget) step *= 2;
  std::vector<Bytes> limits;
  for (Bytes limit = (budget - 1) / step * step; limit > 0 && static_cast<int>(limits.size()) < kMost; limit -= step)
    limits.push_back(limit);
  return limits;
}

/// On a full card an allocator that is held to less may ask the driver less often, so that more memory would be
/// slower: what is found for smaller limits is within the budget as well.
Searches searches_held_to_less(const UnitSearch& best, Workbench& bench, double limit, Progress& told) {
  Searches held;
  if (!best.found() || best.task().for_memory || best.judged().driver_allocs == 0) return held;
  for (const Bytes less : smaller_limits(best.task().budget)) {
    if (best.is_late()) break;
    SearchTask task = best.task();
    task.budget = less;
    auto search = std::make_unique<UnitSearch>(best.frame(), bench, task);
    told.watch(*search);
    search->run_from(best.best(), limit);
    held.push_back(std::move(search));
  }
  return held;
}

const UnitSearch& best_of(const UnitSearch& first, const Searches& others) {
  const UnitSearch* best = &first;
  for (const auto& other : others) best = other->beats(*best) ? other.get() : best;
  return *best;
}

std::size_t simulated_in(const Searches& all) {
  std::size_t simulated = 0;
  for (const auto& search : all) simulated += search->simulated();
  return simulated;
}

/// Of a job that sends activations to the host the lesser of two: a schedule may keep them on the device.
Result<ScheduleBound> bound_of(const UnitSearch& best, bool may_offload, const HardwareProfile& profile, Bytes budget,
                               Workbench& bench) {
  UnitFrame frame = best.frame();
  const bool measured = !frame.job.checkpointing.offload_activations;
  frame.job.checkpointing.offload_activations = false;
  auto bound = schedule_bound(frame, profile, budget, bench, measured ? best.memory() : std::nullopt);
  if (!bound || !may_offload) return bound;
  frame.job.checkpointing.offload_activations = true;
  auto other = schedule_bound(frame, profile, budget, bench);
  return !other || other->ns < bound->ns ? other : bound;
}

bool is_roomy(const Prediction& prediction) { return prediction.fits && driver_allocs_of_last_step(prediction) == 0; }

/// On a full card, a budget with which the allocator asks the driver for nothing, the least that halving finds, to 16
/// MiB: more memory is not always better to it.
void look_for_room(Workbench& bench, FoundSchedule& found) {
  constexpr Bytes kStep = 16 * kMiB;
  constexpr int kDoublings = 12;
  Job job = found.job;
  job.cluster.memory = Bytes{1} << 50;
  const auto within = [&](Bytes budget) {
    job.schedule.budget = budget;
    return bench.predict(job);
  };
  Bytes tight = found.budget, more = kStep;
  for (int k = 0; found.driver_allocs > 0 && k < kDoublings; ++k, more *= 2) {
    const auto one = within(found.budget + more);
    if (!one) return;
    if (!is_roomy(*one)) {
      tight = found.budget + more;
      continue;
    }
    Bytes roomy = found.budget + more;
    while (roomy - tight > kStep) {
      const Bytes middle = tight + (roomy - tight) / 2;
      const auto between = within(middle);
      (between && is_roomy(*between) ? roomy : tight) = middle;
    }
    const auto best = within(roomy);
    if (best) found.roomy = {best->step_time_ns.value, static_cast<double>(best->iterations.back().compute), roomy, {}};
    return;
  }
}

/// Segments that grow in place leave nothing between blocks: the allocator's setting is the user's.
void look_at_expandable_segments(Workbench& bench, FoundSchedule& found) {
  if (found.driver_allocs == 0 || found.job.allocator.expandable_segments) return;
  Job job = found.job;
  job.allocator.expandable_segments = true;
  job.schedule.budget = found.budget;
  found.expandable = rival(job, found.budget, bench);
  if (found.expandable.step_ns >= found.step_ns) found.expandable = {};
}

/// What was found, with what there is to say of it.
void take(const UnitSearch& best, const Model& model, const HardwareProfile& profile, Workbench& bench,
          FoundSchedule& found) {
  found.job = job_of(best.frame(), best.best());
  found.recomputed = recomputed_modules(best.frame(), best.best());
  found.explicit_starts = best.best().starts;
  found.step_ns = best.judged().ns;
  found.compute_ns = best.judged().compute_ns;
  found.peak_reserved = best.judged().reserved;
  found.padding = padding_of(*best.frame().plan, model);
  found.units = scheduled_units(best.frame(), best.best(), model, profile, found.budget - found.peak_reserved);
  found.alloc_retries = best.judged().alloc_retries;
  found.first_retries = best.judged().first_retries;
  found.driver_allocs = best.judged().driver_allocs;
  look_for_room(bench, found);
  look_at_expandable_segments(bench, found);
  look_at_other_shards(*best.frame().plan, model, bench, found);
}

/// Whatever the units.
Bytes least_budget(UnitSearch& own, const Searches& others, const Model& model) {
  Bytes least = own.least_budget(own.peak_without_budget());
  for (const auto& other : others) {
    if (can_run(other->frame(), model)) least = other->least_budget(least);
  }
  return least;
}

SearchTask task_of(const Job& job, Bytes budget, const SearchManner& manner, SearchTask::Clock::time_point begun) {
  SearchTask task{budget, job.schedule.objective == "memory", manner.threads, {}};
  if (manner.seconds > 0) task.end = begun + std::chrono::duration<double>(manner.seconds);
  return task;
}

}  // namespace

bool wants_schedule_search(const Job& job) {
  return job.fsdp.runtime == Runtime::Planned && job.schedule.objective != "given";
}

Result<Bytes> schedule_budget(const Job& job, const HardwareProfile& profile, Bytes outside) {
  const Bytes card = job.cluster.memory > 0 ? job.cluster.memory : profile.memory_bytes;
  if (job.schedule.budget == 0) return card - outside;
  if (job.schedule.budget <= card - outside) return job.schedule.budget;
  return fail({.code = ErrorCode::OutOfRange,
               .message = "the budget is more than the card has",
               .file = {},
               .place = "schedule.budget",
               .expected = fmt::format("at most {} of {}: context and communicators take {}",
                                       bytes_in_words(card - outside), bytes_in_words(card), bytes_in_words(outside)),
               .got = bytes_in_words(job.schedule.budget),
               .hint = "leave the budget empty for all that the card has, or name another cluster.profile"});
}

Result<FoundSchedule> find_schedule(const Job& given, const Model& model, const HardwareProfile& profile,
                                    Workbench& bench, const SearchManner& manner) {
  const auto begun = std::chrono::steady_clock::now();
  Job job = given;
  auto frame = frame_of(job, bench);
  if (!frame) return fail(frame.error());
  const auto plain = bench.predict(job_under(job, Runtime::Fsdp2));
  if (!plain) return fail(plain.error());
  const auto outside = static_cast<Bytes>(plain->memory.outside_allocator.value);
  const auto budget = schedule_budget(job, profile, outside);
  if (!budget) return fail(budget.error());

  FoundSchedule found;
  found.budget = *budget;
  const auto held = [&](Runtime runtime) {
    Job one = job_under(job, runtime);
    one.cluster.memory = *budget + outside;
    return one;
  };
  found.fsdp2 = rival(held(Runtime::Fsdp2), *budget, bench);
  found.fsdp1 = rival(held(Runtime::Fsdp1), *budget, bench);
  const double limit = found.fsdp2.step_ns > 0 ? found.fsdp2.step_ns : kNoTime;
  UnitSearch own(*frame, bench, task_of(job, *budget, manner, begun));
  Progress told(manner.progress);
  told.watch(own);
  own.run(limit);
  const std::unique_ptr<UnitSearch> kept = search_without_copies(own, bench, limit, told);
  const UnitSearch& first = kept != nullptr && kept->beats(own) ? *kept : own;
  const Searches others = other_searches(first, model, bench, limit, told);
  const UnitSearch& widest = best_search(first, others, model, limit);
  const Searches less = searches_held_to_less(widest, bench, limit, told);
  const UnitSearch& best = best_of(widest, less);
  found.limit = best.task().budget;
  found.simulated =
      own.simulated() + (kept != nullptr ? kept->simulated() : 0) + simulated_in(others) + simulated_in(less);
  found.fits = best.found();
  found.out_of_time = best.is_late();
  if (!found.fits) {
    found.least_budget = least_budget(own, others, model);
    found.job = job;
  } else {
    take(best, model, profile, bench, found);
    found.job.schedule.budget = given.schedule.budget;
    // Without a budget a card holds a plan to what that plan's communicators leave: it is told where that is not what
    // was searched for.
    if (best.judged().outside != outside || found.limit < *budget) found.job.schedule.budget = found.limit;
    found.stays_on_device = given.checkpointing.offload_activations && !found.job.checkpointing.offload_activations;
    const auto bound = bound_of(best, given.checkpointing.offload_activations, profile, *budget, bench);
    if (!bound) return fail(bound.error());
    found.bound = *bound;
  }
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  found.text = schedule_sentence(found);
  found.advice = advice_of(found);
  Job fsdp1 = held(Runtime::Fsdp1);
  if (given.schedule.budget == 0) fsdp1.cluster.memory = given.cluster.memory;  // the card holds it to that
  found.proposal = propose(found, given, fsdp1);
  return found;
}

bool says_no_schedule_fits(const Error& error) { return error.message == kNothingFits; }

Result<SettledJob> settle_schedule(const Job& job, const Model& model, const HardwareProfile& profile, Workbench& bench,
                                   int threads) {
  if (!wants_schedule_search(job)) return SettledJob{job, {}};
  auto found = find_schedule(job, model, profile, bench, {.threads = threads, .seconds = 0, .progress = {}});
  if (!found) return fail(found.error());
  if (found->fits) return SettledJob{std::move(found->job), {std::move(found->text)}};
  return fail({.code = ErrorCode::OutOfRange,
               .message = kNothingFits,
               .file = {},
               .place = "schedule.budget",
               .expected = fmt::format("{} or more", least_in_words(found->least_budget)),
               .got = bytes_in_words(found->budget),
               .hint = "a smaller batch, more ranks or cpu_offload need less"});
}

Result<SettledJob> settle_job(const Job& job, const Model& model, const HardwareProfile& profile) {
  const auto wrap = settle_wrap(job, model, profile);
  if (!wrap) return fail(wrap.error());
  if (!wants_schedule_search(wrap->job))
    return SettledJob{wrap->job, wrap->text.empty() ? std::vector<std::string>{} : std::vector{wrap->text}};
  SharedParts shared;
  Workbench bench(shared);
  auto settled = settle_schedule(wrap->job, model, profile, bench, /*threads=*/0);
  if (settled && !wrap->text.empty()) settled->texts.insert(settled->texts.begin(), wrap->text);
  return settled;
}

}  // namespace foreshard
