// The whole recording in a strip above the lanes: where compute and collectives run, what of it the window shows, and
// where notes and bookmarks are. A click or a drag moves the window there, the wheel zooms. GUI thread.
#pragma once

#include <QWidget>
#include <memory>
#include <vector>

#include "gui/models/overview.h"
#include "gui/view/window/timeline_widget.h"

namespace foreshard::gui {

class OverviewStrip : public QWidget {
 public:
  /// Shows and moves that canvas, which outlives it.
  explicit OverviewStrip(TimelineWidget& timeline, QWidget* parent = nullptr);

  /// After a scene has come: the strip is as high as its sides need.
  void sceneChanged();
  QSize sizeHint() const override { return {400, height_}; }

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mouseReleaseEvent(QMouseEvent* event) override;
  void wheelEvent(QWheelEvent* event) override;

 private:
  QRectF strip() const;
  double xOf(SimTime time) const;
  SimTime timeAt(double x) const;
  void moveTo(double x);
  const std::vector<OverviewColumn>& columns(std::size_t side, int wanted);

  TimelineWidget& timeline_;
  std::vector<std::vector<OverviewColumn>> columns_;  // by side
  int height_ = 0;
};

}  // namespace foreshard::gui
