// Paints a sweep: each point's time against its memory, the front as a line with names, the device's memory as a limit.
#pragma once

#include <QPainter>
#include <QRectF>
#include <optional>

#include "gui/models/sweep_points.h"
#include "gui/view/picture.h"
#include "gui/view/theme.h"

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

void paint_pareto(QPainter& painter, const SweepPoints& sweep, const QRectF& area, const Palette& palette,
                  const Fonts& fonts, std::optional<std::size_t> marked = std::nullopt);

Picture pareto_picture(SweepPoints sweep, const PictureOptions& options);

}  // namespace foreshard::gui
