// Flame graph of what is shown: host stacks or modules by what their work took on devices. A click makes a level as
// wide as the panel, a double click goes to its longest piece of work. GUI thread; a worker gathers the stacks.
#pragma once

#include <QWidget>
#include <functional>
#include <memory>
#include <vector>

#include "gui/view/panels/gathered_panel.h"
#include "traces/analysis/flame.h"

class QLabel;

namespace foreshard::gui {

/// The picture alone: nodes of a graph above one that is as wide as the widget.
class FlameCanvas : public QWidget {
 public:
  explicit FlameCanvas(QWidget* parent = nullptr);
  void setGraph(std::shared_ptr<const FlameGraph> graph);
  void setTheme(Theme theme);
  void setRoot(std::uint32_t node);
  std::uint32_t root() const { return root_; }
  const FlameGraph* graph() const { return graph_.get(); }
  QSize sizeHint() const override;

  std::function<void(const FlameNode&)> onGo;
  std::function<void(const QString&)> onStatus;

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseDoubleClickEvent(QMouseEvent* event) override;

 private:
  struct Box {
    QRectF box;
    std::uint32_t node = 0;
  };
  void layOut();
  const Box* boxAt(const QPointF& point) const;
  QString wordsOf(const FlameNode& node) const;

  std::shared_ptr<const FlameGraph> graph_;
  std::vector<std::uint32_t> parents_;
  std::vector<Box> boxes_;
  std::uint32_t root_ = 0;
  Theme theme_ = Theme::Light;
};

class FlamePanel : public GatheredPanel {
 public:
  explicit FlamePanel(QWidget* parent = nullptr);
  void setTheme(Theme theme) { canvas_->setTheme(theme); }
  FlameCanvas& canvas() { return *canvas_; }

 private:
  FlamePanel(FlameCanvas* canvas, QWidget* parent);

  FlameCanvas* canvas_ = nullptr;
};

}  // namespace foreshard::gui
