#include "gui/view/window/timeline_widget.h"

#include <QKeyEvent>
#include <QPainter>
#include <QScrollBar>
#include <algorithm>
#include <cmath>

namespace foreshard::gui {
namespace {

constexpr double kReachPixels = 4;
/// How long the window waits for the worker before it shows the frame before, moved.
constexpr std::chrono::milliseconds kPatience(12);

}  // namespace

int physical_key(const QKeyEvent& event) {
  switch (event.nativeScanCode()) {  // of X11 and Wayland; 0 where nobody knows
    case 25: return Qt::Key_W;
    case 38: return Qt::Key_A;
    case 39: return Qt::Key_S;
    case 40: return Qt::Key_D;
    default: return event.key();
  }
}

TimelineWidget::TimelineWidget(QWidget* parent)
    : QAbstractScrollArea(parent), fonts_(picture_fonts()), frames_([this] {
        QMetaObject::invokeMethod(
            this, [this] { viewport()->update(); }, Qt::QueuedConnection);
      }) {
  setFocusPolicy(Qt::StrongFocus);
  setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  setFrameShape(QFrame::NoFrame);
  viewport()->setMouseTracking(true);
  viewport()->setAttribute(Qt::WA_OpaquePaintEvent);
  setAccessibleName("Timeline");
  setAccessibleDescription(
      "Lanes of slices over time. W and S zoom, A and D pan, comma and full stop step through slices.");
}

void TimelineWidget::setScene(Scene scene, bool keep_view) {
  const Navigation before = navigation_;
  const bool had = hasScene();
  natural_ = std::move(scene);
  other_height_.reset();
  fitHeight();
  TimeRange home = scene_->extent;
  if (scene_->compares()) {
    home = {0, scene_->comparison->end};
  } else if (!scene_->sides.empty()) {
    const SceneSide& side = scene_->sides.front();
    const TimeRange steady = steady_range(*side.model);
    home = {steady.begin - side.origin, steady.end - side.origin};
  }
  navigation_ = Navigation(scene_->extent, home);
  if (had && keep_view) {
    const SimDuration moved = navigation_.home().begin - before.home().begin;
    TimeRange seen{before.range().begin + moved, before.range().end + moved};
    if (before.range() == before.home()) seen = navigation_.home();
    if (before.range() == before.extent()) seen = navigation_.extent();
    navigation_.show(seen);
    navigation_.set_bookmarks(before.bookmarks());
    navigation_.set_notes(before.notes());
  }
  hovered_.reset();
  updateScrollBar();
  navigationChanged();
  if (onSelection) onSelection();
}

void TimelineWidget::setTheme(Theme theme) {
  if (theme == theme_) return;
  theme_ = theme;
  if (scene_) painter_ = std::make_unique<ScenePainter>(*scene_, palette_of(theme_), fonts_);
  navigationChanged();
}

void TimelineWidget::setFrameTimeShown(bool shown) {
  frame_shown_ = shown;
  viewport()->update();
}

void TimelineWidget::navigationChanged() {
  viewport()->update();
  if (onView) onView();
}

SceneView TimelineWidget::view() const {
  return {navigation_.range(), static_cast<double>(verticalScrollBar()->value())};
}

SimTime TimelineWidget::timeAt(double x) const { return scale().time(x - kGutter); }

std::optional<SceneSlice> TimelineWidget::sliceAt(const QPointF& point) const {
  if (!scene_ || point.x() < kGutter || point.y() < kRuler) return std::nullopt;
  const auto reach = static_cast<SimDuration>(kReachPixels * scale().ns_per_pixel);
  return slice_at(*scene_, point.y() - kRuler + verticalScrollBar()->value(), timeAt(point.x()), reach);
}

void TimelineWidget::updateScrollBar() {
  const int shown = std::max(1, viewport()->height() - static_cast<int>(kRuler));
  const int height = scene_ ? static_cast<int>(std::ceil(scene_->height)) : 0;
  verticalScrollBar()->setPageStep(shown);
  verticalScrollBar()->setSingleStep(24);
  verticalScrollBar()->setRange(0, std::max(0, height - shown));
}

FrameRequest TimelineWidget::wantedFrame() const {
  return {scene_, theme_, QSizeF(viewport()->size()), devicePixelRatioF(), view()};
}

std::shared_ptr<const Frame> TimelineWidget::frameInTime() {
  const FrameRequest wanted = wantedFrame();
  if (wanted != asked_) {
    asked_ = wanted;
    frames_.ask(wanted);
  }
  std::shared_ptr<const Frame> frame = frames_.latest();
  if (frame && frame->of == wanted) return frame;
  frames_.wait(kPatience);
  return frames_.latest();
}

void TimelineWidget::paintEvent(QPaintEvent*) {
  QPainter painter(viewport());
  const Palette& palette = palette_of(theme_);
  const std::shared_ptr<const Frame> frame = scene_ ? frameInTime() : nullptr;
  if (!frame || (frame->of.scene != scene_ && frame->of.scene != other_height_)) {
    painter.fillRect(viewport()->rect(), color(palette.ground));
    return;
  }
  if (frame->of == asked_)
    painter.drawImage(QPointF(0, 0), frame->image);
  else
    draw_moved(painter, *frame, area(), view(), palette);
  SceneOverlay overlay;
  overlay.selected = navigation_.selected();
  overlay.hovered = hovered_;
  overlay.related = related_.of(scene_, navigation_.selected());
  overlay.selection = navigation_.selection();
  overlay.bookmarks = navigation_.bookmarks();
  overlay.notes = navigation_.notes();
  if (mouse_ && drag_ == Drag::None) overlay.cursor_x = mouse_->x();
  painter_->paint_overlay(painter, area(), view(), overlay);
  if (frame_shown_) {
    painter.setPen(color(palette.text_weak));
    painter.setFont(fonts_.small);
    painter.drawText(QPointF(6, 14), QString("%1 ms").arg(frame->milliseconds, 0, 'f', 1));
  }
  if (hasFocus()) {
    painter.setPen(QPen(color(palette.accent), 1));
    painter.setBrush(Qt::NoBrush);
    painter.drawRect(viewport()->rect().adjusted(0, 0, -1, -1));
  }
}

void TimelineWidget::fitHeight() {
  Scene fitted = stretched(natural_, viewport()->height() - kRuler);
  painter_.reset();
  scene_ = std::make_shared<const Scene>(std::move(fitted));
  painter_ = std::make_unique<ScenePainter>(*scene_, palette_of(theme_), fonts_);
}

void TimelineWidget::resizeEvent(QResizeEvent* event) {
  const bool taller = scene_ && (scene_->height > natural_.height || viewport()->height() - kRuler > natural_.height);
  if (taller && event->oldSize().height() != event->size().height()) {
    other_height_ = scene_;
    fitHeight();
  }
  updateScrollBar();
}

void TimelineWidget::scrollContentsBy(int, int) { viewport()->update(); }

SimTime TimelineWidget::zoomCentre() const {
  if (mouse_ && mouse_->x() >= kGutter) return timeAt(mouse_->x());
  if (const auto selected = selectedTime()) return selected->begin + selected->length() / 2;
  return navigation_.range().begin + navigation_.range().length() / 2;
}

std::optional<TimeRange> TimelineWidget::selectedTime() const {
  if (!scene_ || !navigation_.selected()) return std::nullopt;
  const auto position = position_of(*scene_, *navigation_.selected());
  if (!position) return std::nullopt;
  return position->time;
}

void TimelineWidget::selectSlice(std::optional<SceneSlice> slice, bool reveal) {
  navigation_.select_slice(slice);
  const auto position = slice && scene_ ? position_of(*scene_, *slice) : std::nullopt;
  if (position && reveal) {
    const TimeRange range = navigation_.range();
    const bool outside = position->time.end < range.begin || position->time.begin > range.end;
    const bool unseen = static_cast<double>(position->time.length()) < 2 * scale().ns_per_pixel;
    if (outside || unseen) {
      // As much around it as shows what it belongs to.
      const SimDuration around = unseen ? std::max<SimDuration>(20, 20 * position->time.length()) : range.length() / 2;
      const SimTime middle = position->time.begin + position->time.length() / 2;
      navigation_.show({middle - around, middle + around});
    }
    const int top = static_cast<int>(position->y), bottom = static_cast<int>(position->y + position->height);
    QScrollBar* bar = verticalScrollBar();
    if (top < bar->value()) bar->setValue(top - 8);
    if (bottom > bar->value() + bar->pageStep()) bar->setValue(bottom - bar->pageStep() + 8);
    navigationChanged();
  }
  viewport()->update();
  if (onSelection) onSelection();
}

}  // namespace foreshard::gui
