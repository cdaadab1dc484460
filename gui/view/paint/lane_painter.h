// Paints one row of slices: boxes with their labels, a strip where slices are narrower than three pixels. Predicted
// rows are hatched, measured ones are solid.
//
// Paints into whatever the painter stands on (image, SVG, window) from the geometry of
// gui/models/timeline/row_geometry.h. On an image a row is composed as one line of colours, which is copied as often as
// the row is high: a row of ten thousand slices costs what one of ten does.
#pragma once

#include <QPainter>
#include <QString>
#include <array>
#include <vector>

#include "gui/models/timeline/meaning.h"
#include "gui/models/timeline/row_geometry.h"
#include "gui/models/timeline/timeline_model.h"
#include "gui/view/paint/label_masks.h"
#include "gui/view/paint/pixel_canvas.h"
#include "gui/view/paint/theme.h"

namespace foreshard::gui {

struct RowPlace {
  double left = 0, y = 0, height = 0;  // where the window's left edge is, in the painter's pixels
  bool hatched = false;
  bool labels = true;
  const GridLines* grid = nullptr;  // lies over the slices, under their labels
};

class LanePainter {
 public:
  LanePainter(const Palette& palette, const Fonts& fonts);

  /// `scale` in the painter's pixels; `device_ratio` of them to those of the device. Paints the row's ground too.
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
  Shades shades_of(Rgb color) const;
  /// The colours of slices: by meaning, or one for all.
  struct Inks {
    const Shades* shades = nullptr;
    bool by_meaning = true;
    const Shades& of(Meaning meaning) const { return shades[by_meaning ? static_cast<std::size_t>(meaning) : 0]; }
  };
  void paint_boxes_and_strip(QPainter& painter, const SliceRow& row, const RowGeometry& geometry, const Inks& inks,
                             const RowPlace& place, double device_ratio);
  void paint_pixels(PixelCanvas& canvas, const SliceRow& row, const RowGeometry& geometry, const Inks& inks,
                    const RowPlace& place);
  void paint_shapes(QPainter& painter, const SliceRow& row, const RowGeometry& geometry, const Inks& inks,
                    const RowPlace& place, double device_ratio);
  void paint_labels(QPainter& painter, const TimelineModel& model, const SliceRow& row, const RowGeometry& geometry,
                    const RowPlace& place, double device_ratio);
  /// The strip's line of colours, into `plain_` and `lined_`; ground where there is none.
  void mix_strip(const RowGeometry& geometry, const Inks& inks, int width);

  const Palette& palette_;
  const Fonts& fonts_;
  QFontMetricsF metrics_;
  std::array<Shades, kMeanings> shades_;
  Shades exposed_shades_;
  std::vector<QRgb> plain_, lined_;  // of the row that is being painted: a line of it, and where a hatch line crosses
  LabelMasks labels_;
  std::array<Rgb, kMeanings> ink_{}, ink_on_hatched_{};
};

/// Thin diagonal lines through a rectangle that go on where they meet in the next one.
void hatch(QPainter& painter, const QRectF& box, const QColor& color);

}  // namespace foreshard::gui
