#include "gui/view/panels/lateness_panel.h"

#include <QComboBox>
#include <QMouseEvent>
#include <QPainter>
#include <algorithm>
#include <cmath>

#include "gui/models/timeline/amounts.h"
#include "gui/view/paint/theme.h"

namespace foreshard::gui {
namespace {

constexpr double kLabels = 64, kFoot = 20, kMostRow = 28;

/// From the lane's ground to the colour of what takes too long; small latenesses are seen too.
QColor heat_of(const LatenessCell& cell, SimDuration latest, const Palette& palette) {
  if (cell.late < 0) return color(palette.ground);
  const double share = latest > 0 ? std::sqrt(static_cast<double>(cell.late) / static_cast<double>(latest)) : 0.0;
  const QColor cold = color(palette.lane_other), hot = color(palette.too_long);
  const auto mixed = [&](int a, int b) { return static_cast<int>(std::lround(a + (b - a) * share)); };
  return {mixed(cold.red(), hot.red()), mixed(cold.green(), hot.green()), mixed(cold.blue(), hot.blue())};
}

}  // namespace

LatenessCanvas::LatenessCanvas(QWidget* parent) : QWidget(parent) {
  setMouseTracking(true);
  setAttribute(Qt::WA_OpaquePaintEvent);
  setAccessibleName("How late ranks came");
}

void LatenessCanvas::setMap(std::shared_ptr<const LatenessMap> map) {
  map_ = std::move(map);
  update();
}

void LatenessCanvas::setTheme(Theme theme) {
  theme_ = theme;
  update();
}

QRectF LatenessCanvas::grid() const {
  const double rows = map_ ? static_cast<double>(std::max<std::size_t>(1, map_->ranks.size())) : 1;
  const double tall = std::min(kMostRow * rows, height() - kFoot - 4);
  return {kLabels, 2, std::max(1.0, width() - kLabels - 6), std::max(1.0, tall)};
}

void LatenessCanvas::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  const Palette& palette = palette_of(theme_);
  painter.fillRect(rect(), color(palette.ground));
  painter.setFont(picture_fonts().small);
  painter.setPen(color(palette.text_weak));
  if (!map_ || map_->columns.empty()) {
    painter.drawText(rect().adjusted(12, 8, -12, -8), Qt::AlignCenter | Qt::TextWordWrap,
                     "Open recordings of two ranks or more (all their files at once): how late each rank came to the "
                     "collectives stands here.");
    return;
  }
  const QRectF box = grid();
  const double tall = box.height() / static_cast<double>(map_->ranks.size());
  const auto columns = static_cast<double>(map_->columns.size());
  for (std::size_t row = 0; row < map_->ranks.size(); ++row) {
    const double y = box.top() + tall * static_cast<double>(row);
    if (tall >= 9) {
      painter.setPen(color(palette.text));
      painter.drawText(QRectF(4, y, kLabels - 8, tall), Qt::AlignVCenter | Qt::AlignRight,
                       QString("rank %1").arg(map_->ranks[row]));
    }
    // Pixel columns: of several cells in one the latest is seen.
    const int pixels = static_cast<int>(box.width());
    for (int x = 0; x < pixels; ++x) {
      const auto first = static_cast<std::size_t>(columns * x / pixels);
      const auto last = std::max(first + 1, static_cast<std::size_t>(columns * (x + 1) / pixels));
      LatenessCell worst;
      for (std::size_t c = first; c < std::min(last, map_->columns.size()); ++c)
        if (map_->at(row, c).late > worst.late) worst = map_->at(row, c);
      painter.fillRect(QRectF(box.left() + x, y, 1, std::max(1.0, tall - 1)), heat_of(worst, map_->latest, palette));
    }
  }
  painter.setPen(color(palette.text_weak));
  painter.drawText(QRectF(box.left(), box.bottom() + 2, box.width(), kFoot), Qt::AlignVCenter | Qt::AlignLeft,
                   QString("%1 to %2; the reddest came %3 after the first rank")
                       .arg(text_of(map_->columns.front()), text_of(map_->columns.back()),
                            text_of(duration_words(static_cast<double>(map_->latest)))));
}

std::optional<std::pair<std::size_t, std::size_t>> LatenessCanvas::cellAt(const QPointF& point) const {
  const QRectF box = grid();
  if (!map_ || map_->columns.empty() || !box.contains(point)) return std::nullopt;
  const auto share = [](double at, double length, std::size_t count) {
    return std::min(count - 1, static_cast<std::size_t>(at / length * static_cast<double>(count)));
  };
  return std::pair(share(point.y() - box.top(), box.height(), map_->ranks.size()),
                   share(point.x() - box.left(), box.width(), map_->columns.size()));
}

void LatenessCanvas::mouseMoveEvent(QMouseEvent* event) {
  const auto cell = cellAt(event->position());
  if (!cell) return setToolTip({});
  const SimDuration late = map_->at(cell->first, cell->second).late;
  const QString words = QString("rank %1, %2: %3")
                            .arg(QString::number(map_->ranks[cell->first]), text_of(map_->columns[cell->second]),
                                 late < 0 ? QString("took no part")
                                          : text_of(duration_words(static_cast<double>(late))) + " after the first");
  setToolTip(words);
  if (onStatus) onStatus(words);
}

void LatenessCanvas::mousePressEvent(QMouseEvent* event) {
  const auto cell = cellAt(event->position());
  if (cell && onGo) onGo(map_->at(cell->first, cell->second));
}

LatenessPanel::LatenessPanel(QWidget* parent) : LatenessPanel(new LatenessCanvas, parent) {}

LatenessPanel::LatenessPanel(LatenessCanvas* canvas, QWidget* parent)
    : GatheredPanel(
          {"By collective", "By step"}, "What a column of the map is",
          [canvas](const TimelineModel& model, int reading) {
            return [canvas, map = std::make_shared<const LatenessMap>(lateness_map(model.timeline, reading == 1))] {
              canvas->setMap(map);
            };
          },
          [canvas] { canvas->setMap(nullptr); }, parent),
      canvas_(canvas) {
  show_in(canvas_);
  canvas_->onGo = [this](const LatenessCell& cell) { go(cell.span); };
  canvas_->onStatus = [this](const QString& text) { say(text); };
}

}  // namespace foreshard::gui
