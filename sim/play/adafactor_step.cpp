// Adafactor: of whole matrices second moments by row and by column; of what FSDP1 gives it, shards of one dimension,
// nothing is factored and a whole second moment is kept.
#include "sim/play/resident_state.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace foreshard {
namespace {

/// What a matrix' norms by row or by column take beside their results. False: out of memory.
bool means_split(Device& device, int pool, const LocalParam& param, bool by_row) {
  if (param.rows * param.columns != param.numel) return true;  // of more dimensions: none was seen
  const Layout matrix = contiguous_layout({param.rows, param.columns}, param.dtype);
  return reduction_splits(device, pool, matrix, by_row ? 1 : 0).has_value();
}

}  // namespace

/// Transformers' (no relative steps, no scaling by parameters), or torch.optim's by a loop or over lists.
bool OptimizerState::adafactor(Device& device, const ActivitySpan& what) {
  const bool factors = std::any_of(params_.begin(), params_.end(), [](const LocalParam& p) { return p.is_matrix(); });
  if (device.profile.kind == "cpu" && !factors) return adafactor_by_params(device, what);
  if (is_transformers(options_)) {
    if (!looped_adafactor(device, what)) return false;
  } else {
    const bool loop = options_.impl == OptimizerImpl::ForLoop;
    std::vector<LocalParam> lists[2];  // in the order in which their first tensors come
    for (const LocalParam& param : params_) {
      if (!has_state_ && !make_factors(device, param, what)) return false;
      lists[param.is_matrix() == params_.front().is_matrix() ? 0 : 1].push_back(param);
    }
    if (loop && !single_adafactor(device, what)) return false;
    for (const std::vector<LocalParam>& list : lists)
      if (!loop && !list.empty() && !adafactor_of_list(device, what, list)) return false;
  }
  has_state_ = true;
  return true;
}

/// A matrix keeps means of its squares by row and by column.
bool OptimizerState::make_factors(Device& device, const LocalParam& param, const ActivitySpan& what) {
  if (!param.is_matrix()) return make_moments(device, param, 1, what);
  device.book.set_unit(param.unit);
  for (const Numel count : {param.rows, param.columns}) {
    const Bytes bytes = count * (param.bytes / param.numel);  // float32 where the loop widens
    if (device.book.allocate(bytes, pool(), MemoryCategory::OptimizerState) == kNoBlock) return false;
    device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(), device.cost.fill(bytes), what);
  }
  device.book.set_unit(-1);
  return true;
}

/// A norm that the host waits for: what clears semaphores, the norm, its copy to the host. False: out of memory.
bool OptimizerState::norm_for_host(Device& device, const ActivitySpan& what, Numel numel, DType dtype) {
  const NormBlock norm = norm_of(device, pool(), numel, dtype);
  if (norm.block == kNoBlock) return false;
  scalar_calls(device, what, norm.split ? 3 : 2);
  device.clock.stream_synchronize(pool());
  device.book.free(norm.block);
  return true;
}

/// _multi_tensor_adafactor of tensors that are all matrices, or none.
bool OptimizerState::adafactor_of_list(Device& device, const ActivitySpan& what, const std::vector<LocalParam>& list) {
  using Handles = std::vector<BlockHandle>;
  const auto made = [&](const auto& bytes_of) {
    std::optional<Handles> blocks(std::in_place);
    for (const LocalParam& param : list) {
      blocks->push_back(device.book.allocate(bytes_of(param), pool(), MemoryCategory::Temporaries));
      if (blocks->back() == kNoBlock) return std::optional<Handles>();
    }
    return blocks;
  };
  const auto free = [&](const Handles& blocks) {
    for (const BlockHandle block : blocks) device.book.free(block);
  };
  const auto norms = [&] {
    return std::all_of(list.begin(), list.end(), [&](const LocalParam& param) {
      return norm_for_host(device, what, param.numel, DType::Float32);
    });
  };
  if (!norms()) return false;  // of the parameters
  std::optional<Handles> updates;
  if (list.front().is_matrix()) {
    for (const bool by_row : {true, false}) {
      const auto means = made([&](const LocalParam& p) { return (by_row ? p.rows : p.columns) * itemsize(p.dtype); });
      const bool split = means && std::all_of(list.begin(), list.end(), [&](const LocalParam& param) {
                           return means_split(device, pool(), param, by_row);
                         });
      if (!split) return false;
      list_call(device, stream_, what, 1, list);
      free(*means);
    }
    updates = made([](const LocalParam& p) { return p.bytes; });
    const auto means = made([](const LocalParam& p) { return itemsize(p.dtype); });
    if (!updates || !means) return false;
    for (const int passes : {1, 2}) list_call(device, stream_, what, passes, list);
    free(*means);
  } else {
    const auto squares = made([](const LocalParam& p) { return p.bytes; });
    if (!squares) return false;
    for (const int passes : {3, 3}) list_call(device, stream_, what, passes, list);
    free(*squares);
    updates = made([](const LocalParam& p) { return p.bytes; });
    if (!updates) return false;
    list_call(device, stream_, what, 2, list);
  }
  for (const int passes : {2, 2, 3}) list_call(device, stream_, what, passes, list);
  if (!norms()) return false;  // of their updates
  for (const int passes : {2, 3}) list_call(device, stream_, what, passes, list);
  free(*updates);
  return true;
}

/// _single_tensor_adafactor: its local names live until the next parameter's take their place.
bool OptimizerState::single_adafactor(Device& device, const ActivitySpan& what) {
  BlockHandle named[2] = {kNoBlock, kNoBlock}, estimate = kNoBlock;  // squares of the gradient, or their two means
  const auto take = [&](Bytes bytes) { return device.book.allocate(bytes, pool(), MemoryCategory::Temporaries); };
  const auto rename = [&](BlockHandle& name, BlockHandle block) {
    if (name != kNoBlock) device.book.free(name);
    name = block;
    return block != kNoBlock;
  };
  const auto pass = [&](Bytes bytes, DType dtype) {
    device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(), device.cost.copy(bytes, dtype), what);
  };
  for (const LocalParam& param : params_) {
    if (!norm_for_host(device, what, param.numel, param.dtype)) return false;
    if (options_.weight_decay != 0) pass(2 * param.bytes, param.dtype);
    if (param.is_matrix()) {
      for (const bool by_row : {true, false}) {
        const Bytes bytes = (by_row ? param.rows : param.columns) * itemsize(param.dtype);
        const BlockHandle mean = take(bytes);
        if (mean == kNoBlock || !means_split(device, pool(), param, by_row)) return false;
        rename(named[by_row ? 0 : 1], mean);
        for (const Bytes moved : {param.bytes, 2 * bytes, 2 * bytes, 3 * bytes}) pass(moved, param.dtype);
      }
    } else {
      if (!rename(named[0], take(param.bytes))) return false;
      for (const int passes : {3, 3}) pass(passes * param.bytes, param.dtype);  // squares, their share
    }
    const BlockHandle next = take(param.bytes);  // the product of both means, or a copy of the moment
    if (next == kNoBlock) return false;
    pass(2 * param.bytes, param.dtype);
    if (param.is_matrix()) {
      const BlockHandle mean = take(itemsize(param.dtype));
      if (mean == kNoBlock) return false;
      scalar_calls(device, what, 2);
      pass(2 * param.bytes, param.dtype);
      device.book.free(mean);
    }
    rename(estimate, next);
    for (const int passes : {2, 2, 3}) pass(passes * param.bytes, param.dtype);  // bounded, rooted, times the gradient
    if (!norm_for_host(device, what, param.numel, param.dtype)) return false;
    pass(3 * param.bytes, param.dtype);
  }
  for (const BlockHandle block : {named[0], named[1], estimate})
    if (block != kNoBlock) device.book.free(block);
  return true;
}

/// RMS of a parameter: its norm, divided; the last step's goes.
bool OptimizerState::keep_root_mean_square(Device& device, std::size_t k) {
  const BlockHandle norm = norm_of(device, pool(), params_[k].numel, DType::Float32).block;
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
    if (!has_state_ && !make_factors(device, param, what)) return false;
    if (!keep_root_mean_square(device, k)) return false;
    const BlockHandle square = take(param.bytes);
    const BlockHandle sum = take(param.bytes);
    if (square == kNoBlock || sum == kNoBlock) return false;
    device.book.free(square);
    for (const Numel means : {param.rows, param.columns}) {  // of the squares; then their roots
      const BlockHandle block = means > 0 ? take(means * itemsize(DType::Float32)) : kNoBlock;
      if (block != kNoBlock) device.book.free(block);
    }
    if (update != kNoBlock) device.book.free(update);
    update = take(param.bytes);
    if (update == kNoBlock) return false;
    device.book.free(sum);
    const BlockHandle norm = norm_of(device, pool(), param.numel, DType::Float32).block,
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
  const bool library = is_transformers(options_);  // squares, and their sum with epsilon
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
