// The pixels under a painter that draws on an image: rectangles and rows of colours are written there without Qt's cost
// for each of them (spans, a thread pool's semaphore for large ones). In order with what the painter draws, since Qt's
// raster engine draws at once.
//
// Coordinates are the painter's, rounded as QPainter::fillRect rounds them. The thread of the painter; valid until its
// transform or clip changes.
#pragma once

#include <QPainter>
#include <QRect>
#include <QRectF>
#include <cmath>
#include <optional>
#include <vector>

namespace foreshard::gui {

/// `over` with `alpha` of 255 on an opaque colour.
inline QRgb laid_over(QRgb below, QRgb over, unsigned alpha) {
  const unsigned through = 255 - alpha;
  const auto mixed = [&](int shift) {
    return ((((over >> shift) & 0xff) * alpha + ((below >> shift) & 0xff) * through) / 255) << shift;
  };
  return 0xff000000U | mixed(16) | mixed(8) | mixed(0);
}

/// Vertical lines that let through what is below.
struct GridLines {
  std::vector<double> at;  // ascending, the painter's pixels
  QRgb color = 0;
  unsigned alpha = 255;
};

class PixelCanvas {
 public:
  /// nullopt where there are no such pixels (SVG, a window), or the painter turns or stretches.
  static std::optional<PixelCanvas> under(QPainter& painter);

  int x(double at) const { return static_cast<int>(std::lround(at * ratio_ + left_)); }
  int y(double at) const { return static_cast<int>(std::lround(at * ratio_ + top_)); }
  /// Of the image to one of the painter's.
  double ratio() const { return ratio_; }
  /// What may be drawn on, in the image's pixels.
  const QRect& clip() const { return clip_; }
  /// REQUIRES a row of the clip.
  QRgb* row(int y) { return reinterpret_cast<QRgb*>(bits_ + static_cast<qsizetype>(y) * stride_); }

  void fill(const QRectF& box, QRgb color, const GridLines* grid = nullptr);
  /// A mask (Alpha8) of words or shapes in one colour; its first `columns` only.
  void stamp(const QImage& mask, int columns, QPoint at, QRgb color);
  /// The columns of the image that the lines cover.
  std::vector<int> columns_of(const GridLines& grid) const;
  /// The lines over what is in a box.
  void draw(const GridLines& grid, const QRectF& box);

 private:
  QRect pixels_of(const QRectF& box) const;

  uchar* bits_ = nullptr;
  qsizetype stride_ = 0;
  QRect clip_;
  double ratio_ = 1, left_ = 0, top_ = 0;
};

/// Lines over what is in a box, whatever the painter stands on.
void draw_grid(QPainter& painter, const GridLines& grid, const QRectF& box);

}  // namespace foreshard::gui
