#include "gui/view/paint/pixel_canvas.h"

#include <QImage>
#include <QTransform>
#include <algorithm>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace foreshard::gui {
namespace {

/// Ground is not read again soon, and there is more of it than a cache holds: it need not be fetched to be overwritten.
void copy_past_cache(QRgb* to, const std::vector<QRgb>& line) {
  std::size_t k = 0;
#if defined(__SSE2__)
  while (k < line.size() && reinterpret_cast<std::uintptr_t>(to + k) % sizeof(__m128i) != 0) to[k] = line[k], ++k;
  for (; k + 4 <= line.size(); k += 4)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + k),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(line.data() + k)));
#endif
  std::copy(line.begin() + static_cast<std::ptrdiff_t>(k), line.end(), to + k);
}

}  // namespace

std::optional<PixelCanvas> PixelCanvas::under(QPainter& painter) {
  auto* image = dynamic_cast<QImage*>(painter.device());
  if (image == nullptr || !image->isDetached()) return std::nullopt;
  if (image->format() != QImage::Format_RGB32 && image->format() != QImage::Format_ARGB32_Premultiplied)
    return std::nullopt;
  const QTransform to_pixels = painter.deviceTransform();
  if (to_pixels.type() > QTransform::TxScale || to_pixels.m11() <= 0 || to_pixels.m11() != to_pixels.m22())
    return std::nullopt;
  PixelCanvas canvas;
  canvas.bits_ = image->bits();
  canvas.stride_ = image->bytesPerLine();
  canvas.ratio_ = to_pixels.m11();
  canvas.left_ = to_pixels.dx();
  canvas.top_ = to_pixels.dy();
  canvas.clip_ = image->rect();
  if (painter.hasClipping()) canvas.clip_ &= canvas.pixels_of(painter.clipBoundingRect());
  return canvas;
}

QRect PixelCanvas::pixels_of(const QRectF& box) const {
  return QRect(QPoint(x(box.left()), y(box.top())), QPoint(x(box.right()) - 1, y(box.bottom()) - 1)) & clip_;
}

std::vector<int> PixelCanvas::columns_of(const GridLines& grid) const {
  const int wide = std::max(1, static_cast<int>(std::lround(ratio_)));
  std::vector<int> columns;
  for (const double at : grid.at)
    for (int k = 0; k < wide; ++k) columns.push_back(x(at) + k);
  return columns;
}

void PixelCanvas::fill(const QRectF& box, QRgb color, const GridLines* grid) {
  const QRect pixels = pixels_of(box);
  if (pixels.isEmpty()) return;
  std::vector<QRgb> line(static_cast<std::size_t>(pixels.width()), color);
  if (grid != nullptr)
    for (const int column : columns_of(*grid))
      if (column >= pixels.left() && column <= pixels.right())
        line[static_cast<std::size_t>(column - pixels.left())] = laid_over(color, grid->color, grid->alpha);
  for (int y = pixels.top(); y <= pixels.bottom(); ++y) copy_past_cache(row(y) + pixels.left(), line);
#if defined(__SSE2__)
  _mm_sfence();  // before another thread shows it
#endif
}

void PixelCanvas::stamp(const QImage& mask, int columns, QPoint at, QRgb color) {
  const QRect shown = QRect(at, QSize(std::min(columns, mask.width()), mask.height())) & clip_;
  for (int y = shown.top(); y <= shown.bottom(); ++y) {
    const uchar* const share = mask.constScanLine(y - at.y()) - at.x();
    QRgb* const line = row(y);
    for (int x = shown.left(); x <= shown.right(); ++x)
      if (share[x] != 0) line[x] = laid_over(line[x], color, share[x]);
  }
}

void PixelCanvas::draw(const GridLines& grid, const QRectF& box) {
  const QRect pixels = pixels_of(box);
  const std::vector<int> columns = columns_of(grid);
  // Row by row: down a column each pixel is in another page of memory.
  for (int y = pixels.top(); y <= pixels.bottom(); ++y) {
    QRgb* line = row(y);
    for (const int column : columns)
      if (column >= pixels.left() && column <= pixels.right())
        line[column] = laid_over(line[column], grid.color, grid.alpha);
  }
}

void draw_grid(QPainter& painter, const GridLines& grid, const QRectF& box) {
  if (auto canvas = PixelCanvas::under(painter)) return canvas->draw(grid, box);
  QColor shade = QColor::fromRgb(grid.color);
  shade.setAlpha(static_cast<int>(grid.alpha));
  painter.setPen(QPen(shade, 1));
  for (const double at : grid.at) painter.drawLine(QPointF(at + 0.5, box.top()), QPointF(at + 0.5, box.bottom()));
}

}  // namespace foreshard::gui
