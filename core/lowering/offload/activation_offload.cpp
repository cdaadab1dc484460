#include "core/lowering/offload/activation_offload.h"

#include <algorithm>
#include <utility>

#include "core/lowering/lowering_machine.h"
#include "core/result.h"

namespace foreshard::lowering {
namespace {

constexpr Bytes kSmallest = 1024;     // min_offload_size
constexpr std::int32_t kStashed = 5;  // max_fwd_stash_size: tensors packed before an older one is waited for

bool is_broadcast(const Layout& layout) {
  for (std::int32_t i = 0; i < layout.sizes.n; ++i)
    if (layout.strides[i] == 0) return true;
  return false;
}

/// Neither holes nor anything twice: a copy keeps such strides.
bool is_dense(const Layout& layout) {
  std::vector<std::pair<std::int64_t, std::int64_t>> order;  // stride, size
  for (std::int32_t i = 0; i < layout.sizes.n; ++i)
    if (layout.sizes[i] != 1) order.emplace_back(layout.strides[i], layout.sizes[i]);
  std::sort(order.begin(), order.end());
  std::int64_t next = 1;
  for (const auto& [stride, size] : order) {
    if (stride != next) return false;
    next *= size;
  }
  return true;
}

}  // namespace

void ActivationOffload::note_param(const Ref& param) {
  Tensor& tensor = machine_.tape.at(param);
  param_tensors_.insert(param.id());
  param_storages_.insert(tensor.storage);
  if (options_.flat_params) tensor.offset = 1;  // views into the unit's flat parameter, the first aside
}

/// Orders the streams without work on either.
void ActivationOffload::order(Emitter& emit, OffloadStep step, std::int32_t back) {
  Kernel kernel = emit.start("offload.wait", KernelClass::Copy, DType::UInt8);
  kernel.offload = step;
  kernel.offload_back = back;
  kernel.launches = 0;
  machine_.tape.kernel(kernel);
}

bool ActivationOffload::stays(const Ref& tensor) const {
  if (machine_.tape.layout(tensor).bytes() < kSmallest) return true;
  if (!options_.flat_params && param_tensors_.count(tensor.id()) > 0) return true;
  return options_.knows_params && param_storages_.count(machine_.tape.at(tensor).storage) > 0;
}

/// Copies issued long ago are waited for, and what they copied goes.
void ActivationOffload::drop_stashed(Emitter& emit, Number up_to) {
  while (!stash_.empty() && stash_.begin()->first <= up_to) {
    const auto first = stash_.begin();
    order(emit, OffloadStep::AwaitCopy, copies_ - first->second.copy);
    const auto key = key_of_.find(first->first);
    if (key != key_of_.end()) {
      const auto known = known_.find(key->second);
      if (known != known_.end() && known->second == first->first) known_.erase(known);
      key_of_.erase(key);
    }
    stash_.erase(first);
  }
}

/// What is copied to the host: a broadcast tensor's storage, a tensor without holes, or such a copy of it, made on the
/// compute stream (TRL 1.16; in 1.9 on the copies').
Ref ActivationOffload::laid_out(Emitter& emit, const Ref& tensor, Bytes& bytes) {
  Tape& tape = machine_.tape;
  const Layout layout = tape.layout(tensor);
  bytes = layout.bytes();
  if (is_broadcast(layout)) {
    bytes = tape.storage_of(tensor).bytes;
    return tensor;
  }
  if (layout.contiguous() && tape.at(tensor).offset == 0) return tensor;
  Kernel kernel = emit.start("aten.clone.default", KernelClass::Copy, layout.dtype);
  Ref copy = tape.make(contiguous_layout(layout.sizes, layout.dtype), SlotCategory::Activation);
  emit.finish(kernel, {&tensor}, {&copy});
  return copy;
}

ActivationOffload::Number ActivationOffload::send(Emitter& emit, const Ref& tensor, bool contiguous) {
  Tape& tape = machine_.tape;
  Layout layout = tape.layout(tensor);
  const bool as_it_lies = layout.contiguous() || (!contiguous && is_dense(layout));
  Ref copied = tensor;
  if (!as_it_lies) {  // copy_requires_temporaries
    layout = contiguous_layout(layout.sizes, layout.dtype);
    Kernel kernel = emit.start("aten.clone.default", KernelClass::Copy, layout.dtype);
    copied = tape.make(layout, SlotCategory::Activation);
    emit.finish(kernel, {&tensor}, {&copied});
  }
  order(emit, OffloadStep::AwaitCompute);
  Kernel kernel = emit.start("offload.to_host", KernelClass::Copy, layout.dtype);
  kernel.offload = OffloadStep::ToHost;
  kernel.launches = 0;
  kernel.read = layout.bytes();
  tape.kernel(kernel);
  order(emit, OffloadStep::AwaitCopies);
  sent_.emplace(++last_, layout);
  return last_;
}

Ref ActivationOffload::fetch(Emitter& emit, Number number) {
  Tape& tape = machine_.tape;
  const auto at = sent_.find(number);
  FORESHARD_CHECK(at != sent_.end(), "what is fetched was sent");
  const Layout layout = at->second;  // stays: a node or a region that runs twice asks again
  Ref tensor = tape.make(layout, SlotCategory::Activation);
  order(emit, OffloadStep::AwaitCompute);
  Kernel kernel = emit.start("offload.to_device", KernelClass::Copy, layout.dtype);
  kernel.offload = OffloadStep::ToDevice;
  kernel.launches = 0;
  kernel.written = layout.bytes();
  tape.kernel(kernel);
  order(emit, OffloadStep::AwaitCopies);
  return tensor;
}

ActivationOffload::Number ActivationOffload::pack(Emitter& emit, const Ref& tensor) {
  Tape& tape = machine_.tape;
  const Number number = ++last_;
  const Key key{tape.at(tensor).storage, tape.at(tensor).offset, tape.layout(tensor).dtype};
  if (const auto known = known_.find(key); known != known_.end()) {  // packed before: this one stays
    known->second = number;
    key_of_[number] = key;
    return 0;
  }
  if (stays(tensor)) return 0;
  OnHost host{tape.layout(tensor)};
  Ref copied = laid_out(emit, tensor, host.bytes);
  drop_stashed(emit, number - kStashed);
  order(emit, OffloadStep::AwaitCompute);
  host.layout = tape.layout(copied);
  Kernel kernel = emit.start("offload.to_host", KernelClass::Copy, host.layout.dtype);
  kernel.offload = OffloadStep::ToHost;
  kernel.launches = 0;
  kernel.read = host.bytes;
  tape.kernel(kernel);
  on_host_.emplace(number, host);
  stash_.emplace(number, Stashed{std::move(copied), ++copies_});
  known_[key] = number;
  key_of_[number] = key;
  return number;
}

Ref ActivationOffload::unpack(Emitter& emit, Number number) {
  Tape& tape = machine_.tape;
  Unpacked unpacked{number, false, {}};
  if (node_is_new_) {
    for (const auto& [earlier, tensor] : brought_) unpacked.earlier.push_back(earlier);
  }
  node_is_new_ = false;
  const auto host = on_host_.find(number);
  FORESHARD_CHECK(host != on_host_.end(), "what is unpacked is on the host: once");
  Ref tensor;
  if (const auto stashed = stash_.find(number); stashed != stash_.end()) {
    tensor = stashed->second.tensor;
  } else {
    unpacked.brought = true;
    const Tape::Aside aside(tape);
    Kernel kernel = emit.start("offload.to_device", KernelClass::Copy, host->second.layout.dtype);
    kernel.offload = OffloadStep::ToDevice;
    kernel.launches = 0;
    kernel.written = host->second.bytes;
    tensor = tape.make(host->second.layout, SlotCategory::Activation);
    tape.kernel(kernel);
    order(emit, OffloadStep::AwaitCopies);
    brought_.emplace(number, tensor);
  }
  on_host_.erase(host);
  unpacked_.push_back(std::move(unpacked));
  return tensor;
}

void ActivationOffload::await_use(Emitter& emit, Number number) {
  const auto used = used_.find(number);
  if (used == used_.end()) return;
  order(emit, OffloadStep::AwaitUse, uses_ - used->second);
  used_.erase(used);
}

/// The hooks that unpacking gave the node, in order. A tensor that somebody else names too is left to record_stream.
void ActivationOffload::node_done(Emitter& emit) {
  Tape& tape = machine_.tape;
  const std::vector<Unpacked> all = std::exchange(unpacked_, {});
  for (const Unpacked& unpacked : all) {
    const auto brought = brought_.find(unpacked.number);
    if (unpacked.brought && brought != brought_.end()) {
      if (!tape.sole_owner(brought->second)) {
        tape.note_use(brought->second);
        brought_.erase(brought);
      } else {
        order(emit, OffloadStep::NoteUse);
        used_[unpacked.number] = ++uses_;
      }
    }
    drop_stashed(emit, last_);
    for (const Number earlier : unpacked.earlier) {
      await_use(emit, earlier);
      brought_.erase(earlier);
    }
  }
}

void ActivationOffload::backward_done(Emitter& emit) {
  while (!brought_.empty()) {
    await_use(emit, brought_.begin()->first);
    brought_.erase(brought_.begin());
  }
}

}  // namespace foreshard::lowering
