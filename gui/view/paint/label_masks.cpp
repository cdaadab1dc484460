#include "gui/view/paint/label_masks.h"

#include <QFontMetricsF>
#include <QPainter>
#include <QTextLayout>
#include <algorithm>
#include <cmath>

#include "gui/view/paint/theme.h"

namespace foreshard::gui {
namespace {

constexpr qsizetype kMostBytes = 32 << 20;
constexpr qsizetype kMostLetters = 160;  // of a label: no screen shows more of a kernel's name
constexpr std::ptrdiff_t kFewestLetters = 3;

}  // namespace

void LabelMasks::start_anew(const TimelineModel& model, double device_ratio) {
  labels_.clear();
  bytes_ = 0;
  model_ = &model;
  if (ratio_ == device_ratio) return;
  ratio_ = device_ratio;
  ellipsis_ = drawn(QChar(0x2026));
}

LabelMask LabelMasks::drawn(const QString& text) const {
  QTextLayout layout(text, font_);
  layout.beginLayout();
  const QTextLine line = layout.createLine();
  layout.endLayout();
  LabelMask label;
  for (int letter = 1; letter <= text.size(); ++letter)
    label.upto.push_back(static_cast<int>(std::ceil(line.cursorToX(letter) * ratio_)));
  const QSize size(std::max(1, static_cast<int>(std::ceil(line.naturalTextWidth() * ratio_))) + 1,
                   std::max(1, static_cast<int>(std::ceil(line.height() * ratio_))));
  QImage drawn(size, QImage::Format_ARGB32_Premultiplied);
  drawn.setDevicePixelRatio(ratio_);
  drawn.fill(Qt::transparent);
  QPainter painter(&drawn);
  painter.setPen(Qt::white);
  layout.draw(&painter, QPointF(0, 0));
  painter.end();
  label.mask = drawn.convertToFormat(QImage::Format_Alpha8);
  return label;
}

const LabelMask& LabelMasks::of(const TimelineModel& model, const Span& span, double device_ratio) {
  if (model_ != &model || ratio_ != device_ratio || bytes_ > kMostBytes) start_anew(model, device_ratio);
  const std::uint64_t key = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(span.name.value)) << 32) |
                            static_cast<std::uint32_t>(span.unit);
  const auto [at, fresh] = labels_.try_emplace(key);
  if (fresh) {
    const QString text = text_of(slice_label(model.timeline, span));
    at->second = drawn(text.left(kMostLetters));
    at->second.whole = text.size() <= kMostLetters;
    bytes_ += at->second.mask.sizeInBytes();
  }
  return at->second;
}

void LabelMasks::stamp(PixelCanvas& canvas, const LabelMask& label, int room, QPoint at, QRgb color) {
  if (label.upto.empty()) return;
  if (label.whole && label.upto.back() <= room) return canvas.stamp(label.mask, label.mask.width(), at, color);
  const auto past = std::upper_bound(label.upto.begin(), label.upto.end(), room - ellipsis_.upto.back());
  if (past - label.upto.begin() < kFewestLetters) return;
  const int width = *(past - 1);
  canvas.stamp(label.mask, width, at, color);
  canvas.stamp(ellipsis_.mask, ellipsis_.mask.width(), at + QPoint(width, 0), color);
}

}  // namespace foreshard::gui
