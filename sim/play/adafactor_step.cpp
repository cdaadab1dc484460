// Adafactor on what FSDP1 gives it: shards of one dimension, so nothing is factored and a whole second moment is kept.
#include "sim/play/resident_state.h"

#include <utility>

#include "core/lowering/lowering_autograd.h"

namespace foreshard {
namespace {

/// tensor.norm(2) of a shard: its result, and what the kernel takes while it is split over thread blocks.
BlockHandle norm_of(Device& device, Numel numel, int pool) {
  const BlockHandle norm = device.book.allocate(4, pool, MemoryCategory::Temporaries);
  const auto split =
      lowering::reduce_workspace(contiguous_layout({numel}, DType::Float32), {0}, device.profile.sm_count);
  for (const Bytes bytes : {split.buffer, split.semaphores}) {
    if (split.buffer == 0 || norm == kNoBlock) break;
    const BlockHandle part = device.book.allocate(bytes, pool, MemoryCategory::Temporaries);
    if (part == kNoBlock) return part;
    device.book.free(part);
  }
  return norm;
}

}  // namespace

/// `for_loop`: Transformers' (no relative steps, no scaling by parameters); `foreach`: torch.optim's over lists.
bool OptimizerState::adafactor(Device& device, const ActivitySpan& what) {
  if (device.profile.kind == "cpu") return adafactor_by_params(device, what);
  const bool lists = options_.impl == OptimizerImpl::Foreach;
  if (!(lists ? listed_adafactor(device, what) : looped_adafactor(device, what))) return false;
  has_state_ = true;
  return true;
}

bool OptimizerState::listed_adafactor(Device& device, const ActivitySpan& what) {
  for (const LocalParam& param : params_) {
    if (!has_state_ && !make_moments(device, param, 1, what)) return false;
  }
  for (std::size_t i = 0; i < params_.size(); ++i) {  // the host takes each parameter's norm
    scalar_calls(device, what, 1);
    device.clock.stream_synchronize(pool());
  }
  std::vector<BlockHandle> squares, estimates;
  if (!temporaries(device, squares)) return false;
  foreach_call(device, what, 3);
  foreach_call(device, what, 3);
  for (const BlockHandle block : squares) device.book.free(block);
  if (!temporaries(device, estimates)) return false;
  for (const int passes : {2, 2, 2, 3, 2, 3}) foreach_call(device, what, passes);
  for (const BlockHandle block : estimates) device.book.free(block);
  return true;
}

/// RMS of a parameter: its norm, divided; the last step's goes.
bool OptimizerState::keep_root_mean_square(Device& device, std::size_t k) {
  const BlockHandle norm = norm_of(device, params_[k].numel, pool());
  const BlockHandle mean = device.book.allocate(4, pool(), MemoryCategory::OptimizerState);
  if (norm == kNoBlock || mean == kNoBlock) return false;
  device.book.free(norm);
  if (scales_.size() <= k) scales_.resize(k + 1, kNoBlock);
  if (scales_[k] != kNoBlock) device.book.free(scales_[k]);
  scales_[k] = mean;
  return true;
}

/// A parameter's update is named until the next one's is there.
bool OptimizerState::looped_adafactor(Device& device, const ActivitySpan& what) {
  BlockHandle update = kNoBlock;
  const auto wide = [](const LocalParam& param) { return param.numel * itemsize(DType::Float32); };
  const auto take = [&](Bytes bytes) { return device.book.allocate(bytes, pool(), MemoryCategory::Temporaries); };
  for (std::size_t k = 0; k < params_.size(); ++k) {
    LocalParam param = params_[k];
    std::vector<BlockHandle> copies;  // what is narrower is worked on in float32: gradient, parameter
    if (param.bytes < wide(param)) copies = {take(wide(param)), take(wide(param))};
    param.bytes = wide(param);
    if (!has_state_ && !make_moments(device, param, 1, what)) return false;
    if (!keep_root_mean_square(device, k)) return false;
    const BlockHandle square = take(param.bytes);
    const BlockHandle sum = take(param.bytes);
    if (square == kNoBlock || sum == kNoBlock) return false;
    device.book.free(square);
    if (update != kNoBlock) device.book.free(update);
    update = take(param.bytes);
    if (update == kNoBlock) return false;
    device.book.free(sum);
    const BlockHandle norm = norm_of(device, param.numel, pool()),
                      mean = take(4);  // of the update: its root mean square, over the threshold
    const BlockHandle ratio = take(4);
    for (const BlockHandle scalar : {norm, mean, ratio}) device.book.free(scalar);
    const BlockHandle negative = take(param.bytes);
    if (negative == kNoBlock) return false;
    for (const int passes : {1, 2, 2, 2, 3, 2, 3, 1, 2, 2, 2, 3}) {
      device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(),
                    device.cost.copy(param.bytes * passes, DType::Float32), what);
    }
    scalar_calls(device, what, 6);  // two of them clear what the norms count in
    device.book.free(negative);
    for (const BlockHandle copy : copies) device.book.free(copy);
  }
  if (update != kNoBlock) device.book.free(update);
  return true;
}

/// Our executor's on a host: all moments first, then each parameter's temporaries for itself.
bool OptimizerState::adafactor_by_params(Device& device, const ActivitySpan& what) {
  for (const LocalParam& param : params_) {
    if (!has_state_ && !make_moments(device, param, 1, what)) return false;
  }
  has_state_ = true;
  const bool library = options_.impl == OptimizerImpl::ForLoop;  // Transformers': squares, and their sum with epsilon
  for (const LocalParam& param : params_) {
    std::vector<BlockHandle> held;
    for (int k = 0; k < (library ? 2 : 1); ++k) {
      held.push_back(device.book.allocate(param.bytes, pool(), MemoryCategory::Temporaries));
      if (held.back() == kNoBlock) return false;
    }
    device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(),
                  device.cost.copy(param.bytes * (library ? 25 : 18), param.dtype), what);
    for (const BlockHandle block : held) device.book.free(block);
  }
  return true;
}

}  // namespace foreshard
