// A step of an optimizer that no job names, as the script's was seen to take memory and to give it back.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "sim/play/resident_state.h"

namespace foreshard {
namespace {

constexpr double kSame = 0.02;  // of the parameters' bytes: what nothing else explains is no other number of ranks
constexpr int kPasses = 4;      // over parameters and gradients, beside what it makes

/// By number of what the step takes: whether it gives that back.
std::vector<bool> given_back(const WatchedStep& step) {
  std::vector<bool> back;
  for (const std::int64_t event : step.events)
    if (event > 0) back.push_back(false);
  for (const std::int64_t event : step.events) {
    const std::int64_t number = -1 - event - step.there;
    if (event < 0 && number >= 0 && number < static_cast<std::int64_t>(back.size()))
      back[static_cast<std::size_t>(number)] = true;
  }
  return back;
}

/// What a step keeps lies in the places of what has gone: a number means the same in every step.
void put(const std::vector<BlockHandle>& taken, std::vector<BlockHandle>& kept) {
  std::size_t place = 0;
  for (const BlockHandle block : taken) {
    if (block == kNoBlock) continue;
    while (place < kept.size() && kept[place] != kNoBlock) ++place;
    if (place == kept.size()) kept.push_back(kNoBlock);
    kept[place] = block;
  }
}

}  // namespace

WatchedOptimizer watched_of(const Model* model, const OptimizerOptions& options) {
  if (model == nullptr || options.name != OptimizerKind::Watched) return {};
  const auto at = std::find_if(model->optimizers.begin(), model->optimizers.end(),
                               [&](const WatchedOptimizer& each) { return each.name == watched_name(options); });
  return at == model->optimizers.end() ? WatchedOptimizer() : *at;
}

/// Sizes go with the parameters that this rank has: what follows those of another number of ranks, or another model.
bool OptimizerState::watched_step(Device& device, const ActivitySpan& what) {
  Bytes own = 0;
  for (const LocalParam& param : params_) own += param.bytes;
  const double share = watched_.params > 0 ? static_cast<double>(own) / static_cast<double>(watched_.params) : 1.0;
  const bool same = std::abs(share - 1.0) < kSame;
  const WatchedStep& step = has_state_ ? watched_.steady : watched_.first;
  has_state_ = true;
  const std::vector<bool> back = given_back(step);
  std::vector<BlockHandle> taken;
  for (const std::int64_t event : step.events) {
    if (event < 0) {
      const std::int64_t number = -1 - event;
      std::vector<BlockHandle>& of = number < step.there ? kept_ : taken;
      const auto at = static_cast<std::size_t>(number < step.there ? number : number - step.there);
      if (at < of.size() && of[at] != kNoBlock) device.book.free(std::exchange(of[at], kNoBlock));
      continue;
    }
    const Bytes bytes = same ? event : std::max<Bytes>(1, std::llround(static_cast<double>(event) * share));
    const MemoryCategory category = back[taken.size()] ? MemoryCategory::Temporaries : MemoryCategory::OptimizerState;
    taken.push_back(device.book.allocate(bytes, pool(), category));
    if (taken.back() == kNoBlock) return false;
    device.launch(stream_, device.cost.op_ns() + device.cost.launch_ns(), device.cost.copy(2 * bytes, DType::Float32),
                  what);
  }
  put(taken, kept_);
  foreach_call(device, what, kPasses);
  return true;
}

}  // namespace foreshard
