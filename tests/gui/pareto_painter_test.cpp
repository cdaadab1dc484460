#include "gui/view/paint/pareto_painter.h"

#include <gtest/gtest.h>

#include <QImage>
#include <QPainter>
#include <algorithm>
#include <random>

namespace foreshard::gui {
namespace {

const QRectF kArea(0, 0, 960, 500);

SweepPoints sweep_of(const std::vector<std::pair<double, double>>& time_and_memory) {
  SweepPoints sweep;
  sweep.name = "toy on h100";
  sweep.time_name = "step time";
  for (const auto& [time, memory] : time_and_memory) {
    ParetoPoint point;
    point.index = sweep.points.size();
    point.time_ns = time * 1e6;
    point.memory = static_cast<Bytes>(memory * 1e9);
    point.fits = true;
    point.set = {"checkpointing.policy=" + std::string(point.index % 2 ? "block" : "none"),
                 "model.batch=" + std::to_string(point.index)};
    sweep.points.push_back(point);
  }
  for (ParetoPoint& point : sweep.points)
    point.on_front = std::none_of(sweep.points.begin(), sweep.points.end(), [&](const ParetoPoint& other) {
      return &other != &point && other.time_ns <= point.time_ns && other.memory <= point.memory;
    });
  return sweep;
}

std::vector<std::pair<double, double>> random_points(std::size_t count, unsigned seed, double curved) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> share(0, 1);
  std::vector<std::pair<double, double>> points;
  for (std::size_t k = 0; k < count; ++k) {
    const double at = share(random), off = share(random) * (1 - curved);
    points.push_back({100 + 80 * at + 60 * off, 10 + 40 * (1 - at) * (1 - at) + 30 * off});
  }
  return points;
}

QRectF dot_of(const ParetoPoint& point, const ParetoScale& scale) {
  const QPointF at = scale.at(point.time_ns, static_cast<double>(point.memory));
  return {at.x() - kParetoDot, at.y() - kParetoDot, 2 * kParetoDot, 2 * kParetoDot};
}

void expect_apart(const SweepPoints& sweep) {
  const ParetoScale scale = pareto_scale(sweep, kArea);
  const std::vector<FrontName> names = front_names(sweep, scale, picture_fonts());
  for (std::size_t k = 0; k < names.size(); ++k) {
    EXPECT_TRUE(scale.box.contains(names[k].box)) << names[k].text.toStdString();
    for (std::size_t other = 0; other < k; ++other)
      EXPECT_FALSE(names[k].box.intersects(names[other].box))
          << names[k].text.toStdString() << " and " << names[other].text.toStdString();
    const QPointF dot = dot_of(sweep.points[names[k].point], scale).center();
    const QLineF tie(dot, {std::clamp(dot.x(), names[k].box.left(), names[k].box.right()),
                           std::clamp(dot.y(), names[k].box.top(), names[k].box.bottom())});
    for (std::size_t other = 0; names[k].tied && other < names.size(); ++other)
      for (double at = 0; other != k && at <= 1; at += 0.02)
        EXPECT_FALSE(names[other].box.contains(tie.pointAt(at)))
            << names[k].text.toStdString() << " is tied through " << names[other].text.toStdString();
    for (const ParetoPoint& point : sweep.points)
      EXPECT_FALSE(names[k].box.intersects(dot_of(point, scale)))
          << names[k].text.toStdString() << " over point " << point.index;
  }
}

TEST(ParetoNames, CoverNoPointAndNoOtherName) {
  for (const std::size_t count : {2u, 5u, 17u, 60u, 400u})
    for (const double curved : {0.3, 0.9, 1.0})
      for (unsigned seed = 1; seed <= 6; ++seed) expect_apart(sweep_of(random_points(count, seed, curved)));
}

TEST(ParetoNames, AFewPointsApartAreAllNamedBesideThem) {
  const SweepPoints sweep = sweep_of({{100, 50}, {120, 30}, {150, 20}, {200, 10}});
  const ParetoScale scale = pareto_scale(sweep, kArea);
  const auto names = front_names(sweep, scale, picture_fonts());
  ASSERT_EQ(names.size(), 4u);
  for (const FrontName& name : names) {
    EXPECT_FALSE(name.tied);
    const QRectF near = dot_of(sweep.points[name.point], scale).adjusted(-6, -6, 6, 6);
    EXPECT_TRUE(near.intersects(name.box)) << name.text.toStdString();
  }
}

TEST(ParetoNames, TwoPointsInNearlyOnePlaceAreBothNamed) {
  const SweepPoints sweep = sweep_of({{100, 50}, {100.2, 49.8}, {140, 20}, {140.3, 19.8}, {200, 10}});
  ASSERT_EQ(sweep.front().size(), 5u);
  const auto names = front_names(sweep, pareto_scale(sweep, kArea), picture_fonts());
  EXPECT_EQ(names.size(), 5u);
  expect_apart(sweep);
}

TEST(ParetoNames, TheFastestAndTheSmallestAreNamedInACrowd) {
  const SweepPoints sweep = sweep_of(random_points(120, 3, 1.0));
  const auto front = sweep.front();
  const auto names = front_names(sweep, pareto_scale(sweep, kArea), picture_fonts());
  for (const std::size_t end : {front.front(), front.back()})
    EXPECT_TRUE(std::any_of(names.begin(), names.end(), [&](const FrontName& name) { return name.point == end; }));
  EXPECT_LT(names.size(), front.size());  // not everybody finds a place
}

TEST(ParetoNames, SayOnlyWhatSetsThePointsApart) {
  SweepPoints sweep = sweep_of({{100, 50}, {200, 10}});
  for (ParetoPoint& point : sweep.points) point.set.push_back("fsdp.strategy=FULL_SHARD");
  for (const FrontName& name : front_names(sweep, pareto_scale(sweep, kArea), picture_fonts())) {
    EXPECT_FALSE(name.text.contains("FULL_SHARD"));
    EXPECT_TRUE(name.text.contains("batch="));
  }
}

TEST(ParetoNames, ManyPointsInOnePlaceAndASinglePointAreDrawn) {
  expect_apart(sweep_of(std::vector<std::pair<double, double>>(40, {100, 20})));
  const SweepPoints one = sweep_of({{100, 20}});
  EXPECT_EQ(one.front().size(), 1u);
  QImage image(960, 500, QImage::Format_RGB32);
  QPainter painter(&image);
  paint_pareto(painter, one, kArea, palette_of(Theme::Light), picture_fonts());
  const ParetoScale scale = pareto_scale(one, kArea);
  const QPointF at = scale.at(1e8, 20e9);
  EXPECT_EQ(image.pixel(at.toPoint()) & 0xffffffU, palette_of(Theme::Light).accent);
}

}  // namespace
}  // namespace foreshard::gui
