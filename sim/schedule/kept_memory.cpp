#include "sim/schedule/kept_memory.h"

#include <algorithm>
#include <map>

#include "core/memory_log.h"
#include "sim/schedule/held_memory.h"
#include "sim/simulate.h"

namespace foreshard {
namespace {

constexpr Bytes kAllOfIt = Bytes{1} << 50;

struct Measured {
  Bytes after_forward = 0;
  Bytes at_loss = 0;  // at most while forwards end and backwards begin
  std::vector<BackwardMoment> in_backward;
};

/// The id under which the last iteration's first instruction was played.
std::int32_t begin_of_last(const Plan& plan, std::size_t played) {
  std::size_t begin = 0;
  for (std::size_t k = 0; k + 1 < played; ++k)
    begin += plan.iterations[std::min(k, plan.iterations.size() - 1)].instructions.size();
  return static_cast<std::int32_t>(begin);
}

Result<Measured> held_by(const UnitFrame& frame, const Candidate& candidate, Workbench& bench) {
  Job job = job_of(frame, candidate);
  job.cluster.memory = kAllOfIt;
  job.schedule.budget = 0;
  const auto parts = bench.prepare(job);
  if (!parts) return fail(parts.error());
  MemoryLog log;
  SimulateOptions options;
  options.memory = kAllOfIt;
  options.memory_log = &log;
  options.per_kernel = false;
  options.prepared = parts->prepared.get();
  const auto played = simulate(*parts->plan, *parts->model, *parts->lowered, job, *parts->profile, options);
  if (!played) return fail(played.error());
  Measured held;
  if (played->iterations.empty()) return held;
  for (const PhaseMemory& phase : played->iterations.back().phases) {
    if (phase.name == "forward") held.after_forward = phase.end_allocated;
  }
  const std::int32_t begin = begin_of_last(*parts->plan, played->iterations.size());
  held.at_loss = held_at_loss(log, *parts->plan, *parts->model, frame, begin);
  held.in_backward = held_in_backward(log, *parts->plan, *parts->model, frame, begin);
  return held;
}

}  // namespace

Result<KeptMemory> KeptMemory::measure(const UnitFrame& frame, Workbench& bench) {
  KeptMemory memory;
  memory.of_block_.resize(frame.blocks.size());
  for (const Bytes bytes : frame.bytes) memory.of_unit_.push_back(static_cast<double>(bytes));
  if (frame.plan->iterations.empty() || frame.job.checkpointing.offload_activations) return memory;
  Candidate candidate = as_fsdp2(frame);
  const bool several = frame.plan->iterations.back().micro_batches > 1;
  for (UnitChoice& unit : candidate.units) unit.params = several ? KeepParams::Always : KeepParams::Keep;
  std::fill(candidate.activations.begin(), candidate.activations.end(), KeepActivations::Recompute);
  const auto base = held_by(frame, candidate, bench);
  if (!base) return fail(base.error());
  Candidate everything = candidate;
  std::fill(everything.activations.begin(), everything.activations.end(), KeepActivations::Keep);
  const auto all = held_by(frame, everything, bench);
  if (!all) return fail(all.error());
  std::map<int, std::vector<std::size_t>> alike;  // blocks by kind
  for (std::size_t b = 0; b < frame.blocks.size(); ++b) alike[frame.blocks[b].kind].push_back(b);
  for (const auto& [kind, blocks] : alike) {
    Candidate one = candidate;
    for (const std::size_t block : blocks) one.activations[block] = KeepActivations::Keep;
    const auto kept = blocks.size() == frame.blocks.size() ? all : held_by(frame, one, bench);
    if (!kept) return fail(kept.error());
    for (const std::size_t block : blocks)
      memory.of_block_[block] =
          static_cast<double>(kept->after_forward - base->after_forward) / static_cast<double>(blocks.size());
  }
  // When backward begins all that is kept is alive.
  KeptMoment& loss = memory.moments_.emplace_back();
  loss.held = static_cast<double>(std::max(base->after_forward, base->at_loss));
  for (const Bytes bytes : frame.bytes) loss.held -= static_cast<double>(bytes);
  loss.of_block.assign(frame.blocks.size(), true);
  loss.of_unit.assign(frame.bytes.size(), true);
  // While it runs through a block, what is kept of later ones is, beside the gradients that are there and the
  // parameters that run: the same whether all activations are kept or none, and the lesser of the two is held by all
  // between them.
  for (const BackwardMoment& one : base->in_backward) {
    const auto other = std::find_if(all->in_backward.begin(), all->in_backward.end(),
                                    [&](const BackwardMoment& k) { return k.block == one.block; });
    if (other == all->in_backward.end()) continue;
    double others = 0;
    for (std::size_t b = 0; b < one.later_blocks.size(); ++b) others += one.later_blocks[b] ? memory.of_block_[b] : 0;
    memory.moments_.push_back({std::min(static_cast<double>(one.held), static_cast<double>(other->held) - others),
                               one.later_blocks, one.later_units});
  }
  return memory;
}

bool KeptMemory::exceeds(Bytes budget, const UnitFrame& frame, const Candidate& candidate) const {
  return std::any_of(moments_.begin(), moments_.end(), [&](const KeptMoment& moment) {
    double wanted = moment.held;
    for (std::size_t b = 0; b < of_block_.size(); ++b)
      if (moment.of_block[b] && !recomputes(frame, candidate, static_cast<int>(b))) wanted += of_block_[b];
    for (std::size_t u = 0; u < of_unit_.size(); ++u)
      if (moment.of_unit[u] && keeps_params(frame, candidate, static_cast<int>(u))) wanted += of_unit_[u];
    return wanted > static_cast<double>(budget);
  });
}

}  // namespace foreshard
