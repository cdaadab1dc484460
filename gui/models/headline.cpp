#include "gui/models/headline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "gui/models/timeline/amounts.h"
#include "gui/models/what_if.h"

namespace foreshard::gui {
namespace {

std::string signed_percent(double share) {
  if (std::abs(share) < 0.0005) return percent_words(0);  // no sign where nothing is left of it
  return fmt::format("{}{}", share > 0 ? "+" : "", percent_words(share));
}

Figure pair_figure(std::string name, const Pair& pair, std::string (*words)(double)) {
  return {std::move(name), fmt::format("{} / {}", words(pair.a), words(pair.b)), signed_percent(pair.error())};
}

}  // namespace

RangeNumbers range_numbers(const TimelineModel& model, std::int32_t rank, TimeRange range) {
  RangeNumbers numbers;
  numbers.length = range.length();
  if (const RankBands* bands = model.bands_of(rank)) {
    numbers.compute = bands->compute.covered(range.begin, range.end);
    numbers.comm = bands->comm.covered(range.begin, range.end);
    numbers.exposed = bands->exposed.busy(range.begin, range.end);
  }
  if (const MemoryTracks* memory = model.memory_of(rank)) {
    if (memory->allocated) numbers.peak_allocated = memory->allocated->range(range.begin, range.end).high;
    if (memory->reserved) numbers.peak_reserved = memory->reserved->range(range.begin, range.end).high;
  }
  return numbers;
}

std::vector<Figure> timeline_figures(const TimelineModel& model, TimeRange range) {
  if (model.ranks.empty()) return {};
  const RangeNumbers n = range_numbers(model, model.ranks.front().rank, range);
  const auto share = [&](SimDuration part) {
    return n.length > 0 ? percent_words(static_cast<double>(part) / static_cast<double>(n.length)) : std::string();
  };
  const bool whole_step = steady_range(model) == range;
  std::vector<Figure> figures{{whole_step ? "step" : "shown", duration_words(static_cast<double>(n.length)), ""}};
  if (n.compute > 0) figures.push_back({"compute", duration_words(static_cast<double>(n.compute)), share(n.compute)});
  if (n.comm > 0) figures.push_back({"communication", duration_words(static_cast<double>(n.comm)), share(n.comm)});
  if (n.comm > 0) figures.push_back({"exposed", duration_words(static_cast<double>(n.exposed)), share(n.exposed)});
  if (n.peak_allocated > 0)
    figures.push_back({"peak", bytes_words(static_cast<double>(n.peak_allocated)), "allocated"});
  if (n.peak_reserved > 0) figures.push_back({"reserved", bytes_words(static_cast<double>(n.peak_reserved)), ""});
  return figures;
}

std::vector<Figure> comparison_figures(const ComparisonModel& comparison) {
  const Comparison& c = comparison.numbers;
  std::vector<Figure> figures{pair_figure("step", c.step, duration_words),
                              pair_figure("compute", c.compute, duration_words)};
  if (c.comm.a > 0 || c.comm.b > 0) {
    figures.push_back(pair_figure("communication", c.comm, duration_words));
    figures.push_back({"exposed", fmt::format("{} / {}", duration_words(c.exposed.a), duration_words(c.exposed.b)),
                       fmt::format("{:+.1f} points", c.exposed_comm_points())});
  }
  if (c.memory_in_a && c.memory_in_b) figures.push_back(pair_figure("peak", c.peak_memory, bytes_words));
  figures.push_back(
      {"joined", fmt::format("{}", c.joined), fmt::format("{} in A only, {} in B only", c.only_a, c.only_b)});
  return figures;
}

std::vector<Figure> deciding_figures(const Scene& scene, const Outcome* now) {
  if (scene.sides.empty()) return {};
  const TimelineModel& first = *scene.sides.front().model;
  std::vector<Figure> figures =
      scene.compares() ? comparison_figures(*scene.comparison) : timeline_figures(first, steady_range(first));
  if (now == nullptr) return figures;
  const std::string note = scene.compares() ? "predicted" : "";
  const auto rate = std::min<std::size_t>(1, figures.size());
  std::vector<Figure> rates;
  if (now->tokens_per_s > 0) rates.push_back({"tokens/s", count_words(now->tokens_per_s), note});
  if (now->mfu > 0) rates.push_back({"MFU", percent_words(now->mfu), note});
  figures.insert(figures.begin() + static_cast<std::ptrdiff_t>(rate), rates.begin(), rates.end());
  if (!now->fits)
    figures.push_back({"card", "does not fit", now->misfit});
  else if (now->card_bytes > 0)
    figures.push_back({"card",
                       percent_words(static_cast<double>(now->peak_reserved) / static_cast<double>(now->card_bytes)),
                       fmt::format("of {} reserved: fits", bytes_words(static_cast<double>(now->card_bytes)))});
  return figures;
}

std::string scene_title(const Scene& scene) {
  if (scene.sides.empty()) return {};
  const TimelineModel& a = *scene.sides.front().model;
  if (!scene.compares()) return fmt::format("{}: {}", a.name, describe_source(a));
  const TimelineModel& b = *scene.sides.back().model;
  return fmt::format("A {}: {}   /   B {}: {}", a.name, describe_source(a), b.name, describe_source(b));
}

}  // namespace foreshard::gui
