#include "sim/schedule/schedule_bound.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "core/model/mesh_dimension.h"
#include "core/plan/process_groups.h"
#include "sim/device/interference.h"
#include "sim/network/collectives.h"
#include "sim/schedule/beside_collectives.h"
#include "sim/schedule/unit_collectives.h"
#include "sim/simulate.h"

namespace foreshard {
namespace {

constexpr double kUnlimited = 1e9;  // links that hold nothing up
constexpr Bytes kNoLimit = Bytes{1} << 50;
constexpr std::size_t kMostMoments = 4;  // of backward: the tightest
constexpr int kMultipliers = 64;         // any of them gives a bound; the best of so many is taken

/// Something that may be kept: time saved for bytes held from its forward to its backward.
struct Item {
  double compute_ns = 0, gather_ns = 0;  // saved a step
  double bytes = 0;
  int block = -1, unit = -1;  // whose
  double copies_ns = 0;       // more a step that go to the host and back
};

/// When there is room for so much of what is kept: of each item these bytes are alive.
struct Moment {
  double free_bytes = 0;
  std::vector<double> bytes;  // by item
};

/// A step's certain parts.
struct Parts {
  double compute = 0, last_phases = 0;  // ns on the compute stream; of it clipping and the optimizer
  double gathers = 0, reductions = 0;   // ns on the links, everything resharded
  double first_gather = 0, last_reduction = 0;
  double before_gather = 0;
  double copies = 0;      // ns on the stream to and from the host, where activations go there; all recomputed
  double unhindered = 0;  // a step with memory for nothing: what depends on what alone
  double free_step = 0;   // of a step with links and memory for nothing: what the host issues and the device computes
  std::vector<Item> items;
  std::vector<Moment> moments;
};

/// What runs alone: links without limits, nothing beside the kernels.
struct Alone {
  double compute = 0, last_phases = 0;
  double forward = 0;        // of compute
  double before_gather = 0;  // on the compute stream, before the first parameters are copied out
  double step = 0;
  std::shared_ptr<const LoweredProgram> lowered;
};

/// Whether some unit is gathered more than once: it runs again behind its last reduction. What is gathered and copied
/// then, and when that is best begun, hangs on the lists, so that it is for nothing.
bool gathers_again(const Plan& plan) {
  std::vector<bool> gathered(plan.units.size());
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.kind != InstructionKind::AllGather || !i.unit.valid()) continue;
    if (gathered[i.unit.index()]) return true;
    gathered[i.unit.index()] = true;
  }
  return false;
}

/// Whether some units are copied where others are gathered: their experts lie on one rank. Such copies lie between
/// kernels, and begun early they stand before what the host waits for.
bool copies_some(const Plan& plan) {
  bool copied = false, gathered = false;
  for (const PlanUnit& unit : plan.units) {
    if (!unit.params.empty()) (unit.shard_size < 2 ? copied : gathered) = true;
  }
  return copied && gathered;
}

/// Whether the program meets other ranks where units gather: there a gather that is issued early is in its way.
bool shares_gathers(const Plan& plan, const Model& model) {
  return std::any_of(model.mesh.begin(), model.mesh.end(), [&](const MeshDimension& dimension) {
    const CommunicatorId own = communicator_along(plan, dimension.name, dimension.ranks);
    const std::vector<Instruction>& all = plan.iterations.back().instructions;
    return own.valid() && std::any_of(all.begin(), all.end(), [&](const Instruction& i) {
             return i.kind == InstructionKind::AllGather && i.communicator == own;
           });
  });
}

class Bound {
 public:
  Bound(const UnitFrame& frame, const HardwareProfile& profile, Bytes budget, Workbench& bench,
        const std::optional<KeptMemory>& memory)
      : frame_(frame), profile_(profile), budget_(budget), bench_(bench), memory_(memory) {}

  Result<ScheduleBound> find() {
    if (profile_.kind != "gpu" || frame_.plan->iterations.empty()) return ScheduleBound{};
    if (auto done = measure(); !done) return fail(done.error());
    if (parts_.compute <= 0) return ScheduleBound{};
    ScheduleBound best;
    const bool separate = frame_.job.schedule.separate_reduce_communicator;
    for (int k = 0; k <= kMultipliers; ++k) {
      const double weight = static_cast<double>(k) / kMultipliers;
      // Two tangents of a convex loss: as if everything were gathered again, and where that leaves the links.
      double links = parts_.gathers + parts_.reductions;
      for (int tangent = 0; tangent < 2; ++tangent) {
        const BesideCollectives::Tangent loss = beside_.at(links);
        ScheduleBound most;
        for (const Moment& moment : parts_.moments) {
          const ScheduleBound one = at(weight, separate, loss, moment);
          if (one.ns > most.ns) most = one;
        }
        if (most.ns > best.ns) best = most;
        links = most.gathers_ns + most.reductions_ns;
      }
    }
    if (const ScheduleBound copies = beside_copies(); copies.ns > best.ns) best = copies;
    if (parts_.unhindered > best.ns) best.ns = parts_.unhindered, best.side = ScheduleBound::Side::Order;
    best.free_step_ns = parts_.free_step;
    return best;
  }

 private:
  Result<void> measure() {
    Candidate candidate = as_fsdp2(frame_);
    // Everything kept: gathering again copies out again.
    const bool several = frame_.plan->iterations.back().micro_batches > 1;
    for (UnitChoice& unit : candidate.units) unit.params = several ? KeepParams::Always : KeepParams::Keep;
    const auto recompute = [&](const std::vector<std::size_t>& except) {
      std::fill(candidate.activations.begin(), candidate.activations.end(), KeepActivations::Recompute);
      for (const std::size_t block : except) candidate.activations[block] = KeepActivations::Keep;
      return alone(job_of(frame_, candidate));
    };
    auto base = recompute({});
    if (!base) return fail(base.error());
    const auto memory = memory_ ? Result<KeptMemory>(*memory_) : KeptMemory::measure(frame_, bench_);
    if (!memory) return fail(memory.error());
    parts_.compute = base->compute;
    parts_.last_phases = base->last_phases;
    parts_.before_gather = base->before_gather;
    const auto batches = static_cast<double>(frame_.plan->iterations.back().micro_batches);
    std::map<int, std::vector<std::size_t>> alike;  // blocks by kind
    for (std::size_t b = 0; b < frame_.blocks.size(); ++b) alike[frame_.blocks[b].kind].push_back(b);
    for (const auto& [kind, blocks] : alike) {
      const auto kept = recompute(blocks);
      if (!kept) return fail(kept.error());
      const auto count = static_cast<double>(blocks.size());
      for (const std::size_t block : blocks) {
        const int own = static_cast<int>(block);
        parts_.items.push_back({(base->compute - kept->compute) / count, 0, memory->bytes_of_block(own), own});
      }
    }
    if (auto done = measure_copies(candidate, alike); !done) return done;
    std::fill(candidate.activations.begin(), candidate.activations.end(), KeepActivations::Keep);
    const auto free = alone(job_of(frame_, candidate));
    if (!free) return fail(free.error());
    beside_ = BesideCollectives(*free->lowered, profile_, batches, free->compute);
    parts_.free_step = free->step;
    add_collectives();
    add_moments(*memory);
    candidate.starts = true;  // every gather as early as can be
    for (UnitChoice& unit : candidate.units) unit.forward = unit.backward = 0;
    const Job job = job_of(frame_, candidate);
    const auto parts = bench_.prepare(job);
    if (!parts) return fail(parts.error());
    std::vector<Waived> ways{Waived::Sources};
    if (job.fsdp.cpu_offload) ways.push_back(Waived::Gathers);
    if (copies_some(*parts->plan) || shares_gathers(*parts->plan, *parts->model) || gathers_again(*parts->plan))
      ways = {Waived::Gathers};
    for (const Waived waived : ways) {
      const auto unhindered = unhindered_step(job, waived);
      if (!unhindered) return fail(unhindered.error());
      // A compiled block that keeps may write more in forward than one that recomputes, whose second forward may be
      // hidden: by so much a step of such blocks can be shorter.
      parts_.unhindered = std::max(parts_.unhindered, *unhindered - std::max(0.0, free->forward - base->forward));
    }
    return {};
  }

  /// What a block keeps travels where the job sends activations to the host; what it recomputes does not.
  Result<void> measure_copies(Candidate candidate, const std::map<int, std::vector<std::size_t>>& alike) {
    if (!frame_.job.checkpointing.offload_activations) return {};
    std::fill(candidate.activations.begin(), candidate.activations.end(), KeepActivations::Recompute);
    const auto base = copies_of(candidate);
    if (!base) return fail(base.error());
    parts_.copies = *base;
    for (const auto& [kind, blocks] : alike) {
      Candidate one = candidate;
      for (const std::size_t block : blocks) one.activations[block] = KeepActivations::Keep;
      const auto kept = copies_of(one);
      if (!kept) return fail(kept.error());
      for (Item& item : parts_.items) {
        if (std::find(blocks.begin(), blocks.end(), static_cast<std::size_t>(item.block)) != blocks.end())
          item.copies_ns = (*kept - *base) / static_cast<double>(blocks.size());
      }
    }
    return {};
  }

  Result<double> copies_of(const Candidate& candidate) {
    SimulateOptions options;
    options.timeline = true;
    const auto played = play(job_of(frame_, candidate), profile_, options, /*offloads=*/true);
    if (!played) return fail(played.error());
    const Timeline& timeline = played->prediction.timeline;
    const std::vector<IterationResult>& iterations = played->prediction.iterations;
    if (iterations.empty()) return 0.0;
    SimTime end = 0;
    for (const Span& span : timeline.spans) end = std::max(end, span.start + span.duration);
    double busy = 0;
    for (const Span& span : timeline.spans) {
      if (timeline.lanes[span.lane.index()].stream == "O" && span.start >= end - iterations.back().step_time)
        busy += static_cast<double>(span.duration);
    }
    return busy;
  }

  /// Nothing is gathered or computed twice, links and the host's part of what is computed are as they are, collectives
  /// slow nothing down, and memory and `waived` are for nothing. All that is left but the gathers has the one order
  /// that every schedule has, and gathers that nothing has to come before are there first where they are needed in
  /// turn: less work and earlier starts can only shorten it, so no schedule is below.
  Result<double> unhindered_step(const Job& job, Waived waived) {
    HardwareProfile profile = profile_;
    profile.extra[kTakenMultiprocessors] = 0;
    profile.extra["launch_queue"] = 0;  // without end
    profile.driver_alloc_ns = 0;
    SimulateOptions options;
    options.waived = waived;
    const auto played = play(job, profile, options);
    if (!played) return fail(played.error());
    const std::vector<IterationResult>& iterations = played->prediction.iterations;
    return iterations.empty() ? 0 : static_cast<double>(iterations.back().step_time);
  }

  struct Played {
    JobParts parts;
    Prediction prediction;
  };
  /// With all the memory that there is to want: nothing has to leave for the host.
  Result<Played> play(Job job, const HardwareProfile& profile, SimulateOptions options, bool offloads = false) {
    job.cluster.memory = options.memory = kNoLimit;
    job.checkpointing.offload_activations = offloads;
    job.schedule.budget = 0;
    auto parts = bench_.prepare(job);
    if (!parts) return fail(parts.error());
    auto prediction = simulate(*parts->plan, *parts->model, *parts->lowered, job, profile, options);
    if (!prediction) return fail(prediction.error());
    return Played{std::move(*parts), std::move(*prediction)};
  }

  Result<Alone> alone(const Job& job) {
    HardwareProfile profile = profile_;
    profile.extra[kTakenMultiprocessors] = 0;
    profile.scale_up_gb_per_s *= kUnlimited;
    profile.scale_out_gb_per_s *= kUnlimited;
    profile.channel_gb_per_s *= kUnlimited;
    SimulateOptions options;
    options.timeline = true;  // of single kernels: a segment as one span has the host's gaps in it
    const auto played = play(job, profile, options);
    if (!played) return fail(played.error());
    const Prediction& prediction = played->prediction;
    Alone result;
    result.lowered = played->parts.lowered;
    if (prediction.iterations.empty()) return result;
    const IterationResult& last = prediction.iterations.back();
    result.compute = static_cast<double>(last.compute);
    result.step = static_cast<double>(last.step_time);
    SimTime end = 0;
    const Timeline& timeline = prediction.timeline;
    for (const Span& span : timeline.spans) end = std::max(end, span.start + span.duration);
    bool gathered = false;
    for (const Span& span : timeline.spans) {  // by lane, then start
      if (timeline.lanes[span.lane.index()].stream != "D" || span.start < end - last.step_time) continue;
      const auto own = static_cast<Phase>(span.phase);
      if (own == Phase::Forward) result.forward += static_cast<double>(span.duration);
      gathered = gathered || own == Phase::PreForward || own == Phase::RootPreForward;
      if (!gathered) result.before_gather += static_cast<double>(span.duration);
    }
    for (const Span& span : timeline.spans) {
      const auto phase = static_cast<Phase>(span.phase);
      const bool late = phase == Phase::Clip || phase == Phase::Optimizer;
      if (late && timeline.lanes[span.lane.index()].stream == "D" && span.start >= end - last.step_time)
        result.last_phases += static_cast<double>(span.duration);
    }
    return result;
  }

  double time_of(CollectiveKind kind, int unit) const { return unit_collective_ns(frame_, profile_, kind, unit); }

  /// Of what units gather by, the communicator that is busy longest: those of others, of experts, may run beside it.
  CommunicatorId busiest() const {
    std::map<CommunicatorId, double> busy;
    for (const int u : frame_.forward) {
      if (const Instruction* const i = unit_collective(*frame_.plan, CollectiveKind::AllGather, u))
        busy[i->communicator] += time_of(CollectiveKind::AllGather, u) + time_of(CollectiveKind::ReduceScatter, u);
    }
    const auto most =
        std::max_element(busy.begin(), busy.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == busy.end() ? CommunicatorId() : most->first;
  }

  void add_collectives() {
    const auto batches = static_cast<double>(frame_.plan->iterations.back().micro_batches);
    const double reductions = frame_.job.train.no_sync ? 1 : batches;
    const CommunicatorId counted = busiest();
    for (const int u : frame_.forward) {
      const Instruction* const own = unit_collective(*frame_.plan, CollectiveKind::AllGather, u);
      if (own != nullptr && own->communicator != counted) continue;
      const double gather = time_of(CollectiveKind::AllGather, u);
      const bool trains = frame_.plan->units[static_cast<std::size_t>(u)].requires_grad;
      const bool again = frame_.backward_at[static_cast<std::size_t>(u)] >= 0;
      const double gathers = again ? 2 * batches : batches;
      parts_.gathers += gathers * gather;
      if (trains) parts_.reductions += reductions * time_of(CollectiveKind::ReduceScatter, u);
      if (gathers > 1) {
        parts_.items.push_back(
            {0, (gathers - 1) * gather, static_cast<double>(frame_.bytes[static_cast<std::size_t>(u)]), -1, u});
      }
    }
    if (frame_.forward.empty()) return;
    int first = -1, last = -1;  // units whose collectives nothing runs beside, in every order of ours
    for (const Instruction& i : frame_.plan->iterations.back().instructions) {
      if (i.kind == InstructionKind::AllGather && first < 0) first = i.unit.value;
      if (i.kind == InstructionKind::ReduceScatter) last = i.unit.value;
    }
    if (first >= 0)
      parts_.first_gather = std::max(0.0, time_of(CollectiveKind::AllGather, first) - parts_.before_gather);
    if (last < 0) return;
    parts_.last_reduction = time_of(CollectiveKind::ReduceScatter, last) + time_of(CollectiveKind::AllReduce, last);
  }

  /// The first, when backward begins, and of backward the tightest.
  void add_moments(const KeptMemory& memory) {
    std::vector<std::pair<double, Moment>> tight;  // by what is wanted beyond what is free
    for (const KeptMoment& one : memory.moments()) {
      Moment moment{static_cast<double>(budget_) - one.held, {}};
      for (const Item& item : parts_.items) {
        const bool alive = item.block >= 0 ? one.of_block[static_cast<std::size_t>(item.block)]
                                           : one.of_unit[static_cast<std::size_t>(item.unit)];
        moment.bytes.push_back(alive ? item.bytes : 0);
      }
      const double wanted = std::accumulate(moment.bytes.begin(), moment.bytes.end(), -moment.free_bytes);
      tight.emplace_back(wanted, std::move(moment));
    }
    if (tight.empty()) tight.push_back({0, {static_cast<double>(kNoLimit), std::vector<double>(parts_.items.size())}});
    std::stable_sort(tight.begin() + 1, tight.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (std::size_t k = 0; k < std::min(tight.size(), 1 + kMostMoments); ++k)
      parts_.moments.push_back(std::move(tight[k].second));
  }

  /// The linear program with the two sides weighed and memory of one moment: its optimum is below every schedule's
  /// step.
  ScheduleBound at(double weight, bool separate, BesideCollectives::Tangent loss, const Moment& moment) const {
    double compute = parts_.compute, gathers = parts_.gathers;
    const auto saved = [&](const Item& item) {
      return weight * (item.compute_ns + loss.slope * item.gather_ns) + (1 - weight) * item.gather_ns;
    };
    std::vector<std::size_t> order(parts_.items.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return saved(parts_.items[a]) * std::max(moment.bytes[b], 1.0) >
             saved(parts_.items[b]) * std::max(moment.bytes[a], 1.0);
    });
    double free = std::max(0.0, moment.free_bytes);
    for (const std::size_t k : order) {
      const Item& item = parts_.items[k];
      if (saved(item) <= 0) break;
      const double share = moment.bytes[k] <= free ? 1 : free / moment.bytes[k];
      free -= share * std::max(0.0, moment.bytes[k]);
      compute -= share * item.compute_ns;
      gathers -= share * item.gather_ns;
    }
    ScheduleBound bound;
    bound.compute_ns = compute;
    bound.gathers_ns = gathers;
    bound.reductions_ns = parts_.reductions;
    bound.ends_ns = parts_.first_gather + parts_.last_reduction;
    const double links = separate ? std::max(gathers, parts_.reductions) : gathers + parts_.reductions;
    const double beside = std::max(0.0, links - bound.ends_ns);
    const double by_compute = compute + std::max(0.0, loss.base + loss.slope * beside) + bound.ends_ns;
    const double by_links = links + parts_.last_phases;
    bound.side = by_compute >= by_links ? ScheduleBound::Side::Compute : ScheduleBound::Side::Links;
    bound.ns = weight * by_compute + (1 - weight) * by_links;
    return bound;
  }

  /// Where activations go to the host, compute against the stream of their copies: a block that recomputes takes the
  /// one's time, one that keeps its activations the other's, whatever the memory.
  ScheduleBound beside_copies() const {
    ScheduleBound most;
    for (int k = 0; k <= kMultipliers && parts_.copies > 0; ++k) {
      const double weight = static_cast<double>(k) / kMultipliers;
      ScheduleBound bound;
      bound.ends_ns = parts_.first_gather + parts_.last_reduction;
      bound.compute_ns = parts_.compute;
      double copies = parts_.copies;
      for (const Item& item : parts_.items) {
        if (weight * item.compute_ns <= (1 - weight) * item.copies_ns) continue;
        bound.compute_ns -= item.compute_ns;
        copies += item.copies_ns;
      }
      bound.ns = weight * (bound.compute_ns + bound.ends_ns) + (1 - weight) * copies;
      bound.gathers_ns = parts_.gathers;
      bound.reductions_ns = parts_.reductions;
      bound.side = ScheduleBound::Side::Copies;
      if (bound.ns > most.ns) most = bound;
    }
    return most;
  }

  const UnitFrame& frame_;
  const HardwareProfile& profile_;
  Bytes budget_;
  Workbench& bench_;
  const std::optional<KeptMemory>& memory_;
  Parts parts_;
  BesideCollectives beside_;
};

}  // namespace

Result<ScheduleBound> schedule_bound(const UnitFrame& frame, const HardwareProfile& profile, Bytes budget,
                                     Workbench& bench, const std::optional<KeptMemory>& memory) {
  return Bound(frame, profile, budget, bench, memory).find();
}

}  // namespace foreshard
