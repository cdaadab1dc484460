#include "sim/search/explain_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace foreshard {
namespace {

constexpr double kNoticeable = 0.02;     // of a step
constexpr double kMuchMemory = 0.05;     // of the peak
constexpr double kManyFragments = 0.10;  // reserved but not active, of the peak reserved
constexpr double kMuchOfModel = 0.30;    // elements that the root manages itself

bool runs_unit(InstructionKind kind) {
  return kind == InstructionKind::Forward || kind == InstructionKind::Backward || kind == InstructionKind::Recompute;
}

/// True if a module of `outer` holds all of `inner`.
bool is_around(const Plan& plan, UnitId outer, UnitId inner) {
  const std::string& name = plan.units[outer.index()].name;
  return name.empty() || plan.units[inner.index()].name.starts_with(name + ".");
}

std::string gib(Bytes bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
}
std::string share(double value) { return fmt::format("{:.1f} %", value * 100); }
std::string shown(const std::string& unit) { return unit.empty() ? std::string("the root unit") : unit; }

class Needs {
 public:
  explicit Needs(const NeedRequest& request)
      : r_(request), plan_(request.prepared.plan), job_(request.job), p_(request.prediction) {}

  std::vector<Finding> list() {
    traps();
    retries();
    host_blocks();
    recorded_streams();
    late_host();
    mistargets();
    root_unit();
    frozen_elements();
    accumulation();
    redundant_gathers();
    replication();
    fragments();
    std::stable_sort(found_.begin(), found_.end(), [](const Finding& a, const Finding& b) { return a.need < b.need; });
    return std::move(found_);
  }

 private:
  void add(int need, std::string text, std::vector<std::string> set = {}, int trap = 0) {
    found_.push_back({need, trap, std::move(text), std::move(set)});
  }

  const IterationResult* steady() const { return p_.iterations.empty() ? nullptr : &p_.iterations.back(); }
  double of_step(SimDuration time) const {
    return steady() != nullptr && steady()->step_time > 0
               ? static_cast<double>(time) / static_cast<double>(steady()->step_time)
               : 0;
  }

  std::optional<Prediction> alternative(const Job& job) const {
    auto prediction = r_.bench.predict(job);
    if (!prediction || !prediction->deadlock.empty()) return std::nullopt;
    return std::move(*prediction);
  }

  void traps() {
    // Which need a trap of section 24 belongs to.
    const auto need_of = [](std::int32_t trap) {
      switch (trap) {
        case 1: return 15;
        case 4: return 8;
        case 5:
        case 10: return 9;
        case 11: return 6;
        case 12:
        case 13: return 7;
        default: return 1;
      }
    };
    for (const Trap& trap : plan_.traps) {
      std::vector<std::string> set;
      if (trap.number == 12 || trap.number == 13) set = {"fsdp.wrap.policy=auto"};
      if (trap.number == 5) set = {"train.no_sync=true"};
      if (trap.number == 10) set = {"fsdp.mixed_precision.reduce=float32"};
      if (trap.number == 11) set = {"fsdp.backward_prefetch=BACKWARD_PRE"};
      add(need_of(trap.number), fmt::format("{}: {} ({})", trap.name, trap.text, trap.remedy), std::move(set),
          trap.number);
    }
  }

  bool walks_into(int trap) const {
    return std::any_of(plan_.traps.begin(), plan_.traps.end(), [&](const Trap& t) { return t.number == trap; });
  }

  /// Need 2.
  void retries() {
    if (p_.iterations.size() < 2) return;
    const std::int64_t last = steady()->alloc_retries - p_.iterations[p_.iterations.size() - 2].alloc_retries;
    if (last <= 0) return;
    std::vector<std::string> set;
    if (job_.fsdp.runtime == Runtime::Fsdp1 && !job_.fsdp.limit_all_gathers) set = {"fsdp.limit_all_gathers=true"};
    add(2,
        fmt::format(
            "the allocator frees its cache and retries {} times in every step, each time waiting for the device", last),
        std::move(set));
  }

  /// Need 3.
  void host_blocks() {
    if (steady() == nullptr || of_step(steady()->host_wait) < kNoticeable) return;
    if (job_.fsdp.runtime != Runtime::Fsdp1 || !job_.fsdp.limit_all_gathers) return;
    Job without = job_;
    without.fsdp.limit_all_gathers = false;
    const auto other = alternative(without);
    if (!other || !other->fits) return;
    const double step = static_cast<double>(steady()->step_time);
    add(3,
        fmt::format("the limiter holds the host back for {} of a step; without it a step takes {} {} and {} reserved "
                    "instead of {}",
                    share(of_step(steady()->host_wait)), share(std::abs(1 - other->step_time_ns.value / step)),
                    other->step_time_ns.value <= step ? "less" : "more", gib(other->memory.reserved),
                    gib(p_.memory.reserved)),
        {"fsdp.limit_all_gathers=false"});
  }

  /// Need 4.
  void recorded_streams() {
    const Bytes held = p_.memory.active - p_.memory.allocated;
    if (p_.memory.active <= 0 || static_cast<double>(held) < kMuchMemory * static_cast<double>(p_.memory.active))
      return;
    add(4,
        fmt::format(
            "{} of the peak are freed blocks that wait for another stream (record_stream): active {}, allocated "
            "{}",
            gib(held), gib(p_.memory.active), gib(p_.memory.allocated)),
        job_.fsdp.runtime == Runtime::Fsdp1 ? std::vector<std::string>{"fsdp.runtime=fsdp2"}
                                            : std::vector<std::string>{});
  }

  /// Need 5.
  void late_host() {
    SimDuration late = 0;
    for (const ExposedCause& cause : p_.exposed) late += cause.cause == "host" ? cause.time : 0;
    if (of_step(late) < kNoticeable) return;
    std::string text = fmt::format("{} of a step is communication that the host issued too late", share(of_step(late)));
    std::vector<std::string> set;
    if (job_.fsdp.runtime == Runtime::Fsdp2 && job_.fsdp.prefetch == PrefetchOptions{}) {
      text += ": implicit prefetch only works while the host runs ahead";
      set = {"fsdp.prefetch.forward_depth=2", "fsdp.prefetch.backward_depth=2"};
    }
    add(5, std::move(text), std::move(set));
  }

  /// Need 6.
  void mistargets() {
    if (plan_.iterations.empty()) return;
    const std::vector<Mistarget> wrong = find_mistargets(plan_, plan_.iterations.back());
    if (wrong.empty() || walks_into(11)) return;
    const Mistarget& first = wrong.front();
    const std::string unit = shown(plan_.units[first.unit.index()].name);
    const std::string what = first.wasted ? fmt::format("{} is gathered and not used", unit)
                                          : fmt::format("{} is gathered although {} is needed first", unit,
                                                        shown(plan_.units[first.needed_first.index()].name));
    add(6, fmt::format("{} gathers of a step serve the wrong unit; the first at instruction {}: {}", wrong.size(),
                       first.instruction.value, what));
  }

  /// Need 7; traps 12 and 13 say the rest.
  void root_unit() {
    if (plan_.units.size() < 2 || walks_into(12) || walks_into(13)) return;
    Numel all = 0;
    for (const PlanUnit& unit : plan_.units) all += unit.numel;
    const PlanUnit& root = plan_.units.front();
    if (!root.name.empty() || static_cast<double>(root.numel) < kMuchOfModel * static_cast<double>(all)) return;
    add(7,
        fmt::format("the root unit manages {} of all parameters ({} M elements): they stay gathered for the whole "
                    "forward and backward",
                    share(static_cast<double>(root.numel) / static_cast<double>(all)), root.numel / 1'000'000),
        {"fsdp.wrap.policy=auto"});
  }

  /// Need 8.
  void frozen_elements() {
    if (job_.fsdp.frozen.empty()) return;
    Bytes wasted = 0;
    std::int64_t mixed = 0;
    const Model& model = r_.prepared.model;
    for (const PlanUnit& unit : plan_.units) {
      Numel frozen = 0, trained = 0;
      for (const ParamId param : unit.params) {
        const bool is_frozen = std::any_of(job_.fsdp.frozen.begin(), job_.fsdp.frozen.end(), [&](const std::string& p) {
          const std::string& name = model.params[param.index()].fqn;
          return matches_pattern(p, name) || matches_pattern(p + ".*", name);
        });
        (is_frozen ? frozen : trained) += numel_of(model.params[param.index()].shape);
      }
      if (frozen == 0 || trained == 0) continue;
      ++mixed;
      wasted += frozen * itemsize(unit.param_dtype);
    }
    if (mixed == 0) return;
    add(8, fmt::format("{} units mix frozen and trained parameters: with flat parameters {} of gradients are made for "
                       "frozen elements; wrap by trainability",
                       mixed, gib(wasted)));
  }

  /// Need 9: the two budgets.
  void accumulation() {
    if (job_.train.micro_batches < 2 || job_.fsdp.runtime == Runtime::None) return;
    Job other_job = job_;
    other_job.train.no_sync = !job_.train.no_sync;
    const auto other = alternative(other_job);
    if (!other) {
      if (job_.train.no_sync && job_.fsdp.cpu_offload)
        add(9, "no_sync is needed here: with CPU offload and without it only the last micro-batch's gradient counts");
      return;
    }
    const Prediction& with = job_.train.no_sync ? p_ : *other;
    const Prediction& without = job_.train.no_sync ? *other : p_;
    const auto text = [](const Prediction& p) {
      return p.fits ? fmt::format("{:.1f} ms and {} reserved", p.step_time_ns.value * 1e-6, gib(p.memory.reserved))
                    : std::string("does not fit");
    };
    const bool faster = other->fits && other->step_time_ns.value < p_.step_time_ns.value;
    add(9,
        fmt::format("gradient accumulation over {} micro-batches: with no_sync {}, without {}",
                    job_.train.micro_batches, text(with), text(without)),
        faster ? std::vector<std::string>{fmt::format("train.no_sync={}", !job_.train.no_sync)}
               : std::vector<std::string>{});
  }

  /// Need 10: forward and backward each gather once.
  void redundant_gathers() {
    if (plan_.iterations.empty() || plan_.runtime == Runtime::None) return;
    const PlanIteration& last = plan_.iterations.back();
    const std::vector<std::int64_t> gathers = gathers_by_unit(plan_, last);
    const std::int64_t expected = 2 * std::max(last.micro_batches, 1);
    std::int64_t units = 0, more = 0;
    std::string name;
    for (std::size_t u = 0; u < gathers.size(); ++u) {
      if (gathers[u] <= expected) continue;
      if (units++ == 0) name = shown(plan_.units[u].name);
      more += gathers[u] - expected;
    }
    if (units == 0) return;
    add(10,
        fmt::format("{} gathers more than two a unit and micro-batch ({} units, first {}): activation checkpointing "
                    "around several units, or around a unit with the reentrant implementation, gathers again",
                    more, units, name),
        {"checkpointing.placement=inside", "checkpointing.reentrant=false"});
  }

  /// Need 13.
  void replication() {
    if (job_.fsdp.runtime == Runtime::None || job_.cluster.world_size < 2 || !p_.fits) return;
    Bytes bytes = 0;
    for (const ParamInfo& param : r_.prepared.model.params)
      bytes += param.shares.valid() ? 0 : numel_of(param.shape) * itemsize(param.dtype);
    const Bytes memory = job_.cluster.memory > 0 ? job_.cluster.memory : r_.prepared.profile.memory_bytes;
    if (4 * bytes > memory / 2) return;  // parameters, gradients, two moments: too large to replicate
    Job plain = job_;
    plain.fsdp.runtime = Runtime::None;
    plain.fsdp.wrap.root = true;  // DDP around all of it
    const auto other = alternative(plain);
    if (!other || !other->fits || other->step_time_ns.value >= p_.step_time_ns.value) return;
    add(13,
        fmt::format("the model is small enough for plain replication: a step takes {:.1f} ms instead of {:.1f}, {} "
                    "reserved instead of {}",
                    other->step_time_ns.value * 1e-6, p_.step_time_ns.value * 1e-6, gib(other->memory.reserved),
                    gib(p_.memory.reserved)),
        {"fsdp.runtime=none"});
  }

  /// Need 14.
  void fragments() {
    const Bytes spare = p_.memory.reserved - p_.memory.active;
    if (p_.memory.reserved <= 0 || job_.allocator.expandable_segments) return;
    if (static_cast<double>(spare) < kManyFragments * static_cast<double>(p_.memory.reserved)) return;
    Job expandable = job_;
    expandable.allocator.expandable_segments = true;
    const auto other = alternative(expandable);
    if (!other || !other->fits || (p_.fits && other->memory.reserved >= p_.memory.reserved)) return;
    add(14,
        fmt::format("{} of {} reserved are never active at once (fragments, pools of other streams); expandable "
                    "segments reserve {}",
                    gib(spare), gib(p_.memory.reserved), gib(other->memory.reserved)),
        {"allocator.expandable_segments=true"});
  }

  const NeedRequest& r_;
  const Plan& plan_;
  const Job& job_;
  const Prediction& p_;
  std::vector<Finding> found_;
};

}  // namespace

std::vector<std::int64_t> gathers_by_unit(const Plan& plan, const PlanIteration& iteration) {
  std::vector<std::int64_t> counts(plan.units.size(), 0);
  for (const Instruction& i : iteration.instructions) {
    if (i.kind == InstructionKind::AllGather && i.unit.valid() && i.unit.index() < counts.size())
      ++counts[i.unit.index()];
  }
  return counts;
}

std::vector<Mistarget> find_mistargets(const Plan& plan, const PlanIteration& iteration) {
  struct Gather {
    std::size_t at = 0, used = 0;  // used: position of the first work of the unit after it; 0 = none
    UnitId unit;
  };
  const auto& all = iteration.instructions;
  std::vector<Gather> gathers;
  std::vector<std::size_t> open;  // by unit: its gather that waits for a use, counted from 1
  for (std::size_t k = 0; k < all.size(); ++k) {
    const Instruction& i = all[k];
    if (!i.unit.valid()) continue;
    if (i.unit.index() >= open.size()) open.resize(i.unit.index() + 1, 0);
    std::size_t& waiting = open[i.unit.index()];
    if (i.kind == InstructionKind::AllGather) {
      if (waiting != 0 && gathers[waiting - 1].at + 1 == k) continue;  // one gather a dtype
      gathers.push_back({k, 0, i.unit});
      waiting = gathers.size();
    } else if (waiting != 0 && runs_unit(i.kind)) {
      gathers[waiting - 1].used = k;
      waiting = 0;
    }
  }
  std::vector<Mistarget> wrong;
  for (std::size_t g = 0; g < gathers.size(); ++g) {
    const Gather& gather = gathers[g];
    Mistarget mistarget{InstructionId(gather.at), gather.unit, gather.used == 0, UnitId()};
    if (gather.used == 0) {
      wrong.push_back(mistarget);
      continue;
    }
    for (std::size_t h = g + 1; h < gathers.size() && gathers[h].at < gather.used; ++h) {
      if (gathers[h].used == 0 || gathers[h].used >= gather.used) continue;
      if (is_around(plan, gather.unit, gathers[h].unit)) continue;
      mistarget.needed_first = gathers[h].unit;
      wrong.push_back(mistarget);
      break;
    }
  }
  return wrong;
}

std::vector<Finding> find_needs(const NeedRequest& request) { return Needs(request).list(); }

}  // namespace foreshard
