// The strip above the canvas: the numbers that decide. GUI thread.
#pragma once

#include <QWidget>
#include <vector>

#include "gui/models/headline.h"
#include "gui/view/paint/theme.h"

namespace foreshard::gui {

class FigureStrip : public QWidget {
 public:
  explicit FigureStrip(QWidget* parent = nullptr);

  /// None: the strip takes no room.
  void setFigures(std::vector<Figure> figures);
  void setTheme(Theme theme);
  const std::vector<Figure>& figures() const { return figures_; }
  bool hasHeightForWidth() const override { return true; }
  int heightForWidth(int width) const override;
  QSize sizeHint() const override { return {400, heightForWidth(std::max(400, width()))}; }

 protected:
  void resizeEvent(QResizeEvent* event) override;
  void paintEvent(QPaintEvent* event) override;

 private:
  std::vector<Figure> figures_;
  Theme theme_ = Theme::Light;
  Fonts fonts_;
};

}  // namespace foreshard::gui
