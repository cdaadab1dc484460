// Paints one row of slices: boxes with their labels, a strip where slices are narrower than three pixels. Predicted
// rows are hatched, measured ones are solid.
//
// Paints into whatever the painter stands on (widget, image, SVG) from the geometry of gui/models/row_geometry.h.
#pragma once

#include <QImage>
#include <QPainter>
#include <QString>
#include <unordered_map>

#include "gui/models/meaning.h"
#include "gui/models/row_geometry.h"
#include "gui/models/timeline_model.h"
#include "gui/view/theme.h"

namespace foreshard::gui {

struct RowPlace {
  double left = 0, y = 0, height = 0;  // where the window's left edge is, in the painter's pixels
  bool hatched = false;
  bool labels = true;
};

class LanePainter {
 public:
  LanePainter(const Palette& palette, const Fonts& fonts);

  /// `scale` in the painter's pixels; `device_ratio` of them to those of the device.
  void paint(QPainter& painter, const TimelineModel& model, const SliceRow& row, const TimeScale& scale,
             const RowPlace& place, double device_ratio);
  /// All in one colour, for bands.
  void paint_plain(QPainter& painter, const SliceRow& row, const TimeScale& scale, const RowPlace& place, Rgb color);

 private:
  struct Label {
    QString text;
    double width = 0;
  };
  const Label& label_of(const TimelineModel& model, const Span& span);
  void paint_strip(QPainter& painter, const SliceRow& row, const RowGeometry& geometry, const RowPlace& place,
                   double device_ratio);
  void paint_label(QPainter& painter, const QRectF& box, const Label& label, Rgb ground);

  const Palette& palette_;
  const Fonts& fonts_;
  QFontMetricsF metrics_;
  const TimelineModel* labels_of_ = nullptr;
  std::unordered_map<std::uint64_t, Label> labels_;  // by name and unit
};

/// Thin diagonal lines through a rectangle that go on where they meet in the next one.
void hatch(QPainter& painter, const QRectF& box, const QColor& color);

}  // namespace foreshard::gui
