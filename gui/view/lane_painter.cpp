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

constexpr std::size_t kMostLabels = 20'000;

/// Thin rows touch; others leave a line of ground between them.
double gap_of(const RowPlace& place) { return place.height >= 6 ? 1 : 0; }

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
    : palette_(palette), fonts_(fonts), metrics_(fonts.small), exposed_shades_(shades_of(palette.exposed)) {
  for (std::size_t meaning = 0; meaning < kMeanings; ++meaning) shades_[meaning] = shades_of(palette.slices[meaning]);
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
  const TimeScale device{scale.begin, scale.ns_per_pixel / device_ratio,
                         static_cast<int>(std::lround(scale.width * device_ratio))};
  const RowGeometry geometry = layout_row(row, device);
  if (!geometry.strip.empty()) paint_strip(painter, geometry.strip, shades_.data(), true, place, device_ratio);
  // By colour, so that the painter changes its brush seldom.
  std::array<QVarLengthArray<std::pair<QRectF, const Span*>, 256>, kMeanings> boxes;
  const double gap = gap_of(place);
  for (const SliceBox& box : geometry.boxes) {
    const Span& span = model.timeline.spans[row.span[box.slice]];
    const double left = place.left + box.left / device_ratio, right = place.left + box.right / device_ratio;
    boxes[static_cast<std::size_t>(row.meaning[box.slice])].append(
        {QRectF(left, place.y + gap, right - left - (right - left > 4 ? 1 : 0), place.height - 2 * gap), &span});
  }
  for (std::size_t meaning = 0; meaning < kMeanings; ++meaning) {
    const Rgb ground = palette_.slices[meaning];
    for (const auto& [box, span] : boxes[meaning]) painter.fillRect(box, color(ground));
    if (place.hatched)
      for (const auto& [box, span] : boxes[meaning])
        if (box.width() >= kHatchStep) hatch(painter, box, color(blend(ground, palette_.ground, kHatchShare)));
    if (!place.labels || place.height < 12) continue;
    const Rgb seen = place.hatched ? blend(ground, palette_.ground, kHatchShare / 3) : ground;  // lines cover a third
    for (const auto& [box, span] : boxes[meaning])
      if (box.width() >= kLabelPixels) paint_label(painter, box, label_of(model, *span), seen);
  }
}

void LanePainter::paint_exposed(QPainter& painter, const SliceRow& row, const TimeScale& scale, const RowPlace& place,
                                double device_ratio) {
  const TimeScale device{scale.begin, scale.ns_per_pixel / device_ratio,
                         static_cast<int>(std::lround(scale.width * device_ratio))};
  const RowGeometry geometry = layout_row(row, device);
  if (!geometry.strip.empty()) paint_strip(painter, geometry.strip, &exposed_shades_, false, place, device_ratio);
  const double gap = gap_of(place);
  for (const SliceBox& box : geometry.boxes)
    painter.fillRect(QRectF(place.left + box.left / device_ratio, place.y + gap, (box.right - box.left) / device_ratio,
                            place.height - 2 * gap),
                     color(palette_.exposed));
}

void LanePainter::paint_strip(QPainter& painter, const std::vector<StripPixel>& strip, const Shades* shades,
                              bool by_meaning, const RowPlace& place, double device_ratio) {
  const double gap = gap_of(place);
  const int width = static_cast<int>(strip.size());
  const int height = std::max(1, static_cast<int>(std::lround((place.height - 2 * gap) * device_ratio)));
  const QRgb nothing = 0xff000000U | palette_.lane;
  plain_.assign(strip.size(), nothing);
  lined_.assign(strip.size(), nothing);
  for (std::size_t p = 0; p < strip.size(); ++p) {
    if (strip[p].longest == 0) continue;
    const Shades& own = shades[by_meaning ? static_cast<std::size_t>(strip[p].meaning) : 0];
    const auto step = std::min(kBusySteps - 1, static_cast<std::size_t>(strip[p].busy * (kBusySteps - 1) + 0.5F));
    plain_[p] = own.plain[step];
    lined_[p] = own.lined[step];
  }
  // Opaque and of the canvas' own format: it is copied there, not blended.
  if (image_.width() != width || image_.height() != height) image_ = QImage(width, height, QImage::Format_RGB32);
  const int step = std::max(1, static_cast<int>(std::lround(kHatchStep * device_ratio)));
  const int shift = static_cast<int>(std::lround((place.left + place.y + gap) * device_ratio));
  const auto bytes = plain_.size() * sizeof(QRgb);
  for (int y = 0; y < height; ++y) {
    auto* line = reinterpret_cast<QRgb*>(image_.scanLine(y));
    std::memcpy(line, plain_.data(), bytes);
    if (!place.hatched) continue;
    for (int x = (step - (y + shift) % step) % step; x < width; x += step)
      line[x] = lined_[static_cast<std::size_t>(x)];
  }
  const QRectF target(place.left, place.y + gap, width / device_ratio, place.height - 2 * gap);
  const QRect pixels = target.toRect();
  // Pixel on pixel it is a copy; anything else goes through Qt's scaling, which costs several times as much.
  if (device_ratio == 1 && pixels.size() == image_.size() && target == QRectF(pixels))
    painter.drawImage(pixels.topLeft(), image_);
  else
    painter.drawImage(target, image_);
}

LanePainter::Label& LanePainter::label_of(const TimelineModel& model, const Span& span) {
  if (labels_of_ != &model || labels_.size() + cuts_ > kMostLabels) {
    labels_.clear();
    cuts_ = 0;
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

const LanePainter::Cut& LanePainter::cut_of(Label& label, qsizetype letters) {
  const auto [at, fresh] = label.cut.try_emplace(letters);
  if (fresh) {
    ++cuts_;
    const QString text = letters < label.text.size() ? label.text.left(letters) + QChar(0x2026) : label.text;
    at->second.width = metrics_.horizontalAdvance(text);
    at->second.text.setTextFormat(Qt::PlainText);
    at->second.text.setText(text);
    at->second.text.prepare({}, fonts_.small);
  }
  return at->second;
}

void LanePainter::paint_label(QPainter& painter, const QRectF& box, Label& label, Rgb ground) {
  // What is seen of a box that begins left of the window is written at the window's edge.
  const QRectF inside = box.adjusted(4, 0, -3, 0);
  qsizetype letters = label.text.size();
  if (label.width > inside.width())
    letters = static_cast<qsizetype>(inside.width() / label.width * static_cast<double>(letters)) - 1;
  while (letters >= 3 && cut_of(label, letters).width > inside.width()) --letters;  // wide ones stand in front
  if (letters < std::min<qsizetype>(3, label.text.size()) || letters <= 0) return;
  painter.setFont(fonts_.small);
  painter.setPen(color(ink_on(ground)));
  painter.drawStaticText(QPointF(inside.left(), box.center().y() - metrics_.ascent() / 2 - 1),
                         cut_of(label, letters).text);
}

}  // namespace foreshard::gui
