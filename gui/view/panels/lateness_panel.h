// Heat map of stragglers: ranks over steps or collectives, the redder the later a rank came. A click goes to the
// collective. GUI thread; a worker joins the collectives.
#pragma once

#include <QWidget>
#include <functional>
#include <memory>

#include "gui/models/lateness_map.h"
#include "gui/models/scene.h"
#include "gui/models/timeline/newest_first.h"

class QComboBox;

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

class LatenessPanel : public QWidget {
 public:
  explicit LatenessPanel(QWidget* parent = nullptr);
  void setScene(const Scene& scene);
  void setTheme(Theme theme) { canvas_->setTheme(theme); }
  LatenessCanvas& canvas() { return *canvas_; }

  std::function<void(SceneSlice)> onGo;
  std::function<void(const QString&)> onStatus;

 protected:
  void showEvent(QShowEvent* event) override;

 private:
  void gather();

  std::shared_ptr<const TimelineModel> model_;
  bool gathered_ = false;
  std::uint64_t asked_ = 0;
  QComboBox* by_ = nullptr;
  LatenessCanvas* canvas_ = nullptr;
  NewestFirst worker_;  // last: nothing of the above is gone while it works
};

}  // namespace foreshard::gui
