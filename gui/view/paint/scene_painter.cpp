#include "gui/view/paint/scene_painter.h"

#include <algorithm>
#include <cmath>

#include "gui/models/timeline/amounts.h"
#include "gui/view/paint/memory_painter.h"

namespace foreshard::gui {
namespace {

TimeScale shifted(const TimeScale& scale, SimTime origin) {
  return {scale.begin + origin, scale.ns_per_pixel, scale.width};
}

QRgb opaque(Rgb rgb) { return 0xff000000U | rgb; }

constexpr double kTickLength = 5;
constexpr unsigned kGridAlpha = 150;

TimeTicks ticks_of(const TimeScale& scale) {
  return time_ticks(static_cast<double>(scale.begin), static_cast<double>(scale.end()), std::max(2, scale.width / 110));
}

double column_of(double time, double left, const TimeScale& scale) {
  return std::round(left + (time - static_cast<double>(scale.begin)) / scale.ns_per_pixel);
}

double highest_memory(const Scene& scene, std::int32_t rank) {
  std::int64_t highest = 0;
  for (const SceneSide& side : scene.sides)
    if (const MemoryTracks* memory = side.model->memory_of(rank)) highest = std::max(highest, memory->highest);
  return static_cast<double>(highest);
}

}  // namespace

ScenePainter::ScenePainter(const Scene& scene, const Palette& palette, const Fonts& fonts)
    : scene_(scene), palette_(palette), fonts_(fonts), lanes_(palette_, fonts_) {}

TimeScale ScenePainter::scale_of(const QRectF& area, const SceneView& view) {
  const double width = std::max(1.0, area.width() - kGutter);
  const double length = static_cast<double>(std::max<SimDuration>(1, view.range.length()));
  return {view.range.begin, length / width, static_cast<int>(std::ceil(width))};
}

void ScenePainter::paint(QPainter& painter, const QRectF& area, const SceneView& view, double device_ratio) {
  painter.setRenderHint(QPainter::Antialiasing, false);
  const TimeScale scale = scale_of(area, view);
  const TimeTicks ticks = ticks_of(scale);
  const QRectF lanes = lanes_of(area);
  GridLines grid{{}, opaque(palette_.line), kGridAlpha};
  for (const double tick : ticks.at) grid.at.push_back(column_of(tick, lanes.left(), scale));
  paint_ground(painter, area, view, grid);
  painter.save();
  painter.setClipRect(area.adjusted(0, kRuler, 0, 0), Qt::IntersectClip);
  for (std::size_t k = scene_.track_at(view.scroll); k < scene_.tracks.size(); ++k) {
    const Track& track = scene_.tracks[k];
    const double y = lanes.top() + track.y - view.scroll;
    if (y > area.bottom()) break;
    paint_gutter(painter, area, track, y);
    const QRectF box(lanes.left(), y, lanes.width(), track.height);
    painter.save();
    if (track.kind != TrackKind::Memory) painter.setClipRect(box, Qt::IntersectClip);
    paint_track(painter, track, box, scale, device_ratio, grid);
    painter.restore();
  }
  painter.restore();
  paint_ruler(painter, area, scale, ticks);
}

void ScenePainter::paint_ground(QPainter& painter, const QRectF& area, const SceneView& view, const GridLines& grid) {
  auto canvas = PixelCanvas::under(painter);
  const auto fill = [&](double top, double width, double height, const GridLines* lines) {
    const QRectF box(area.left(), top, width, height);
    if (canvas) return canvas->fill(box, opaque(palette_.ground), lines);
    painter.fillRect(box, color(palette_.ground));
    if (lines != nullptr) draw_grid(painter, *lines, box);
  };
  const QRectF lanes = lanes_of(area);
  double done = lanes.top() - kTickLength;
  fill(area.top(), area.width(), kRuler - kTickLength, nullptr);
  const auto fill_down_to = [&](double y) {
    fill(done, area.width(), y - done, &grid);
    done = y;
  };
  fill_down_to(lanes.top());
  for (std::size_t k = scene_.track_at(view.scroll); k < scene_.tracks.size() && done < area.bottom(); ++k) {
    const Track& track = scene_.tracks[k];
    const double top = std::clamp(lanes.top() + track.y - view.scroll, done, area.bottom());
    const double bottom = std::clamp(lanes.top() + track.y + track.height - view.scroll, top, area.bottom());
    fill_down_to(top);
    // Lanes are the most of a picture, and paint all of their own.
    fill(top, track.kind == TrackKind::Lane ? kGutter : area.width(), bottom - top, nullptr);
    done = bottom;
  }
  fill_down_to(area.bottom());
}

void ScenePainter::paint_ruler(QPainter& painter, const QRectF& area, const TimeScale& scale, const TimeTicks& ticks) {
  const QRectF ruler(area.left(), area.top(), area.width(), kRuler);
  // SVG knows no clip: what tracks wrote above their upper edge is covered.
  painter.fillRect(ruler.adjusted(0, 0, 0, -kTickLength), color(palette_.ground));
  const double left = area.left() + kGutter;
  const QFontMetricsF metrics(fonts_.small);
  painter.setFont(fonts_.small);
  painter.setPen(color(palette_.text_weak));
  for (const double tick : ticks.at) {
    const QString text = text_of(ticks.text(tick));
    const double width = metrics.horizontalAdvance(text), x = column_of(tick, left, scale) + 0.5;
    const double at = std::clamp(x - width / 2, left, std::max(left, area.right() - width - 2));
    painter.drawText(QPointF(at, ruler.bottom() - 9), text);
  }
  painter.setPen(QPen(color(palette_.line), 1));
  painter.drawLine(QPointF(left, ruler.bottom()), QPointF(area.right(), ruler.bottom()));
}

void ScenePainter::paint_gutter(QPainter& painter, const QRectF& area, const Track& track, double y) {
  if (track.label.empty()) return;
  const bool heading = track.kind == TrackKind::Rank;
  const bool second = track.kind == TrackKind::Lane && track.side == 1 && scene_.compares();
  const QFont& font = heading                                                            ? fonts_.bold
                      : track.kind == TrackKind::Lane || track.kind == TrackKind::Memory ? fonts_.normal
                                                                                         : fonts_.small;
  const QFontMetricsF metrics(font);
  QString text = text_of(track.label);
  // "S reduce-scatter (stream 24), predicted": rather without what stands behind than cut off.
  for (const char* behind : {", ", " ("})
    if (metrics.horizontalAdvance(text) > kGutter - 12) text = text.left(text.indexOf(behind));
  text = metrics.elidedText(text, Qt::ElideRight, kGutter - 12);
  const double x = heading ? area.left() + 8 : area.left() + kGutter - 8 - metrics.horizontalAdvance(text);
  const double middle = track.kind == TrackKind::Memory ? y + 10 : y + std::min(track.height, 22.0) / 2;
  painter.setFont(font);
  const bool weak = second || track.kind == TrackKind::Phases || track.kind == TrackKind::Heat;
  painter.setPen(color(weak ? palette_.text_weak : palette_.text));
  painter.drawText(QPointF(x, middle + metrics.ascent() / 2 - 1), text);
}

void ScenePainter::paint_track(QPainter& painter, const Track& track, const QRectF& box, const TimeScale& scale,
                               double device_ratio, const GridLines& grid) {
  const SceneSide& side = side_of(track);
  switch (track.kind) {
    case TrackKind::Rank:
      painter.setPen(QPen(color(palette_.line), 1));
      painter.drawLine(QPointF(box.left(), box.center().y()), QPointF(box.right(), box.center().y()));
      break;
    case TrackKind::Phases: return paint_ranges(painter, track, box, scale, grid);
    case TrackKind::Lane: return paint_lane(painter, track, box, scale, device_ratio, grid);
    case TrackKind::Links: paint_links(painter, track, box, scale); break;
    case TrackKind::Heat: paint_heat(painter, track, box, scale); break;
    case TrackKind::Exposed: {
      const RowPlace place{box.left(), box.top() + 3, box.height() - 6, false, false};  // less the gap
      painter.fillRect(box.adjusted(0, 4, 0, -4), color(palette_.lane));
      lanes_.paint_exposed(painter, side.model->bands_of(track.rank)->exposed, shifted(scale, side.origin), place,
                           device_ratio);
      break;
    }
    case TrackKind::Memory: {
      painter.fillRect(box, color(palette_.lane));
      const MemoryPlace place{box, side.model->predicted(), highest_memory(scene_, track.rank), &grid};
      const MemoryTracks* memory = side.model->memory_of(track.rank);
      if (memory == nullptr) break;
      return paint_memory(painter, *memory, shifted(scale, side.origin), place, palette_, fonts_);
    }
  }
  draw_grid(painter, grid, box);
}

void ScenePainter::paint_lane(QPainter& painter, const Track& track, const QRectF& box, const TimeScale& scale,
                              double device_ratio, const GridLines& grid) {
  const SceneSide& side = side_of(track);
  const LaneRows& lane = side.model->lanes[track.lane];
  if (!PixelCanvas::under(painter)) painter.fillRect(box, color(palette_.lane));  // there the rows paint it
  const double height = row_height(track, lane);
  for (std::size_t r = 0; r < lane.rows.size(); ++r) {
    const RowPlace place{box.left(), box.top() + height * static_cast<double>(r), height, side.model->predicted(), true,
                         &grid};
    lanes_.paint(painter, *side.model, lane.rows[r], shifted(scale, side.origin), place, device_ratio);
  }
}

void ScenePainter::paint_ranges(QPainter& painter, const Track& track, const QRectF& box, const TimeScale& scale,
                                const GridLines& grid) {
  const SceneSide& side = side_of(track);
  const RankBands* bands = side.model->bands_of(track.rank);
  const QFontMetricsF metrics(fonts_.small);
  std::vector<std::pair<QRectF, QString>> names;
  for (const NamedRange& phase : bands->phases) {
    const double left = std::max(box.left() - 2, box.left() + scale.x(phase.time.begin - side.origin));
    const double right = std::min(box.right() + 2, box.left() + scale.x(phase.time.end - side.origin));
    if (right <= left) continue;
    const Meaning meaning = phase.name == "forward"    ? Meaning::ComputeForward
                            : phase.name == "backward" ? Meaning::ComputeBackward
                                                       : Meaning::Optimizer;
    const Rgb shade = blend(palette_.ground, palette_.slices[static_cast<std::size_t>(meaning)], 0.22);
    const QRectF range(left, box.top() + 1, std::max(1.0, right - left - 1), box.height() - 2);
    painter.fillRect(range, color(shade));
    const QString text = text_of(phase.name);
    if (metrics.horizontalAdvance(text) + 8 <= range.width()) names.emplace_back(range, text);
  }
  draw_grid(painter, grid, box);
  painter.setFont(fonts_.small);
  painter.setPen(color(palette_.text));
  for (const auto& [range, text] : names) painter.drawText(range, Qt::AlignCenter, text);
  for (const NamedRange& iteration : bands->iterations) {
    const double x = box.left() + scale.x(iteration.time.begin - side.origin);
    if (x < box.left() || x > box.right()) continue;
    painter.setPen(QPen(color(palette_.accent), 1.5));
    painter.drawLine(QPointF(x, box.top()), QPointF(x, box.bottom()));
  }
}

void ScenePainter::paint_links(QPainter& painter, const Track& track, const QRectF& box, const TimeScale& scale) {
  painter.setRenderHint(QPainter::Antialiasing, true);
  painter.setPen(Qt::NoPen);
  for (const ComparedPair& pair : scene_.comparison->pairs) {
    if (pair.numbers.rank != track.rank || pair.numbers.stream != track.stream) continue;
    const double a0 = scale.x(pair.a.begin), a1 = scale.x(pair.a.end);
    const double b0 = scale.x(pair.b.begin), b1 = scale.x(pair.b.end);
    if (std::max(a1, b1) < 0 || std::min(a0, b0) > scale.width || std::max(a1 - a0, b1 - b0) < kBoxPixels) continue;
    const double difference = pair.numbers.duration.difference();
    const double longer = std::max(pair.numbers.duration.a, pair.numbers.duration.b);
    const double share = longer > 0 ? std::fabs(difference) / longer : 0;
    const Rgb shade = difference > 0 ? palette_.too_long : palette_.too_short;
    painter.setBrush(
        color(blend(palette_.text_weak, shade, std::min(1.0, 4 * share)), 40 + static_cast<int>(110 * share)));
    const double left = box.left();
    painter.drawPolygon(QPolygonF{{left + a0, box.top()},
                                  {left + std::max(a1, a0 + 1), box.top()},
                                  {left + std::max(b1, b0 + 1), box.bottom()},
                                  {left + b0, box.bottom()}});
  }
}

void ScenePainter::paint_heat(QPainter& painter, const Track& track, const QRectF& box, const TimeScale& scale) {
  const auto heat = scene_.comparison->heat(track.rank, track.stream, scale.begin, scale.ns_per_pixel, scale.width);
  const QRectF strip = box.adjusted(0, 2, 0, -2);
  painter.fillRect(strip, color(palette_.lane));
  QImage image(std::max(1, scale.width), 1, QImage::Format_ARGB32_Premultiplied);
  image.fill(Qt::transparent);
  auto* line = reinterpret_cast<QRgb*>(image.scanLine(0));
  for (std::size_t p = 0; p < heat.size(); ++p) {
    if (std::isnan(heat[p])) continue;
    const double size = std::sqrt(std::fabs(static_cast<double>(heat[p])));  // small differences are seen too
    line[p] = 0xff000000U | blend(palette_.line, heat[p] > 0 ? palette_.too_long : palette_.too_short, size);
  }
  const int height = std::max(1, static_cast<int>(strip.height()));
  painter.drawImage(strip, image.scaled(image.width(), height));
}

}  // namespace foreshard::gui
