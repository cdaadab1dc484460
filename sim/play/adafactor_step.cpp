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

/// The operators of Transformers' loop: each takes its result and is then launched, so that the allocator sees what
/// other streams have done until then.
class LoopedCalls {
 public:
  LoopedCalls(Device& device, Stream stream, const ActivitySpan& what)
      : device_(device), stream_(stream), what_(what) {}

  bool out_of_memory() const { return out_of_memory_; }
  void free(BlockHandle block) {
    if (block != kNoBlock) device_.book.free(block);
  }
  /// What the name meant before goes when it means something else.
  void rebind(BlockHandle& name, BlockHandle block) { free(std::exchange(name, block)); }

  /// An elementwise kernel that reads and writes so many tensors of `numel` float32 elements.
  SimDuration pass(Numel numel, int tensors = 2) const {
    constexpr double kElementsOfThread = 8;
    return device_.cost.copy(tensors * bytes_of(numel), DType::Float32,
                             [&] { return static_cast<double>(numel) / kElementsOfThread; });
  }
  /// A reduction: its blocks are as many as run at once.
  SimDuration reduced(Numel numel) const {
    return device_.cost.copy(bytes_of(numel), DType::Float32, [] { return 0.0; });
  }
  void run(SimDuration time) { device_.launch(stream_, device_.cost.op_ns() + device_.cost.launch_ns(), time, what_); }
  /// A new tensor of `numel` float32 elements, written by one kernel.
  BlockHandle made(Numel numel, MemoryCategory category = MemoryCategory::Temporaries) {
    const BlockHandle block = take(numel, category);
    run(pass(numel));
    return block;
  }

  /// norm(2) / sqrt(numel)
  BlockHandle root_mean_square(Numel numel, MemoryCategory category) {
    const NormBlock norm = norm_of(device_, index_of(stream_), numel, DType::Float32);
    out_of_memory_ |= norm.block == kNoBlock;
    if (norm.split) run(device_.cost.clear(bytes_of(1)));  // what counts the blocks that are done
    run(reduced(numel));
    const BlockHandle mean = made(1, category);
    free(norm.block);
    return mean;
  }
  /// The moment moves towards the squares; its root is a copy, times the gradient.
  BlockHandle whole_update(Numel numel) {
    run(pass(numel));
    run(pass(numel, 3));
    const BlockHandle update = made(numel);
    run(pass(numel, 3));
    return update;
  }
  BlockHandle factored_update(const LocalParam& param) {
    for (const bool by_row : {true, false}) {
      const Numel count = by_row ? param.rows : param.columns;
      run(pass(count));
      const BlockHandle mean = take(count, MemoryCategory::Temporaries);
      out_of_memory_ |= !means_split(device_, index_of(stream_), param, by_row);
      run(reduced(param.numel));
      run(pass(count, 3));
      free(mean);
    }
    const BlockHandle mean = made(1);
    const BlockHandle rows = made(param.rows);
    free(mean);
    run(pass(param.rows));  // its root
    const BlockHandle columns = made(param.columns);
    const BlockHandle update = made(param.numel);
    free(rows);
    free(columns);
    run(pass(param.numel, 3));  // times the gradient
    return update;
  }
  /// Divided by its root mean square over the threshold, where that is more than one.
  void bound(Numel numel) {
    const BlockHandle mean = root_mean_square(numel, MemoryCategory::Temporaries);
    const BlockHandle ratio = made(1);
    free(mean);
    run(pass(1));
    run(device_.cost.scaled(bytes_of(numel), DType::Float32));
    free(ratio);
  }

 private:
  static Bytes bytes_of(Numel numel) { return numel * itemsize(DType::Float32); }
  BlockHandle take(Numel numel, MemoryCategory category) {
    const BlockHandle block = device_.book.allocate(bytes_of(numel), index_of(stream_), category);
    out_of_memory_ |= block == kNoBlock;
    return block;
  }

  Device& device_;
  Stream stream_;
  const ActivitySpan& what_;
  bool out_of_memory_ = false;
};

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

/// Transformers' loop (optimization.py, Adafactor.step): what its names mean goes when they are bound anew.
bool OptimizerState::looped_adafactor(Device& device, const ActivitySpan& what) {
  LoopedCalls calls(device, stream_, what);
  BlockHandle gradient = kNoBlock, parameter = kNoBlock, update = kNoBlock;
  scales_.resize(params_.size(), kNoBlock);
  for (std::size_t k = 0; k < params_.size(); ++k) {
    LocalParam param = params_[k];
    const Bytes wide = param.numel * itemsize(DType::Float32);
    const bool narrow = param.bytes < wide;  // is worked on in float32
    calls.rebind(gradient, kNoBlock);
    if (narrow) gradient = calls.made(param.numel);
    param.bytes = wide;
    param.dtype = DType::Float32;
    if (!has_state_ && !make_factors(device, param, what)) return false;
    calls.rebind(parameter, kNoBlock);
    if (narrow) parameter = calls.made(param.numel);
    const BlockHandle scale = calls.root_mean_square(param.numel, MemoryCategory::OptimizerState);
    calls.rebind(scales_[k], scale);
    const BlockHandle square = calls.made(param.numel);
    const BlockHandle sum = calls.made(param.numel);
    calls.free(square);
    calls.rebind(update, sum);
    calls.rebind(update, param.is_matrix() ? calls.factored_update(param) : calls.whole_update(param.numel));
    calls.bound(param.numel);
    calls.run(calls.pass(param.numel));  // times the learning rate
    if (options_.weight_decay != 0) calls.run(calls.pass(param.numel));
    const BlockHandle negative = calls.made(param.numel);
    calls.run(calls.pass(param.numel, 3));
    calls.free(negative);
    if (narrow) calls.run(calls.pass(param.numel));  // back into the parameter
    if (calls.out_of_memory()) return false;
  }
  for (const BlockHandle block : {gradient, parameter, update}) calls.free(block);
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
