#include "gui/view/lane_painter.h"

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

/// The colour of a strip's pixel: the fuller the pixel, the nearer to the slice's own colour.
Rgb strip_color(const Palette& palette, Rgb slice, std::uint8_t busy) {
  return blend(palette.lane, slice, 0.35 + 0.65 * busy / 255.0);
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
    : palette_(palette), fonts_(fonts), metrics_(fonts.small) {}

void LanePainter::paint(QPainter& painter, const TimelineModel& model, const SliceRow& row, const TimeScale& scale,
                        const RowPlace& place, double device_ratio) {
  const TimeScale device{scale.begin, scale.ns_per_pixel / device_ratio,
                         static_cast<int>(std::lround(scale.width * device_ratio))};
  const RowGeometry geometry = layout_row(row, device);
  if (!geometry.strip.empty()) paint_strip(painter, row, geometry, place, device_ratio);
  // By colour, so that the painter changes its brush seldom.
  std::array<QVarLengthArray<std::pair<QRectF, const Span*>, 256>, kMeanings> boxes;
  for (const SliceBox& box : geometry.boxes) {
    const Span& span = model.timeline.spans[row.span[box.slice]];
    const double left = place.left + box.left / device_ratio, right = place.left + box.right / device_ratio;
    const double gap = right - left > 4 ? 1 : 0;
    boxes[static_cast<std::size_t>(meaning_of(span))].append(
        {QRectF(left, place.y + 1, right - left - gap, place.height - 2), &span});
  }
  for (std::size_t meaning = 0; meaning < kMeanings; ++meaning) {
    const Rgb ground = palette_.slices[meaning];
    for (const auto& [box, span] : boxes[meaning]) painter.fillRect(box, color(ground));
    if (place.hatched)
      for (const auto& [box, span] : boxes[meaning])
        if (box.width() >= kHatchStep) hatch(painter, box, color(blend(ground, palette_.ground, kHatchShare)));
    if (!place.labels || place.height < 12) continue;
    for (const auto& [box, span] : boxes[meaning])
      if (box.width() >= kLabelPixels) paint_label(painter, box, label_of(model, *span), ground);
  }
}

void LanePainter::paint_plain(QPainter& painter, const SliceRow& row, const TimeScale& scale, const RowPlace& place,
                              Rgb rgb) {
  const RowGeometry geometry = layout_row(row, scale);
  for (std::size_t p = 0; p < geometry.strip.size(); ++p) {
    if (geometry.busy[p] == 0 && geometry.strip[p] == kNoSlice) continue;
    painter.fillRect(QRectF(place.left + static_cast<double>(p), place.y, 1, place.height),
                     color(strip_color(palette_, rgb, geometry.busy[p])));
  }
  for (const SliceBox& box : geometry.boxes)
    painter.fillRect(QRectF(place.left + box.left, place.y, box.right - box.left, place.height), color(rgb));
}

void LanePainter::paint_strip(QPainter& painter, const SliceRow& row, const RowGeometry& geometry,
                              const RowPlace& place, double device_ratio) {
  const int width = static_cast<int>(geometry.strip.size());
  const int height = std::max(1, static_cast<int>(std::lround((place.height - 2) * device_ratio)));
  std::vector<QRgb> plain(geometry.strip.size(), 0), lined(geometry.strip.size(), 0);
  for (std::size_t p = 0; p < plain.size(); ++p) {
    if (geometry.strip[p] == kNoSlice) continue;
    const Rgb own = palette_.slices[static_cast<std::size_t>(row.meaning[geometry.strip[p]])];
    const Rgb shade = strip_color(palette_, own, geometry.busy[p]);
    plain[p] = 0xff000000U | shade;
    lined[p] = 0xff000000U | blend(shade, palette_.ground, kHatchShare);
  }
  QImage image(width, height, QImage::Format_ARGB32_Premultiplied);
  const int step = static_cast<int>(std::lround(kHatchStep * device_ratio));
  const int shift = static_cast<int>(std::lround((place.left + place.y + 1) * device_ratio));
  const auto bytes = plain.size() * sizeof(QRgb);
  for (int y = 0; y < height; ++y) {
    auto* line = reinterpret_cast<QRgb*>(image.scanLine(y));
    if (place.hatched && y >= step) {
      std::memcpy(line, image.constScanLine(y - step), bytes);
      continue;
    }
    std::memcpy(line, plain.data(), bytes);
    if (!place.hatched) continue;
    for (int x = (step - (y + shift) % step) % step; x < width; x += step) line[x] = lined[static_cast<std::size_t>(x)];
  }
  painter.drawImage(QRectF(place.left, place.y + 1, width / device_ratio, place.height - 2), image);
}

const LanePainter::Label& LanePainter::label_of(const TimelineModel& model, const Span& span) {
  if (labels_of_ != &model) {
    labels_.clear();
    labels_of_ = &model;
  }
  const std::uint64_t key = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(span.name.value)) << 32) |
                            static_cast<std::uint32_t>(span.unit);
  const auto [at, fresh] = labels_.try_emplace(key);
  if (fresh) {
    at->second.text = text_of(slice_label(model.timeline, span));
    at->second.width = metrics_.horizontalAdvance(at->second.text);
  }
  return at->second;
}

void LanePainter::paint_label(QPainter& painter, const QRectF& box, const Label& label, Rgb ground) {
  // What is seen of a box that begins left of the window is written at the window's edge.
  const QRectF inside = box.adjusted(4, 0, -3, 0);
  QString text = label.text;
  if (label.width > inside.width()) {
    const auto letters = static_cast<qsizetype>(inside.width() / label.width * static_cast<double>(text.size())) - 1;
    if (letters < 3) return;
    text = text.left(letters) + QChar(0x2026);
  }
  painter.setFont(fonts_.small);
  painter.setPen(color(ink_on(ground)));
  painter.drawText(QPointF(inside.left(), box.center().y() + metrics_.ascent() / 2 - 1), text);
}

}  // namespace foreshard::gui
