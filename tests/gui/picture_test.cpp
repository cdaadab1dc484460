#include "gui/view/paint/picture.h"

#include <gtest/gtest.h>

#include <QFile>
#include <QRegularExpression>
#include <cmath>
#include <cstdlib>

#include "gui/view/paint/pareto_painter.h"
#include "gui/view/paint/render.h"
#include "gui/view/paint/report.h"
#include "gui/view/paint/theme.h"
#include "tests/gui/sample.h"
#include "tests/support/temporary_path.h"

namespace foreshard::gui {
namespace {

using foreshard::testing::temporary_path;
using foreshard::testing::toy_model;

/// Mean difference of the channels, 0 to 255. Fonts differ a little from machine to machine; layout and colours do not.
double difference(const QImage& a, const QImage& b) {
  if (a.size() != b.size()) return 255;
  double sum = 0;
  for (int y = 0; y < a.height(); ++y) {
    for (int x = 0; x < a.width(); ++x) {
      const QRgb p = a.pixel(x, y), q = b.pixel(x, y);
      sum += std::abs(qRed(p) - qRed(q)) + std::abs(qGreen(p) - qGreen(q)) + std::abs(qBlue(p) - qBlue(q));
    }
  }
  return sum / (3.0 * a.width() * a.height());
}

/// FORESHARD_UPDATE_GOLDEN=1 writes what is drawn now; the pictures are then looked at and committed.
void expect_golden(const QImage& drawn, const std::string& name) {
  const QString path = QString::fromStdString(std::string(FORESHARD_TEST_DATA) + "/gui/" + name + ".png");
  if (std::getenv("FORESHARD_UPDATE_GOLDEN") != nullptr) drawn.convertToFormat(QImage::Format_RGB32).save(path);
  const QImage golden(path);
  ASSERT_FALSE(golden.isNull()) << path.toStdString();
  EXPECT_EQ(drawn.width(), golden.width());
  EXPECT_LT(difference(drawn.convertToFormat(QImage::Format_RGB32), golden), 2.0) << name;
}

PictureOptions small(Theme theme = Theme::Light) {
  PictureOptions options;
  options.width = 720;
  options.theme = theme;
  return options;
}

TEST(Theme, TablesAndMenusAreDarkWhereTheCanvasIs) {
  for (const Theme theme : {Theme::Light, Theme::Dark}) {
    const QPalette made = qt_palette(theme);
    const bool dark = theme == Theme::Dark;
    for (const auto role : {QPalette::Window, QPalette::Base, QPalette::Button, QPalette::AlternateBase})
      EXPECT_EQ(made.color(role).lightness() < 128, dark) << role;
    EXPECT_EQ(made.color(QPalette::Text).lightness() > 128, dark);
  }
}

TEST(Picture, TimelineIsAsItWas) {
  expect_golden(picture_image(scene_picture(timeline_scene(toy_model()), small())), "toy_timeline");
}

TEST(Picture, TimelineOnDarkGroundIsAsItWas) {
  expect_golden(picture_image(scene_picture(timeline_scene(toy_model()), small(Theme::Dark))), "toy_timeline_dark");
}

TEST(Picture, ComparisonIsAsItWas) {
  const auto comparison = make_comparison_model(toy_model(1), toy_model(2));
  ASSERT_TRUE(comparison.has_value());
  expect_golden(picture_image(scene_picture(comparison_scene(*comparison), small())), "toy_comparison");
}

TEST(Picture, ADifferentTimelineIsADifferentPicture) {
  const QImage one = picture_image(scene_picture(timeline_scene(toy_model()), small()));
  Timeline moved = foreshard::testing::toy_timeline();
  for (Span& span : moved.spans)
    if (span.kind == SpanKind::Compute) span.kind = SpanKind::ReduceScatter;
  const QImage other = picture_image(scene_picture(timeline_scene(make_timeline_model(moved, "toy")), small()));
  EXPECT_GT(difference(one, other), 2.0);
}

TEST(Picture, ScaledPicturesHaveMorePixelsOfTheSame) {
  const Picture picture = scene_picture(timeline_scene(toy_model()), small());
  const QImage one = picture_image(picture, 1), two = picture_image(picture, 2);
  EXPECT_EQ(two.width(), 2 * one.width());
  EXPECT_EQ(two.height(), 2 * one.height());
}

TEST(Picture, SvgHasSlicesAsShapesAndTheirNamesAsText) {
  const QByteArray svg = picture_svg(scene_picture(timeline_scene(toy_model()), small()));
  EXPECT_TRUE(svg.contains("<svg"));
  EXPECT_GT(svg.count("<rect"), 20);
  EXPECT_TRUE(svg.contains("all-gather"));
}

TEST(Picture, EmptyTimelinesAreDrawnToo) {
  const auto model = make_timeline_model(Timeline{}, "nothing");
  EXPECT_GT(picture_image(scene_picture(timeline_scene(model), small())).height(), 50);
}

TEST(Picture, AnUnknownEndingOrFolderIsAnError) {
  const Picture picture = scene_picture(timeline_scene(toy_model()), small());
  EXPECT_FALSE(write_picture(picture, temporary_path("picture.gif")).has_value());
  EXPECT_FALSE(write_picture(picture, "/no/such/folder/picture.png").has_value());
  EXPECT_FALSE(write_picture(picture, "/no/such/folder/picture.svg").has_value());
}

TEST(Render, AJobBecomesAPictureOfItsPrediction) {
  ViewerArguments arguments;
  arguments.files = {std::string(FORESHARD_SOURCE_DIR) + "/examples/toy.toml"};
  arguments.render = temporary_path("toy.png");
  const auto notes = render_to_file(arguments);
  ASSERT_TRUE(notes.has_value());
  EXPECT_EQ(QImage(QString::fromStdString(arguments.render)).width(), 1600);
  QFile::remove(QString::fromStdString(arguments.render));
}

TEST(Render, ViewsThatDoNotSuitTheFilesAreErrors) {
  ViewerArguments arguments;
  arguments.files = {std::string(FORESHARD_SOURCE_DIR) + "/examples/toy.toml"};
  arguments.view = ViewKind::Compare;
  EXPECT_FALSE(render_view(arguments).has_value());
  arguments.view = ViewKind::Pareto;
  EXPECT_FALSE(render_view(arguments).has_value());
  arguments.files = {"/no/such/file.fst"};
  arguments.view = ViewKind::Auto;
  EXPECT_FALSE(render_view(arguments).has_value());
}

TEST(Report, UnitsOfOneKindShareARow) {
  ViewerArguments arguments;
  arguments.files = {std::string(FORESHARD_SOURCE_DIR) + "/examples/gpt2-8xa100.toml"};
  arguments.report = temporary_path("gpt2.html");
  ASSERT_TRUE(write_report(arguments).has_value());
  QFile file(QString::fromStdString(arguments.report));
  ASSERT_TRUE(file.open(QIODevice::ReadOnly));
  const QString page = QString::fromUtf8(file.readAll());
  const qsizetype units = page.indexOf("<h2>Units");
  ASSERT_GE(units, 0);
  EXPECT_TRUE(page.mid(units).contains(
      QRegularExpression("<td>transformer\\.h\\.\\d+ … transformer\\.h\\.\\d+, \\d+ units, each</td>")));
  EXPECT_LT(page.mid(units).count("<tr>"), 14) << "twelve layers and the root would be 14 with the heading";
  QFile::remove(QString::fromStdString(arguments.report));
}

TEST(Report, IsOnePageThatNeedsNothingElse) {
  ViewerArguments arguments;
  const std::string toy = std::string(FORESHARD_SOURCE_DIR) + "/examples/toy.toml";
  arguments.report = temporary_path("toy.html");
  for (const auto& files : {std::vector<std::string>{toy}, std::vector<std::string>{toy, toy}}) {
    arguments.files = files;
    ASSERT_TRUE(write_report(arguments).has_value());
    QFile file(QString::fromStdString(arguments.report));
    ASSERT_TRUE(file.open(QIODevice::ReadOnly));
    const QByteArray page = file.readAll();
    EXPECT_TRUE(page.startsWith("<!doctype html>"));
    EXPECT_TRUE(page.contains("<svg"));
    EXPECT_TRUE(page.contains("<table>"));
    EXPECT_TRUE(page.contains("class=\"caption\""));
    if (files.size() == 1) {
      EXPECT_TRUE(page.contains("Where it comes from"));
      EXPECT_TRUE(page.contains("simulated"));
    }
    EXPECT_FALSE(page.contains("src=\"http"));
    EXPECT_FALSE(page.contains("<?xml"));
  }
  QFile::remove(QString::fromStdString(arguments.report));
}

}  // namespace
}  // namespace foreshard::gui
