// A sweep in the window: hover tells a point, a click or Enter opens it. GUI thread.
#pragma once

#include <QWidget>
#include <functional>
#include <optional>

#include "gui/models/sweep_points.h"
#include "gui/view/paint/theme.h"

namespace foreshard::gui {

class ParetoWidget : public QWidget {
 public:
  explicit ParetoWidget(QWidget* parent = nullptr);
  void setSweep(SweepPoints sweep);
  void setTheme(Theme theme);
  std::optional<std::size_t> marked() const { return marked_; }

  std::function<void(const ParetoPoint&)> onOpen;
  std::function<void(const QString&)> onStatus;

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void keyPressEvent(QKeyEvent* event) override;

 private:
  std::optional<std::size_t> pointAt(const QPointF& at) const;
  void mark(std::optional<std::size_t> point);

  SweepPoints sweep_;
  Theme theme_ = Theme::Light;
  std::optional<std::size_t> marked_;
};

}  // namespace foreshard::gui
