#include "gui/view/paint/theme.h"

namespace foreshard::gui {
namespace {

QFont font(int pixels, QFont::Weight weight = QFont::Normal) {
  QFont made(QStringList{"DejaVu Sans", "Sans Serif"});
  made.setPixelSize(pixels);
  made.setWeight(weight);
  made.setHintingPreference(QFont::PreferNoHinting);
  return made;
}

}  // namespace

Fonts picture_fonts() {
  return {font(11), font(10), font(11, QFont::Bold), font(15, QFont::Bold), font(13, QFont::Bold)};
}

}  // namespace foreshard::gui
