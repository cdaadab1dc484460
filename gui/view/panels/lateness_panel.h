// Heat map of stragglers: ranks over steps or collectives, the redder the later a rank came. A click goes to the
// collective. GUI thread; a worker joins the collectives.
#pragma once

#include <QWidget>
#include <functional>
#include <memory>

#include "gui/models/lateness_map.h"
#include "gui/view/panels/gathered_panel.h"

namespace foreshard::gui {

class LatenessCanvas : public QWidget {
 public:
  explicit LatenessCanvas(QWidget* parent = nullptr);
  void setMap(std::shared_ptr<const LatenessMap> map);
  void setTheme(Theme theme);
  const LatenessMap* map() const { return map_.get(); }

  std::function<void(const LatenessCell&)> onGo;
  std::function<void(const QString&)> onStatus;

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;

 private:
  QRectF grid() const;
  std::optional<std::pair<std::size_t, std::size_t>> cellAt(const QPointF& point) const;

  std::shared_ptr<const LatenessMap> map_;
  Theme theme_ = Theme::Light;
};

class LatenessPanel : public GatheredPanel {
 public:
  explicit LatenessPanel(QWidget* parent = nullptr);
  void setTheme(Theme theme) { canvas_->setTheme(theme); }
  LatenessCanvas& canvas() { return *canvas_; }

 private:
  LatenessPanel(LatenessCanvas* canvas, QWidget* parent);

  LatenessCanvas* canvas_ = nullptr;
};

}  // namespace foreshard::gui
