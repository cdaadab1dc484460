// The palette as Qt's colours, and the fonts of pictures. GUI thread, or any thread that paints into an image.
#pragma once

#include <QColor>
#include <QFont>
#include <QPalette>
#include <QString>
#include <string_view>

#include "gui/models/timeline/meaning.h"

namespace foreshard::gui {

inline QColor color(Rgb rgb, int alpha = 255) {
  QColor value = QColor::fromRgb(rgb);
  value.setAlpha(alpha);
  return value;
}

inline QString text_of(std::string_view text) {
  return QString::fromUtf8(text.data(), static_cast<qsizetype>(text.size()));
}

/// Fonts in pixels, so that pictures do not depend on the screen. The family is fixed for pictures.
struct Fonts {
  QFont normal, small, bold, title, value;
};
Fonts picture_fonts();

/// Of widgets beside the canvas: tables, menus and fields in its colours.
QPalette qt_palette(Theme theme);

}  // namespace foreshard::gui
