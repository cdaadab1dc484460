#include "gui/view/window/lane_menu.h"

#include <QMenu>

namespace foreshard::gui {

const Track* label_at(const Scene& scene, const QPointF& point, double scroll) {
  if (point.x() >= kGutter || point.y() < kRuler) return nullptr;
  const std::size_t track = scene.track_at(point.y() - kRuler + scroll);
  return track < scene.tracks.size() ? &scene.tracks[track] : nullptr;
}

std::function<void(SceneOptions&)> folding(std::int32_t rank) {
  return [rank](SceneOptions& options) {
    if (options.folded.erase(rank) == 0) options.folded.insert(rank);
  };
}

void show_lane_menu(TimelineWidget& canvas, const Scene& scene, const Track& track, const QPoint& at) {
  QMenu menu(&canvas);
  menu.setAccessibleName("Lanes");
  const auto change = [&](const QString& text, const std::function<void(SceneOptions&)>& act) {
    menu.addAction(text, &canvas, [&canvas, act] { canvas.onOptions(act); });
  };
  if (track.kind == TrackKind::Lane) {
    const QString name = text_of(track.label);
    change("&Pin " + name + " to the top", [stream = track.stream](SceneOptions& options) {
      std::erase(options.first, stream);
      options.first.insert(options.first.begin(), stream);
    });
    change("&Hide " + name, [stream = track.stream](SceneOptions& options) { options.hidden.insert(stream); });
    menu.addSeparator();
  }
  std::set<std::int32_t> others;
  for (const Track& other : scene.tracks)
    if (other.rank != track.rank) others.insert(other.rank);
  if (!others.empty()) change("&Fold all other ranks", [others](SceneOptions& options) { options.folded = others; });
  change("&Show all as at first", [](SceneOptions& options) {
    options.folded.clear();
    options.hidden.clear();
    options.first.clear();
  });
  menu.exec(at);
}

}  // namespace foreshard::gui
