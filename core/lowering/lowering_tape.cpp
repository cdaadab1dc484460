#include "core/lowering/lowering_tape.h"

#include <algorithm>

namespace foreshard::lowering {

// ----------------------------------------------------------------------------------------------------------------
// passes

void Tape::begin(std::size_t instance, PassKind kind) {
  if (pass_ != nullptr && instance_ == instance && kind_ == kind) return;
  end();
  instance_ = instance;
  kind_ = kind;
  pass_ = &instances_[instance].passes[static_cast<std::size_t>(kind)];
  ++pass_number_;
  before_begin_ = pass_->kernels.empty() ? 0 : -1;
}

void Tape::end() {
  if (pass_ == nullptr) return;
  const auto count = static_cast<std::int32_t>(pass_->events.size());
  if (pass_->kernels.empty() && count > 0) {  // only frees: they hang on a kernel that the device never sees
    Kernel host;
    host.launches = 0;
    before_begin_ = 0;
    kernel(host);
  } else if (!pass_->kernels.empty()) {
    pass_->kernels.back().after_end = count;
  }
  pass_ = nullptr;
}

void Tape::open_before() {
  if (before_begin_ >= 0) return;
  before_begin_ = static_cast<std::int32_t>(pass_->events.size());
  pass_->kernels.back().after_end = before_begin_;
}

void Tape::kernel(Kernel kernel) {
  open_before();
  kernel.before_begin = before_begin_;
  kernel.before_end = kernel.after_begin = kernel.after_end = static_cast<std::int32_t>(pass_->events.size());
  pass_->kernels.push_back(kernel);
  before_begin_ = -1;
}

// ---------------------------------------------------------------------------------------------------------------
// tensors

std::int32_t Tape::new_tensor() {
  if (!spare_tensors_.empty()) {
    const std::int32_t id = spare_tensors_.back();
    spare_tensors_.pop_back();
    tensors_[static_cast<std::size_t>(id)] = Tensor{};
    return id;
  }
  tensors_.emplace_back();
  return static_cast<std::int32_t>(tensors_.size() - 1);
}

Ref Tape::external(const Layout& given) {
  const Layout layout = given;  // may be that of a tensor here, which moves when another is added
  const std::int32_t id = new_tensor();
  storages_.push_back({layout.bytes(), 1, -1, -1, -1});
  Tensor& tensor = tensors_[static_cast<std::size_t>(id)];
  tensor.layout = layout;
  tensor.storage = static_cast<std::int32_t>(storages_.size() - 1);
  tensor.refs = 1;
  return {this, id};
}

Ref Tape::make(const Layout& given, SlotCategory category) {
  const Layout layout = given;
  open_before();
  RawInstance& instance = instances_[instance_];
  const auto slot = static_cast<std::int32_t>(instance.slots.size());
  Bytes bytes = 0;  // last element's offset, so that a layout with holes is counted in full
  if (layout.numel() > 0) {
    std::int64_t last = 0;
    for (std::int32_t i = 0; i < layout.sizes.n; ++i) last += (layout.sizes[i] - 1) * layout.strides[i];
    bytes = (last + 1) * itemsize(layout.dtype);
  }
  instance.slots.push_back({bytes, category, ParamId(), ParamId(), aside_});
  pass_->events.push_back({static_cast<std::int32_t>(instance_), slot, true});
  std::int32_t storage = 0;
  if (spare_storages_.empty()) {
    storage = static_cast<std::int32_t>(storages_.size());
    storages_.emplace_back();
  } else {
    storage = spare_storages_.back();
    spare_storages_.pop_back();
  }
  storages_[static_cast<std::size_t>(storage)] = {bytes, 1, static_cast<std::int32_t>(instance_), slot, pass_number_};
  const std::int32_t id = new_tensor();
  Tensor& tensor = tensors_[static_cast<std::size_t>(id)];
  tensor.layout = layout;
  tensor.storage = storage;
  tensor.refs = 1;
  return {this, id};
}

Ref Tape::make_bytes(Bytes bytes, SlotCategory category) {
  Dims sizes;
  sizes.push(bytes);
  return make(contiguous_layout(sizes, DType::UInt8), category);
}

Ref Tape::alias(const Ref& of, const Layout& given, bool is_view) {
  const Layout layout = given;
  const std::int32_t id = new_tensor();
  Tensor& tensor = tensors_[static_cast<std::size_t>(id)];
  tensor.layout = layout;
  tensor.storage = at(of).storage;
  tensor.refs = 1;
  tensor.offset = at(of).offset;
  tensor.view = is_view;
  ++storages_[static_cast<std::size_t>(tensor.storage)].refs;
  return {this, id};
}

void Tape::note_use(const Ref& ref) {
  const Storage& storage = storage_of(ref);
  if (storage.instance >= 0) pass_->events.push_back({storage.instance, storage.slot, false, true});
}

void Tape::give_away(const Ref& ref, SlotCategory category, ParamId param) {
  Storage& storage = storage_of(ref);
  if (storage.instance < 0) return;
  Slot& slot = instances_[static_cast<std::size_t>(storage.instance)].slots[static_cast<std::size_t>(storage.slot)];
  slot.category = category;
  slot.param = param;
  storage.instance = -1;
}

void Tape::finish_gradient(const Ref& gradient, ParamId param, bool copied) {
  RawInstance& instance = instances_[instance_];
  instance.param_grads.push_back(param);
  instance.param_grad_slots.push_back(storage_of(gradient).slot);
  instance.gradients.push_back(
      {-1, static_cast<std::int32_t>(pass_->kernels.size()), static_cast<std::int32_t>(pass_->events.size()), copied});
  give_away(gradient, SlotCategory::ParamGrad, param);
}

void Tape::drop_ref(std::int32_t id) {
  Tensor& tensor = tensors_[static_cast<std::size_t>(id)];
  if (--tensor.refs > 0) return;
  const std::int32_t storage_id = tensor.storage;
  Storage& storage = storages_[static_cast<std::size_t>(storage_id)];
  spare_tensors_.push_back(id);
  if (--storage.refs > 0) return;
  free_storage(storage);
  if (!keeps_numbers_) spare_storages_.push_back(storage_id);
}

void Tape::free_storage(const Storage& storage) {
  if (storage.instance < 0 || pass_ == nullptr) return;  // external, or everything is being torn down
  Slot& slot = instances_[static_cast<std::size_t>(storage.instance)].slots[static_cast<std::size_t>(storage.slot)];
  if (storage.made_in == pass_number_ && slot.category == SlotCategory::Activation)
    slot.category = SlotCategory::Temporary;
  pass_->events.push_back({storage.instance, storage.slot, false});
}

}  // namespace foreshard::lowering
