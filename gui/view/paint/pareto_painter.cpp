#include "gui/view/paint/pareto_painter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>

#include "gui/models/timeline/amounts.h"

namespace foreshard::gui {
namespace {

constexpr double kDot = kParetoDot;
constexpr std::size_t kFewNames = 16;      // a front of so many points gets a name for each if there is room
constexpr std::size_t kMostDots = 50'000;  // more cannot be told apart

struct Widened {
  double low, high;
};
Widened widened(double low, double high) {
  if (!(high > low)) high = low + std::max(1.0, std::abs(low) * 0.1);
  const double margin = (high - low) * 0.08;
  return {std::max(0.0, low - margin), high + margin};
}

/// What sets the points of the front apart: settings that all of them share are not told.
std::vector<QString> settings_of(const SweepPoints& sweep, const std::vector<std::size_t>& front) {
  std::vector<QString> names;
  for (const std::size_t k : front) {
    QString text;
    for (const std::string& setting : sweep.points[k].set) {
      const bool shared = std::all_of(front.begin(), front.end(), [&](std::size_t other) {
        const auto& set = sweep.points[other].set;
        return std::find(set.begin(), set.end(), setting) != set.end();
      });
      if (shared && front.size() > 1) continue;
      const std::size_t dot = setting.rfind('.', setting.find('='));
      text += (text.isEmpty() ? "" : ", ") + text_of(dot == std::string::npos ? setting : setting.substr(dot + 1));
    }
    names.push_back(text);
  }
  return names;
}

void paint_axes(QPainter& painter, const SweepPoints& sweep, const ParetoScale& scale, const Palette& palette,
                const Fonts& fonts) {
  const QFontMetricsF metrics(fonts.small);
  painter.setFont(fonts.small);
  const TimeTicks times = time_ticks(scale.time_low, scale.time_high, 8);
  for (const double tick : times.at) {
    const double x = scale.at(tick, 0).x();
    painter.setPen(QPen(color(palette.line), 1));
    painter.drawLine(QPointF(x, scale.box.top()), QPointF(x, scale.box.bottom()));
    painter.setPen(color(palette.text_weak));
    const QString text = text_of(times.text(tick));
    painter.drawText(QPointF(x - metrics.horizontalAdvance(text) / 2, scale.box.bottom() + 16), text);
  }
  for (const double tick : byte_ticks(scale.memory_high, 8)) {
    if (tick < scale.memory_low) continue;
    const double y = scale.at(0, tick).y();
    painter.setPen(QPen(color(palette.line), 1));
    painter.drawLine(QPointF(scale.box.left(), y), QPointF(scale.box.right(), y));
    painter.setPen(color(palette.text_weak));
    const QString text = text_of(bytes_words(tick));
    painter.drawText(QPointF(scale.box.left() - 8 - metrics.horizontalAdvance(text), y + metrics.ascent() / 2 - 1),
                     text);
  }
  painter.setPen(color(palette.text));
  painter.setFont(fonts.normal);
  painter.drawText(QRectF(scale.box.left(), scale.box.bottom() + 20, scale.box.width(), 20), Qt::AlignCenter,
                   text_of(sweep.time_name));
  painter.save();
  painter.translate(scale.box.left() - 74, scale.box.center().y());
  painter.rotate(-90);
  painter.drawText(QRectF(-150, -10, 300, 20), Qt::AlignCenter, "peak reserved memory");
  painter.restore();
}

QPointF place_of(const ParetoPoint& point, const ParetoScale& scale) {
  return scale.at(point.time_ns, static_cast<double>(point.memory));
}

/// From the fastest down to the smallest, in steps.
QPolygonF front_line(const SweepPoints& sweep, const std::vector<std::size_t>& front, const ParetoScale& scale) {
  QPolygonF line;
  for (const std::size_t k : front) {
    const QPointF place = place_of(sweep.points[k], scale);
    if (!line.isEmpty()) line << QPointF(place.x(), line.back().y());
    line << place;
  }
  return line;
}

/// From a point to the nearest place of its name.
QLineF tie_of(const QPointF& point, const QRectF& box) {
  return {point, {std::clamp(point.x(), box.left(), box.right()), std::clamp(point.y(), box.top(), box.bottom())}};
}

bool crosses(const QLineF& line, const QRectF& box) {
  if (box.contains(line.p1()) || box.contains(line.p2())) return true;
  const std::array<QPointF, 4> corners{box.topLeft(), box.topRight(), box.bottomRight(), box.bottomLeft()};
  for (std::size_t k = 0; k < 4; ++k)
    if (line.intersects(QLineF(corners[k], corners[(k + 1) % 4]), nullptr) == QLineF::BoundedIntersection) return true;
  return false;
}

/// Where names can stand: beside their point, over no other name, no dot and no line.
class FreePlaces {
 public:
  FreePlaces(const SweepPoints& sweep, const ParetoScale& scale, const QPolygonF& line) : plot_(scale.box) {
    for (const ParetoPoint& point : sweep.points) {
      if (!point.fits || taken_.size() > kMostDots) continue;
      const QPointF place = place_of(point, scale);
      taken_.push_back(QRectF(place.x() - kDot, place.y() - kDot, 2 * kDot, 2 * kDot));
    }
    for (qsizetype k = 1; k < line.size(); ++k)
      taken_.push_back(QRectF(line[k - 1], line[k]).normalized().adjusted(-1, -1, 1, 1));
  }

  std::optional<QRectF> beside(const QPointF& point, const QSizeF& size) {
    const double right = point.x() + 10, left = point.x() - 10 - size.width();
    const double above = point.y() - size.height() - 2, below = point.y() + 3;
    // Below a front, on its left, nothing is ever drawn.
    for (const QPointF& place :
         std::array<QPointF, 4>{QPointF(left, below), {right, below}, {right, above}, {left, above}})
      if (const auto box = take(QRectF(place, size))) return box;
    return std::nullopt;
  }

  /// In rings around the point, the nearest first.
  std::optional<QRectF> farther_off(const QPointF& point, const QSizeF& size) {
    for (double reach = 16; reach <= 240; reach += 8) {
      for (const double angle : {0.75, 0.25, 0.5, 0.0, 0.625, 0.875, 0.125, 0.375}) {  // of a turn, downwards positive
        const double x = std::cos(angle * 6.2832) * (reach + size.width() / 2), y = -std::sin(angle * 6.2832) * reach;
        const QRectF box(point + QPointF(x - size.width() / 2, y - size.height() / 2), size);
        const QLineF line = tie_of(point, box);
        const bool crossed =
            std::any_of(names_.begin(), names_.end(), [&](const QRectF& name) { return crosses(line, name); });
        if (crossed || !take(box)) continue;
        ties_.push_back(line);
        return box;
      }
    }
    return std::nullopt;
  }

 private:
  std::optional<QRectF> take(const QRectF& box) {
    if (!plot_.contains(box)) return std::nullopt;
    if (std::any_of(taken_.begin(), taken_.end(), [&](const QRectF& other) { return other.intersects(box); }) ||
        std::any_of(ties_.begin(), ties_.end(), [&](const QLineF& tie) { return crosses(tie, box); }))
      return std::nullopt;
    taken_.push_back(box);
    names_.push_back(box);
    return box;
  }

  QRectF plot_;
  std::vector<QRectF> taken_, names_;  // dots, lines and names; names
  std::vector<QLineF> ties_;
};

void paint_front(QPainter& painter, const SweepPoints& sweep, const ParetoScale& scale, const Palette& palette,
                 const Fonts& fonts) {
  const std::vector<std::size_t> front = sweep.front();
  painter.setPen(QPen(color(palette.accent), 1.5));
  painter.setBrush(Qt::NoBrush);
  painter.drawPolyline(front_line(sweep, front, scale));
  painter.setPen(QPen(color(palette.ground), 1.5));
  painter.setBrush(color(palette.accent));
  for (const std::size_t k : front) painter.drawEllipse(place_of(sweep.points[k], scale), kDot, kDot);
  const QFontMetricsF metrics(fonts.small);
  painter.setFont(fonts.small);
  for (const FrontName& name : front_names(sweep, scale, fonts)) {
    const QLineF line = tie_of(place_of(sweep.points[name.point], scale), name.box);
    if (name.tied && line.length() > kDot) {
      painter.setPen(QPen(color(palette.text_weak), 1));
      painter.drawLine(line.pointAt(kDot / line.length()), line.p2());
    }
    painter.fillRect(name.box, color(palette.lane, 210));  // over the axes' lines
    painter.setPen(color(palette.text));
    painter.drawText(QPointF(name.box.left(), name.box.top() + metrics.ascent()), name.text);
  }
}

}  // namespace

std::vector<FrontName> front_names(const SweepPoints& sweep, const ParetoScale& scale, const Fonts& fonts) {
  const std::vector<std::size_t> front = sweep.front();
  if (front.empty()) return {};
  const std::vector<QString> texts = settings_of(sweep, front);
  const QFontMetricsF metrics(fonts.small);
  FreePlaces places(sweep, scale, front_line(sweep, front, scale));
  std::vector<FrontName> names;
  const auto name = [&](std::size_t k, bool end) {
    const QString text = metrics.elidedText(texts[k], Qt::ElideRight, 360);
    if (text.isEmpty()) return;
    const QSizeF size(metrics.horizontalAdvance(text), metrics.height());
    const QPointF point = place_of(sweep.points[front[k]], scale);
    if (const auto near = places.beside(point, size))
      names.push_back({front[k], text, *near, false});
    else if (const auto far = end || front.size() <= kFewNames ? places.farther_off(point, size) : std::nullopt)
      names.push_back({front[k], text, *far, true});
  };
  name(0, true);
  if (front.size() > 1) name(front.size() - 1, true);
  for (std::size_t k = 1; k + 1 < front.size(); ++k) name(k, false);
  return names;
}

QPointF ParetoScale::at(double time_ns, double memory) const {
  return {box.left() + (time_ns - time_low) / (time_high - time_low) * box.width(),
          box.bottom() - (memory - memory_low) / (memory_high - memory_low) * box.height()};
}
double ParetoScale::time(double x) const { return time_low + (x - box.left()) / box.width() * (time_high - time_low); }
double ParetoScale::memory(double y) const {
  return memory_low + (box.bottom() - y) / box.height() * (memory_high - memory_low);
}

ParetoScale pareto_scale(const SweepPoints& sweep, const QRectF& area) {
  double time_low = 0, time_high = 0, memory_low = 0, memory_high = 0;
  bool any = false;
  for (const ParetoPoint& point : sweep.points) {
    if (!point.fits) continue;
    const auto memory = static_cast<double>(point.memory);
    time_low = any ? std::min(time_low, point.time_ns) : point.time_ns;
    time_high = any ? std::max(time_high, point.time_ns) : point.time_ns;
    memory_low = any ? std::min(memory_low, memory) : memory;
    memory_high = any ? std::max(memory_high, memory) : memory;
    any = true;
  }
  const Widened time = widened(time_low, time_high), memory = widened(memory_low, memory_high);
  return {area.adjusted(92, 12, -24, -48), time.low, time.high, memory.low, memory.high};
}

void paint_pareto(QPainter& painter, const SweepPoints& sweep, const QRectF& area, const Palette& palette,
                  const Fonts& fonts, std::optional<std::size_t> marked) {
  painter.fillRect(area, color(palette.ground));
  const ParetoScale scale = pareto_scale(sweep, area);
  painter.fillRect(scale.box, color(palette.lane));
  if (sweep.front().empty()) {
    painter.setFont(fonts.normal);
    painter.setPen(color(palette.text));
    painter.drawText(scale.box, Qt::AlignCenter, "none of the sweep's jobs fits");
    return;
  }
  paint_axes(painter, sweep, scale, palette, fonts);
  painter.setRenderHint(QPainter::Antialiasing, true);
  const auto budget = static_cast<double>(sweep.budget);
  if (budget > scale.memory_low && budget < scale.memory_high) {
    painter.setPen(QPen(color(palette.exposed), 1.5, Qt::DashLine));
    painter.drawLine(scale.at(scale.time_low, budget), scale.at(scale.time_high, budget));
  }
  painter.setPen(Qt::NoPen);
  painter.setBrush(color(palette.text_weak, 130));
  std::size_t drawn = 0;
  for (const ParetoPoint& point : sweep.points) {
    if (!point.fits || point.on_front || ++drawn > kMostDots) continue;
    painter.drawEllipse(scale.at(point.time_ns, static_cast<double>(point.memory)), 3.5, 3.5);
  }
  paint_front(painter, sweep, scale, palette, fonts);
  if (marked && *marked < sweep.points.size()) {
    const ParetoPoint& point = sweep.points[*marked];
    painter.setPen(QPen(color(palette.text), 2));
    painter.setBrush(Qt::NoBrush);
    painter.drawEllipse(scale.at(point.time_ns, static_cast<double>(point.memory)), 9, 9);
  }
  painter.setRenderHint(QPainter::Antialiasing, false);
}

Picture pareto_picture(SweepPoints sweep, const PictureOptions& options) {
  const auto kept = std::make_shared<SweepPoints>(std::move(sweep));
  const QSize size(options.width, options.height > 0 ? options.height : std::max(360, options.width * 9 / 16));
  const auto fitting = std::count_if(kept->points.begin(), kept->points.end(), [](const auto& p) { return p.fits; });
  const std::vector<std::size_t> front = kept->front();
  std::vector<Figure> figures{{"jobs", fmt::format("{}", kept->points.size()), fmt::format("{} fit", fitting)},
                              {"on the front", fmt::format("{}", front.size()), ""}};
  if (!front.empty()) {
    const ParetoPoint &fastest = kept->points[front.front()], &smallest = kept->points[front.back()];
    figures.push_back({"fastest", duration_words(fastest.time_ns), bytes_words(static_cast<double>(fastest.memory))});
    figures.push_back(
        {"smallest", bytes_words(static_cast<double>(smallest.memory)), duration_words(smallest.time_ns)});
  }
  const std::string title = "Sweep of " + kept->name;
  const Theme theme = options.theme;
  return {size, title, [kept, figures, title, theme, size](QPainter& painter, double) {
            const Palette& palette = palette_of(theme);
            const Fonts fonts = picture_fonts();
            const QRectF whole(QPointF(0, 0), QSizeF(size));
            painter.fillRect(whole, color(palette.ground));
            const QRectF inner = whole.adjusted(16, 16, -16, -16);
            const double header = paint_header(&painter, inner, title, figures, palette, fonts);
            paint_pareto(painter, *kept, inner.adjusted(0, header, 0, 0), palette, fonts);
          }};
}

}  // namespace foreshard::gui
