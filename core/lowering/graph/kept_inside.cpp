#include "core/lowering/graph/kept_inside.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/lowering/lowering_machine.h"
#include "core/model/op_keywords.h"

namespace foreshard::lowering {

bool keeps_listed(const SavedOps& saved, CheckpointFrame& frame, std::string_view name) {
  if (saved.none() || frame.reentrant || !saved.lists(name)) return false;
  const bool counted = saved.rerun_product > 0 && name == "aten.mm.default";
  return !counted || ++frame.matmuls % saved.rerun_product != 0;
}

bool keeps_collective(const Region& region, const Op& op) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kNames{
      {{"mesh.all_gather", "_c10d_functional.all_gather_into_tensor"},
       {"mesh.all_reduce", "_c10d_functional.all_reduce"},
       {"mesh.all_to_all", "_c10d_functional.all_to_all_single"},
       {"mesh.reduce_scatter", "_c10d_functional.reduce_scatter_tensor"}}};
  if (region.save_collectives.empty()) return false;
  return std::any_of(kNames.begin(), kNames.end(), [&](const auto& names) {
    return op.name == names.first && std::find(region.save_collectives.begin(), region.save_collectives.end(),
                                               names.second) != region.save_collectives.end();
  });
}

void KeptInside::enter(CheckpointFrame* frame, const Op& op, std::int32_t step, bool again) {
  names_ = keyword_list(op, "kept_inside");
  frame_ = saved_.none() && names_ == nullptr ? nullptr : frame;
  step_ = step;
  again_ = again;
  next_ = 0;
}

Ref KeptInside::take() {
  if (frame_ == nullptr || !again_) return {};
  const auto at = frame_->kept_inside.find(step_);
  if (at == frame_->kept_inside.end() || next_ >= at->second.size()) return {};
  return std::exchange(at->second[next_++], {});
}

void KeptInside::keep(std::string_view name, const Ref& made) {
  if (frame_ == nullptr || again_) return;
  const auto is_named = [&](const Arg& each) {
    const auto* text = std::get_if<std::string>(&each.value);
    return text != nullptr && *text == name;
  };
  const bool kept =
      names_ != nullptr ? std::any_of(names_->begin(), names_->end(), is_named) : keeps_listed(saved_, *frame_, name);
  frame_->kept_inside[step_].push_back(kept ? made : Ref());
}

}  // namespace foreshard::lowering
