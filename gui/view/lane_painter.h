// Paints one row of slices: boxes with their labels, a strip where slices are narrower than three pixels. Predicted
// rows are hatched, measured ones are solid.
//
// Paints into whatever the painter stands on (widget, image, SVG) from the geometry of gui/models/row_geometry.h.
#pragma once

#include <QImage>
#include <QPainter>
#include <QStaticText>
#include <QString>
#include <array>
#include <unordered_map>
#include <vector>

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
  /// All in one colour, for bands: that of the palette's `exposed`.
  void paint_exposed(QPainter& painter, const SliceRow& row, const TimeScale& scale, const RowPlace& place,
                     double device_ratio);

 private:
  static constexpr std::size_t kBusySteps = 64;
  /// Colours of a strip's pixel, the fuller the nearer to the slice's own: plain, and where a hatch line crosses.
  struct Shades {
    std::array<QRgb, kBusySteps> plain{}, lined{};
  };
  struct Cut {
    QStaticText text;  // shaped once, drawn often
    double width = 0;
  };
  struct Label {
    QString text;
    double width = 0;
    std::unordered_map<qsizetype, Cut> cut;  // by letters that are left
  };
  Shades shades_of(Rgb color) const;
  const Cut& cut_of(Label& label, qsizetype letters);
  Label& label_of(const TimelineModel& model, const Span& span);
  /// `shades` by meaning.
  void paint_strip(QPainter& painter, const std::vector<StripPixel>& strip, const Shades* shades, bool by_meaning,
                   const RowPlace& place, double device_ratio);
  void paint_label(QPainter& painter, const QRectF& box, Label& label, Rgb ground);

  const Palette& palette_;
  const Fonts& fonts_;
  QFontMetricsF metrics_;
  std::array<Shades, kMeanings> shades_;
  Shades exposed_shades_;
  std::vector<QRgb> plain_, lined_;  // of the strip that is being painted
  QImage image_;
  const TimelineModel* labels_of_ = nullptr;
  std::unordered_map<std::uint64_t, Label> labels_;  // by name and unit
  std::size_t cuts_ = 0;                             // in all labels
};

/// Thin diagonal lines through a rectangle that go on where they meet in the next one.
void hatch(QPainter& painter, const QRectF& box, const QColor& color);

}  // namespace foreshard::gui
