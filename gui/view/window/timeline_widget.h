// The canvas in the window: paints a scene from a cached picture, and turns keys and mouse into navigation.
//
// GUI thread; the picture is painted by a worker. It is painted anew only when the window of time, the size or the
// scene changes, and where that takes longer than a frame of the screen, the one before is shown in its new place
// meanwhile. Hovering and selecting repaint what lies over it.
#pragma once

#include <QAbstractScrollArea>
#include <functional>
#include <memory>
#include <optional>

#include "gui/models/navigation.h"
#include "gui/models/scene.h"
#include "gui/models/slice_details.h"
#include "gui/view/paint/scene_painter.h"
#include "gui/view/window/frame_worker.h"

namespace foreshard::gui {

class TimelineWidget : public QAbstractScrollArea {
 public:
  explicit TimelineWidget(QWidget* parent = nullptr);

  /// A new scene; if `keep_view` and there was one, the window of time stays, counted from the step's begin: a step or
  /// a recording seen whole is seen whole again.
  void setScene(Scene scene, bool keep_view);
  void setTheme(Theme theme);
  bool hasScene() const { return scene_ != nullptr; }
  const Scene& scene() const { return *scene_; }
  Navigation& navigation() { return navigation_; }
  Theme theme() const { return theme_; }

  /// What changed by code: repaints and tells.
  void navigationChanged();
  void selectSlice(std::optional<SceneSlice> slice, bool reveal);
  void setFrameTimeShown(bool shown);
  FrameWorker& frames() { return frames_; }

  std::function<void()> onSelection;             // the slice or the range
  std::function<void()> onView;                  // the window of time
  std::function<void(const QString&)> onStatus;  // what is under the mouse
  std::function<void(TimeRange)> onNote;         // the user wants to write one there
  /// Lanes are folded, pinned or hidden: the scene is wanted with changed options.
  std::function<void(const std::function<void(SceneOptions&)>&)> onOptions;

 protected:
  void paintEvent(QPaintEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  void keyPressEvent(QKeyEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mouseReleaseEvent(QMouseEvent* event) override;
  void mouseDoubleClickEvent(QMouseEvent* event) override;
  void wheelEvent(QWheelEvent* event) override;
  void contextMenuEvent(QContextMenuEvent* event) override;
  void leaveEvent(QEvent* event) override;
  bool viewportEvent(QEvent* event) override;
  void scrollContentsBy(int dx, int dy) override;

 private:
  enum class Drag { None, Pan, Select };

  QRectF area() const { return QRectF(viewport()->rect()); }
  SceneView view() const;
  TimeScale scale() const { return ScenePainter::scale_of(area(), view()); }
  SimTime timeAt(double x) const;
  std::optional<SceneSlice> sliceAt(const QPointF& point) const;
  void updateScrollBar();
  FrameRequest wantedFrame() const;
  std::shared_ptr<const Frame> frameInTime();
  std::optional<TimeRange> selectedTime() const;
  bool navigate(int key);
  SimTime zoomCentre() const;

  void fitHeight();

  Scene natural_;                              // as it was given
  std::shared_ptr<const Scene> scene_;         // with tracks that fill the height
  std::shared_ptr<const Scene> other_height_;  // before the last resize: its picture serves until the next is there
  std::unique_ptr<ScenePainter> painter_;
  Navigation navigation_;
  Theme theme_ = Theme::Light;
  Fonts fonts_;
  FrameRequest asked_;  // the last
  bool frame_shown_ = false;
  std::optional<SceneSlice> hovered_;
  RelatedSlices related_;
  std::optional<QPointF> mouse_;
  Drag drag_ = Drag::None;
  QPointF drag_from_;
  SimTime drag_time_ = 0;
  FrameWorker frames_;  // last: nothing of the above is gone while it works
};

/// What a key does here, by its place on the keyboard for W A S D (whatever the layout), else by its symbol.
int physical_key(const QKeyEvent& event);

}  // namespace foreshard::gui
