#include "tests/sim/laws/compared_laws.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/instruction_spans.h"
#include "sim/device/device.h"
#include "sim/play/resident_state.h"

namespace foreshard::testing {
namespace {

Bytes sharded_bytes(const Plan& plan) {
  Bytes bytes = 0;
  for (const PlanUnit& unit : plan.units) bytes += unit.shard_numel * itemsize(unit.orig_dtype);
  return bytes;
}

/// At most so much are gradients' padded copies at a time: FSDP1 makes one where a unit's elements do not divide by the
/// ranks, whatever their number.
Bytes padded_bytes(const Plan& plan) {
  Bytes now = 0, most = 0;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.buffer.what != BufferWhat::GradPadded) continue;
    if (i.kind == InstructionKind::Alloc) most = std::max(most, now += instruction_bytes(i));
    if (i.kind == InstructionKind::Free) now = 0;
  }
  return most;
}

/// Gradients as backward makes them: that of a batch of one may be a view of a larger tensor.
Bytes gradient_bytes(const LoweredProgram& lowered) {
  Bytes bytes = 0;
  for (const SegmentInstance& instance : lowered.instances) {
    for (const Slot& slot : lowered.templates[static_cast<std::size_t>(instance.lowered)].slots) {
      if (slot.category == SlotCategory::ParamGrad) bytes += slot.bytes;
    }
  }
  return bytes;
}

std::set<std::string> param_names(const Plan& plan, const PlanUnit& unit) {
  std::set<std::string> names;
  for (const ParamId param : unit.params) names.insert(plan.param_names[param.index()]);
  return names;
}

/// Whether the other plan has the units of this one with all they hold, and perhaps more: a size policy cuts a larger
/// model elsewhere.
bool has_units_of(const Plan& other, const Plan& plan) {
  return std::all_of(plan.units.begin(), plan.units.end(), [&](const PlanUnit& unit) {
    const auto same = std::find_if(other.units.begin(), other.units.end(),
                                   [&](const PlanUnit& candidate) { return candidate.name == unit.name; });
    if (same == other.units.end()) return false;
    const std::set<std::string> mine = param_names(plan, unit), theirs = param_names(other, *same);
    return std::includes(theirs.begin(), theirs.end(), mine.begin(), mine.end());
  });
}

/// Whether both do the same things in the same order.
bool same_order(const Plan& one, const Plan& other) {
  const auto& a = one.iterations.back().instructions;
  const auto& b = other.iterations.back().instructions;
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Instruction& x, const Instruction& y) {
    return x.kind == y.kind && x.unit == y.unit && x.segment == y.segment;
  });
}

/// Collectives in their order: what they move and for whom.
std::vector<std::pair<InstructionKind, UnitId>> collectives_of(const Plan& plan) {
  std::vector<std::pair<InstructionKind, UnitId>> all;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (is_collective(i.kind)) all.push_back({i.kind, i.unit});
  }
  return all;
}

/// Parameters that have elements on this rank: a flat shard of other sizes may hold fewer, and clipping and optimizer
/// take kernels for each.
std::size_t local_count(const RandomCase& made) { return local_params(made.plan, made.model, made.job).size(); }

/// What a step may take more on one way than on another without doing more: times are rounded to whole nanoseconds, and
/// where blocks wait for streams every allocation asks after the frees that are under way, one event a stream until it
/// finds one that is not done (process_events). Which it finds follows from the time.
double uncertain_ns(const Trial& trial, const Paced& paced, const StepCosts& costs) {
  const auto& iterations = paced.prediction.iterations;
  const auto rounding = static_cast<double>(costs.launches);
  if (!trial.waits() || iterations.size() < 2) return rounding;
  std::set<int> streams;
  double noted = 0;
  for (const Instruction& i : trial.made().plan.iterations.back().instructions) {
    if (i.kind != InstructionKind::NoteUse) continue;
    streams.insert(static_cast<int>(i.other));
    ++noted;
  }
  const auto allocations =
      static_cast<double>(iterations.back().stats.allocations - iterations[iterations.size() - 2].stats.allocations);
  const AllocatorSettings settings = allocator_settings(trial.job().allocator, trial.profile(), 0);
  return rounding + (allocations * double(streams.size()) + noted) * double(settings.query_ns);
}

double step_ns(const Paced& paced) { return paced.prediction.step_time_ns.value; }
double reserved(const Paced& paced) { return double(paced.prediction.memory.reserved); }
double allocated(const Paced& paced) { return double(paced.prediction.memory.allocated); }
double waited_ns(const Paced& paced) { return double(paced.prediction.iterations.back().host_wait); }
double idle_ns(const Paced& paced) { return double(paced.prediction.iterations.back().idle); }
double exposed_ns(const Paced& paced) { return double(paced.prediction.iterations.back().exposed_comm); }

}  // namespace

Comparisons::Comparisons(const RandomJob& random, const Trial& base, const Paced& paced, Judge& judge)
    : random_(random), base_(base), paced_(paced), costs_(step_costs(base.made(), base.profile())), judge_(judge) {}

std::optional<Trial> Comparisons::trial_of(const RandomJob& random) {
  auto made = make_case(random, base_.profile());
  if (!made) return std::nullopt;
  return Trial(std::move(*made), base_.profile(), judge_.run());
}

std::optional<Comparisons::Other> Comparisons::other_of(const RandomJob& random) {
  auto trial = trial_of(random);
  if (!trial) return std::nullopt;
  auto paced = trial->pace();
  if (!paced || !trial->runs(paced->prediction)) return std::nullopt;
  StepCosts costs = step_costs(trial->made(), base_.profile());
  return Other{std::move(*trial), std::move(*paced), std::move(costs)};
}

void Comparisons::judge_all() {
  judge_.at_most("allocated >= what is asked for", double(paced_.asked.peak), allocated(paced_));
  judge_.at_most("allocated <= what is asked for and uncut rests", allocated(paced_), double(paced_.asked.most));
  steadiness();
  machines();
  larger_jobs();
  micro_batches();
  more_ranks();
}

void Comparisons::steadiness() {
  const Prediction& p = paced_.prediction;
  const int played = static_cast<int>(p.iterations.size());
  ++judge_.run().lengths[p.iterations.size()];
  const auto longer = base_.pace(base_.profile(), 0, played + 3);
  if (!longer) return;
  judge_.at_most("later steps ask for no more", double(longer->asked.peak), double(paced_.asked.peak));
  judge_.at_most("later steps reserve no more", reserved(*longer), reserved(paced_));
  judge_.at_most("later steps take no longer", step_ns(*longer), step_ns(paced_));
  judge_.at_most("later steps take no less", step_ns(paced_), step_ns(*longer));
}

// ------------------------------------------------------------------------------------------------ other machines

void Comparisons::machine(const std::string& law, const HardwareProfile& profile, Bytes memory) {
  const auto other = base_.pace(profile, memory);
  if (!other) return;
  judge_.check(law + " still fits", other->prediction.fits);
  if (!other->prediction.fits || !base_.runs(other->prediction)) return;
  judge_.at_most(law + " never takes longer", step_ns(*other), step_ns(paced_) + uncertain_ns(base_, paced_, costs_));
  judge_.check(law + " is asked for the same", other->asked == paced_.asked, 0,
               fmt::format("{} {}", other->asked.peak, paced_.asked.peak));
  if (base_.waits())
    judge_.mostly_at_most(law + " reserves no more, waiting for streams", reserved(*other), reserved(paced_));
  else
    judge_.at_most(law + " reserves no more", reserved(*other), reserved(paced_));
}

void Comparisons::machines() {
  HardwareProfile faster = base_.profile();
  for (auto* rates : {&faster.peak_tflops, &faster.gemm_tflops, &faster.vector_tflops})
    for (auto& [dtype, rate] : *rates) rate *= 2;
  for (const char* key : {kTf32Peak, kTf32Reached})
    if (faster.extra.contains(key)) faster.extra[key] *= 2;
  machine("a card of twice the rates", faster);
  faster = base_.profile();
  faster.hbm_gb_per_s *= 2;
  machine("a card of twice the bandwidth", faster);
  faster = base_.profile();
  faster.scale_up_gb_per_s *= 2;
  faster.scale_out_gb_per_s *= 2;
  faster.channel_gb_per_s *= 2;
  machine("links of twice the bandwidth", faster);
  const Bytes memory = base_.job().cluster.memory > 0 ? base_.job().cluster.memory : base_.profile().memory_bytes;
  machine("a card of twice the memory", base_.profile(), 2 * memory);
}

// ------------------------------------------------------------------------------------------------ other jobs

void Comparisons::larger(const std::string& law, const RandomJob& random) {
  const auto other = other_of(random);
  if (!other) return;
  const RandomCase &small = base_.made(), &large = other->trial.made();
  if (!has_units_of(large.plan, small.plan)) return;
  if (local_count(small) <= local_count(large)) {
    // Buckets close by bytes: in a larger model their reduction may begin earlier, and hide behind what is left of
    // backward.
    const bool hides = small.plan.runtime == Runtime::None && !same_order(small.plan, large.plan);
    const double slack = spent_more_ns(costs_, other->costs) + uncertain_ns(base_, paced_, costs_);
    judge_.at_most(law + " is never faster", step_ns(paced_),
                   step_ns(other->paced) + slack + (hides ? exposed_ns(paced_) : 0));
  }
  const Bytes views = std::max<Bytes>(0, gradient_bytes(small.lowered) - gradient_bytes(large.lowered));
  judge_.at_most(law + " asks for no less", double(paced_.asked.kept_peak),
                 double(other->paced.asked.kept_peak + padded_bytes(small.plan) + views));
  judge_.mostly_at_most(law + " reserves no less", reserved(paced_), reserved(other->paced));
}

/// `without` is the same job without something that only adds work.
void Comparisons::adds_work(const std::string& law, const RandomJob& without, const RandomJob& with) {
  const auto less = other_of(without), more = other_of(with);
  if (!less || !more) return;
  // Recomputation runs forward's hooks again: units inside a checkpointed block are gathered in forward's order, not
  // in backward's, and a reentrant region waits elsewhere; a schedule's start times are those of the job it was found
  // for, copies of offloaded shards among them. What was exposed, or stood idle, may then be hidden.
  const bool planned = more->trial.job().fsdp.runtime == Runtime::Planned;
  const bool elsewhere = planned || more->trial.job().checkpointing.reentrant ||
                         collectives_of(less->trial.made().plan) != collectives_of(more->trial.made().plan);
  judge_.at_most(law, step_ns(less->paced),
                 step_ns(more->paced) + uncertain_ns(less->trial, less->paced, less->costs) +
                     (elsewhere ? exposed_ns(less->paced) : 0) + (planned ? idle_ns(less->paced) : 0));
}

void Comparisons::larger_jobs() {
  const Job& job = base_.job();
  adds_work("clipping is never faster", random_.with({"train.clip_grad_norm=0"}),
            random_.with({"train.clip_grad_norm=1.0"}));
  if (!random_.file.empty()) return;  // its sizes are what they are
  adds_work("recomputation is never faster", random_.with({"checkpointing.policy=none"}),
            random_.with({"checkpointing.policy=block"}));
  ModelSizes sizes = random_.sizes;
  // Every k-th block is recomputed: as many more, so that what is recomputed goes on as it was.
  sizes.layers += job.checkpointing.policy == CheckpointPolicy::EveryK ? static_cast<int>(job.checkpointing.k) : 1;
  larger("a deeper model", random_.resized(sizes));
  sizes = random_.sizes;
  sizes.heads *= 2;
  larger("a wider model", random_.resized(sizes));
  if (sizes.family != "vit")
    larger("a longer sequence", random_.with({fmt::format("model.seq={}", 2 * job.model.seq)}));
  larger("a larger batch", random_.with({fmt::format("model.batch={}", job.model.batch + 1)}));
}

/// Three more cost three steps, what adds their gradients (a kernel each), and the host's waits for offloaded gradients
/// that it adds itself (FSDP2 copies those without waiting only into an empty place).
void Comparisons::micro_batches() {
  const auto one = other_of(random_.with({"train.micro_batches=1"})),
             four = other_of(random_.with({"train.micro_batches=4"}));
  if (!one || !four) return;
  const double adding = spent_more_ns(four->costs, one->costs, 4);
  const double waiting = std::max(0.0, waited_ns(four->paced) - 4 * waited_ns(one->paced));
  judge_.at_most("four micro-batches cost at most four steps and their sums", step_ns(four->paced),
                 4 * step_ns(one->paced) + adding + waiting + uncertain_ns(four->trial, four->paced, four->costs));
  judge_.at_most("four micro-batches cost no less than one", step_ns(one->paced),
                 step_ns(four->paced) + uncertain_ns(one->trial, one->paced, one->costs));
}

void Comparisons::more_ranks() {
  const Job& job = base_.job();
  if (job.fsdp.strategy == Strategy::NoShard) return;  // nothing is cut; padding to the ranks is all that changes
  const auto twice =
      trial_of(random_.with({fmt::format("cluster.world_size={}", 2 * job.cluster.world_size), "cluster.rank=0"}));
  if (!twice) return;
  judge_.at_most("more ranks never hold more of the shards", double(sharded_bytes(twice->made().plan)),
                 double(sharded_bytes(base_.made().plan)));
}

}  // namespace foreshard::testing
