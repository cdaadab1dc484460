#include "sim/search/prepare_job.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/adapters/adapted_model.h"
#include "core/compiled/pointwise_fusion.h"
#include "core/mesh/rank_model.h"
#include "core/plan/build_plan.h"
#include "core/plan/saved_ops.h"
#include "core/plan/units/differentiated.h"
#include "core/plan/units/full_precision.h"
#include "sim/schedule/schedule_search.h"

namespace foreshard {

ProgramOptions job_program(const Job& job, const HardwareProfile& profile) {
  ProgramOptions program = program_options(job, profile.kind == "cpu" ? ProgramDevice::Cpu : ProgramDevice::Cuda);
  program.sequence_parts = job.mesh.context;
  program.cudnn = profile.kind != "virtual";  // the virtual device has none (shadow/device)
  return program;
}

namespace {

Error float8_error(std::string message, std::string expected, std::string got, std::string hint) {
  return {ErrorCode::Unsupported, std::move(message), {}, "model.float8", std::move(expected),
          std::move(got),         std::move(hint)};
}

Result<void> check_float8_card(const Job& job, const HardwareProfile& profile) {
  if (job.model.float8 == "none" || profile.kind == "virtual") return {};
  if (profile.peak_tflops.count(DType::Float8E4M3) > 0) return {};
  return fail(float8_error("the card has no products in float8 (torch._scaled_mm wants compute capability 8.9 or 9.0)",
                           "a profile whose [peak_tflops] has float8_e4m3fn", profile.id,
                           "set model.float8 = \"none\", or take another card"));
}

/// Whether any layer does; a program that was captured runs what was captured.
Result<void> check_float8_layers(const Job& job, const Model& model) {
  if (job.model.float8 == "none") return {};
  const bool any = std::any_of(model.ops.begin(), model.ops.end(),
                               [](const Op& op) { return op.name.rfind("torchao.matmul_float8", 0) == 0; });
  if (any) return {};
  return fail(float8_error("no linear layer of this model is turned to float8",
                           "a model from a config.json whose linear layers have sizes that are multiples of 16",
                           job.model.source, "a captured program is converted in its script, before it is captured"));
}

}  // namespace

Result<void> check_card(const Job& job, const HardwareProfile& profile) {
  if (auto can = check_float8_card(job, profile); !can) return can;
  return is_cut(job.mesh) ? check_mesh(job) : Result<void>();
}

Result<Model> load_job_model(const Job& job, const HardwareProfile& profile) {
  if (auto can = check_card(job, profile); !can) return fail(can.error());
  auto whole = load_model(rank_model_options(job), job_program(job, profile));
  if (whole) {
    if (auto can = check_float8_layers(job, *whole); !can) return fail(can.error());
  }
  if (whole && has_adapters(job.adapters))
    whole = adapted_model(std::move(*whole), job, job_program(job, profile).device);
  if (!whole) return whole;
  *whole = with_full_precision_norms(std::move(*whole), job);
  if (!is_cut(job.mesh) && whole->mesh.empty()) return whole;
  return rank_model(std::move(*whole), job,
                    [&](const ModelOptions& part) { return load_model(part, job_program(job, profile)); });
}

namespace {

/// R16: each pre-forward of a flat unit makes views of its own, so that the gradients of two calls meet in the flat
/// parameter. By segment, in which of its unit's calls it runs; empty where no unit is called twice.
std::vector<std::int32_t> calls_of_units(const Model& model, const Plan& plan) {
  const auto is_again = [&](const Segment& segment) {
    return segment.op_begin < segment.op_end && model.ops[static_cast<std::size_t>(segment.op_begin)].call > 0;
  };
  if (plan.runtime != Runtime::Fsdp1 || plan.iterations.empty() ||
      std::none_of(plan.segments.begin(), plan.segments.end(), is_again))
    return {};
  const NameId enter(
      static_cast<std::size_t>(std::find(plan.names.begin(), plan.names.end(), "enter") - plan.names.begin()));
  std::vector<std::int32_t> calls(plan.units.size(), -1), of_segment(plan.segments.size(), 0);
  for (const Instruction& i : plan.iterations.front().instructions) {
    if (!i.unit.valid()) continue;
    std::int32_t& call = calls[i.unit.index()];
    if (i.kind == InstructionKind::Mark && i.phase == Phase::PreForward && i.name == enter) ++call;
    if (i.kind == InstructionKind::Forward && i.segment.valid()) of_segment[i.segment.index()] = std::max(call, 0);
    if (i.kind == InstructionKind::Backward) break;  // the first micro-batch shows it
  }
  return of_segment;
}

}  // namespace

std::vector<SegmentRange> segment_ranges(const Model& model, const Plan& plan,
                                         const std::vector<CheckpointKind>& checkpointed) {
  const std::vector<std::int32_t> calls = calls_of_units(model, plan);
  std::vector<SegmentRange> ranges;
  ranges.reserve(plan.segments.size());
  for (const Segment& segment : plan.segments) {
    SegmentRange range{segment.op_begin, segment.op_end, segment.checkpointed, -1};
    if (segment.checkpointed) {
      ModuleId module = segment.module;
      while (module.valid() && checkpointed[module.index()] == CheckpointKind::None)
        module = model.modules[module.index()].parent;
      range.region = module.value;
      range.module = module;
      range.reentrant = module.valid() && checkpointed[module.index()] == CheckpointKind::Reentrant;
      const Op& first = model.ops[static_cast<std::size_t>(segment.op_begin)];
      if (!module.valid() && first.region >= 0) {  // the model's own
        range.region = static_cast<std::int32_t>(model.modules.size()) + first.region;
        range.reentrant = model.regions[static_cast<std::size_t>(first.region)].kind == Region::Kind::Reentrant;
      }
    }
    if (!calls.empty()) range.use = calls[ranges.size()];
    ranges.push_back(range);
  }
  return ranges;
}

LoweringOptions lowering_options(const HardwareProfile& profile, const Job& job) {
  LoweringOptions options;
  options.keep_only_needed = job.model.compile;
  options.keeps_casts = keeps_casts(job);
  options.named_stay = job.checkpointing.reentrant && job.checkpointing.outside;  // as Transformers' layers call it
  if (profile.sm_count > 0) options.multiprocessors = profile.sm_count;
  if (profile.kind == "cpu") {
    options.multiprocessors = 0;  // no reduction is split over thread blocks
    // As `run` sets them: one where ranks share the machine, all cores for a rank alone.
    const bool alone = std::min<std::int64_t>(job.cluster.world_size, job.cluster.ranks_per_node) < 2;
    options.cpu_isa = profile.host_isa;
    options.cpu_l2_bytes = profile.host_l2_bytes;
    options.cpu_threads = alone ? std::max<std::int64_t>(1, profile.sm_count) : 1;
  }
  if (const BlasWorkspaceUse use = blas_workspace_use(job.fsdp.quirks);
      profile.kind != "cpu" && use == BlasWorkspaceUse::OfProduct) {
    const BlasWorkspaceSizes sizes = blas_workspaces(profile.architecture, use);
    options.blas_workspace = sizes.blas;
    options.blas_lt_workspace = sizes.lt;
  }
  if (profile.kind != "cpu") options.offload = offloaded_activations(job);  // a host's activations are there already
  if (auto saved = saved_ops(job.checkpointing)) options.saved = std::move(*saved);  // build_plan refuses what is wrong
  return options;
}

namespace {

/// Of a plan that build_plan made with these parts.
Result<LoweredProgram> lower_segments(const Model& model, const Plan& plan, const PlanParts& parts, const Job& job,
                                      const HardwareProfile& profile) {
  if (model.ops.empty()) return LoweredProgram{};
  const std::vector<SegmentRange> ranges = segment_ranges(model, plan, parts.checkpointed);
  const std::vector<bool> trainable = differentiated_params(*parts.units, job.fsdp.runtime);
  auto lowered = lower(model, ranges, trainable, lowering_options(profile, job));
  if (lowered && job.model.compile) return compile_blocks(*lowered, model, ranges, trainable);
  return lowered;
}

}  // namespace

Result<LoweredProgram> lower_plan(const Model& model, const Plan& plan, const Job& job,
                                  const HardwareProfile& profile) {
  if (model.ops.empty()) return LoweredProgram{};
  auto table = build_units(model, job);
  if (!table) return fail(table.error());
  auto checkpointed = checkpointed_modules(model, job, *table);
  if (!checkpointed) return fail(checkpointed.error());
  PlanParts parts;
  parts.units = std::make_shared<const UnitTable>(std::move(*table));
  parts.checkpointed = std::move(*checkpointed);
  return lower_segments(model, plan, parts, job, profile);
}

Result<Prepared> prepare(const Job& job) {
  auto profile = load_profile(job.cluster.profile);
  if (!profile) return fail(profile.error());
  auto model = load_job_model(job, *profile);
  if (!model) return fail(model.error());
  const auto settled = settle_job(job, *model, *profile);
  if (!settled) return fail(settled.error());
  if (is_cut(job.mesh) && job.fsdp.runtime == Runtime::Fsdp1 && settled->job != job) {  // its units place its copies
    model = load_job_model(settled->job, *profile);
    if (!model) return fail(model.error());
  }
  PlanParts parts;
  auto plan = build_plan(*model, settled->job, parts);
  if (!plan) return fail(plan.error());
  plan->warnings.insert(plan->warnings.end(), settled->texts.begin(), settled->texts.end());
  auto lowered = lower_segments(*model, *plan, parts, settled->job, *profile);
  if (!lowered) return fail(lowered.error());
  return Prepared{std::move(*profile), std::move(*model), std::move(*plan), std::move(*lowered)};
}

SimulateOptions simulate_options(const Job& job) {
  SimulateOptions options;
  options.memory = job.cluster.memory;
  return options;
}

}  // namespace foreshard
