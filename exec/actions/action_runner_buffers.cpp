#include "exec/actions/action_runner_buffers.h"

#include <ATen/ATen.h>

#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

MemoryCategory category_of(BufferWhat what) {
  switch (what) {
    case BufferWhat::Shard: return MemoryCategory::Parameters;
    case BufferWhat::Full:
    case BufferWhat::FullPrecision:
    case BufferWhat::Param: return MemoryCategory::FullParameters;
    case BufferWhat::ModuleBuffer: return MemoryCategory::Buffers;
    case BufferWhat::OptimizerState: return MemoryCategory::OptimizerState;
    default: return MemoryCategory::Temporaries;
  }
}

}  // namespace

ActionBuffers::~ActionBuffers() {
  (void)backend_.synchronize();
  for (const auto& [name, held] : device_) backend_.free(held.buffer, {});
  for (const Buffer& buffer : kept_) backend_.free(buffer, {});
}

void ActionBuffers::allocate(const ActionBuffer& buffer, Numel numel, DType dtype, InstructionId instruction) {
  if (buffer.on_host) {
    host_[buffer] = at::empty({numel}, at::dtype(scalar_type_of(dtype)));
    last_on_host_ = buffer;
    return;
  }
  if (const auto found = device_.find(buffer); found != device_.end()) {
    kept_.push_back(found->second.buffer);
    device_.erase(found);
  }
  const Issue issue{stream_, instruction};
  device_[buffer] = {backend_.allocate(issue, numel * itemsize(dtype), category_of(buffer.name.what)), dtype};
}

void ActionBuffers::allocate_zero(const ActionBuffer& buffer, Numel numel, DType dtype) {
  allocate(buffer, numel, dtype, {});
  // Its own handle: the issuer goes on and changes the table.
  backend_.launch({stream_, {}}, [held = device_.at(buffer)] { tensor_of(held).zero_(); });
}

void ActionBuffers::release(const ActionBuffer& buffer, InstructionId instruction) {
  if (buffer.on_host) {
    host_.erase(buffer);
    return;
  }
  const auto found = device_.find(buffer);
  if (found == device_.end()) return;
  backend_.free(found->second.buffer, instruction);
  device_.erase(found);
}

bool ActionBuffers::has(const ActionBuffer& buffer) const {
  return buffer.on_host ? host_.contains(buffer) : device_.contains(buffer);
}

at::Tensor ActionBuffers::tensor(const ActionBuffer& buffer) const {
  if (buffer.on_host) return host_.at(buffer);
  return tensor_of(device_.at(buffer));
}

at::Tensor ActionBuffers::tensor_of(const Held& held) {
  return tensor_over(held.buffer.data(), {held.buffer.bytes() / itemsize(held.dtype)}, held.dtype);
}

}  // namespace foreshard::exec
