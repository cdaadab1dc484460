// Paints a sweep: each point's time against its memory, the front as a line with names, the device's memory as a limit.
#pragma once

#include <QPainter>
#include <QRectF>
#include <optional>
#include <vector>

#include "gui/models/sweep_points.h"
#include "gui/view/paint/picture.h"
#include "gui/view/paint/theme.h"

namespace foreshard::gui {

/// From values to places, for painting and for the mouse.
struct ParetoScale {
  QRectF box;
  double time_low = 0, time_high = 1, memory_low = 0, memory_high = 1;
  QPointF at(double time_ns, double memory) const;
  double time(double x) const;
  double memory(double y) const;
};
ParetoScale pareto_scale(const SweepPoints& sweep, const QRectF& area);

inline constexpr double kParetoDot = 5.5;  // radius of a point of the front, in pixels

/// The name of a point of the front, where it covers no point, no line and no other name. Those without such a place
/// have none; the fastest and the smallest choose first, and they, or all of a few, may stand farther off, tied by a
/// line.
struct FrontName {
  std::size_t point = 0;  // index into the sweep's points
  QString text;
  QRectF box;
  bool tied = false;
};
std::vector<FrontName> front_names(const SweepPoints& sweep, const ParetoScale& scale, const Fonts& fonts);

void paint_pareto(QPainter& painter, const SweepPoints& sweep, const QRectF& area, const Palette& palette,
                  const Fonts& fonts, std::optional<std::size_t> marked = std::nullopt);

Picture pareto_picture(SweepPoints sweep, const PictureOptions& options);

}  // namespace foreshard::gui
