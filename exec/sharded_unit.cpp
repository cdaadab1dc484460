#include "exec/sharded_unit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "core/plan/shard_layout.h"
#include "exec/torch_types.h"

namespace foreshard::exec {
namespace {

/// A leaf with the parameter's shape and no memory behind it.
at::Tensor empty_leaf(const Shape& shape, DType dtype) {
  at::Tensor leaf = at::empty({0}, at::dtype(scalar_type_of(dtype)));
  leaf.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  ShardedTensor holder;
  holder.full = leaf;
  ShardedUnit::detach_full(holder);
  return leaf;
}

/// The same memory, without autograd's version counter: filling a parameter again must not look like a change to what
/// autograd has saved of it (PyTorch keeps the counter in the same place).
at::Tensor unseen(const at::Tensor& full) {
  return at::from_blob(full.data_ptr(), full.sizes(), full.options().requires_grad(false));
}

/// The rows of `whole` that lie on `rank`, and the same rows of the rank's chunk.
at::Tensor own_rows(const at::Tensor& whole, const ShardedTensor& tensor, int rank, int world_size) {
  const ShardExtent rows = shard_extent(whole.size(tensor.shard_dim), world_size, rank);
  return whole.narrow(tensor.shard_dim, rows.start, rows.length);
}

}  // namespace

ShardedUnit::ShardedUnit(const Model& model, const PlanUnit& unit, int rank, int world_size)
    : rank_(rank),
      world_size_(world_size),
      dtype_(unit.orig_dtype),
      param_dtype_(unit.param_dtype),
      reduce_dtype_(unit.reduce_dtype) {
  for (const ShardedParam& param : unit.sharded) {
    ShardedTensor tensor;
    tensor.id = param.param;
    tensor.shard_dim = param.shard_dim;
    tensor.padded_shape = param.padded_local_shape;
    tensor.offset = chunk_numel_;
    tensor.padded_numel = numel_of(tensor.padded_shape);
    tensor.full = empty_leaf(model.params[param.param.index()].shape, param_dtype_);
    tensor.full.set_requires_grad(model.params[param.param.index()].requires_grad);
    chunk_numel_ += tensor.padded_numel;
    tensors_.push_back(std::move(tensor));
  }
}

void ShardedUnit::load_shard(std::size_t index, void* memory, const at::Tensor& whole) {
  at::NoGradGuard no_grad;
  ShardedTensor& tensor = tensors_[index];
  tensor.padded_shard = tensor_over(memory, tensor.padded_shape, dtype_);
  tensor.padded_shard.zero_();
  const at::Tensor rows = own_rows(whole, tensor, rank_, world_size_);
  tensor.shard = tensor.padded_shard.narrow(tensor.shard_dim, 0, rows.size(tensor.shard_dim));
  tensor.shard.copy_(rows);
}

void ShardedUnit::attach_full(ShardedTensor& tensor, void* memory, Bytes bytes) {
  c10::StorageImpl* storage = tensor.full.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(memory, c10::Device(c10::kCPU)));
  storage->set_nbytes(static_cast<std::size_t>(bytes));
}

void ShardedUnit::detach_full(ShardedTensor& tensor) { attach_full(tensor, nullptr, 0); }

void ShardedUnit::copy_whole(const ShardedTensor& tensor) {
  at::NoGradGuard no_grad;
  unseen(tensor.full).copy_(tensor.shard);
}

at::Tensor ShardedUnit::chunk(const ShardedTensor& tensor, void* memory, int rank, DType dtype) const {
  const Numel begin = rank * chunk_numel_ + tensor.offset;
  return tensor_over(static_cast<std::byte*>(memory) + begin * itemsize(dtype), tensor.padded_shape, dtype);
}

void ShardedUnit::cast_shards(void* cast_buffer) const {
  at::NoGradGuard no_grad;
  for (const ShardedTensor& tensor : tensors_) chunk(tensor, cast_buffer, 0, param_dtype_).copy_(tensor.padded_shard);
}

void ShardedUnit::copy_in_shards(void* ag_buffer, const void* cast_buffer) const {
  at::NoGradGuard no_grad;
  if (cast_buffer != nullptr) {
    const Bytes bytes = chunk_numel_ * itemsize(param_dtype_);
    std::memcpy(static_cast<std::byte*>(ag_buffer) + rank_ * bytes, cast_buffer, static_cast<std::size_t>(bytes));
    return;
  }
  for (const ShardedTensor& tensor : tensors_) {
    chunk(tensor, ag_buffer, rank_, param_dtype_).copy_(tensor.padded_shard);
  }
}

void ShardedUnit::copy_out(void* ag_buffer) const {
  at::NoGradGuard no_grad;
  for (const ShardedTensor& tensor : tensors_) {
    const at::Tensor full = unseen(tensor.full);
    for (int rank = 0; rank < world_size_; ++rank) {
      const at::Tensor rows = own_rows(full, tensor, rank, world_size_);
      rows.copy_(chunk(tensor, ag_buffer, rank, param_dtype_).narrow(tensor.shard_dim, 0, rows.size(tensor.shard_dim)));
    }
  }
}

void ShardedUnit::copy_in_grads(void* rs_input) const {
  at::NoGradGuard no_grad;
  for (const ShardedTensor& tensor : tensors_) {
    const at::Tensor& gradient = tensor.accumulated.defined() ? tensor.accumulated : tensor.gradient;
    if (!gradient.defined()) {
      throw std::runtime_error(fmt::format("parameter {} has no gradient to reduce", tensor.id.value));
    }
    for (int rank = 0; rank < world_size_; ++rank) {
      const at::Tensor rows = own_rows(gradient, tensor, rank, world_size_);
      const at::Tensor to = chunk(tensor, rs_input, rank, reduce_dtype_);
      const auto length = rows.size(tensor.shard_dim);
      to.narrow(tensor.shard_dim, 0, length).copy_(rows);
      to.narrow(tensor.shard_dim, length, to.size(tensor.shard_dim) - length).zero_();
    }
  }
}

at::Tensor ShardedUnit::sharded_gradient(std::size_t index, void* rs_output) const {
  const ShardedTensor& tensor = tensors_[index];
  return chunk(tensor, rs_output, 0, reduce_dtype_).narrow(tensor.shard_dim, 0, tensor.shard.size(tensor.shard_dim));
}

}  // namespace foreshard::exec
