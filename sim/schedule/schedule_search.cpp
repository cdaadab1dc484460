#include "sim/schedule/schedule_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "core/plan/build_plan.h"
#include "core/plan/units/units.h"
#include "sim/schedule/schedule_words.h"
#include "sim/schedule/wrappings.h"
#include "sim/search/auto_wrap.h"
#include "sim/search/prepare_job.h"

namespace foreshard {
namespace {

// So many simulations, as the plan's length allows in some seconds.
constexpr std::size_t kMostSimulations = 320, kLeastSimulations = 60;
constexpr std::size_t kInstructionsInAll = 3'000'000;
constexpr int kDeepest = 3;                // units ahead
constexpr std::size_t kMostWrappings = 2;  // searched beside the job's own
constexpr double kNoTime = std::numeric_limits<double>::infinity();

struct Judged {
  bool fits = false;
  double ns = kNoTime, compute_ns = 0;
  Bytes reserved = 0, allocated = 0;
};

/// In which order units are kept: the last ones of forward first, from both ends, evenly, the largest first.
enum class Order : std::uint8_t { Last, First, Spread, Largest };
constexpr Order kOrders[] = {Order::Last, Order::Spread, Order::First, Order::Largest};

std::vector<int> ordered(const UnitFrame& frame, std::vector<int> units, Order order) {
  switch (order) {
    case Order::First: break;
    case Order::Last: std::reverse(units.begin(), units.end()); break;
    case Order::Largest:
      std::stable_sort(units.begin(), units.end(), [&](int a, int b) {
        return frame.bytes[static_cast<std::size_t>(a)] > frame.bytes[static_cast<std::size_t>(b)];
      });
      break;
    case Order::Spread: {  // as the bits of a counter mirrored: every prefix lies evenly
      std::vector<int> even;
      std::size_t width = 1;
      while (width < units.size()) width *= 2;
      for (std::size_t k = 0; k < width; ++k) {
        std::size_t mirrored = 0;
        for (std::size_t bit = 1, to = width / 2; bit < width; bit *= 2, to /= 2) mirrored |= (k & bit) != 0 ? to : 0;
        if (mirrored < units.size()) even.push_back(units[units.size() - 1 - mirrored]);
      }
      return even;
    }
  }
  return units;
}

class Search {
 public:
  Search(UnitFrame frame, Workbench& bench, Bytes budget, bool for_memory)
      : frame_(std::move(frame)), bench_(bench), budget_(budget), for_memory_(for_memory) {
    const std::size_t each = std::max<std::size_t>(1, frame_.plan->iterations.back().instructions.size());
    most_ = std::clamp(kInstructionsInAll / each, kLeastSimulations, kMostSimulations);
    for (const int u : frame_.forward) {
      if (frame_.backward_at[static_cast<std::size_t>(u)] < 0) continue;
      const PlanUnit& unit = frame_.plan->units[static_cast<std::size_t>(u)];
      if (unit.shard_size > 1) keepable_.push_back(u);
      if (frame_.block[static_cast<std::size_t>(u)]) blocks_.push_back(u);
    }
    level_ = frame_.plan->iterations.back().micro_batches > 1 ? KeepParams::Always : KeepParams::Keep;
  }

  /// The best that was found; `limit_ns` is what a search for memory must not exceed.
  void run(double limit_ns) {
    limit_ns_ = limit_ns;
    begin();
    sets();
    pacing();
    sets_at_best();
    moves();
  }

  /// A few candidates that say whether this way of wrapping is worth a search.
  void try_bases(double limit_ns) {
    limit_ns_ = limit_ns;
    begin();
    consider(ahead(start_, 1, 2));
  }
  Bytes budget() const { return budget_; }
  bool for_memory() const { return for_memory_; }
  bool promises(const Search& other) const {
    return for_memory_ ? better(best_judged_, other.best_judged_) : best_judged_.ns < other.first_ns_;
  }
  bool beats(const Search& other) const { return better(best_judged_, other.best_judged_); }

  bool found() const { return best_judged_.fits; }
  const Candidate& best() const { return best_; }
  const Judged& judged() const { return best_judged_; }
  const UnitFrame& frame() const { return frame_; }
  std::size_t simulated() const { return known_.size(); }

  /// What can be done with the least memory, whatever the time; `known` where it is not a MiB less.
  Bytes least_budget(Bytes known) {
    const std::vector<Candidate> lean = leanest();
    const auto any_within = [&](Bytes budget) {
      return std::any_of(lean.begin(), lean.end(), [&](const Candidate& one) { return peak_within(one, budget) > 0; });
    };
    if (known <= kMiB || !any_within(known - kMiB)) return known;
    Bytes low = 0, high = known - kMiB;
    while (high - low > kMiB) {  // an allocator that is held back gives cached blocks up
      const Bytes middle = low + (high - low) / 2;
      (any_within(middle) ? high : low) = middle;
    }
    return high;
  }
  Bytes peak_without_budget() { return peak_within(leanest().front(), {}); }

 private:
  /// Reserved bytes of a step under this limit, or on a card without one; 0: it does not fit.
  Bytes peak_within(const Candidate& candidate, std::optional<Bytes> budget) {
    Job job = job_of(frame_, candidate);
    job.schedule.budget = budget.value_or(0);
    if (!budget) job.cluster.memory = Bytes{1} << 50;
    const auto prediction = bench_.predict(job);
    const bool fits = prediction && prediction->fits && prediction->deadlock.empty();
    return fits ? prediction->memory.reserved : 0;
  }

  bool spent() const { return known_.size() >= most_; }

  /// fsdp2's own schedule; where it does not fit, what takes the least.
  void begin() {
    start_ = as_fsdp2(frame_);
    if (known_.empty()) best_ = start_;  // else try_bases() has found one already
    const Judged first = consider(start_);
    first_ns_ = first.ns;
    if (first.fits) return;
    for (const Candidate& one : leanest()) consider(one);
  }

  /// Of these one takes the least memory: a gather too many can be cheaper than a block that lies in the way.
  std::vector<Candidate> leanest() const {
    std::vector<Candidate> lean;
    for (const bool gives_root_back : {true, false}) {
      for (const bool recompute : {true, false}) {
        for (const bool late : {true, false}) {
          Candidate one = late ? ahead(start_, 0, 0) : start_;
          for (const int u : keepable_) {
            if (gives_root_back || u != keepable_.front()) of(one, u).params = KeepParams::Reshard;
          }
          for (const int u : blocks_) {
            if (recompute) of(one, u).activations = KeepActivations::Recompute;
          }
          lean.push_back(std::move(one));
        }
      }
    }
    return lean;
  }

  Judged judge(const Candidate& candidate) {
    const auto [at, fresh] = known_.emplace(candidate.key(), Judged{});
    if (!fresh) return at->second;
    Job job = job_of(frame_, candidate);
    job.schedule.budget = budget_;
    const auto prediction = bench_.predict(job);
    Judged& result = at->second;
    if (!prediction || prediction->iterations.empty()) return result;
    result.fits = prediction->fits && prediction->deadlock.empty();
    result.reserved = prediction->memory.reserved;
    result.allocated = prediction->memory.allocated;
    result.compute_ns = static_cast<double>(prediction->iterations.back().compute);
    if (result.fits) result.ns = prediction->step_time_ns.value;
    return result;
  }

  bool better(const Judged& a, const Judged& b) const {
    if (a.fits != b.fits) return a.fits;
    if (!a.fits) return false;
    if (!for_memory_) return std::pair(a.ns, a.reserved) < std::pair(b.ns, b.reserved);
    const bool a_in = a.ns <= limit_ns_, b_in = b.ns <= limit_ns_;
    if (a_in != b_in) return a_in;
    return a_in ? std::pair(a.reserved, a.ns) < std::pair(b.reserved, b.ns)
                : std::pair(a.ns, a.reserved) < std::pair(b.ns, b.reserved);
  }

  Judged consider(const Candidate& candidate) {
    if (spent()) return {};
    const Judged judged = judge(candidate);
    if (better(judged, best_judged_)) {
      best_judged_ = judged;
      best_ = candidate;
    }
    return judged;
  }

  UnitChoice& of(Candidate& candidate, int unit) const { return candidate.units[static_cast<std::size_t>(unit)]; }

  Candidate with_kept(Candidate candidate, const std::vector<int>& order, std::size_t count) const {
    for (std::size_t k = 0; k < order.size(); ++k)
      of(candidate, order[k]).params = k < count ? level_ : KeepParams::Reshard;
    return candidate;
  }
  Candidate with_activations(Candidate candidate, const std::vector<int>& order, std::size_t kept) const {
    for (std::size_t k = 0; k < order.size(); ++k)
      of(candidate, order[k]).activations = k < kept ? KeepActivations::Keep : KeepActivations::Recompute;
    return candidate;
  }

  /// The largest count for which `make` fits; -1: none does. Fewer first where memory is what is looked for.
  template <class Make>
  int most_that_fits(int all, const Make& make) {
    if (consider(make(all)).fits) return all;
    if (!consider(make(0)).fits) return -1;
    int low = 0, high = all;
    while (high - low > 1 && !spent()) {
      const int middle = low + (high - low) / 2;
      (consider(make(middle)).fits ? low : high) = middle;
    }
    return low;
  }

  /// Which parameters are kept, for each of a few amounts of kept activations.
  void sets() {
    const int blocks = static_cast<int>(blocks_.size());
    const std::vector<int> by_end = ordered(frame_, blocks_, Order::Last);
    int most = -1;
    if (blocks > 0) {
      most = most_that_fits(blocks, [&](int kept) {
        return with_activations(with_kept(start_, keepable_, 0), by_end, static_cast<std::size_t>(kept));
      });
    }
    std::vector<int> amounts;
    for (int share = 4; share >= 0 && most >= 0; --share) amounts.push_back(most * share / 4);
    amounts.erase(std::unique(amounts.begin(), amounts.end()), amounts.end());
    if (amounts.empty()) amounts.push_back(-1);  // as the job has it
    for (const Order order : kOrders) {
      // Holds longest what is needed last; of many units most are equal.
      if ((order == Order::First || order == Order::Largest) && keepable_.size() > 12) continue;
      const std::vector<int> kept = ordered(frame_, keepable_, order);
      for (const int amount : amounts) {
        Candidate base = amount < 0 ? start_ : with_activations(start_, by_end, static_cast<std::size_t>(amount));
        most_that_fits(static_cast<int>(kept.size()),
                       [&](int count) { return with_kept(base, kept, static_cast<std::size_t>(count)); });
        if (spent()) return;
      }
    }
  }

  Candidate ahead(Candidate candidate, int forward, int backward) const {
    candidate.starts = true;
    for (std::size_t u = 0; u < candidate.units.size(); ++u) {
      candidate.units[u].forward = std::max(0, frame_.forward_at[u] - forward);
      candidate.units[u].backward = std::max(0, frame_.backward_at[u] - backward);
    }
    return candidate;
  }

  /// How far gathers run ahead.
  void pacing() {
    int forward = 0, backward = 1;
    for (int round = 0; round < 2; ++round) {
      const Candidate before = best_;
      for (int depth = 0; depth <= kDeepest; ++depth) consider(ahead(before, depth, backward));
      forward = depth_at(best_, forward, true);
      for (int depth = 1; depth <= kDeepest; ++depth) consider(ahead(best_, forward, depth));
      backward = depth_at(best_, backward, false);
      if (best_ == before || spent()) return;
    }
  }
  int depth_at(const Candidate& candidate, int otherwise, bool in_forward) const {
    if (!candidate.starts) return otherwise;
    int depth = 0;
    for (std::size_t u = 0; u < candidate.units.size(); ++u) {
      const int at = in_forward ? frame_.forward_at[u] : frame_.backward_at[u];
      const int start = in_forward ? candidate.units[u].forward : candidate.units[u].backward;
      if (at >= 0) depth = std::max(depth, at - start);
    }
    return depth;
  }

  /// Around the best, in ever smaller steps: more or fewer blocks recompute, and what that leaves is filled with
  /// parameters. Where kept parameters have hidden the links, bytes are better spent on activations.
  void sets_at_best() {
    if (blocks_.empty() || keepable_.empty()) return;
    const std::vector<int> by_end = ordered(frame_, blocks_, Order::Last);
    const std::vector<int> order = ordered(frame_, keepable_, Order::Spread);
    const auto all = static_cast<int>(blocks_.size());
    for (int step = std::max(2, all / 8); step > 0 && !spent(); step /= 2) {
      for (bool improved = true; improved && !spent();) {
        const Judged before = best_judged_;
        const auto kept_now = static_cast<int>(
            std::count_if(blocks_.begin(), blocks_.end(), [&](int u) { return !recomputes(frame_, best_, u); }));
        for (const int amount : {kept_now - step, kept_now + step}) {
          if (amount < 0 || amount > all || spent()) continue;
          const Candidate base = with_activations(best_, by_end, static_cast<std::size_t>(amount));
          most_that_fits(static_cast<int>(order.size()),
                         [&](int count) { return with_kept(base, order, static_cast<std::size_t>(count)); });
        }
        improved = better(best_judged_, before);
      }
    }
  }

  /// One decision of one unit at a time, as long as something gets better.
  void moves() {
    for (bool improved = true; improved && !spent();) {
      const Judged before = best_judged_;
      for (const int u : keepable_) {
        flip_params(u);
        if (frame_.block[static_cast<std::size_t>(u)]) flip_activations(u);
        shift_starts(u);
        if (spent()) break;
      }
      swaps();
      improved = better(best_judged_, before);
    }
  }
  void flip_params(int unit) {
    for (const KeepParams params : {KeepParams::Reshard, KeepParams::Keep, KeepParams::Always}) {
      if (params == KeepParams::Always && level_ != KeepParams::Always) continue;
      Candidate next = best_;
      of(next, unit).params = params;
      consider(next);
    }
  }
  void flip_activations(int unit) {
    Candidate next = best_;
    of(next, unit).activations = recomputes(frame_, best_, unit) ? KeepActivations::Keep : KeepActivations::Recompute;
    consider(next);
  }
  void shift_starts(int unit) {
    for (const int by : {-1, 1}) {
      for (const bool in_forward : {true, false}) {
        Candidate next = best_;
        next.starts = true;
        int& start = in_forward ? of(next, unit).forward : of(next, unit).backward;
        const int own = (in_forward ? frame_.forward_at : frame_.backward_at)[static_cast<std::size_t>(unit)];
        start = std::clamp(start + by, 0, std::max(0, own));
        consider(next);
      }
    }
  }
  /// One kept for another that is not, neighbours first.
  void swaps() {
    const std::vector<int> units = keepable_;
    for (std::size_t a = 0; a < units.size(); ++a) {
      for (std::size_t b = 0; b < units.size() && !spent(); ++b) {
        if (!keeps_params(frame_, best_, units[a]) || keeps_params(frame_, best_, units[b])) continue;
        Candidate next = best_;
        std::swap(of(next, units[a]).params, of(next, units[b]).params);
        if (of(next, units[a]).params == KeepParams::AsJob) of(next, units[a]).params = KeepParams::Reshard;
        if (of(next, units[b]).params == KeepParams::AsJob) of(next, units[b]).params = level_;
        consider(next);
      }
    }
  }

  UnitFrame frame_;
  Workbench& bench_;
  Bytes budget_;
  bool for_memory_;
  double limit_ns_ = kNoTime, first_ns_ = kNoTime;
  std::size_t most_ = kMostSimulations;
  std::vector<int> keepable_, blocks_;  // in forward order
  KeepParams level_ = KeepParams::Keep;
  Candidate start_, best_;
  Judged best_judged_;
  std::map<std::string, Judged> known_;
};

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
  return frame_of_units(job, *prepared->model, prepared->plan, checkpointed);
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

using Searches = std::vector<std::unique_ptr<Search>>;

/// Other ways of wrapping, tried; those that begin best come first.
Searches other_searches(const Search& own, const Model& model, Workbench& bench, double limit) {
  Searches others;
  for (const Job& job : other_wrappings(own.frame(), model)) {
    auto wrapped = frame_of(job, bench);
    if (!wrapped) continue;  // units that cannot be planned
    others.push_back(std::make_unique<Search>(std::move(*wrapped), bench, own.budget(), own.for_memory()));
    others.back()->try_bases(limit);
  }
  std::stable_sort(others.begin(), others.end(), [](const auto& a, const auto& b) { return a->beats(*b); });
  return others;
}

/// The few that promise to beat `own` are searched, and the best of all is told.
const Search& best_search(const Search& own, const Searches& others, const Model& model, double limit) {
  const Search* best = &own;
  std::size_t left = kMostWrappings;
  for (const auto& other : others) {
    if (left == 0) break;
    if (!other->promises(own) || !can_run(other->frame(), model)) continue;
    --left;
    other->run(limit);
    if (other->beats(*best)) best = other.get();
  }
  return *best;
}

/// Whatever the units.
Bytes least_budget(Search& own, const Searches& others, const Model& model) {
  Bytes least = own.least_budget(own.peak_without_budget());
  for (const auto& other : others) {
    if (can_run(other->frame(), model)) least = other->least_budget(least);
  }
  return least;
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
                                    Workbench& bench) {
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
  const bool for_memory = job.schedule.objective == "memory";
  const double limit = found.fsdp2.step_ns > 0 ? found.fsdp2.step_ns : kNoTime;
  Search own(*frame, bench, *budget, for_memory);
  own.run(limit);
  const Searches others = other_searches(own, model, bench, limit);
  const Search& best = best_search(own, others, model, limit);
  found.simulated = own.simulated();
  for (const auto& other : others) found.simulated += other->simulated();
  found.fits = best.found();
  if (!found.fits) {
    found.least_budget = least_budget(own, others, model);
    found.job = job;
  } else {
    found.job = job_of(best.frame(), best.best());
    found.job.schedule.budget = given.schedule.budget;
    found.explicit_starts = best.best().starts;
    found.step_ns = best.judged().ns;
    found.compute_ns = best.judged().compute_ns;
    found.peak_reserved = best.judged().reserved;
    found.padding = padding_of(*best.frame().plan, model);
    found.units = scheduled_units(best.frame(), best.best(), model, profile, *budget - found.peak_reserved);
    const auto bound = schedule_bound(best.frame(), profile, *budget, bench);
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

Result<SettledJob> settle_schedule(const Job& job, const Model& model, const HardwareProfile& profile,
                                   Workbench& bench) {
  if (!wants_schedule_search(job)) return SettledJob{job, {}};
  auto found = find_schedule(job, model, profile, bench);
  if (!found) return fail(found.error());
  if (found->fits) return SettledJob{std::move(found->job), {std::move(found->text)}};
  return fail({.code = ErrorCode::OutOfRange,
               .message = "no schedule fits the budget",
               .file = {},
               .place = "schedule.budget",
               .expected = fmt::format("{} or more", bytes_in_words(found->least_budget)),
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
  auto settled = settle_schedule(wrap->job, model, profile, bench);
  if (settled && !wrap->text.empty()) settled->texts.insert(settled->texts.begin(), wrap->text);
  return settled;
}

}  // namespace foreshard
