#include "gui/models/scene.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "traces/formats/chrome_trace.h"

namespace foreshard::gui {
namespace {

constexpr double kRankHeight = 24, kPhasesHeight = 18, kExposedHeight = 16, kHeatHeight = 12, kLinksHeight = 12,
                 kGap = 4;
constexpr double kMostRowsHeight = 400;  // a lane of very many rows gets thin rows

/// Lanes of a rank from top to bottom.
std::vector<std::uint32_t> lanes_of(const Timeline& timeline, std::int32_t rank, const SceneOptions& options) {
  std::vector<std::uint32_t> lanes;
  for (std::size_t k = 0; k < timeline.lanes.size(); ++k) {
    const Lane& lane = timeline.lanes[k];
    const bool host = lane.stream.starts_with("host");
    if (lane.rank != rank || (host && !options.host) || options.hidden.contains(lane.stream)) continue;
    lanes.push_back(static_cast<std::uint32_t>(k));
  }
  std::stable_sort(lanes.begin(), lanes.end(), [&](std::uint32_t a, std::uint32_t b) {
    const std::string &left = timeline.lanes[a].stream, &right = timeline.lanes[b].stream;
    const auto pinned = [&](const std::string& stream) {
      return std::find(options.first.begin(), options.first.end(), stream) - options.first.begin();
    };
    return std::pair(pinned(left), stream_row(left)) < std::pair(pinned(right), stream_row(right));
  });
  return lanes;
}

class Builder {
 public:
  Builder(Scene& scene, const SceneOptions& options) : scene_(scene), options_(options) {}

  Track& add(TrackKind kind, int side, std::int32_t rank, double height, std::string label, double gap = kGap) {
    Track track;
    track.kind = kind;
    track.side = side;
    track.rank = rank;
    track.y = y_;
    track.height = height;
    track.label = std::move(label);
    y_ += height + gap;
    scene_.tracks.push_back(std::move(track));
    return scene_.tracks.back();
  }

  void add_lane(int side, std::uint32_t lane, std::string label, double gap = kGap) {
    const TimelineModel& model = *scene_.sides[static_cast<std::size_t>(side)].model;
    const Lane& about = model.timeline.lanes[lane];
    const auto rows = static_cast<double>(model.lanes[lane].rows.size());
    const double height = std::min(options_.row_height * rows, std::max(options_.row_height, kMostRowsHeight));
    Track& track = add(TrackKind::Lane, side, about.rank, height, std::move(label), gap);
    track.lane = lane;
    track.stream = about.stream;
  }

  void add_phases(int side, const RankBands* bands) {
    if (bands != nullptr && !bands->phases.empty())
      add(TrackKind::Phases, side, bands->rank, kPhasesHeight, scene_.compares() ? side_word(side) : "phase");
  }

  void add_exposed(int side, const RankBands* bands) {
    if (bands != nullptr && bands->exposed.size() > 0)
      add(TrackKind::Exposed, side, bands->rank, kExposedHeight,
          scene_.compares() ? "exposed, " + side_word(side) : "exposed comm");
  }

  void add_memory(int side, const MemoryTracks* memory) {
    if (!options_.memory || memory == nullptr) return;
    y_ += kGap;
    add(TrackKind::Memory, side, memory->rank, options_.memory_height,
        scene_.compares() ? "memory, " + side_word(side) : "memory");
  }

  std::string side_word(int side) const {
    const TimelineModel& model = *scene_.sides[static_cast<std::size_t>(side)].model;
    if (!scene_.compares()) return {};
    const bool same = scene_.sides[0].model->predicted() == scene_.sides[1].model->predicted();
    if (same) return side == 0 ? "A" : "B";
    return model.predicted() ? "predicted" : "measured";
  }

  std::string rank_label(std::int32_t rank) const {
    return fmt::format("{} rank {}", options_.folded.contains(rank) ? "▸" : "▾", rank);
  }

  void finish() { scene_.height = y_; }

 private:
  Scene& scene_;
  const SceneOptions& options_;
  double y_ = 0;
};

std::string lane_label(const Lane& lane) {
  const std::string spoken(spoken_stream_name(lane.stream));
  if (lane.label.empty()) return spoken;
  if (lane.stream.ends_with(" python")) return lane.label + ", Python";
  return spoken == lane.stream ? lane.label : fmt::format("{} ({})", spoken, lane.label);
}

void add_compared_rank(Builder& builder, const Scene& scene, const SceneOptions& options, std::int32_t rank) {
  const Timeline& a = scene.sides[0].model->timeline;
  const Timeline& b = scene.sides[1].model->timeline;
  for (const int side : {0, 1})
    builder.add_phases(side, scene.sides[static_cast<std::size_t>(side)].model->bands_of(rank));
  std::vector<std::uint32_t> rest = options.lanes ? lanes_of(b, rank, options) : std::vector<std::uint32_t>{};
  const auto pair_up = [&](std::uint32_t lane) {
    const Lane& about = a.lanes[lane];
    const auto partner = std::find_if(rest.begin(), rest.end(),
                                      [&](std::uint32_t other) { return b.lanes[other].stream == about.stream; });
    const bool paired = partner != rest.end();
    builder.add_lane(0, lane, fmt::format("{}, {}", lane_label(about), builder.side_word(0)), paired ? 0 : kGap);
    if (!paired) return;
    builder.add(TrackKind::Links, 0, rank, kLinksHeight, "", 0).stream = about.stream;
    builder.add_lane(1, *partner, builder.side_word(1), 1);
    rest.erase(partner);
    if (about.stream.starts_with("host")) return;
    Track& heat = builder.add(TrackKind::Heat, 0, rank, kHeatHeight, "difference", 2 * kGap);
    heat.stream = about.stream;
  };
  if (options.lanes)
    for (const std::uint32_t lane : lanes_of(a, rank, options)) pair_up(lane);
  for (const std::uint32_t lane : rest)
    builder.add_lane(1, lane, fmt::format("{}, {}", lane_label(b.lanes[lane]), builder.side_word(1)));
  for (const int side : {0, 1})
    builder.add_exposed(side, scene.sides[static_cast<std::size_t>(side)].model->bands_of(rank));
  for (const int side : {0, 1})
    builder.add_memory(side, scene.sides[static_cast<std::size_t>(side)].model->memory_of(rank));
}

}  // namespace

std::size_t Scene::track_at(double y) const {
  const auto found = std::partition_point(tracks.begin(), tracks.end(),
                                          [y](const Track& track) { return track.y + track.height <= y; });
  return static_cast<std::size_t>(found - tracks.begin());
}

Scene timeline_scene(std::shared_ptr<const TimelineModel> model, const SceneOptions& options) {
  Scene scene;
  scene.sides.push_back({std::move(model), 0});
  const TimelineModel& shown = *scene.sides.front().model;
  const SimTime origin = options.from_step ? steady_range(shown).begin : shown.extent.begin;
  scene.sides.front().origin = origin;
  scene.extent = {shown.extent.begin - origin, shown.extent.end - origin};
  Builder builder(scene, options);
  for (const RankBands& bands : shown.ranks) {
    if (shown.ranks.size() > 1)
      builder.add(TrackKind::Rank, 0, bands.rank, kRankHeight, builder.rank_label(bands.rank));
    builder.add_phases(0, &bands);
    if (options.folded.contains(bands.rank)) continue;
    if (options.lanes) {
      for (const std::uint32_t lane : lanes_of(shown.timeline, bands.rank, options))
        builder.add_lane(0, lane, lane_label(shown.timeline.lanes[lane]));
      builder.add_exposed(0, &bands);
    }
    builder.add_memory(0, shown.memory_of(bands.rank));
  }
  builder.finish();
  return scene;
}

Scene stretched(Scene scene, double height) {
  constexpr double kMostOfRows = 1.5;
  double room = height - scene.height, rows = 0, memories = 0;
  for (const Track& track : scene.tracks) {
    if (track.kind == TrackKind::Lane) rows += track.height;
    if (track.kind == TrackKind::Memory) ++memories;
  }
  if (room <= 0 || (rows == 0 && memories == 0)) return scene;
  const double grown = rows > 0 ? std::min(kMostOfRows, 1 + room / rows) : 1;
  room -= rows * (grown - 1);
  double moved = 0;
  for (Track& track : scene.tracks) {
    track.y += moved;
    double more = 0;
    if (track.kind == TrackKind::Lane) more = track.height * (grown - 1);
    if (track.kind == TrackKind::Memory) more = room / memories;
    track.height += more;
    moved += more;
  }
  scene.height += moved;
  return scene;
}

Scene comparison_scene(std::shared_ptr<const ComparisonModel> comparison, const SceneOptions& options) {
  Scene scene;
  scene.sides = {{comparison->a, comparison->origin_a}, {comparison->b, comparison->origin_b}};
  scene.comparison = comparison;
  scene.extent = {
      std::min(comparison->a->extent.begin - comparison->origin_a, comparison->b->extent.begin - comparison->origin_b),
      std::max(comparison->a->extent.end - comparison->origin_a, comparison->b->extent.end - comparison->origin_b)};
  Builder builder(scene, options);
  for (const std::int32_t rank : comparison->numbers.ranks) {
    if (comparison->numbers.ranks.size() > 1)
      builder.add(TrackKind::Rank, 0, rank, kRankHeight, builder.rank_label(rank));
    if (!options.folded.contains(rank)) add_compared_rank(builder, scene, options, rank);
  }
  builder.finish();
  return scene;
}

double row_height(const Track& track, const LaneRows& lane) {
  return track.height / static_cast<double>(std::max<std::size_t>(1, lane.rows.size()));
}

std::optional<SceneSlice> slice_at(const Scene& scene, double y, SimTime time, SimDuration tolerance) {
  const std::size_t index = scene.track_at(y);
  if (index >= scene.tracks.size()) return std::nullopt;
  const Track& track = scene.tracks[index];
  if (y < track.y || (track.kind != TrackKind::Lane && track.kind != TrackKind::Exposed)) return std::nullopt;
  const SceneSide& side = scene.sides[static_cast<std::size_t>(track.side)];
  const SliceRow* row = nullptr;
  if (track.kind == TrackKind::Exposed) {
    row = &side.model->bands_of(track.rank)->exposed;
  } else {
    const LaneRows& lane = side.model->lanes[track.lane];
    const auto place = static_cast<std::size_t>((y - track.y) / row_height(track, lane));
    row = &lane.rows[std::min(place, lane.rows.size() - 1)];
  }
  const SimTime at = time + side.origin;
  if (const auto exact = row->at(at)) return SceneSlice{track.side, row->span[*exact]};
  // Nothing under the very point: the longest that begins within reach.
  const std::size_t first = row->first_after(at - tolerance), last = row->first_from(at + tolerance);
  if (first >= last) return std::nullopt;
  return SceneSlice{track.side, row->span[row->longest(first, last)]};
}

std::optional<SlicePosition> position_of(const Scene& scene, const SceneSlice& slice) {
  if (static_cast<std::size_t>(slice.side) >= scene.sides.size()) return std::nullopt;
  const SceneSide& side = scene.sides[static_cast<std::size_t>(slice.side)];
  const auto place = find_slice(side.model->lanes, side.model->timeline, slice.span);
  if (!place) return std::nullopt;
  for (std::size_t k = 0; k < scene.tracks.size(); ++k) {
    const Track& track = scene.tracks[k];
    if (track.kind != TrackKind::Lane || track.side != slice.side || track.lane != place->lane) continue;
    const LaneRows& lane = side.model->lanes[place->lane];
    const SliceRow& row = lane.rows[place->row];
    const double height = row_height(track, lane);
    return SlicePosition{{row.start[place->slice] - side.origin, row.end[place->slice] - side.origin},
                         track.y + height * place->row,
                         height,
                         k};
  }
  return std::nullopt;
}

}  // namespace foreshard::gui
