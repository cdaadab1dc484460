// Paints the memory of a rank: categories stacked, allocated and reserved as lines, the peak named, an axis in GiB.
#pragma once

#include <QPainter>
#include <QRectF>

#include "gui/models/timeline/counter_tracks.h"
#include "gui/models/timeline/row_geometry.h"
#include "gui/view/paint/pixel_canvas.h"
#include "gui/view/paint/theme.h"

namespace foreshard::gui {

struct MemoryPlace {
  QRectF box;  // of the lane, without the gutter
  bool hatched = false;
  double highest = 0;               // bytes at the box's top; 0 = from the tracks
  const GridLines* grid = nullptr;  // under the peak's name
};

void paint_memory(QPainter& painter, const MemoryTracks& tracks, const TimeScale& scale, const MemoryPlace& place,
                  const Palette& palette, const Fonts& fonts);

}  // namespace foreshard::gui
