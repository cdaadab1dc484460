#include "cli/pipeline.h"

#include <fmt/core.h>

#include <cstdint>
#include <utility>

#include "core/model/load_model.h"
#include "core/plan/build_plan.h"
#include "core/plan/plan_json.h"
#include "core/plan/units.h"

namespace foreshard::cli {
namespace {

/// Segments inside one checkpointed module are recomputed together (K): they share the number of that module.
std::vector<SegmentRange> ranges_of(const Model& model, const Plan& plan,
                                    const std::vector<CheckpointKind>& checkpointed) {
  std::vector<SegmentRange> ranges;
  for (const Segment& segment : plan.segments) {
    SegmentRange range{segment.op_begin, segment.op_end, segment.checkpointed, -1};
    if (segment.checkpointed) {
      ModuleId module = segment.module;
      while (module.valid() && checkpointed[module.index()] == CheckpointKind::None)
        module = model.modules[module.index()].parent;
      range.region = module.value;
      range.reentrant = module.valid() && checkpointed[module.index()] == CheckpointKind::Reentrant;
    }
    ranges.push_back(range);
  }
  return ranges;
}

}  // namespace

Result<Model> load_job_model(const Job& job, const HardwareProfile& profile) {
  return load_model(job.model, program_options(job, profile.kind == "cpu" ? ProgramDevice::Cpu : ProgramDevice::Cuda));
}

Result<LoweredProgram> lower_plan(const Model& model, const Plan& plan, const Job& job,
                                  const HardwareProfile& profile) {
  if (model.ops.empty()) return LoweredProgram{};
  const auto table = build_units(model, job);
  if (!table) return fail(table.error());
  const auto checkpointed = checkpointed_modules(model, job, *table);
  if (!checkpointed) return fail(checkpointed.error());
  LoweringOptions options;
  if (profile.sm_count > 0) options.multiprocessors = profile.sm_count;
  return lower(model, ranges_of(model, plan, *checkpointed), table->trainable, options);
}

Result<Prepared> prepare(const Job& job) {
  auto profile = load_profile(job.cluster.profile);
  if (!profile) return fail(profile.error());
  auto model = load_job_model(job, *profile);
  if (!model) return fail(model.error());
  auto plan = build_plan(*model, job);
  if (!plan) return fail(plan.error());
  auto lowered = lower_plan(*model, *plan, job, *profile);
  if (!lowered) return fail(lowered.error());
  return Prepared{std::move(*profile), std::move(*model), std::move(*plan), std::move(*lowered)};
}

std::string plan_digest(const Plan& plan) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : plan_to_json(plan)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return fmt::format("{:016x}", hash);
}

Bytes card_memory(const Job& job, const HardwareProfile& profile) {
  return job.cluster.memory > 0 ? job.cluster.memory : profile.memory_bytes;
}

SimulateOptions simulate_options(const Job& job) {
  SimulateOptions options;
  options.memory = job.cluster.memory;
  return options;
}

}  // namespace foreshard::cli
