#include <algorithm>

#include "gui/models/timeline/amounts.h"
#include "gui/view/paint/scene_painter.h"

namespace foreshard::gui {

// One long function on purpose: drawn from back to front.
void ScenePainter::paint_overlay(QPainter& painter, const QRectF& area, const SceneView& view,
                                 const SceneOverlay& overlay) {
  const TimeScale scale = scale_of(area, view);
  const QRectF lanes = lanes_of(area);
  painter.save();
  painter.setClipRect(lanes, Qt::IntersectClip);
  if (overlay.selection) {
    const double left = lanes.left() + scale.x(overlay.selection->begin);
    const double right = lanes.left() + scale.x(overlay.selection->end);
    painter.fillRect(QRectF(lanes.left(), lanes.top(), left - lanes.left(), lanes.height()),
                     color(palette_.ground, 150));
    painter.fillRect(QRectF(right, lanes.top(), lanes.right() - right, lanes.height()), color(palette_.ground, 150));
    painter.setPen(QPen(color(palette_.accent), 1));
    painter.drawLine(QPointF(left, lanes.top()), QPointF(left, lanes.bottom()));
    painter.drawLine(QPointF(right, lanes.top()), QPointF(right, lanes.bottom()));
    const QString words =
        text_of(duration_words(static_cast<double>(overlay.selection->end - overlay.selection->begin)));
    const QFontMetricsF metrics(fonts_.bold);
    const double width = metrics.horizontalAdvance(words) + 12;
    const QRectF box((left + right - width) / 2, lanes.top() + 4, width, 18);
    painter.setPen(Qt::NoPen);
    painter.setBrush(color(palette_.accent));
    painter.drawRoundedRect(box, 4, 4);
    painter.setFont(fonts_.bold);
    painter.setPen(color(ink_on(palette_.accent)));
    painter.drawText(box, Qt::AlignCenter, words);
  }
  painter.setBrush(Qt::NoBrush);
  for (const SimTime bookmark : overlay.bookmarks) {
    const double x = lanes.left() + scale.x(bookmark);
    painter.setPen(QPen(color(palette_.reserved), 1.5, Qt::DotLine));
    painter.drawLine(QPointF(x, lanes.top()), QPointF(x, lanes.bottom()));
  }
  paint_notes(painter, lanes, scale, overlay.notes);
  if (overlay.cursor_x && *overlay.cursor_x >= lanes.left()) {
    painter.setPen(QPen(color(palette_.text_weak, 120), 1));
    painter.drawLine(QPointF(*overlay.cursor_x, lanes.top()), QPointF(*overlay.cursor_x, lanes.bottom()));
  }
  if (overlay.hovered && overlay.hovered != overlay.selected)
    outline(painter, area, view, *overlay.hovered, QPen(color(palette_.text), 1));
  for (const SceneSlice& related : overlay.related)
    outline(painter, area, view, related, QPen(color(palette_.accent), 1.5));
  if (overlay.selected) {
    outline(painter, area, view, *overlay.selected, QPen(color(palette_.text), 2));
    const SceneSide& side = scene_.sides[static_cast<std::size_t>(overlay.selected->side)];
    if (overlay.flows) {
      painter.setRenderHint(QPainter::Antialiasing, true);
      for (const std::uint32_t partner : flow_partners(*side.model, overlay.selected->span)) {
        const SceneSlice other{overlay.selected->side, partner};
        const bool forward =
            side.model->timeline.spans[partner].start >= side.model->timeline.spans[overlay.selected->span].start;
        painter.setPen(QPen(color(palette_.accent), 1.5));
        const QPointF from = anchor_of(area, view, forward ? *overlay.selected : other, true);
        const QPointF to = anchor_of(area, view, forward ? other : *overlay.selected, false);
        painter.drawLine(from, to);
        painter.setBrush(color(palette_.accent));
        painter.drawEllipse(to, 3, 3);
        painter.setBrush(Qt::NoBrush);
        outline(painter, area, view, other, QPen(color(palette_.accent), 1.5));
      }
      painter.setRenderHint(QPainter::Antialiasing, false);
    }
    if (scene_.comparison) {
      if (const auto pair = scene_.comparison->pair_of(overlay.selected->side, overlay.selected->span)) {
        const ComparedPair& both = scene_.comparison->pairs[*pair];
        const bool on_a = overlay.selected->side == 0;
        outline(painter, area, view, SceneSlice{on_a ? 1 : 0, on_a ? both.span_b : both.span_a},
                QPen(color(palette_.text), 2, Qt::DashLine));
      }
    }
  }
  painter.restore();
}

/// A box of words at a dotted line, or at a band over the range; boxes that would cover each other stand in rows.
void ScenePainter::paint_notes(QPainter& painter, const QRectF& lanes, const TimeScale& scale,
                               const std::vector<Note>& notes) {
  constexpr double kRow = 20, kWidest = 260;
  std::vector<double> ends;  // of each row's last box
  const QFontMetricsF metrics(fonts_.small);
  for (const Note& note : notes) {
    const double left = lanes.left() + scale.x(note.at.begin), right = lanes.left() + scale.x(note.at.end);
    const QString words = metrics.elidedText(text_of(note.text), Qt::ElideRight, kWidest);
    const double width = metrics.horizontalAdvance(words) + 12;
    if (std::max(right, left + width) < lanes.left() || left > lanes.right()) continue;
    painter.fillRect(QRectF(left, lanes.top(), right - left, lanes.height()), color(palette_.reserved, 26));
    painter.setPen(QPen(color(palette_.reserved), 1.5, Qt::DotLine));
    painter.drawLine(QPointF(left, lanes.top()), QPointF(left, lanes.bottom()));
    if (right > left) painter.drawLine(QPointF(right, lanes.top()), QPointF(right, lanes.bottom()));
    const double from = std::max(left, lanes.left());  // words of a range that began before stay in sight
    const auto row = static_cast<std::size_t>(
        std::find_if(ends.begin(), ends.end(), [&](double end) { return end < from; }) - ends.begin());
    if (row == ends.size()) ends.push_back(0);
    ends[row] = from + width;
    const QRectF box(from, lanes.top() + 26 + kRow * static_cast<double>(row), width, kRow - 2);
    painter.setPen(Qt::NoPen);
    painter.setBrush(color(palette_.reserved));
    painter.drawRoundedRect(box, 3, 3);
    painter.setFont(fonts_.small);
    painter.setPen(color(ink_on(palette_.reserved)));
    painter.drawText(box, Qt::AlignCenter, words);
  }
  painter.setBrush(Qt::NoBrush);
}

void ScenePainter::outline(QPainter& painter, const QRectF& area, const SceneView& view, const SceneSlice& slice,
                           const QPen& pen) {
  const auto position = position_of(scene_, slice);
  if (!position) return;
  const TimeScale scale = scale_of(area, view);
  const QRectF lanes = lanes_of(area);
  const double left = std::max(-4.0, scale.x(position->time.begin));
  const double right = std::min(lanes.width() + 4, scale.x(position->time.end));
  painter.setPen(pen);
  painter.drawRect(QRectF(lanes.left() + left, lanes.top() + position->y - view.scroll, std::max(2.0, right - left),
                          position->height - 1));
}

QPointF ScenePainter::anchor_of(const QRectF& area, const SceneView& view, const SceneSlice& slice, bool end) const {
  const auto position = position_of(scene_, slice);
  if (!position) return {};
  const TimeScale scale = scale_of(area, view);
  const QRectF lanes = lanes_of(area);
  const double x = std::clamp(scale.x(end ? position->time.end : position->time.begin), -50.0, lanes.width() + 50);
  return {lanes.left() + x, lanes.top() + position->y - view.scroll + position->height / 2};
}

}  // namespace foreshard::gui
