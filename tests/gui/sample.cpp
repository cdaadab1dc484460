#include "tests/gui/sample.h"

#include <gtest/gtest.h>

#include <random>

#include "core/job/job_file.h"
#include "gui/models/simulated_timeline.h"

namespace foreshard::testing {

Timeline random_lane(std::size_t slices, std::uint32_t seed) {
  std::mt19937 random(seed);
  Timeline timeline;
  timeline.lanes = {{0, "D", 0}};
  timeline.names = {"aten.mm.default", "aten.add.Tensor", "aten.mul.Tensor"};
  SimTime at = 17;
  for (std::size_t k = 0; k < slices; ++k) {
    Span span;
    span.lane = LaneId(0);
    span.kind = SpanKind::Compute;
    at += random() % 5 == 0 ? random() % 4000 : 0;
    span.start = at;
    span.duration = 1 + random() % (random() % 50 == 0 ? 20'000 : 700);
    span.name = NameId(static_cast<std::size_t>(random() % 3));
    at += span.duration;
    timeline.spans.push_back(span);
  }
  return timeline;
}

Timeline toy_timeline(double slower) {
  const auto loaded = load_job(std::string(FORESHARD_SOURCE_DIR) + "/examples/toy.toml", std::vector<std::string>{});
  EXPECT_TRUE(loaded.has_value());
  auto prediction = gui::simulate_job(loaded->job, true);
  EXPECT_TRUE(prediction.has_value());
  Timeline timeline = std::move(prediction->timeline);
  for (Span& span : timeline.spans)
    if (span.kind == SpanKind::AllGather)
      span.duration = static_cast<SimDuration>(static_cast<double>(span.duration) * slower);
  return timeline;
}

std::shared_ptr<const gui::TimelineModel> toy_model(double slower) {
  return gui::make_timeline_model(toy_timeline(slower), "toy");
}

}  // namespace foreshard::testing
