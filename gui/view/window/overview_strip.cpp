#include "gui/view/window/overview_strip.h"

#include <QMouseEvent>
#include <QPainter>
#include <QWheelEvent>
#include <cmath>

#include "gui/models/timeline/amounts.h"

namespace foreshard::gui {
namespace {

constexpr int kSideHeight = 16, kEdge = 3;

}  // namespace

OverviewStrip::OverviewStrip(TimelineWidget& timeline, QWidget* parent) : QWidget(parent), timeline_(timeline) {
  setSizePolicy(QSizePolicy::Preferred, QSizePolicy::Fixed);
  setObjectName("overview");
  setAccessibleName("Overview");
  setToolTip("All of the recording: compute below, collectives above. A click or a drag moves the window there.");
}

void OverviewStrip::sceneChanged() {
  columns_.assign(timeline_.scene().sides.size(), {});
  height_ = static_cast<int>(timeline_.scene().sides.size()) * kSideHeight + 2 * kEdge;
  updateGeometry();
  update();
}

QRectF OverviewStrip::strip() const { return QRectF(rect()).adjusted(kGutter, kEdge, 0, -kEdge); }

double OverviewStrip::xOf(SimTime time) const {
  const TimeRange whole = timeline_.navigation().extent();
  return strip().left() +
         strip().width() * static_cast<double>(time - whole.begin) / static_cast<double>(whole.length());
}

SimTime OverviewStrip::timeAt(double x) const {
  const TimeRange whole = timeline_.navigation().extent();
  const double share = (x - strip().left()) / std::max(1.0, strip().width());
  return whole.begin + static_cast<SimTime>(share * static_cast<double>(whole.length()));
}

const std::vector<OverviewColumn>& OverviewStrip::columns(std::size_t side, int wanted) {
  std::vector<OverviewColumn>& there = columns_[side];
  if (there.size() != static_cast<std::size_t>(wanted))
    there = overview_of(timeline_.scene().sides[side], timeline_.navigation().extent(), wanted);
  return there;
}

void OverviewStrip::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  const Palette& palette = palette_of(timeline_.theme());
  painter.fillRect(rect(), color(palette.ground));
  if (!timeline_.hasScene() || columns_.size() != timeline_.scene().sides.size()) return;
  const Navigation& navigation = timeline_.navigation();
  painter.setFont(picture_fonts().small);
  painter.setPen(color(palette.text_weak));
  painter.drawText(QRectF(8, 0, kGutter - 16, height()), Qt::AlignVCenter,
                   "all " + text_of(duration_words(static_cast<double>(navigation.extent().length()))));
  const QRectF area = strip();
  for (std::size_t side = 0; side < columns_.size(); ++side) {
    const double top = area.top() + static_cast<double>(side) * kSideHeight, middle = top + kSideHeight / 2.0;
    const std::vector<OverviewColumn>& all = columns(side, std::max(1, static_cast<int>(area.width())));
    painter.fillRect(QRectF(area.left(), top, area.width(), kSideHeight - 1), color(palette.lane));
    for (std::size_t c = 0; c < all.size(); ++c) {
      const double x = area.left() + static_cast<double>(c), half = kSideHeight / 2.0 - 1;
      const double comm = half * std::min(1.0, all[c].communication), compute = half * std::min(1.0, all[c].compute);
      painter.fillRect(QRectF(x, middle - comm, 1, comm),
                       color(palette.slices[static_cast<std::size_t>(Meaning::AllGather)]));
      painter.fillRect(QRectF(x, middle, 1, compute),
                       color(palette.slices[static_cast<std::size_t>(Meaning::ComputeForward)]));
    }
  }
  for (const Note& note : navigation.notes())
    painter.fillRect(QRectF(xOf(note.at.begin), area.top(), std::max(2.0, xOf(note.at.end) - xOf(note.at.begin)), 3),
                     color(palette.reserved));
  for (const SimTime mark : navigation.bookmarks())
    painter.fillRect(QRectF(xOf(mark), area.top(), 2, area.height()), color(palette.reserved));
  const double left = std::clamp(xOf(navigation.range().begin), area.left(), area.right());
  const double right = std::clamp(xOf(navigation.range().end), area.left(), area.right());
  painter.fillRect(QRectF(area.left(), area.top(), left - area.left(), area.height()), color(palette.ground, 100));
  painter.fillRect(QRectF(right, area.top(), area.right() - right, area.height()), color(palette.ground, 100));
  painter.setPen(QPen(color(palette.accent), 1));
  painter.setBrush(Qt::NoBrush);
  painter.drawRect(QRectF(left, area.top() - 1, std::max(3.0, right - left - 1), area.height() + 1));
}

/// By a pan, so that a drag is one step of the history.
void OverviewStrip::moveTo(double x) {
  Navigation& navigation = timeline_.navigation();
  const TimeRange range = navigation.range();
  const double from = static_cast<double>(range.begin) + static_cast<double>(range.length()) / 2;
  navigation.pan((static_cast<double>(timeAt(x)) - from) / static_cast<double>(range.length()));
  timeline_.navigationChanged();
}

void OverviewStrip::mousePressEvent(QMouseEvent* event) {
  if (timeline_.hasScene() && event->button() == Qt::LeftButton) moveTo(event->position().x());
}

void OverviewStrip::mouseMoveEvent(QMouseEvent* event) {
  if (timeline_.hasScene() && (event->buttons() & Qt::LeftButton) != 0) moveTo(event->position().x());
}

void OverviewStrip::mouseReleaseEvent(QMouseEvent*) { timeline_.navigation().settle(); }

void OverviewStrip::wheelEvent(QWheelEvent* event) {
  if (!timeline_.hasScene()) return;
  timeline_.navigation().zoom(std::pow(0.8, event->angleDelta().y() / 120.0), timeAt(event->position().x()));
  timeline_.navigationChanged();
}

}  // namespace foreshard::gui
