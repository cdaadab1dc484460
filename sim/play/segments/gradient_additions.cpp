#include "sim/play/segments/gradient_additions.h"

#include <algorithm>
#include <utility>

namespace foreshard {

const std::vector<GradientAdditions::Addition>& GradientAdditions::find(const SegmentTemplate& segment,
                                                                        std::int32_t instance) {
  forget();
  if (context_.device.profile.kind == "cpu") return found_;
  if (segment.backward.kernels.empty()) return found_;
  const auto end = static_cast<std::int32_t>(context_.iteration->instructions.size());
  for (std::int32_t position = context_.position + 1; position + 1 < end; ++position) {
    const Instruction& i = at(position);
    if (i.kind == InstructionKind::Mark || i.kind == InstructionKind::Free) continue;
    if (i.kind != InstructionKind::Accumulate) break;
    // A sum of two names' pieces is followed by the free of the other name.
    if (at(position + 1).kind != InstructionKind::Free || !(at(position + 1).buffer == i.buffer)) continue;
    if (!i.buffer.param.valid() || buffers_.find(i.buffer, 0) == kNoBlock) continue;
    const ParamId param = context_.model.storage_of(i.buffer.param);
    const auto gradient =
        std::find_if(segment.gradients.begin(), segment.gradients.end(), [&](const FinishedGradient& finished) {
          return finished.param >= 0 && storages_.owner_of(instance, static_cast<std::size_t>(finished.param)) == param;
        });
    if (gradient != segment.gradients.end()) found_.push_back({*gradient, position});
  }
  if (found_.empty()) return found_;
  last_played_ = found_.back().position + 1;
  std::stable_sort(found_.begin(), found_.end(), [](const Addition& a, const Addition& b) {
    return a.gradient.kernels != b.gradient.kernels ? a.gradient.kernels < b.gradient.kernels
                                                    : a.gradient.events < b.gradient.events;
  });
  return found_;
}

bool GradientAdditions::is_played(std::int32_t position) const {
  return std::any_of(found_.begin(), found_.end(), [position](const Addition& addition) {
    return addition.position == position || addition.position + 1 == position;
  });
}

bool GradientAdditions::play_sum(const Addition& addition) {
  const std::int32_t segment = std::exchange(context_.position, addition.position);  // whose span it is
  const bool ok = movement_.play(at(addition.position));
  context_.position = segment;
  return ok;
}

std::int32_t GradientAdditions::place_of_addend(const Addition& addition) const {
  const std::size_t index = buffers_.index(at(addition.position).buffer);
  return buffers_.block(index) == addend(addition) ? storages_.place_of_buffer(index) : -1;
}

void GradientAdditions::free_addend(const Addition& addition) {
  context_.device.book.free(buffers_.take_newest(at(addition.position).buffer));
  ++context_.device.activity.events;
}

std::vector<TimedKernel> GradientAdditions::among(const std::vector<TimedKernel>& kernels) const {
  std::vector<TimedKernel> all;
  all.reserve(kernels.size() + found_.size());
  auto next = found_.begin();
  for (std::size_t k = 0; k <= kernels.size(); ++k) {
    for (; next != found_.end() && static_cast<std::size_t>(next->gradient.kernels) == k; ++next) {
      if (next->gradient.copied && !all.empty()) all.pop_back();
      TimedKernel& sum = all.emplace_back();
      sum.host = context_.device.cost.op_ns() + context_.device.cost.launch_ns();
      sum.device = movement_.device_time(at(next->position));
      sum.launches = true;
    }
    if (k < kernels.size()) all.push_back(kernels[k]);
  }
  return all;
}

}  // namespace foreshard
