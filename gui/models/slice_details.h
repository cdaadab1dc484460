// Where a slice comes from, and what its recording says of it, as rows of words. Pure functions.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gui/models/slice_facts.h"

namespace foreshard::gui {

/// Full name, call, operators, module, forward, Python frames; of a host's slice the work that was launched inside.
void add_origin(std::vector<Fact>& facts, const TimelineModel& model, const SceneSlice& slice);

/// Shapes, grid, block, registers, shared memory, stream, correlation first, then all others.
void add_arguments(std::vector<Fact>& facts, const TimelineModel& model, const SceneSlice& slice);

/// What is marked together with a selected slice: its call and operators, or the work that it launched.
std::vector<SceneSlice> related_slices(const TimelineModel& model, const SceneSlice& slice);

/// The same, kept as long as scene and slice stay.
class RelatedSlices {
 public:
  const std::vector<SceneSlice>& of(const std::shared_ptr<const Scene>& scene, std::optional<SceneSlice> selected);

 private:
  std::shared_ptr<const Scene> scene_;
  std::optional<SceneSlice> selected_;
  std::vector<SceneSlice> slices_;
};

/// Where a step towards the host (`out`) or towards the work (`in`) leads.
std::optional<SceneSlice> outer_slice(const TimelineModel& model, const SceneSlice& slice);
std::optional<SceneSlice> inner_slice(const TimelineModel& model, const SceneSlice& slice);

}  // namespace foreshard::gui
