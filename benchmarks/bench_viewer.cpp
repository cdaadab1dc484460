// What a frame of 10 million slices costs, a what-if change of an 80-layer model, a range's numbers, a search.
// Offscreen; numbers and machine in docs/measurements/.

#include <benchmark/benchmark.h>

#include <QApplication>
#include <random>

#include "core/job/job_file.h"
#include "gui/models/navigation.h"
#include "gui/models/slice_facts.h"
#include "gui/models/timeline/slice_search.h"
#include "gui/models/what_if.h"
#include "gui/view/paint/picture.h"
#include "gui/view/paint/scene_painter.h"

namespace {

using namespace foreshard;       // NOLINT
using namespace foreshard::gui;  // NOLINT

constexpr std::size_t kSlices = 10'000'000, kLanes = 32;

std::shared_ptr<const TimelineModel> large_model() {
  static const auto kModel = [] {
    std::mt19937 random(1);
    Timeline timeline;
    timeline.spans.reserve(kSlices);
    for (std::size_t n = 0; n < 1000; ++n) timeline.names.push_back("aten.kernel" + std::to_string(n));
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      timeline.lanes.push_back({static_cast<std::int32_t>(lane / 4), std::string(1, "DASU"[lane % 4]), 0});
      SimTime at = 0;
      for (std::size_t k = 0; k < kSlices / kLanes; ++k) {
        Span& span = timeline.spans.emplace_back();
        span.lane = LaneId(lane);
        span.kind = static_cast<SpanKind>(2 + random() % 8);
        at += random() % 1000;
        span.start = at;
        span.duration = 200 + random() % 4000;
        at += span.duration;
        span.name = NameId(static_cast<std::size_t>(random() % 1000));
      }
    }
    return make_timeline_model(std::move(timeline), "large");
  }();
  return kModel;
}

const Scene& large_scene() {
  static const Scene kScene = timeline_scene(large_model());
  return kScene;
}

/// A frame of a window of `share` of the whole, at another place each time.
void paint_frames(benchmark::State& state, QSize size) {
  const Scene& scene = large_scene();
  const Fonts fonts = picture_fonts();
  ScenePainter painter(scene, palette_of(Theme::Dark), fonts);
  QImage image(size, QImage::Format_RGB32);
  const double share = 1.0 / static_cast<double>(state.range(0));
  const auto length = static_cast<SimDuration>(static_cast<double>(scene.extent.length()) * share);
  std::mt19937 random(2);
  for (auto _ : state) {
    const auto room = static_cast<std::uint64_t>(std::max<SimDuration>(1, scene.extent.length() - length));
    const SimTime begin = static_cast<SimTime>((static_cast<std::uint64_t>(random()) * 977U) % room);
    QPainter target(&image);
    painter.paint(target, QRectF(QPointF(0, 0), QSizeF(size)), {{begin, begin + length}, 0});
    target.end();
    benchmark::DoNotOptimize(image.constBits());
  }
}

void frame_1080p(benchmark::State& state) { paint_frames(state, QSize(1920, 1080)); }
void frame_4k(benchmark::State& state) { paint_frames(state, QSize(3840, 2160)); }
BENCHMARK(frame_1080p)->Arg(1)->Arg(10)->Arg(100)->Arg(1'000)->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(frame_4k)->Arg(1)->Arg(10)->Arg(100)->Arg(1'000)->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);

void range_numbers_of_a_selection(benchmark::State& state) {
  const Scene& scene = large_scene();
  const TimeRange range{scene.extent.length() / 3, scene.extent.length() / 2};
  for (auto _ : state) benchmark::DoNotOptimize(range_table(scene, range));
}
BENCHMARK(range_numbers_of_a_selection)->Unit(benchmark::kMillisecond);

void search_names(benchmark::State& state) {
  const auto model = large_model();
  for (auto _ : state) benchmark::DoNotOptimize(search_slices(*model, "kernel77"));
}
BENCHMARK(search_names)->Unit(benchmark::kMillisecond);

/// A change in the panel until the new picture is painted: plan, simulate, lay out, paint.
void what_if_to_picture(benchmark::State& state) {
  const std::string config = std::string(FORESHARD_SHARED) + "/models/configs/llama-2-70b/config.json";
  const auto loaded = load_job(config, std::vector<std::string>{"cluster.world_size=64", "model.seq=4096"});
  if (!loaded) return state.SkipWithError("the 80-layer model of the shared material is not there");
  auto what_if = WhatIf::start(loaded->job, "llama-2-70b");
  if (!what_if) return state.SkipWithError(to_text(what_if.error()).c_str());
  const std::vector<std::pair<const char*, std::vector<const char*>>> changes{
      {"checkpointing.policy", {"block", "none"}},
      {"model.batch", {"2", "1"}},
      {"fsdp.reshard_after_forward", {"false", "true"}}};
  const auto& [key, values] = changes[static_cast<std::size_t>(state.range(0))];
  QImage image(1920, 1080, QImage::Format_RGB32);
  std::size_t turn = 0;
  for (auto _ : state) {
    if (!what_if->set(key, values[turn++ % 2])) return state.SkipWithError("the change was refused");
    const Scene scene = timeline_scene(what_if->now().timeline);
    const Fonts fonts = picture_fonts();
    ScenePainter painter(scene, palette_of(Theme::Light), fonts);
    QPainter target(&image);
    const TimeRange steady = steady_range(*what_if->now().timeline);
    painter.paint(target, QRectF(0, 0, 1920, 1080), {steady, 0});
  }
  state.SetLabel(key);
}
BENCHMARK(what_if_to_picture)->Arg(0)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  qputenv("QT_QPA_PLATFORM", "offscreen");
  QApplication application(argc, argv);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
