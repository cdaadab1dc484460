#include "sim/play/micro_batch.h"

#include <optional>
#include <utility>

namespace foreshard {

MicroBatch::MicroBatch(PlayContext& context, SegmentPlayer& segments, std::vector<ResidentBuffer> buffers)
    : context_(context), segments_(segments), model_buffers_(std::move(buffers)) {}

bool MicroBatch::begin() {
  // no_sync() is entered before the batch is there, and asks the root, which is initialised for it.
  const bool first = context_.plan.runtime == Runtime::Fsdp1 && !std::exchange(lazy_initialised_, true);
  const auto& actions = context_.iteration->actions;
  const bool early = first && !actions.empty() && actions.front() == "no_sync{";
  if (early && !initialise_lazily()) return false;
  segments_.early().begin_batch();
  if (!make_inputs() || (first && !early && !initialise_lazily()) || !make_caches()) return false;
  segments_.replace_buffers(model_buffers_);
  return true;
}

/// What modules keep from the first step on.
bool MicroBatch::make_caches() {
  if (std::exchange(caches_made_, true)) return true;
  for (const Bytes bytes : context_.lowered.kept_for_run) {
    const BlockHandle block = context_.device.book.allocate(bytes, index_of(Stream::D), MemoryCategory::Activations);
    if (block == kNoBlock) return context_.out_of_memory(bytes);
  }
  return true;
}

bool MicroBatch::initialise_lazily() {
  drop_viewed(context_.device, model_buffers_);
  const std::optional<DType>& dtype = context_.job.fsdp.mixed_precision.buffer;
  if (dtype && !cast_buffers(context_.device, model_buffers_, *dtype)) return context_.out_of_memory(0);
  return play_lazy_initialisation(context_.device, context_.plan) || context_.out_of_memory(0);
}

bool MicroBatch::make_inputs() {
  if (context_.prepared.owns_inputs) return true;
  Device& device = context_.device;
  for (const ValueId id : context_.model.inputs) {
    const ValueInfo& value = context_.model.values[id.index()];
    const Bytes bytes = numel_of(value.shape) * itemsize(value.dtype);
    if (value.alias_of.valid()) continue;
    const BlockHandle block = device.book.allocate(bytes, index_of(Stream::D), MemoryCategory::Inputs);
    if (block == kNoBlock) return context_.out_of_memory(bytes);
    (value.held.until == Hold::Until::Forward ? let_go_ : inputs_).push_back(block);
    if (device.profile.kind == "cpu") continue;  // the host made it before the step
    ActivitySpan what;
    what.kind = SpanKind::Other;
    what.phase = Phase::Forward;
    what.instruction = context_.instruction();
    device.launch(Stream::D, device.cost.launch_ns(), device.cost.fill(bytes), what);
  }
  return true;
}

void MicroBatch::let_inputs_go() {
  for (const BlockHandle block : let_go_) context_.device.book.free(block);
  let_go_.clear();
}

void MicroBatch::drop() {
  let_inputs_go();
  loss_made();
  if (context_.job.train.keeps_outputs) {
    kept_ = segments_.take_held();
  } else {
    segments_.free_held(false);
  }
  for (const BlockHandle block : inputs_) context_.device.book.free(block);
  inputs_.clear();
}

void MicroBatch::forward_returned() {
  for (std::size_t i = 1; i < kept_.size(); ++i) context_.device.book.free(kept_[i]);
  if (!kept_.empty()) kept_.resize(1);
}

void MicroBatch::loss_made() {
  forward_returned();
  for (const BlockHandle block : kept_) context_.device.book.free(block);
  kept_.clear();
}

}  // namespace foreshard
