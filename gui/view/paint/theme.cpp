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

QPalette qt_palette(Theme theme) {
  const Palette& own = palette_of(theme);
  QPalette made(color(own.lane_other), color(own.lane));  // buttons and windows; Qt makes edges and shadows of them
  for (const auto role : {QPalette::WindowText, QPalette::Text, QPalette::ButtonText, QPalette::ToolTipText})
    made.setColor(role, color(own.text));
  made.setColor(QPalette::Base, color(own.ground));
  made.setColor(QPalette::AlternateBase, color(own.lane));
  made.setColor(QPalette::ToolTipBase, color(own.lane_other));
  made.setColor(QPalette::PlaceholderText, color(own.text_weak));
  made.setColor(QPalette::Highlight, color(own.accent));
  made.setColor(QPalette::HighlightedText, color(ink_on(own.accent)));
  made.setColor(QPalette::Link, color(own.accent));
  for (const auto role : {QPalette::WindowText, QPalette::Text, QPalette::ButtonText})
    made.setColor(QPalette::Disabled, role, color(blend(own.ground, own.text_weak, 0.7)));
  return made;
}

}  // namespace foreshard::gui
