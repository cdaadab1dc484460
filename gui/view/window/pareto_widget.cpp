#include "gui/view/window/pareto_widget.h"

#include <QKeyEvent>
#include <QMouseEvent>
#include <QPainter>
#include <algorithm>

#include "gui/models/timeline/amounts.h"
#include "gui/view/paint/pareto_painter.h"

namespace foreshard::gui {
namespace {

constexpr double kReach = 0.04;  // of the box

QString words_of(const ParetoPoint& point) {
  QString text =
      text_of(duration_words(point.time_ns)) + "   " + text_of(bytes_words(static_cast<double>(point.memory))) + "  ";
  for (const std::string& setting : point.set) text += " " + text_of(setting);
  return text;
}

}  // namespace

ParetoWidget::ParetoWidget(QWidget* parent) : QWidget(parent) {
  setFocusPolicy(Qt::StrongFocus);
  setMouseTracking(true);
  setAttribute(Qt::WA_OpaquePaintEvent);
  setAccessibleName("Sweep: time against memory");
  setAccessibleDescription("Left and right walk along the front, Enter opens the job.");
}

void ParetoWidget::setSweep(SweepPoints sweep) {
  sweep_ = std::move(sweep);
  marked_.reset();
  update();
}

void ParetoWidget::setTheme(Theme theme) {
  theme_ = theme;
  update();
}

void ParetoWidget::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  paint_pareto(painter, sweep_, QRectF(rect()), palette_of(theme_), picture_fonts(), marked_);
}

std::optional<std::size_t> ParetoWidget::pointAt(const QPointF& at) const {
  const ParetoScale scale = pareto_scale(sweep_, QRectF(rect()));
  return sweep_.nearest(scale.time(at.x()), scale.memory(at.y()), scale.time_high - scale.time_low,
                        scale.memory_high - scale.memory_low, kReach);
}

void ParetoWidget::mark(std::optional<std::size_t> point) {
  if (point == marked_) return;
  marked_ = point;
  if (onStatus) onStatus(point ? words_of(sweep_.points[*point]) : QString());
  update();
}

void ParetoWidget::mouseMoveEvent(QMouseEvent* event) { mark(pointAt(event->position())); }

void ParetoWidget::mousePressEvent(QMouseEvent* event) {
  mark(pointAt(event->position()));
  if (event->button() == Qt::LeftButton && marked_ && onOpen) onOpen(sweep_.points[*marked_]);
}

void ParetoWidget::keyPressEvent(QKeyEvent* event) {
  const std::vector<std::size_t> front = sweep_.front();
  const int key = event->key();
  if ((key == Qt::Key_Return || key == Qt::Key_Enter) && marked_ && onOpen) return onOpen(sweep_.points[*marked_]);
  if ((key != Qt::Key_Left && key != Qt::Key_Right) || front.empty()) return QWidget::keyPressEvent(event);
  const auto at = marked_ ? std::find(front.begin(), front.end(), *marked_) : front.end();
  if (at == front.end()) return mark(front.front());
  if (key == Qt::Key_Right && at + 1 != front.end()) mark(*(at + 1));
  if (key == Qt::Key_Left && at != front.begin()) mark(*(at - 1));
}

}  // namespace foreshard::gui
