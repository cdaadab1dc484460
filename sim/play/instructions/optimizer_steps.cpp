#include "sim/play/instructions/optimizer_steps.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "core/plan/units/unit_selection.h"
#include "core/runtime_layouts.h"
#include "sim/play/initialisation.h"

namespace foreshard {
namespace {

/// A kernel that the plan itself writes of a step: elementwise, or a product of `arg` terms for each element. What such
/// an operator launches before it goes with it: addmm copies what it adds to, a norm over thread blocks clears
/// semaphores.
bool launch_step_kernel(Device& device, const Instruction& i, std::string_view name, const ActivitySpan& what) {
  Kernel kernel;
  kernel.kind = i.arg > 0 ? KernelClass::Gemm : KernelClass::Optimizer;
  kernel.dtype = i.dtype;
  kernel.flops = 2 * i.numel * i.arg;
  kernel.written = i.numel * itemsize(i.dtype);
  kernel.read = 2 * kernel.written;
  const auto launch = [&](const Kernel& one) {
    device.launch(Stream::D, device.cost.host(one), device.cost.device(one), what);
  };
  if (name == "aten.addmm") {
    Kernel copy;
    copy.kind = KernelClass::Copy;
    copy.dtype = i.dtype;
    copy.written = copy.read = kernel.written;
    launch(copy);
  }
  if (name == "aten.linalg_vector_norm") {
    const std::optional<bool> split =
        reduction_splits(device, static_cast<int>(Stream::D), contiguous_layout({i.numel}, i.dtype), 0);
    if (!split) return false;
    if (*split) device.launch(Stream::D, device.cost.launch_ns(), device.cost.copy(0, i.dtype), what);
  }
  launch(kernel);
  return true;
}

}  // namespace

OptimizerSteps::OptimizerSteps(PlayContext& context)
    : OptimizerSteps(context, local_params(context.plan, context.model, context.job)) {}

OptimizerSteps::OptimizerSteps(PlayContext& context, const std::vector<LocalParam>& params)
    : context_(context), optimizer_(context.job, params, &context.model) {
  const Job& job = context.job;
  std::vector<LocalParam> ignored;
  std::copy_if(params.begin(), params.end(), std::back_inserter(ignored), [](const auto& p) { return p.unit < 0; });
  if (job.fsdp.cpu_offload && !ignored.empty()) beside_offload_.emplace(job, std::move(ignored), &context.model);
  if (steps_in_backward(job.train.optimizer.impl)) in_backward_.emplace(job, params);
  if (!job.train.optimizer_parts.empty()) make_parts(params);
  if (job.train.optimizer.name != OptimizerKind::Muon) return;
  Job rest = job;
  rest.train.optimizer.name = OptimizerKind::AdamW;
  beside_muon_.emplace(rest, params_beside_muon(context.model, params), nullptr);
}

/// train.optimizer.parts: the job's own optimizer has what none of them names, and steps first.
void OptimizerSteps::make_parts(const std::vector<LocalParam>& params) {
  const TrainOptions& train = context_.job.train;
  std::vector<std::int32_t> part_of(context_.model.params.size(), -1);  // of another model's job: a plan that was read
  if (const auto tree = build_module_tree(context_.model))
    if (auto read = parts_of_params(context_.model, *tree, context_.job)) part_of = std::move(*read);
  std::vector<std::vector<LocalParam>> of(train.optimizer_parts.size() + 1);
  for (const LocalParam& param : params)
    of[static_cast<std::size_t>(part_of[param.param.index()] + 1)].push_back(param);
  Job job = context_.job;
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (i > 0 && !train.optimizer_parts[i - 1].steps) continue;
    job.train.optimizer = i == 0 ? train.optimizer : train.optimizer_parts[i - 1].options;
    parts_.emplace_back(job, std::move(of[i]), &context_.model);
  }
}

/// Whether backward has stepped every gradient that a clip or a step of the whole would take. Under FSDP1 its hooks
/// never fire, so that what has a gradient is there still.
bool OptimizerSteps::stepped_in_backward(const Instruction& i) const {
  return steps_in_backward(context_.job.train.optimizer.impl) &&
         (i.numel == 0 || has_fsdp2_layouts(context_.plan.runtime));
}

bool OptimizerSteps::keeps_to_compute(const Instruction& i) const {
  const OptimizerOptions& options = context_.job.train.optimizer;
  const bool whole = i.kind == InstructionKind::Clip || (i.kind == InstructionKind::OptimizerStep && !i.name.valid() &&
                                                         !i.buffer.param.valid() && i.stream == Stream::D);
  return whole && !i.on_host && context_.plan.runtime != Runtime::Fsdp1 && !in_backward_ && !beside_muon_ &&
         is_elementwise(options.name) && !context_.device.cost.work().measured() && parts_.empty() &&
         context_.job.train.beside_later == 0;
}

bool OptimizerSteps::step(const Instruction& i, const ActivitySpan& what) {
  Device& device = context_.device;
  if (i.name.valid()) {
    return launch_step_kernel(device, i, context_.plan.name_of(i.name), what);
  }
  if (i.buffer.param.valid() && in_backward_)
    return in_backward_->step(device, what, i.buffer.param, i.stream, i.on_host);
  if (stepped_in_backward(i)) return true;  // nothing is left
  if (beside_offload_ && i.on_host && !beside_offload_->step(device, what, /*on_host=*/false)) return false;
  if (!parts_.empty()) {
    return std::all_of(parts_.begin(), parts_.end(),
                       [&](OptimizerState& part) { return part.step(device, what, i.on_host); });
  }
  return (beside_muon_ ? *beside_muon_ : optimizer_).step(device, what, i.on_host);
}

bool OptimizerSteps::bring_later() {
  const Bytes later = has_later_ ? 0 : context_.job.train.beside_later;
  has_later_ = true;
  return hold_beside(context_.device, later);
}

bool OptimizerSteps::play(const Instruction& i) {
  Device& device = context_.device;
  const ActivitySpan what = context_.span_of(i, SpanKind::Optimizer);
  bool ok = true;
  switch (i.kind) {
    case InstructionKind::Clip: ok = stepped_in_backward(i) || optimizer_.clip(device, context_.plan, i, what); break;
    case InstructionKind::ScaleLoss: ok = optimizer_.scale_loss(device, what); break;
    case InstructionKind::Unscale: ok = optimizer_.unscale(device, what, i.on_host); break;
    case InstructionKind::UpdateScale: optimizer_.update_scale(device, what); break;
    case InstructionKind::OptimizerStep: ok = step(i, what) && bring_later(); break;
    default:
      if (i.numel > 0 && !i.on_host) optimizer_.zero(device, what);
      break;
  }
  return ok || context_.out_of_memory(0);
}

}  // namespace foreshard
