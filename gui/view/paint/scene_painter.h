// Paints a scene: ruler, gutter with the tracks' names, tracks; and above it what changes with the mouse. The one
// painter of the window, of PNG and of SVG.
//
// Cost grows with the pixels of the tracks that are visible. Belongs to the thread that paints; the scene outlives it.
#pragma once

#include <QPainter>
#include <QRectF>
#include <optional>

#include "gui/models/navigation.h"
#include "gui/models/scene.h"
#include "gui/models/timeline/amounts.h"
#include "gui/models/timeline/row_geometry.h"
#include "gui/view/paint/lane_painter.h"
#include "gui/view/paint/theme.h"

namespace foreshard::gui {

inline constexpr double kGutter = 148, kRuler = 26;

/// What of a scene is looked at.
struct SceneView {
  TimeRange range;    // from the sides' origins
  double scroll = 0;  // pixels of the tracks above the upper edge
  bool operator==(const SceneView&) const = default;
};

/// What lies over the picture.
struct SceneOverlay {
  std::optional<SceneSlice> selected, hovered;
  std::optional<TimeRange> selection;
  std::optional<double> cursor_x;
  std::vector<SimTime> bookmarks;
  std::vector<Note> notes;
  std::vector<SceneSlice> related;  // marked with the selected one
  bool flows = true;
};

class ScenePainter {
 public:
  ScenePainter(const Scene& scene, const Palette& palette, const Fonts& fonts);

  /// Everything but the overlay, into `area`.
  void paint(QPainter& painter, const QRectF& area, const SceneView& view, double device_ratio = 1);
  void paint_overlay(QPainter& painter, const QRectF& area, const SceneView& view, const SceneOverlay& overlay);

  /// The window of time on the lanes of an area.
  static TimeScale scale_of(const QRectF& area, const SceneView& view);
  static QRectF lanes_of(const QRectF& area) { return area.adjusted(kGutter, kRuler, 0, 0); }

 private:
  /// The lines of the ruler's ticks go over everything but words: here between the tracks, then over each of them.
  void paint_ground(QPainter& painter, const QRectF& area, const SceneView& view, const GridLines& grid);
  void paint_ruler(QPainter& painter, const QRectF& area, const TimeScale& scale, const TimeTicks& ticks);
  void paint_gutter(QPainter& painter, const QRectF& area, const Track& track, double y);
  void paint_track(QPainter& painter, const Track& track, const QRectF& box, const TimeScale& scale,
                   double device_ratio, const GridLines& grid);
  void paint_lane(QPainter& painter, const Track& track, const QRectF& box, const TimeScale& scale, double device_ratio,
                  const GridLines& grid);
  void paint_ranges(QPainter& painter, const Track& track, const QRectF& box, const TimeScale& scale,
                    const GridLines& grid);
  void paint_links(QPainter& painter, const Track& track, const QRectF& box, const TimeScale& scale);
  void paint_heat(QPainter& painter, const Track& track, const QRectF& box, const TimeScale& scale);
  void paint_notes(QPainter& painter, const QRectF& lanes, const TimeScale& scale, const std::vector<Note>& notes);
  void outline(QPainter& painter, const QRectF& area, const SceneView& view, const SceneSlice& slice, const QPen& pen);
  QPointF anchor_of(const QRectF& area, const SceneView& view, const SceneSlice& slice, bool end) const;
  const SceneSide& side_of(const Track& track) const { return scene_.sides[static_cast<std::size_t>(track.side)]; }

  const Scene& scene_;
  const Palette& palette_;
  Fonts fonts_;
  LanePainter lanes_;
};

/// What the colours mean, in as many lines as it takes; returns the height. Only what the scene holds is named.
double paint_legend(QPainter* painter, const Scene& scene, const QRectF& area, const Palette& palette,
                    const Fonts& fonts);

}  // namespace foreshard::gui
