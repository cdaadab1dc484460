#include "gui/view/paint/picture.h"
#include "core/output_file.h"

#include <QBuffer>
#include <QSvgGenerator>
#include <algorithm>
#include <cmath>
#include <memory>

namespace foreshard::gui {
namespace {

constexpr double kMargin = 16;

struct ScenePicture {
  Scene scene;
  SceneView view;
  Theme theme = Theme::Light;
  std::string title;
  std::vector<Figure> figures;
  double header = 0, legend = 0;
  QSize size;

  void paint(QPainter& painter, double device_ratio) const {
    const Palette& palette = palette_of(theme);
    const Fonts fonts = picture_fonts();
    const QRectF whole(QPointF(0, 0), QSizeF(size));
    painter.fillRect(whole, color(palette.ground));
    const QRectF inner = whole.adjusted(kMargin, kMargin, -kMargin, -kMargin);
    paint_header(&painter, inner, title, figures, palette, fonts);
    ScenePainter scene_painter(scene, palette, fonts);
    const QRectF area(whole.left(), inner.top() + header, inner.right() - whole.left(),
                      whole.height() - 2 * kMargin - header - legend);
    scene_painter.paint(painter, area, view, device_ratio);
    paint_legend(&painter, scene, QRectF(kGutter, inner.bottom() - legend + 6, inner.right() - kGutter, legend),
                 palette, fonts);
  }
};

TimeRange picture_range(Scene& scene, const PictureOptions& options) {
  if (options.range && options.range->length() > 0) return *options.range;
  TimeRange range{0, 0};
  if (scene.compares()) {
    range.end = scene.comparison->end;
  } else {
    // The step that stands for the run begins at 0.
    const TimeRange steady = steady_range(*scene.sides.front().model);
    scene.sides.front().origin = steady.begin;
    range.end = steady.length();
  }
  // A little air, so that the first and the last slice are seen to begin and end.
  const SimDuration air = std::max<SimDuration>(1, range.length() / 100);
  return {range.begin - air / 2, range.end + air};
}

std::vector<Figure> figures_of(const Scene& scene, TimeRange range, bool step) {
  if (scene.compares()) return comparison_figures(*scene.comparison);
  const SceneSide& side = scene.sides.front();
  return timeline_figures(
      *side.model, step ? steady_range(*side.model) : TimeRange{range.begin + side.origin, range.end + side.origin});
}

Error cannot_write(const std::string& path, std::string message, std::string expected, std::string hint) {
  Error error;
  error.code = ErrorCode::NotFound;
  error.file = path;
  error.message = std::move(message);
  error.expected = std::move(expected);
  error.hint = std::move(hint);
  return error;
}

void paint_svg(const Picture& picture, QIODevice* device) {
  QSvgGenerator generator;
  generator.setOutputDevice(device);
  generator.setResolution(72);
  generator.setSize(picture.size);
  generator.setViewBox(QRect(QPoint(0, 0), picture.size));
  generator.setTitle(text_of(picture.title));
  QPainter painter(&generator);
  picture.paint(painter, 1);
}

}  // namespace

Picture scene_picture(Scene scene, const PictureOptions& options) {
  auto picture = std::make_shared<ScenePicture>();
  picture->scene = std::move(scene);
  picture->theme = options.theme;
  picture->title = scene_title(picture->scene);
  picture->view.range = picture_range(picture->scene, options);
  picture->figures = figures_of(picture->scene, picture->view.range, !options.range);
  const Fonts fonts = picture_fonts();
  const Palette& palette = palette_of(options.theme);
  const double width = std::max(400, options.width);
  const QRectF inner(0, 0, width - 2 * kMargin, 0);
  picture->header = paint_header(nullptr, inner, picture->title, picture->figures, palette, fonts);
  picture->legend =
      paint_legend(nullptr, picture->scene, QRectF(0, 0, width - kMargin - kGutter, 0), palette, fonts) + 6;
  const double natural = 2 * kMargin + picture->header + kRuler + picture->scene.height + picture->legend;
  // Beyond this no viewer of images follows; what is below is cut off.
  constexpr double kHighest = 16'000;
  const double height = options.height > 0 ? options.height : std::min(kHighest, natural);
  picture->size = QSize(static_cast<int>(width), static_cast<int>(std::ceil(height)));
  return {picture->size, picture->title,
          [picture](QPainter& painter, double device_ratio) { picture->paint(painter, device_ratio); }};
}

double paint_header(QPainter* painter, const QRectF& area, const std::string& title, const std::vector<Figure>& figures,
                    const Palette& palette, const Fonts& fonts) {
  const QFontMetricsF heading(fonts.title);
  if (painter != nullptr) {
    painter->setFont(fonts.title);
    painter->setPen(color(palette.text));
    painter->drawText(QPointF(area.left(), area.top() + heading.ascent()),
                      heading.elidedText(text_of(title), Qt::ElideMiddle, area.width()));
  }
  const double title_height = heading.height() + 6;
  if (figures.empty()) return title_height + 4;
  return title_height + paint_figures(painter, area.adjusted(0, title_height, 0, 0), figures, palette, fonts);
}

double paint_figures(QPainter* painter, const QRectF& area, const std::vector<Figure>& figures, const Palette& palette,
                     const Fonts& fonts) {
  const QFontMetricsF values(fonts.value), small(fonts.small);
  double x = area.left(), y = area.top();
  for (const Figure& figure : figures) {
    const QString name = text_of(figure.name), value = text_of(figure.value), note = text_of(figure.note);
    const double line = values.horizontalAdvance(value) + (note.isEmpty() ? 0 : 6 + small.horizontalAdvance(note));
    const double width = std::max(line, small.horizontalAdvance(name)) + 28;
    if (x + width > area.right() + 28 && x > area.left()) {
      x = area.left();
      y += small.height() + values.height() + 6;
    }
    if (painter != nullptr) {
      painter->setFont(fonts.small);
      painter->setPen(color(palette.text_weak));
      painter->drawText(QPointF(x, y + small.ascent()), name);
      if (!note.isEmpty())
        painter->drawText(QPointF(x + values.horizontalAdvance(value) + 6, y + small.height() + values.ascent()), note);
      painter->setFont(fonts.value);
      painter->setPen(color(palette.text));
      painter->drawText(QPointF(x, y + small.height() + values.ascent()), value);
    }
    x += width;
  }
  return y + small.height() + values.height() + 10 - area.top();
}

QImage picture_image(const Picture& picture, double scale) {
  QImage image((QSizeF(picture.size) * scale).toSize(), QImage::Format_ARGB32_Premultiplied);
  image.setDevicePixelRatio(scale);
  image.fill(Qt::white);
  QPainter painter(&image);
  picture.paint(painter, scale);
  return image;
}

QByteArray picture_svg(const Picture& picture) {
  QBuffer buffer;
  buffer.open(QIODevice::WriteOnly);
  paint_svg(picture, &buffer);
  return buffer.data();
}

Result<void> write_picture(const Picture& picture, const std::string& path, double scale) {
  const QString name = text_of(path);
  QByteArray bytes;
  if (name.endsWith(".svg", Qt::CaseInsensitive)) {
    bytes = picture_svg(picture);
  } else if (name.endsWith(".png", Qt::CaseInsensitive)) {
    QBuffer buffer(&bytes);
    buffer.open(QIODevice::WriteOnly);
    if (!picture_image(picture, scale).convertToFormat(QImage::Format_RGB32).save(&buffer, "PNG"))
      return fail(cannot_write(path, "the picture cannot be packed as PNG", "a size that PNG can hold",
                               "--scale makes it smaller"));
  } else {
    return fail(cannot_write(path, "the picture's name says no format", "a name that ends in .svg or .png",
                             "for example --render step.svg"));
  }
  return write_whole_file(path, {bytes.constData(), static_cast<std::size_t>(bytes.size())});
}

}  // namespace foreshard::gui
