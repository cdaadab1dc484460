#include "gui/view/paint/memory_painter.h"

#include <QPainterPath>
#include <QPolygonF>
#include <algorithm>
#include <cmath>
#include <functional>

#include "gui/models/timeline/amounts.h"
#include "gui/view/paint/lane_painter.h"

namespace foreshard::gui {
namespace {

using Height = std::function<double(const MemoryColumn&)>;

/// A staircase from left to right, with a point only where it steps.
QPolygonF staircase(const std::vector<MemoryColumn>& columns, const QRectF& box, const Height& y) {
  QPolygonF line;
  double last = 0;
  for (std::size_t p = 0; p < columns.size(); ++p) {
    const double x = box.left() + static_cast<double>(p), now = y(columns[p]);
    if (p > 0 && now == last) continue;
    if (p > 0) line << QPointF(x, last);
    line << QPointF(x, now);
    last = now;
  }
  line << QPointF(box.right(), last);
  return line;
}

}  // namespace

// One long function on purpose: drawn from back to front.
void paint_memory(QPainter& painter, const MemoryTracks& tracks, const TimeScale& scale, const MemoryPlace& place,
                  const Palette& palette, const Fonts& fonts) {
  const QRectF& box = place.box;
  const double highest =
      std::max(1.0, (place.highest > 0 ? place.highest : static_cast<double>(tracks.highest)) * 1.12);
  const auto y_of = [&](double bytes) { return box.bottom() - bytes / highest * box.height(); };
  const QFontMetricsF metrics(fonts.small);

  painter.setFont(fonts.small);
  for (const double tick : byte_ticks(highest, 4)) {
    const double y = y_of(tick);
    painter.setPen(QPen(color(palette.line), 1));
    painter.drawLine(QPointF(box.left(), y), QPointF(box.right(), y));
    const QString text = text_of(bytes_words(tick));
    painter.setPen(color(palette.text_weak));
    if (tick > 0 && y - box.top() > 24)  // the lane's name stands above
      painter.drawText(QPointF(box.left() - 6 - metrics.horizontalAdvance(text), y + metrics.ascent() / 2 - 1), text);
  }

  const auto columns = memory_columns(tracks, scale.begin, scale.ns_per_pixel, scale.width);
  if (columns.empty()) {
    if (place.grid != nullptr) draw_grid(painter, *place.grid, box);
    return;
  }
  QPolygonF below{QPointF(box.left(), box.bottom()), QPointF(box.right(), box.bottom())};
  for (std::size_t c = 0; c < tracks.categories.size(); ++c) {
    const QPolygonF top =
        staircase(columns, box, [&](const MemoryColumn& column) { return y_of(static_cast<double>(column.upto[c])); });
    QPolygonF area = top;
    for (auto point = below.crbegin(); point != below.crend(); ++point) area << *point;
    painter.setPen(Qt::NoPen);
    painter.setBrush(color(category_color(palette, tracks.categories[c].first), 235));
    painter.drawPolygon(area);
    below = top;
  }
  painter.setBrush(Qt::NoBrush);
  if (place.hatched && !tracks.categories.empty()) {
    painter.save();
    QPainterPath clip;
    QPolygonF area = below;
    area << QPointF(box.right(), box.bottom()) << QPointF(box.left(), box.bottom());
    clip.addPolygon(area);
    painter.setClipPath(clip, Qt::IntersectClip);
    hatch(painter, box, color(palette.ground, 50));
    painter.restore();
  }
  if (tracks.reserved) {
    painter.setPen(QPen(color(palette.reserved), 1.5, Qt::DashLine));
    painter.drawPolyline(staircase(
        columns, box, [&](const MemoryColumn& column) { return y_of(static_cast<double>(column.reserved)); }));
  }
  if (tracks.allocated) {
    painter.setPen(QPen(color(palette.allocated), 1.25));
    painter.drawPolyline(staircase(
        columns, box, [&](const MemoryColumn& column) { return y_of(static_cast<double>(column.allocated)); }));
  }
  if (place.grid != nullptr) draw_grid(painter, *place.grid, box);
  if (!tracks.allocated) return;
  const ValueRange peak = tracks.allocated->range(scale.begin, scale.end());
  if (peak.high <= 0) return;
  const QPointF at(box.left() + std::clamp(scale.x(peak.high_at), 0.0, box.width()),
                   y_of(static_cast<double>(peak.high)));
  painter.setBrush(color(palette.allocated));
  painter.setRenderHint(QPainter::Antialiasing, true);
  painter.drawEllipse(at, 3, 3);
  painter.setRenderHint(QPainter::Antialiasing, false);
  painter.setBrush(Qt::NoBrush);
  const QString words = "peak " + text_of(bytes_words(static_cast<double>(peak.high)));
  painter.setFont(fonts.bold);
  const double width = QFontMetricsF(fonts.bold).horizontalAdvance(words);
  const double x = at.x() + 8 + width > box.right() ? at.x() - 8 - width : at.x() + 8;
  painter.setPen(Qt::NoPen);
  painter.setBrush(color(palette.ground, 200));
  painter.drawRoundedRect(QRectF(x - 3, at.y() - 15, width + 6, 15), 3, 3);
  painter.setPen(color(palette.text));
  painter.drawText(QPointF(x, at.y() - 4), words);
}

}  // namespace foreshard::gui
