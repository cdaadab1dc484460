#include "gui/view/paint/lane_painter.h"

#include <QImage>
#include <QVarLengthArray>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace foreshard::gui {
namespace {

constexpr int kHatchStep = 6;
constexpr double kHatchShare = 0.30;  // of the ground's colour in a hatch line
constexpr double kLabelPixels = 36;

/// Thin rows touch; others leave a line of ground between them.
double gap_of(const RowPlace& place) { return place.height >= 6 ? 1 : 0; }

TimeScale on_device(const TimeScale& scale, double device_ratio) {
  return {scale.begin, scale.ns_per_pixel / device_ratio, static_cast<int>(std::lround(scale.width * device_ratio))};
}

/// In the device's pixels; boxes that have room leave a line to the next one.
double box_right(const SliceBox& box, double device_ratio) {
  return box.right - (box.right - box.left > 4 * device_ratio ? device_ratio : 0);
}

QRectF shape_of(const SliceBox& box, const RowPlace& place, double device_ratio) {
  const double gap = gap_of(place), left = place.left + box.left / device_ratio;
  return {left, place.y + gap, place.left + box_right(box, device_ratio) / device_ratio - left, place.height - 2 * gap};
}

}  // namespace

void hatch(QPainter& painter, const QRectF& box, const QColor& color) {
  QVarLengthArray<QLineF, 512> lines;
  // Lines x + y = k * step: the same ones in every box.
  const double first = std::ceil((box.left() + box.top()) / kHatchStep) * kHatchStep;
  for (double sum = first; sum < box.right() + box.bottom(); sum += kHatchStep) {
    const double x0 = std::max(box.left(), sum - box.bottom()), x1 = std::min(box.right(), sum - box.top());
    if (x1 > x0) lines.append(QLineF(x0, sum - x0, x1, sum - x1));
  }
  painter.setPen(QPen(color, 1));
  painter.drawLines(lines.constData(), static_cast<int>(lines.size()));
}

LanePainter::LanePainter(const Palette& palette, const Fonts& fonts)
    : palette_(palette),
      fonts_(fonts),
      metrics_(fonts.small),
      exposed_shades_(shades_of(palette.exposed)),
      labels_(fonts.small) {
  for (std::size_t meaning = 0; meaning < kMeanings; ++meaning) {
    const Rgb own = palette.slices[meaning];
    shades_[meaning] = shades_of(own);
    ink_[meaning] = ink_on(own);
    ink_on_hatched_[meaning] = ink_on(blend(own, palette.ground, kHatchShare / 3));  // lines cover a third
  }
}

LanePainter::Shades LanePainter::shades_of(Rgb own) const {
  Shades shades;
  for (std::size_t k = 0; k < kBusySteps; ++k) {
    const Rgb shade = blend(palette_.lane, own, 0.35 + 0.65 * static_cast<double>(k) / (kBusySteps - 1));
    shades.plain[k] = 0xff000000U | shade;
    shades.lined[k] = 0xff000000U | blend(shade, palette_.ground, kHatchShare);
  }
  return shades;
}

void LanePainter::paint(QPainter& painter, const TimelineModel& model, const SliceRow& row, const TimeScale& scale,
                        const RowPlace& place, double device_ratio) {
  const RowGeometry geometry = layout_row(row, on_device(scale, device_ratio));
  paint_boxes_and_strip(painter, row, geometry, {shades_.data(), true}, place, device_ratio);
  if (place.labels && place.height >= 12) paint_labels(painter, model, row, geometry, place, device_ratio);
}

void LanePainter::paint_exposed(QPainter& painter, const SliceRow& row, const TimeScale& scale, const RowPlace& place,
                                double device_ratio) {
  const RowGeometry geometry = layout_row(row, on_device(scale, device_ratio));
  paint_boxes_and_strip(painter, row, geometry, {&exposed_shades_, false}, place, device_ratio);
}

void LanePainter::paint_boxes_and_strip(QPainter& painter, const SliceRow& row, const RowGeometry& geometry,
                                        const Inks& inks, const RowPlace& place, double device_ratio) {
  auto canvas = PixelCanvas::under(painter);
  if (canvas && canvas->ratio() == device_ratio)
    paint_pixels(*canvas, row, geometry, inks, place);
  else
    paint_shapes(painter, row, geometry, inks, place, device_ratio);
}

void LanePainter::mix_strip(const RowGeometry& geometry, const Inks& inks, int width) {
  const QRgb nothing = 0xff000000U | palette_.lane;
  plain_.assign(static_cast<std::size_t>(width), nothing);
  lined_.assign(static_cast<std::size_t>(width), nothing);
  const std::size_t shown = std::min(geometry.strip.size(), plain_.size());
  for (std::size_t p = 0; p < shown; ++p) {
    const StripPixel& pixel = geometry.strip[p];
    if (pixel.longest == 0) continue;
    const Shades& own = inks.of(pixel.meaning);
    const auto step = std::min(kBusySteps - 1, static_cast<std::size_t>(pixel.busy * (kBusySteps - 1) + 0.5F));
    plain_[p] = own.plain[step];
    lined_[p] = own.lined[step];
  }
}

void LanePainter::paint_pixels(PixelCanvas& canvas, const SliceRow& row, const RowGeometry& geometry, const Inks& inks,
                               const RowPlace& place) {
  const QRect clip = canvas.clip();
  const int left = canvas.x(place.left), width = clip.right() + 1 - left;
  const int skipped = std::max(0, clip.left() - left);
  if (width <= skipped) return;
  mix_strip(geometry, inks, width);
  for (const SliceBox& box : geometry.boxes) {
    const Shades& own = inks.of(row.meaning.empty() ? Meaning::Other : row.meaning[box.slice]);
    const int from = std::clamp(static_cast<int>(std::lround(box.left)), 0, width);
    const int to = std::clamp(static_cast<int>(std::lround(box_right(box, canvas.ratio()))), from, width);
    std::fill(plain_.begin() + from, plain_.begin() + to, own.plain.back());
    if (place.hatched) std::fill(lined_.begin() + from, lined_.begin() + to, own.lined.back());
  }
  std::vector<QRgb> ground(static_cast<std::size_t>(width), 0xff000000U | palette_.lane);
  if (place.grid != nullptr) {
    for (const int column : canvas.columns_of(*place.grid)) {
      if (column < left || column >= left + width) continue;
      const auto at = static_cast<std::size_t>(column - left);
      for (auto* line : {&plain_, &lined_, &ground})
        (*line)[at] = laid_over((*line)[at], place.grid->color, place.grid->alpha);
    }
  }
  const double gap = gap_of(place);
  const int top = canvas.y(place.y), bottom = std::max(top + 1, canvas.y(place.y + place.height));
  const int first = canvas.y(place.y + gap), last = std::max(first + 1, canvas.y(place.y + place.height - gap));
  const int step = std::max(1, static_cast<int>(std::lround(kHatchStep * canvas.ratio())));
  const int thick = std::max(1, static_cast<int>(std::lround(canvas.ratio())));
  const auto bytes = static_cast<std::size_t>(width - skipped) * sizeof(QRgb);
  for (int y = std::max(top, clip.top()); y < std::min(bottom, clip.bottom() + 1); ++y) {
    QRgb* line = canvas.row(y) + left;
    if (y < first || y >= last) {
      std::memcpy(line + skipped, ground.data() + skipped, bytes);
      continue;
    }
    std::memcpy(line + skipped, plain_.data() + skipped, bytes);
    if (!place.hatched) continue;
    // Lines x + y = k * step, so that they go on where rows and boxes meet.
    for (int k = 0; k < thick; ++k) {
      const int behind = (left + skipped + y + k) % step;
      for (int x = skipped + (behind == 0 ? 0 : step - behind); x < width; x += step)
        line[x] = lined_[static_cast<std::size_t>(x)];
    }
  }
}

void LanePainter::paint_shapes(QPainter& painter, const SliceRow& row, const RowGeometry& geometry, const Inks& inks,
                               const RowPlace& place, double device_ratio) {
  const double gap = gap_of(place), height = place.height - 2 * gap;
  if (!geometry.strip.empty()) {
    const int width = static_cast<int>(geometry.strip.size());
    mix_strip(geometry, inks, width);
    QImage image(width, std::max(1, static_cast<int>(std::lround(height * device_ratio))), QImage::Format_RGB32);
    const int step = std::max(1, static_cast<int>(std::lround(kHatchStep * device_ratio)));
    const int shift = static_cast<int>(std::lround((place.left + place.y + gap) * device_ratio));
    for (int y = 0; y < image.height(); ++y) {
      auto* line = reinterpret_cast<QRgb*>(image.scanLine(y));
      std::copy(plain_.begin(), plain_.end(), line);
      if (!place.hatched) continue;
      for (int x = (step - (y + shift) % step) % step; x < width; x += step)
        line[x] = lined_[static_cast<std::size_t>(x)];
    }
    painter.drawImage(QRectF(place.left, place.y + gap, width / device_ratio, height), image);
  }
  for (const SliceBox& box : geometry.boxes) {
    const Shades& own = inks.of(row.meaning.empty() ? Meaning::Other : row.meaning[box.slice]);
    const QRectF shape = shape_of(box, place, device_ratio);
    painter.fillRect(shape, color(own.plain.back()));
    if (place.hatched && shape.width() >= kHatchStep) hatch(painter, shape, color(own.lined.back()));
  }
  if (place.grid != nullptr) draw_grid(painter, *place.grid, {place.left, place.y, 0, place.height});
}

void LanePainter::paint_labels(QPainter& painter, const TimelineModel& model, const SliceRow& row,
                               const RowGeometry& geometry, const RowPlace& place, double device_ratio) {
  auto canvas = PixelCanvas::under(painter);
  if (canvas && canvas->ratio() != device_ratio) canvas.reset();
  painter.setFont(fonts_.small);
  for (const SliceBox& box : geometry.boxes) {
    if (box.right - box.left < kLabelPixels * device_ratio) continue;
    const auto meaning = static_cast<std::size_t>(row.meaning[box.slice]);
    const Rgb ink = (place.hatched ? ink_on_hatched_ : ink_)[meaning];
    const Span& span = model.timeline.spans[row.span[box.slice]];
    // What is seen of a box that begins left of the window is written at the window's edge.
    const QRectF inside = shape_of(box, place, device_ratio).adjusted(4, 0, -3, 0);
    const double top = inside.center().y() - metrics_.ascent() / 2 - 1;
    if (canvas) {
      const LabelMask& label = labels_.of(model, span, device_ratio);
      labels_.stamp(*canvas, label, static_cast<int>(inside.width() * device_ratio),
                    QPoint(canvas->x(inside.left()), canvas->y(top)), 0xff000000U | ink);
    } else {
      const QString text = text_of(slice_label(model.timeline, span));
      const QString cut = metrics_.elidedText(text, Qt::ElideRight, inside.width());
      if (cut.size() < std::min<qsizetype>(4, text.size())) continue;
      painter.setPen(color(ink));
      painter.drawText(QPointF(inside.left(), top + metrics_.ascent()), cut);
    }
  }
}

}  // namespace foreshard::gui
