#include "tests/cli/sample_simulation.h"

namespace foreshard::cli {

SampleSimulation sample_simulation() {
  SampleSimulation s;
  s.job.model.source = "llama-3-8b/config.json";
  s.job.model.batch = 2;
  s.job.cluster.world_size = 64;
  s.model.name = "llama-3-8b";
  s.model.tokens_per_batch = 2 * 8192;
  s.model.ops.resize(1);
  s.profile.id = "h100-sxm-80";
  s.profile.memory_bytes = 80 * kGiB;

  PlanUnit root, block;
  root.padded_numel = 1'050'000'000, root.param_dtype = DType::BFloat16;
  block.name = "model.layers.0", block.padded_numel = 218'000'000, block.param_dtype = DType::BFloat16;
  s.plan.units = {root, block};
  Instruction gather;
  gather.kind = InstructionKind::AllGather;
  PlanIteration iteration;
  iteration.instructions = {gather, gather, gather};
  s.plan.iterations = {iteration};
  s.plan.steady = true;
  s.plan.checks = {{"V1", CheckStatus::Pass, "plan", "every unit is gathered"},
                   {"V7", CheckStatus::NotApplicable, "sim", "later"}};
  s.plan.traps = {{13,
                   "huge root unit",
                   "W10, R10",
                   {""},
                   "The root holds 13 % of the parameters.",
                   "give embedding and head a unit",
                   false}};

  Prediction& p = s.prediction;
  p.step_time_ns = {1.234e9, 1.05e9, 1.42e9};
  p.tokens_per_s = {849'700, 738'400, 998'600};
  p.mfu = {0.412, 0.36, 0.48};
  p.hfu = {0.549, 0.48, 0.64};
  IterationResult step;
  step.index = 1, step.step_time = 1'234'000'000, step.compute = 1'100'000'000, step.exposed_comm = 34'000'000,
  step.idle = 100'000'000;
  step.peak_allocated = 59 * kGiB, step.peak_reserved = 61 * kGiB;
  step.phases = {{"forward", 40 * kGiB, 39 * kGiB, 61 * kGiB}};
  p.iterations = {step};
  p.memory.allocated = 59 * kGiB, p.memory.active = 60 * kGiB, p.memory.reserved = 61 * kGiB;
  p.memory.outside_allocator = {1.5e9, 1.0e9, 2.0e9};
  p.memory.instruction = InstructionId(412), p.memory.unit = "model.layers.31", p.memory.phase = "backward";
  p.memory.categories = {{"parameters", 2 * kGiB}, {"activations", 50 * kGiB}, {"full_parameters", 7 * kGiB}};
  p.comm = {{"all_gather", 65, 15 * kGiB, 103'000'000, 12'000'000},
            {"reduce_scatter", 33, 15 * kGiB, 90'000'000, 22'000'000}};
  p.exposed = {{"first_gather", "all_gather", 12'000'000}, {"tail", "reduce_scatter", 22'000'000}};
  p.level = CalibrationLevel::Published;
  p.unknown_ops = {"aten.mystery.default"};
  p.timeline.lanes = {{0, "D", 0}};
  Span span;
  span.lane = LaneId(0), span.kind = SpanKind::Compute, span.duration = 1'234'000'000;
  Span warm_up = span;
  warm_up.start = -2'000'000'000, warm_up.duration = 1'900'000'000;
  p.timeline.spans = {warm_up, span};
  p.timeline.names = {"iteration 0", "iteration 1"};
  p.timeline.marks = {{-2'000'000'000, 0, NameId(0)}, {0, 0, NameId(1)}};
  return s;
}

SampleSimulation sample_out_of_memory() {
  SampleSimulation s = sample_simulation();
  s.prediction.fits = false;
  s.prediction.oom = OutOfMemory{0, InstructionId(412), "model.layers.31", "backward", 3 * kGiB, 2 * kGiB};
  s.prediction.step_time_ns = s.prediction.tokens_per_s = s.prediction.mfu = s.prediction.hfu = {};
  return s;
}

}  // namespace foreshard::cli
