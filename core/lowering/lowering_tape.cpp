#include "core/lowering/lowering_tape.h"

#include <algorithm>

namespace foreshard::lowering {

bool Dims::operator==(const Dims& other) const {
  return n == other.n && std::equal(v.begin(), v.begin() + n, other.v.begin());
}

std::int64_t Layout::numel() const {
  std::int64_t total = 1;
  for (std::int32_t i = 0; i < sizes.n; ++i) total *= sizes[i];
  return total;
}

bool Layout::contiguous() const {
  std::int64_t expected = 1;
  for (std::int32_t i = sizes.n - 1; i >= 0; --i) {
    if (sizes[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

bool Layout::dense() const {
  std::array<std::int32_t, kMaxDims> order{};
  std::int32_t count = 0;
  for (std::int32_t i = 0; i < sizes.n; ++i)
    if (sizes[i] != 1) order[static_cast<std::size_t>(count++)] = i;
  std::sort(order.begin(), order.begin() + count,
            [&](std::int32_t a, std::int32_t b) { return strides[a] < strides[b]; });
  std::int64_t expected = 1;
  for (std::int32_t k = 0; k < count; ++k) {
    const std::int32_t dim = order[static_cast<std::size_t>(k)];
    if (strides[dim] != expected) return false;
    expected *= sizes[dim];
  }
  return true;
}

bool Layout::same_steps(const Layout& other) const {
  if (sizes.n != other.sizes.n) return false;
  for (std::int32_t i = 0; i < sizes.n; ++i)
    if (sizes[i] > 1 && strides[i] != other.strides[i]) return false;
  return true;
}

Dims dims_of(const Shape& shape) {
  Dims dims;
  for (const std::int64_t size : shape)
    if (dims.n < static_cast<std::int32_t>(kMaxDims)) dims.push(size);
  return dims;
}

Dims contiguous_strides(const Dims& sizes) {
  Dims strides;
  strides.n = sizes.n;
  std::int64_t step = 1;
  for (std::int32_t i = sizes.n - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

Layout contiguous_layout(const Dims& sizes, DType dtype) { return {sizes, contiguous_strides(sizes), dtype}; }

namespace {

/// Stride of `input` along dimension `dim` of the broadcast result; 0 where it is broadcast.
std::int64_t broadcast_stride(const Layout& input, const Dims& sizes, std::int32_t dim) {
  const std::int32_t own = dim - (sizes.n - input.sizes.n);
  if (own < 0 || (input.sizes[own] == 1 && sizes[dim] != 1)) return 0;
  return input.strides[own];
}

/// TensorIterator's order: is dimension a inside (faster than) dimension b? 1 yes, -1 no, 0 undecided.
int faster(std::span<const Layout* const> inputs, const Dims& sizes, std::int32_t a, std::int32_t b) {
  for (const Layout* input : inputs) {
    const std::int64_t sa = broadcast_stride(*input, sizes, a), sb = broadcast_stride(*input, sizes, b);
    if (sa == 0 || sb == 0) continue;
    if (sa != sb) return sa < sb ? 1 : -1;
    if (sizes[a] > sizes[b]) return -1;
  }
  return 0;
}

}  // namespace

Layout elementwise_layout(std::span<const Layout* const> inputs, const Dims& sizes, DType dtype) {
  std::array<std::int32_t, kMaxDims> order{};  // fastest first
  for (std::int32_t i = 0; i < sizes.n; ++i) order[static_cast<std::size_t>(i)] = sizes.n - 1 - i;
  for (std::int32_t i = 1; i < sizes.n; ++i) {  // insertion sort with an ambiguous comparison, as TensorIterator does
    std::int32_t at = i;
    for (std::int32_t j = i - 1; j >= 0; --j) {
      const int compared =
          faster(inputs, sizes, order[static_cast<std::size_t>(at)], order[static_cast<std::size_t>(j)]);
      if (compared > 0) {
        std::swap(order[static_cast<std::size_t>(at)], order[static_cast<std::size_t>(j)]);
        at = j;
      } else if (compared < 0) {
        break;
      }
    }
  }
  Layout out{sizes, {}, dtype};
  out.strides.n = sizes.n;
  std::int64_t step = 1;
  for (std::int32_t k = 0; k < sizes.n; ++k) {
    const std::int32_t dim = order[static_cast<std::size_t>(k)];
    out.strides[dim] = step;
    step *= std::max<std::int64_t>(sizes[dim], 1);
  }
  return out;
}

bool view_strides(const Layout& from, const Dims& sizes, Dims& strides) {
  strides.n = sizes.n;
  if (from.numel() == 0 || from.sizes.n == 0) {
    strides = contiguous_strides(sizes);
    return true;
  }
  std::int32_t view_dim = sizes.n - 1;
  std::int64_t chunk_stride = from.strides[from.sizes.n - 1];
  std::int64_t from_numel = 1, view_numel = 1;
  for (std::int32_t dim = from.sizes.n - 1; dim >= 0; --dim) {
    from_numel *= from.sizes[dim];
    const bool ends = dim == 0 || (from.sizes[dim - 1] != 1 && from.strides[dim - 1] != from_numel * chunk_stride);
    if (!ends) continue;
    while (view_dim >= 0 && (view_numel < from_numel || sizes[view_dim] == 1)) {
      strides[view_dim] = view_numel * chunk_stride;
      view_numel *= sizes[view_dim];
      --view_dim;
    }
    if (view_numel != from_numel) return false;
    if (dim > 0) {
      chunk_stride = from.strides[dim - 1];
      from_numel = 1;
      view_numel = 1;
    }
  }
  return view_dim == -1;
}

std::int32_t wrap_dim(std::int64_t dim, std::int32_t n) {
  const std::int64_t wrapped = dim < 0 ? dim + std::max(n, 1) : dim;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(wrapped, 0, std::max(n - 1, 0)));
}

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
  instance.slots.push_back({bytes, category, ParamId()});
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
  tensor.view = is_view;
  ++storages_[static_cast<std::size_t>(tensor.storage)].refs;
  return {this, id};
}

void Tape::give_away(const Ref& ref, SlotCategory category, ParamId param) {
  Storage& storage = storage_of(ref);
  if (storage.instance < 0) return;
  Slot& slot = instances_[static_cast<std::size_t>(storage.instance)].slots[static_cast<std::size_t>(storage.slot)];
  slot.category = category;
  slot.param = param;
  storage.instance = -1;
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
