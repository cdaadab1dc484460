// What can be done with the lanes of the canvas from their labels: fold, pin, hide. GUI thread.
#pragma once

#include <QPoint>
#include <QPointF>

#include "gui/view/window/timeline_widget.h"

namespace foreshard::gui {

/// The track whose label is at `point` of a canvas that is scrolled down by `scroll` pixels; null beside the labels.
const Track* label_at(const Scene& scene, const QPointF& point, double scroll);

/// Folds a rank, or unfolds it.
std::function<void(SceneOptions&)> folding(std::int32_t rank);

/// The menu of a track; what is chosen goes to `canvas.onOptions`.
void show_lane_menu(TimelineWidget& canvas, const Scene& scene, const Track& track, const QPoint& at);

}  // namespace foreshard::gui
