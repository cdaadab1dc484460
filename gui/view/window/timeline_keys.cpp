// Keys and mouse of the canvas.

#include <QContextMenuEvent>
#include <QKeyEvent>
#include <QMouseEvent>
#include <QScrollBar>
#include <QToolTip>
#include <QWheelEvent>
#include <cmath>

#include "gui/models/slice_facts.h"
#include "gui/models/slice_walk.h"
#include "gui/models/timeline/amounts.h"
#include "gui/view/window/lane_menu.h"
#include "gui/view/window/timeline_widget.h"

namespace foreshard::gui {
namespace {

constexpr double kZoomStep = 0.8;
constexpr double kPanStep = 0.12;
constexpr double kNotePixels = 4;

/// To the call or operator that a slice comes from, or to the work that it launched.
void follow(TimelineWidget& canvas, bool out) {
  const std::optional<SceneSlice> selected = canvas.navigation().selected();
  if (!selected) return;
  const TimelineModel& model = *canvas.scene().sides[static_cast<std::size_t>(selected->side)].model;
  const auto next = out ? outer_slice(model, *selected) : inner_slice(model, *selected);
  if (next) return canvas.selectSlice(next, true);
  if (canvas.onStatus) canvas.onStatus(out ? "Nothing stands around this slice" : "No work was launched in this slice");
}

void walk(TimelineWidget& canvas, int step, bool across) {
  const Navigation& navigation = canvas.navigation();
  const std::optional<SceneSlice> selected = navigation.selected();
  const auto next = across && selected ? slice_across(canvas.scene(), *selected, step)
                                       : slice_along(canvas.scene(), selected, navigation.range().begin, step);
  if (next) canvas.selectSlice(next, true);
}

}  // namespace

bool TimelineWidget::navigate(int key) {
  switch (key) {
    case Qt::Key_W: navigation_.zoom(kZoomStep, zoomCentre()); return true;
    case Qt::Key_S: navigation_.zoom(1 / kZoomStep, zoomCentre()); return true;
    case Qt::Key_A:
    case Qt::Key_Left: navigation_.pan(-kPanStep); return true;
    case Qt::Key_D:
    case Qt::Key_Right: navigation_.pan(kPanStep); return true;
    case Qt::Key_F: navigation_.fit(selectedTime()); return true;
    case Qt::Key_Home: navigation_.show(navigation_.extent()); return true;
    case Qt::Key_B: navigation_.toggle_bookmark(zoomCentre()); return true;
    case Qt::Key_N:
      if (const auto mark = navigation_.next_mark(navigation_.range().begin + navigation_.range().length() / 2)) {
        const SimDuration half = navigation_.range().length() / 2;
        navigation_.show({*mark - half, *mark + half});
      }
      return true;
    default: return false;
  }
}

/// What a slice is, at the mouse: the inspector's first lines.
bool TimelineWidget::viewportEvent(QEvent* event) {
  if (event->type() != QEvent::ToolTip || !scene_) return QAbstractScrollArea::viewportEvent(event);
  const auto* help = static_cast<QHelpEvent*>(event);
  const auto slice = sliceAt(help->pos());
  if (!slice) {
    QToolTip::hideText();
    return true;
  }
  constexpr std::size_t kLines = 8;
  QStringList lines;
  for (const Fact& fact : slice_facts(*scene_, *slice)) {
    if (lines.size() == kLines) break;
    if (!fact.value.empty()) lines << text_of(fact.name) + ": " + text_of(fact.value).left(80);
  }
  QToolTip::showText(help->globalPos(), lines.join("\n").toHtmlEscaped().replace("\n", "<br>"), viewport());
  return true;
}

void TimelineWidget::keyPressEvent(QKeyEvent* event) {
  if (!scene_ || (event->modifiers() & (Qt::ControlModifier | Qt::AltModifier | Qt::MetaModifier)) != 0)
    return QAbstractScrollArea::keyPressEvent(event);
  const int key = physical_key(*event);
  if (navigate(key)) return navigationChanged();
  switch (key) {
    case Qt::Key_Period: return walk(*this, 1, false);
    case Qt::Key_Comma: return walk(*this, -1, false);
    case Qt::Key_Up: return walk(*this, -1, true);
    case Qt::Key_Down: return walk(*this, 1, true);
    case Qt::Key_M:
      // Measures the selected slice, or what is seen.
      navigation_.select_range(selectedTime() ? *selectedTime() : navigation_.range());
      break;
    case Qt::Key_O: return follow(*this, true);
    case Qt::Key_K: return follow(*this, false);
    case Qt::Key_T:
      if (onNote) {
        const auto near = static_cast<SimDuration>(kNotePixels * scale().ns_per_pixel);
        onNote(navigation_.note_range(selectedTime(), zoomCentre(), near));
      }
      return;
    case Qt::Key_R: navigation_.select_range(selectedTime()); break;
    case Qt::Key_Escape:
      if (navigation_.selection())
        navigation_.select_range(std::nullopt);
      else
        navigation_.select_slice(std::nullopt);
      break;
    default: return QAbstractScrollArea::keyPressEvent(event);
  }
  viewport()->update();
  if (onSelection) onSelection();
}

void TimelineWidget::contextMenuEvent(QContextMenuEvent* event) {
  const Track* track = scene_ ? label_at(*scene_, event->pos(), verticalScrollBar()->value()) : nullptr;
  if (track != nullptr && onOptions) show_lane_menu(*this, *scene_, *track, event->globalPos());
}

void TimelineWidget::mousePressEvent(QMouseEvent* event) {
  const Track* label = scene_ ? label_at(*scene_, event->position(), verticalScrollBar()->value()) : nullptr;
  if (label != nullptr && label->kind == TrackKind::Rank && event->button() == Qt::LeftButton && onOptions)
    return onOptions(folding(label->rank));
  if (!scene_ || event->position().x() < kGutter) return;
  drag_from_ = event->position();
  drag_time_ = timeAt(drag_from_.x());
  const bool pans = event->button() == Qt::MiddleButton || (event->modifiers() & Qt::ShiftModifier) != 0;
  if (event->button() == Qt::LeftButton || event->button() == Qt::MiddleButton) drag_ = pans ? Drag::Pan : Drag::Select;
}

void TimelineWidget::mouseMoveEvent(QMouseEvent* event) {
  mouse_ = event->position();
  if (!scene_) return;
  if (drag_ == Drag::Pan) {
    const double by = (drag_from_.x() - event->position().x()) / std::max(1.0, area().width() - kGutter);
    const int scroll = static_cast<int>(std::lround(drag_from_.y() - event->position().y()));
    drag_from_ = event->position();
    navigation_.pan(by);
    verticalScrollBar()->setValue(verticalScrollBar()->value() + scroll);
    return navigationChanged();
  }
  if (drag_ == Drag::Select && std::fabs(event->position().x() - drag_from_.x()) > 3) {
    navigation_.select_range(TimeRange{drag_time_, timeAt(std::max(kGutter, event->position().x()))});
    if (onSelection) onSelection();
  }
  hovered_ = sliceAt(event->position());
  if (onStatus) {
    QString text = text_of(duration_words(static_cast<double>(timeAt(std::max(kGutter, event->position().x())))));
    if (hovered_) {
      const Timeline& timeline = scene_->sides[static_cast<std::size_t>(hovered_->side)].model->timeline;
      const Span& span = timeline.spans[hovered_->span];
      text += "   " + text_of(slice_label(timeline, span)) + "   " +
              text_of(duration_words(static_cast<double>(span.duration)));
    }
    onStatus(text);
  }
  viewport()->update();
}

void TimelineWidget::mouseReleaseEvent(QMouseEvent* event) {
  const bool clicked = drag_ == Drag::Select && std::fabs(event->position().x() - drag_from_.x()) <= 3;
  drag_ = Drag::None;
  navigation_.settle();
  if (!scene_ || !clicked) return;
  navigation_.select_range(std::nullopt);
  selectSlice(sliceAt(event->position()), false);
}

void TimelineWidget::mouseDoubleClickEvent(QMouseEvent* event) {
  if (!scene_) return;
  const auto slice = sliceAt(event->position());
  if (!slice) return;
  selectSlice(slice, false);
  navigation_.fit(selectedTime());
  navigationChanged();
}

void TimelineWidget::wheelEvent(QWheelEvent* event) {
  if (!scene_) return;
  const QPoint turn = event->angleDelta();
  if ((event->modifiers() & Qt::ControlModifier) != 0) {
    navigation_.zoom(std::pow(kZoomStep, turn.y() / 120.0), timeAt(std::max(kGutter, event->position().x())));
    return navigationChanged();
  }
  if ((event->modifiers() & Qt::ShiftModifier) != 0 || std::abs(turn.x()) > std::abs(turn.y())) {
    const int by = turn.x() != 0 ? turn.x() : turn.y();
    navigation_.pan(-kPanStep * by / 120.0);
    return navigationChanged();
  }
  verticalScrollBar()->setValue(verticalScrollBar()->value() - turn.y() / 2);
}

void TimelineWidget::leaveEvent(QEvent*) {
  mouse_.reset();
  hovered_.reset();
  viewport()->update();
}

}  // namespace foreshard::gui
