#include "sim/play/segments/segment_storages.h"

#include <algorithm>

#include "core/runtime_layouts.h"

namespace foreshard {

SegmentStorages::SegmentStorages(PlayContext& context, PlanBuffers& buffers, RunRecorder& recorder)
    : context_(context), buffers_(buffers), recorder_(recorder) {
  std::size_t slots = 0;
  for (const SegmentInstance& instance : context.lowered.instances) {
    base_.push_back(static_cast<std::int32_t>(slots));
    slots += context.lowered.templates[static_cast<std::size_t>(instance.lowered)].slots.size();
  }
  blocks_.assign(slots, kNoBlock);
  ignored_.assign(context.model.params.size(), context.plan.runtime == Runtime::Fsdp1);
  for (const PlanUnit& unit : context.plan.units)
    for (const ParamId param : unit.params) ignored_[context.model.storage_of(param).index()] = false;
  for (std::size_t p = 0; p < context.model.params.size(); ++p)
    has_tied_ = has_tied_ || context.model.storage_of(ParamId(p)) != ParamId(p);
}

bool SegmentStorages::is_held(std::int32_t at) const {
  const std::vector<ImportBinding>& all = context_.lowered.held;
  return at == made_outside_ || std::any_of(all.begin(), all.end(), [&](const ImportBinding& held) {
           return place(held.instance, held.slot) == at;
         });
}

ParamId SegmentStorages::owner_of(std::int32_t instance, std::size_t number) const {
  const Model& model = context_.model;
  const std::vector<ParamId>& params = context_.plan.segments[static_cast<std::size_t>(instance)].params;
  const auto is_further_name = [&](std::size_t k) {
    const ParamId owner = model.storage_of(params[k]);
    const auto end = params.begin() + static_cast<std::ptrdiff_t>(k);
    return std::any_of(params.begin(), end, [&](ParamId before) { return model.storage_of(before) == owner; });
  };
  const bool tied = has_tied_ && std::any_of(params.begin(), params.end(),
                                             [&](ParamId param) { return model.storage_of(param) != param; });
  if (!tied) return number < params.size() ? params[number] : ParamId();
  for (std::size_t at = 0; at < params.size(); ++at) {
    if (!is_further_name(at) && number-- == 0) return model.storage_of(params[at]);
  }
  return {};
}

BufferName SegmentStorages::gradient_buffer(const Slot& made, std::int32_t instance) const {
  const Plan& plan = context_.plan;
  const Model& model = context_.model;
  const BufferWhat what = plan.runtime == Runtime::Fsdp1 ? BufferWhat::GradPiece : BufferWhat::Grad;
  if (!made.foreign.valid()) {
    const Segment& segment = plan.segments[static_cast<std::size_t>(instance)];
    const ParamId param = owner_of(instance, made.param.index());
    if (what == BufferWhat::GradPiece && is_ignored(param)) return {BufferWhat::Grad, UnitId(), param};
    return {what, segment.unit, param};
  }
  const ParamId param = model.storage_of(made.foreign);
  const auto owner = std::find_if(plan.units.begin(), plan.units.end(), [param](const PlanUnit& unit) {
    return std::find(unit.params.begin(), unit.params.end(), param) != unit.params.end();
  });
  return {what, owner == plan.units.end() ? UnitId() : UnitId(static_cast<std::size_t>(owner - plan.units.begin())),
          param};
}

/// The plan owns it from here on.
bool SegmentStorages::allocate_gradient(const Slot& made, std::int32_t instance, std::int32_t slot, Stream pool) {
  const BufferName buffer = gradient_buffer(made, instance);
  const BlockHandle block = context_.device.book.allocate(made.bytes, index_of(pool), category_of(buffer.what));
  if (block == kNoBlock) return context_.out_of_memory(made.bytes);
  const std::size_t at = buffers_.index(buffer);
  const bool alone = buffers_.block(at) == kNoBlock;
  buffers_.own(buffer, 0, block);
  if (!recorder_.open()) return true;
  // FSDP2's units reduce theirs in backward, so that nobody but the plan's buffers asks for them.
  const bool passable = alone && buffer.unit.valid() && has_fsdp2_layouts(context_.plan.runtime);
  recorder_.made(passable ? place_of_buffer(at) : -1, false, false, block, slot);
  return true;
}

}  // namespace foreshard
