#include "gui/models/slice_details.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "gui/models/timeline/amounts.h"
#include "traces/analysis/kernel_table.h"
#include "traces/analysis/range_statistics.h"

namespace foreshard::gui {
namespace {

constexpr std::size_t kMostFrames = 16;
constexpr std::size_t kMostWork = 100'000;
constexpr std::size_t kMostNamed = 5;
constexpr std::size_t kMostMarked = 256;

struct Spoken {
  std::string_view key, words;
};
// Kineto's keys, in the order in which they are asked for.
constexpr std::array<Spoken, 14> kSpoken{{{"Input Dims", "shapes"},
                                          {"Input type", "types"},
                                          {"Concrete Inputs", "values"},
                                          {"Input Strides", "strides"},
                                          {"grid", "grid"},
                                          {"block", "block"},
                                          {"registers per thread", "registers"},
                                          {"shared memory", "shared memory"},
                                          {"warps per SM", "warps per SM"},
                                          {"est. achieved occupancy %", "occupancy, estimated"},
                                          {"stream", "stream"},
                                          {"correlation", "correlation"},
                                          {"Sequence number", "sequence number"},
                                          {"Call stack", "call stack"}}};

const Span& at(const TimelineModel& model, SpanId span) { return model.timeline.spans[span.index()]; }
std::string name_of(const TimelineModel& model, SpanId span) {
  return std::string(model.timeline.name_of(at(model, span).name));
}
SceneSlice place(const SceneSlice& slice, SpanId span) {
  return {slice.side, static_cast<std::uint32_t>(span.index())};
}
/// Count, sum, and the longest kinds of what was launched inside.
void add_work(std::vector<Fact>& facts, const TimelineModel& model, const SceneSlice& slice) {
  std::vector<SpanId> work = model.origins().work_of(SpanId(std::size_t{slice.span}), kMostWork);
  if (work.size() < 2) return;  // one is told with its arrow
  SimDuration sum = 0;
  for (const SpanId span : work) sum += at(model, span).duration;
  facts.push_back({"launches",
                   fmt::format("{} pieces of work, {}{}", work.size(), duration_words(sum),
                               work.size() == kMostWork ? " (the first of them)" : ""),
                   place(slice, work.front())});
  const auto shown = static_cast<std::ptrdiff_t>(std::min(kMostNamed, work.size()));
  std::partial_sort(work.begin(), work.begin() + shown, work.end(),
                    [&](SpanId a, SpanId b) { return at(model, a).duration > at(model, b).duration; });
  for (auto span = work.begin(); span != work.begin() + shown; ++span)
    facts.push_back(
        {"",
         fmt::format("{}, {}", folded_kernel_name(name_of(model, *span)), duration_words(at(model, *span).duration)),
         place(slice, *span)});
}

}  // namespace

void add_origin(std::vector<Fact>& facts, const TimelineModel& model, const SceneSlice& slice) {
  const SpanId id(std::size_t{slice.span});
  const SliceOrigin origin = model.origins().of(id);
  if (!origin.operators.empty()) {
    std::string path;
    for (auto span = origin.operators.rbegin(); span != origin.operators.rend(); ++span)
      path += (path.empty() ? "" : " › ") + name_of(model, *span);
    facts.push_back({"operator", path, place(slice, origin.operators.front())});
  }
  if (origin.forward.valid())
    facts.push_back({"forward", name_of(model, origin.forward), place(slice, origin.forward)});
  std::string modules;
  for (const std::string& module : origin.modules) modules += (modules.empty() ? "" : " › ") + module;
  if (!modules.empty() && at(model, id).unit < 0) facts.push_back({"module", modules});
  if (!origin.ranges.empty())
    facts.push_back({"in", name_of(model, origin.ranges.front()), place(slice, origin.ranges.front())});
  std::size_t shown = 0;
  for (const SpanId frame : origin.frames) {
    if (frame == id) continue;
    facts.push_back({shown == 0 ? "Python" : "", name_of(model, frame), place(slice, frame)});
    if (++shown == kMostFrames) break;
  }
  if (model.origins().is_host(id)) add_work(facts, model, slice);
}

void add_arguments(std::vector<Fact>& facts, const TimelineModel& model, const SceneSlice& slice) {
  const std::vector<SliceArgument> all = model.arguments.of(SpanId(std::size_t{slice.span}));
  for (const Spoken& spoken : kSpoken) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const SliceArgument& a) { return a.key == spoken.key; });
    if (found != all.end()) facts.push_back({std::string(spoken.words), found->words()});
  }
  for (const SliceArgument& argument : all) {
    const bool told =
        std::any_of(kSpoken.begin(), kSpoken.end(), [&](const Spoken& s) { return s.key == argument.key; });
    if (!told) facts.push_back({std::string(argument.key), argument.words()});
  }
}

std::vector<SceneSlice> related_slices(const TimelineModel& model, const SceneSlice& slice) {
  const SpanId id(std::size_t{slice.span});
  std::vector<SceneSlice> all;
  if (model.origins().is_host(id)) {
    for (const SpanId work : model.origins().work_of(id, kMostMarked)) all.push_back(place(slice, work));
    return all;
  }
  const SliceOrigin origin = model.origins().of(id);
  if (origin.call.valid()) all.push_back(place(slice, origin.call));
  for (const SpanId outer : origin.operators) all.push_back(place(slice, outer));
  return all;
}

const std::vector<SceneSlice>& RelatedSlices::of(const std::shared_ptr<const Scene>& scene,
                                                 std::optional<SceneSlice> selected) {
  if (scene == scene_ && selected == selected_) return slices_;
  scene_ = scene;
  selected_ = selected;
  slices_.clear();
  if (scene && selected)
    slices_ = related_slices(*scene->sides[static_cast<std::size_t>(selected->side)].model, *selected);
  return slices_;
}

std::optional<SceneSlice> outer_slice(const TimelineModel& model, const SceneSlice& slice) {
  const SpanId id(std::size_t{slice.span});
  const SliceOrigin origin = model.origins().of(id);
  if (!model.origins().is_host(id)) {
    if (!origin.call.valid()) return std::nullopt;
    return place(slice, origin.operators.empty() ? origin.call : origin.operators.front());
  }
  if (!origin.operators.empty()) return place(slice, origin.operators.front());
  for (const SpanId frame : origin.frames)
    if (frame != id) return place(slice, frame);
  return std::nullopt;
}

std::optional<SceneSlice> inner_slice(const TimelineModel& model, const SceneSlice& slice) {
  const std::vector<SpanId> work = model.origins().work_of(SpanId(std::size_t{slice.span}), 1);
  if (work.empty()) return std::nullopt;
  return place(slice, work.front());
}

}  // namespace foreshard::gui
