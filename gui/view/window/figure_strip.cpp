#include "gui/view/window/figure_strip.h"

#include <QPainter>
#include <cmath>

#include "gui/view/paint/picture.h"

namespace foreshard::gui {
namespace {

constexpr int kMargin = 10;

}  // namespace

FigureStrip::FigureStrip(QWidget* parent) : QWidget(parent), fonts_(picture_fonts()) {
  QSizePolicy policy(QSizePolicy::Preferred, QSizePolicy::Fixed);
  policy.setHeightForWidth(true);
  setSizePolicy(policy);
  setAccessibleName("Figures of the step");
}

void FigureStrip::setFigures(std::vector<Figure> figures) {
  figures_ = std::move(figures);
  QStringList words;
  for (const Figure& figure : figures_)
    words << text_of(figure.name) + " " + text_of(figure.value) +
                 (figure.note.empty() ? "" : ", " + text_of(figure.note));
  setAccessibleDescription(words.join("; "));
  setToolTip(words.join("\n"));
  updateGeometry();
  update();
}

void FigureStrip::setTheme(Theme theme) {
  theme_ = theme;
  update();
}

int FigureStrip::heightForWidth(int width) const {
  if (figures_.empty()) return 0;
  const QRectF area(kMargin, 0, std::max(100, width - 2 * kMargin), 0);
  return static_cast<int>(std::ceil(paint_figures(nullptr, area, figures_, palette_of(theme_), fonts_)));
}

// Lines come and go with the width.
void FigureStrip::resizeEvent(QResizeEvent*) { updateGeometry(); }

void FigureStrip::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  const Palette& palette = palette_of(theme_);
  painter.fillRect(rect(), color(palette.ground));
  if (!figures_.empty())
    paint_figures(&painter, QRectF(rect()).adjusted(kMargin, 4, -kMargin, 0), figures_, palette, fonts_);
}

}  // namespace foreshard::gui
