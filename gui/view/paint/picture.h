// A whole picture: title, figures, the scene, the legend; into PNG or SVG. No window, no event loop: any thread that
// has a QGuiApplication.
#pragma once

#include <QImage>
#include <QPainter>
#include <QSize>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "gui/models/headline.h"
#include "gui/models/scene.h"
#include "gui/view/paint/scene_painter.h"

namespace foreshard::gui {

struct PictureOptions {
  int width = 1600;
  int height = 0;  // 0 = as high as the tracks are
  Theme theme = Theme::Light;
  double scale = 1;                // of PNG: device pixels to a pixel
  std::optional<TimeRange> range;  // from the sides' origins; else the step that stands for the run
};

/// Something that is painted into a size.
struct Picture {
  QSize size;
  std::string title;
  std::function<void(QPainter&, double device_ratio)> paint;
};

Picture scene_picture(Scene scene, const PictureOptions& options);

/// By the name's ending: .png or .svg. Errors: another ending, a file that cannot be written.
Result<void> write_picture(const Picture& picture, const std::string& path, double scale = 1);
QImage picture_image(const Picture& picture, double scale = 1);
/// The SVG's text, for reports.
QByteArray picture_svg(const Picture& picture);

/// Figures in lines at the top of `area`, null only measures; returns the height.
double paint_figures(QPainter* painter, const QRectF& area, const std::vector<Figure>& figures, const Palette& palette,
                     const Fonts& fonts);

/// Title and figures at the top of `area`; returns the height.
double paint_header(QPainter* painter, const QRectF& area, const std::string& title, const std::vector<Figure>& figures,
                    const Palette& palette, const Fonts& fonts);

}  // namespace foreshard::gui
