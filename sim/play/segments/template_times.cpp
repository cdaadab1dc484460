#include "sim/play/segments/template_times.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "sim/device/operator_times.h"
#include "sim/play/segments/async_products.h"

namespace foreshard {
namespace {

Numel attention_head_size(const Model& model) {
  for (const Op& op : model.ops) {
    if (op.name.find("scaled_dot_product") == std::string::npos || op.args.empty()) continue;
    const auto* const query = std::get_if<ValueRef>(&op.args.front().value);
    if (query != nullptr && !model.values[query->id.index()].shape.empty())
      return model.values[query->id.index()].shape.back();
  }
  return 0;
}

/// The shape of the result of the operator that a kernel stems from; empty if there is none.
const Shape& shape_of(const Model& model, const Segment* segment, const Kernel& kernel) {
  static const Shape kNone;
  if (segment == nullptr || kernel.model_op < 0) return kNone;
  const Op& op = model.ops[static_cast<std::size_t>(segment->op_begin + kernel.model_op)];
  return op.out.empty() || !op.out.front().valid() ? kNone : model.values[op.out.front().index()].shape;
}

Numel rows_of(const Shape& shape) { return shape.empty() || shape.back() == 0 ? 0 : numel_of(shape) / shape.back(); }

class TemplateTimer {
 public:
  TemplateTimer(const PlayContext& context, const PlayedCollectives& collectives, WorkCount& work)
      : context_(context),
        collectives_(collectives),
        work_(work),
        measured_(context.model, context.device.profile),
        addmm_(number_of_op(context.lowered, "aten.addmm.default")),
        scaled_mm_(number_of_op(context.lowered, "aten._scaled_mm.default")) {
    if (context.plan.runtime != Runtime::Fsdp1) return;
    add_ = number_of_op(context.lowered, "aten.add.Tensor");
    add_in_place_ = number_of_op(context.lowered, "aten.add_.Tensor");
  }

  /// `segment`: any of the template's, which have equal operators; nullptr: it has none.
  std::vector<TimedKernel> time(const KernelList& list, const Segment* segment, Pass pass) {
    const bool backward = pass == Pass::Backward;
    std::vector<SimDuration> device = durations(list, segment, backward);
    work_.add_pass(pass, list, device, context_.device.cost);
    const auto first =
        std::find_if(list.kernels.begin(), list.kernels.end(), [](const Kernel& k) { return k.launches > 0; });
    if (first != list.kernels.end())
      device[static_cast<std::size_t>(first - list.kernels.begin())] += context_.device.cost.segment(backward);
    std::vector<TimedKernel> times;
    times.reserve(list.kernels.size());
    for (std::size_t k = 0; k < device.size(); ++k) {
      const Kernel& kernel = list.kernels[k];
      times.push_back({context_.device.cost.host(kernel, backward), device[k], kernel.before_begin, kernel.before_end,
                       kernel.after_begin, kernel.after_end, kernel.launches > 0,
                       kernel.kind == KernelClass::Gemm && !kernel.convolution,
                       through_cublas_lt(kernel, addmm_, scaled_mm_),
                       backward && kernel.op >= 0 && (kernel.op == add_ || kernel.op == add_in_place_),
                       kernel.waits && context_.device.profile.kind != "cpu", collectives_.communicator_of(kernel),
                       context_.device.interference.slowdown(context_.device.cost.tiles(kernel))});
    }
    return times;
  }

 private:
  std::vector<SimDuration> durations(const KernelList& list, const Segment* segment, bool backward) {
    std::vector<SimDuration> device;
    device.reserve(list.kernels.size());
    for (const Kernel& kernel : list.kernels) {
      if (collectives_.communicator_of(kernel) >= 0) {
        device.push_back(collectives_.time_of(kernel));
        continue;
      }
      if (kernel.offload != OffloadStep::None) {
        device.push_back(context_.device.cost.transfer(kernel.read + kernel.written));
        continue;
      }
      device.push_back(context_.device.cost.device(kernel, [&]() -> KernelCost::Place {
        if (!head_size_) head_size_ = attention_head_size(context_.model);
        const Shape& shape = shape_of(context_.model, segment, kernel);
        return {context_.lowered.op_names[static_cast<std::size_t>(kernel.op)], backward, shape.size() >= 4,
                rows_of(shape), *head_size_};
      }));
    }
    if (segment != nullptr && !measured_.empty()) {
      measured_.apply(list, segment->op_begin, segment->op_end - segment->op_begin, backward, device);
    }
    if (segment != nullptr && context_.job.mesh.async_tensor)
      overlap_products(context_.model, *segment, list, backward, context_.device.profile, device);
    return device;
  }

  const PlayContext& context_;
  const PlayedCollectives& collectives_;
  WorkCount& work_;
  OperatorTimes measured_;
  std::int32_t addmm_;      // products with a bias run with it as their epilogue
  std::int32_t scaled_mm_;  // ... those in 8 bits with their scales
  std::int32_t add_ = -1, add_in_place_ = -1;
  std::optional<Numel> head_size_;
};

}  // namespace

LaunchList launches_of(const std::vector<TimedKernel>& kernels) {
  LaunchList list;
  for (const TimedKernel& kernel : kernels) {
    list.host_after += kernel.host;
    list.host += kernel.host;
    if (!kernel.launches) continue;
    if (kernel.waits) list.waits.push_back(list.launches.size());
    list.launches.push_back({std::exchange(list.host_after, 0), kernel.device, kernel.slowdown});
  }
  return list;
}

std::int32_t number_of_op(const LoweredProgram& lowered, std::string_view name) {
  const auto at = std::find(lowered.op_names.begin(), lowered.op_names.end(), name);
  return at == lowered.op_names.end() ? -1 : static_cast<std::int32_t>(at - lowered.op_names.begin());
}

std::vector<TemplateTimes> time_templates(const PlayContext& context, const PlayedCollectives& collectives,
                                          WorkCount& work) {
  const LoweredProgram& lowered = context.lowered;
  TemplateTimer timer(context, collectives, work);
  std::vector<const Segment*> segment_of(lowered.templates.size(), nullptr);
  for (std::size_t i = 0; i < lowered.instances.size() && i < context.plan.segments.size(); ++i) {
    const auto at = static_cast<std::size_t>(lowered.instances[i].lowered);
    if (segment_of[at] == nullptr) segment_of[at] = &context.plan.segments[i];
  }
  std::vector<TemplateTimes> times;
  times.reserve(lowered.templates.size());
  for (std::size_t t = 0; t < lowered.templates.size(); ++t) {
    const SegmentTemplate& segment = lowered.templates[t];
    work.add_template();
    times.push_back({timer.time(segment.forward, segment_of[t], Pass::Forward),
                     timer.time(segment.recompute, segment_of[t], Pass::Recompute),
                     timer.time(segment.backward, segment_of[t], Pass::Backward)});
  }
  return times;
}

}  // namespace foreshard
