#include "tests/sim/laws/own_laws.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/job/job_file.h"
#include "sim/play/memory_interval.h"

namespace foreshard::testing {
namespace {

/// Everything that a prediction says, as text: equal texts are equal predictions.
std::string digest(const Prediction& p) {
  std::string text = fmt::format("{} {} {} {} {} {} {}|", p.fits, p.deadlock, p.step_time_ns.value, p.step_time_ns.high,
                                 p.mfu.value, p.hfu.value, p.events);
  for (const IterationResult& i : p.iterations) {
    text += fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {}|", i.step_time, i.exposed_comm, i.host_wait,
                        i.compute, i.idle, i.peak_allocated, i.peak_active, i.peak_reserved, i.peak_requested,
                        i.end_allocated, i.end_active, i.end_reserved, i.alloc_retries, i.ooms);
  }
  for (const CategoryBytes& c : p.memory.categories) text += fmt::format("{} {}|", c.category, c.bytes);
  for (const CommResult& c : p.comm)
    text += fmt::format("{} {} {} {} {}|", c.kind, c.count, c.bytes, c.busy, c.exposed);
  return text + fmt::format("{} {} {}", p.memory.allocated, p.memory.active, p.memory.reserved);
}

void judge_memory(const Trial& trial, const Prediction& p, Judge& judge) {
  const std::string which = p.fits ? "" : " where it does not fit";
  judge.at_most("active >= allocated" + which, double(p.memory.allocated), double(p.memory.active));
  judge.at_most("reserved >= active" + which, double(p.memory.active), double(p.memory.reserved));
  for (const IterationResult& i : p.iterations) {
    // A block that waits for a stream is no longer allocated; PyTorch counts it as requested until it is free.
    judge.at_most(trial.waits() ? "in an iteration active >= requested" : "in an iteration allocated >= requested",
                  double(i.peak_requested), double(trial.waits() ? i.peak_active : i.peak_allocated));
    judge.at_most("in an iteration active >= allocated", double(i.peak_allocated), double(i.peak_active));
    judge.at_most("in an iteration reserved >= active", double(i.peak_active), double(i.peak_reserved));
  }
  Bytes sum = 0;
  for (const CategoryBytes& c : p.memory.categories) sum += c.bytes;
  judge.check("categories add up to allocated", sum == p.memory.allocated, double(sum - p.memory.allocated));
}

void judge_time(const Prediction& p, Judge& judge) {
  for (const IterationResult& i : p.iterations) {
    judge.at_most("compute <= step", double(i.compute), double(i.step_time));
    judge.at_most("exposed communication <= step", double(i.exposed_comm), double(i.step_time));
  }
  // Shares, which at_most() would take for whole nanoseconds; and without the product's own bound on each kernel.
  judge.check("HFU <= 100 %", p.hfu.value <= 1, p.hfu.value - 1, fmt::format("{}", p.hfu.value));
  judge.check("MFU <= HFU", p.mfu.value <= p.hfu.value, p.mfu.value - p.hfu.value,
              fmt::format("{} > {}", p.mfu.value, p.hfu.value));
  double at_peak = 0;  // nanoseconds: 10^12 operations a second are 10^3 in one
  for (const WorkShare& share : p.work) at_peak += (share.flops + share.recomputed_flops) / (share.peak_tflops * 1e3);
  judge.at_most("operations at the peaks of their dtypes <= step", at_peak, p.step_time_ns.value);
}

void judge_intervals(const Trial& trial, const Prediction& p, Judge& judge) {
  const MemoryIntervals memory = memory_intervals(p, trial.profile().kind);
  for (const Estimate& e : {p.step_time_ns, p.tokens_per_s, p.mfu, p.hfu, p.memory.outside_allocator, memory.allocated,
                            memory.active, memory.reserved, memory.device}) {
    judge.check("intervals hold their value", e.low <= e.value && e.value <= e.high, 0,
                fmt::format("{} {} {}", e.low, e.value, e.high));
  }
}

/// A step that is not the first goes back through all that the first went through: none of these jobs sets gradients
/// aside.
void judge_backward(const Plan& plan, Judge& judge) {
  const auto segments = [](const PlanIteration& iteration) {
    return std::count_if(iteration.instructions.begin(), iteration.instructions.end(),
                         [](const Instruction& i) { return i.kind == InstructionKind::Backward; });
  };
  if (plan.failure) return;
  for (const PlanIteration& iteration : plan.iterations)
    judge.check("every step goes back through the whole model",
                segments(iteration) == segments(plan.iterations.front()));
}

/// The whole job as a file, and key by key over a job of defaults.
void judge_text(const Job& job, Judge& judge) {
  const auto file = parse_job(job_to_toml(job), "", std::vector<std::string>{});
  judge.check("a job and its file are the same", file && file->job == job);
  if (!file) return;
  std::vector<std::string> sets;
  for (std::size_t k = 0; k < job_keys().size(); ++k) {
    const std::string& name = job_keys()[k].name;
    if (name == "model.seq" && !job.model.seq_given) continue;
    sets.push_back(name + "=" + write_job_key(k, job));
  }
  const auto keys = parse_job("", "", sets);
  judge.check("a job by --set is the same", keys && keys->job == job, 0, keys ? "" : to_text(keys.error()));
}

}  // namespace

void judge_alone(const Trial& trial, const Prediction& prediction, Judge& judge) {
  const auto again = trial.predict();
  judge.check("the same job gives the same bytes", again && digest(*again) == digest(prediction));
  const auto watched = trial.watch();
  judge.check("who watches every kernel sees the same", watched && digest(*watched) == digest(prediction));
  judge_backward(trial.made().plan, judge);
  judge_memory(trial, prediction, judge);
  judge_time(prediction, judge);
  judge_intervals(trial, prediction, judge);
  judge_text(trial.job(), judge);
}

}  // namespace foreshard::testing
