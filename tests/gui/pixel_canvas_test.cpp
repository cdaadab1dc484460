#include "gui/view/paint/pixel_canvas.h"

#include <gtest/gtest.h>

#include <QImage>
#include <QPainter>
#include <QSvgGenerator>
#include <cmath>

#include "gui/view/paint/picture.h"
#include "gui/view/paint/scene_painter.h"
#include "tests/gui/sample.h"

namespace foreshard::gui {
namespace {

using foreshard::testing::random_lane;
using foreshard::testing::toy_model;

constexpr QRgb kRed = 0xffff0000U, kBlue = 0xff0000ffU;

QImage blue(int width, int height) {
  QImage image(width, height, QImage::Format_RGB32);
  image.fill(kBlue);
  return image;
}

int count_of(const QImage& image, QRgb color) {
  int count = 0;
  for (int y = 0; y < image.height(); ++y)
    for (int x = 0; x < image.width(); ++x) count += image.pixel(x, y) == color;
  return count;
}

TEST(PixelCanvas, IsThereForImagesOnly) {
  QImage image = blue(8, 8), indexed(8, 8, QImage::Format_ARGB32);
  QPainter on_image(&image), on_other(&indexed);
  EXPECT_TRUE(PixelCanvas::under(on_image).has_value());
  EXPECT_FALSE(PixelCanvas::under(on_other).has_value());
  on_image.rotate(10);
  EXPECT_FALSE(PixelCanvas::under(on_image).has_value());
}

TEST(PixelCanvas, FillsWhatQtWouldFillAndNothingOutsideTheClip) {
  for (const double ratio : {1.0, 1.5, 2.0}) {
    QImage ours = blue(60, 40), theirs = blue(60, 40);
    for (QImage* image : {&ours, &theirs}) {
      image->setDevicePixelRatio(ratio);
      QPainter painter(image);
      painter.translate(3, 2);
      painter.setClipRect(QRectF(1, 1, 14, 9));
      const QRectF box(-5, 3.4, 12.7, 30);
      if (image == &ours)
        PixelCanvas::under(painter)->fill(box, kRed);
      else
        painter.fillRect(box, QColor(Qt::red));
    }
    EXPECT_EQ(count_of(ours, kRed), count_of(theirs, kRed)) << ratio;
    EXPECT_TRUE(ours == theirs) << ratio;
  }
}

TEST(PixelCanvas, GridLinesLetThroughWhatIsBelow) {
  QImage image = blue(20, 4);
  QPainter painter(&image);
  const GridLines grid{{2, 7, 40}, kRed, 51};  // a fifth; the last is outside
  PixelCanvas::under(painter)->draw(grid, QRectF(0, 1, 20, 2));
  EXPECT_EQ(image.pixel(7, 0), kBlue);
  EXPECT_EQ(image.pixel(7, 1), 0xff3300ccU);
  EXPECT_EQ(image.pixel(8, 1), kBlue);
  EXPECT_EQ(count_of(image, 0xff3300ccU), 4);
}

TEST(PixelCanvas, MasksAreCutByTheClipAndByTheirColumns) {
  QImage mask(10, 10, QImage::Format_Alpha8);
  mask.fill(255);
  QImage image = blue(20, 20);
  QPainter painter(&image);
  painter.setClipRect(QRect(0, 0, 20, 8));
  PixelCanvas::under(painter)->stamp(mask, 6, QPoint(-2, 5), kRed);
  EXPECT_EQ(count_of(image, kRed), 4 * 3);
  EXPECT_EQ(image.pixel(3, 7), kRed);
  EXPECT_EQ(image.pixel(4, 7), kBlue);
}

/// Share of pixels that differ much; words differ a little, since Qt places their letters between pixels.
double differing(const QImage& a, const QImage& b) {
  double count = 0;
  for (int y = 0; y < a.height(); ++y)
    for (int x = 0; x < a.width(); ++x) {
      const QRgb p = a.pixel(x, y), q = b.pixel(x, y);
      count += std::abs(qRed(p) - qRed(q)) + std::abs(qGreen(p) - qGreen(q)) + std::abs(qBlue(p) - qBlue(q)) > 120;
    }
  return count / (a.width() * a.height());
}

QImage painted(const Scene& scene, TimeRange range, QImage::Format format, double ratio) {
  const Fonts fonts = picture_fonts();
  ScenePainter painter(scene, palette_of(Theme::Light), fonts);
  QImage image((QSizeF(700, 300) * ratio).toSize(), format);
  image.setDevicePixelRatio(ratio);
  QPainter target(&image);
  painter.paint(target, QRectF(0, 0, 700, 300), {range, 0}, ratio);
  return image;
}

TEST(PixelCanvas, APictureOfPixelsLooksAsThatOfShapes) {
  const auto dense = make_timeline_model(random_lane(20'000, 3), "dense");
  for (const auto& model : {toy_model(), dense}) {
    const Scene scene = timeline_scene(model);
    for (const double ratio : {1.0, 2.0}) {
      for (const SimDuration part : {1, 40}) {
        const TimeRange range{0, scene.extent.length() / part};
        // ARGB32 that is not premultiplied is painted by way of shapes.
        const QImage pixels = painted(scene, range, QImage::Format_RGB32, ratio);
        const QImage shapes = painted(scene, range, QImage::Format_ARGB32, ratio);
        EXPECT_LT(differing(pixels, shapes), 0.03) << model->name << " " << ratio << " " << part;
      }
    }
  }
}

TEST(PixelCanvas, AGridLineIsLaidOverGroundAndTracksOnce) {
  const Scene scene = timeline_scene(toy_model());
  const QImage image = painted(scene, {0, scene.extent.length()}, QImage::Format_RGB32, 1);
  const Palette& palette = palette_of(Theme::Light);
  const auto once = [&](Rgb below) { return laid_over(0xff000000U | below, 0xff000000U | palette.line, 150); };
  const auto twice = [&](Rgb below) { return laid_over(once(below), 0xff000000U | palette.line, 150); };
  // Only where grid lines are, as the ruler's ticks say: a hatch in a pixel that is partly busy may have any colour.
  const int ticks = static_cast<int>(kRuler) - 3;
  int lines = 0, on_ground = 0, on_lanes = 0;
  for (int x = 0; x < image.width(); ++x) {
    if (image.pixel(x, ticks) != once(palette.ground)) continue;
    ++lines;
    for (int y = ticks; y < image.height(); ++y) {
      const QRgb pixel = image.pixel(x, y);
      on_ground += pixel == once(palette.ground);
      on_lanes += pixel == once(palette.lane);
      EXPECT_NE(pixel, twice(palette.ground)) << x << " " << y;
      EXPECT_NE(pixel, twice(palette.lane)) << x << " " << y;
    }
  }
  EXPECT_GE(lines, 3);
  EXPECT_GT(on_ground, 20);
  EXPECT_GT(on_lanes, 20);
}

TEST(LabelMasks, WhatDoesNotFitEndsInAnEllipsisAndNeverBeyondItsRoom) {
  const auto model = toy_model();
  LabelMasks labels(picture_fonts().small);
  const auto named = std::find_if(model->timeline.spans.begin(), model->timeline.spans.end(),
                                  [&](const Span& span) { return slice_label(model->timeline, span).size() > 8; });
  ASSERT_NE(named, model->timeline.spans.end());
  const LabelMask& label = labels.of(*model, *named, 1);
  const auto widest_of = [&](int room) {
    QImage image = blue(400, 30);
    QPainter painter(&image);
    auto canvas = PixelCanvas::under(painter);
    labels.stamp(*canvas, label, room, QPoint(10, 5), kRed);
    int widest = 0;
    for (int y = 0; y < image.height(); ++y)
      for (int x = 0; x < image.width(); ++x)
        if (image.pixel(x, y) != kBlue) widest = std::max(widest, x - 10 + 1);
    return widest;
  };
  EXPECT_EQ(widest_of(8), 0);  // three letters are more than that
  int before = 0;
  for (const int room : {40, 50, 60, 300}) {
    const int widest = widest_of(room);
    EXPECT_LE(widest, room + 1);
    EXPECT_GE(widest, before);
    before = widest;
  }
  EXPECT_NEAR(before, label.upto.back(), 2);
}

}  // namespace
}  // namespace foreshard::gui
