#include "gui/models/sweep_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/model/json_input.h"

namespace foreshard::gui {
namespace {

constexpr const char* kSchema = "foreshard.sweep/1";

Error broken(const std::string& file, std::string place, std::string expected, const nlohmann::json& got) {
  Error error;
  error.file = file;
  error.place = std::move(place);
  error.message = "this is no sweep that can be drawn";
  error.expected = std::move(expected);
  error.got = describe_json(got);
  error.hint = "`foreshard sweep JOB --over key=v1,v2 --json` writes such files";
  return error;
}

const nlohmann::json& member(const nlohmann::json& object, const char* key) {
  static const nlohmann::json kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

std::string setting_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

double number_of(const nlohmann::json& value) { return value.is_number() ? value.get<double>() : 0; }

Result<ParetoPoint> read_point(const nlohmann::json& entry, bool per_token, const std::string& file, std::size_t k) {
  const std::string place = fmt::format("points[{}]", k);
  if (!entry.is_object()) return fail(broken(file, place, "an object", entry));
  const nlohmann::json &index = member(entry, "index"), &set = member(entry, "set");
  if (!index.is_number_unsigned()) return fail(broken(file, place + ".index", "an integer from 0", index));
  if (!set.is_object()) return fail(broken(file, place + ".set", "an object", set));
  const nlohmann::json& fits = member(entry, "fits");
  if (!fits.is_boolean()) return fail(broken(file, place + ".fits", "true or false", fits));
  const nlohmann::json& memory = member(entry, "peak_reserved_bytes");
  if (!memory.is_number_integer()) return fail(broken(file, place + ".peak_reserved_bytes", "an integer", memory));
  ParetoPoint point;
  point.index = index.get<std::size_t>();
  for (const auto& [key, value] : set.items()) point.set.push_back(key + "=" + setting_text(value));
  point.fits = fits.get<bool>();
  point.memory = memory.get<Bytes>();
  point.on_front = member(entry, "pareto") == true;
  if (member(entry, "reason").is_string()) point.reason = member(entry, "reason").get<std::string>();
  point.time_ns = number_of(member(entry, "step_time_ns"));
  const double tokens = number_of(member(entry, "tokens_per_step"));
  if (per_token && tokens > 0) point.time_ns /= tokens;
  if (point.fits && (!std::isfinite(point.time_ns) || point.time_ns <= 0 || point.memory < 0))
    return fail(broken(file, place + ".step_time_ns", "a time above 0 of what fits", member(entry, "step_time_ns")));
  return point;
}

}  // namespace

std::optional<std::size_t> SweepPoints::nearest(double time_ns, double memory, double time_span, double memory_span,
                                                double reach) const {
  std::optional<std::size_t> best;
  double least = reach;
  for (std::size_t k = 0; k < points.size(); ++k) {
    if (!points[k].fits) continue;
    const double distance = std::hypot((points[k].time_ns - time_ns) / std::max(1e-9, time_span),
                                       (static_cast<double>(points[k].memory) - memory) / std::max(1e-9, memory_span));
    if (distance < least) {
      least = distance;
      best = k;
    }
  }
  return best;
}

std::vector<std::size_t> SweepPoints::front() const {
  std::vector<std::size_t> list;
  for (std::size_t k = 0; k < points.size(); ++k)
    if (points[k].on_front && points[k].fits) list.push_back(k);
  std::sort(list.begin(), list.end(),
            [&](std::size_t a, std::size_t b) { return points[a].time_ns < points[b].time_ns; });
  return list;
}

Result<SweepPoints> read_sweep_points(std::string_view text, const std::string& file) {
  const JsonLimits limits{.max_depth = 16, .max_text = kMostSweepBytes, .max_memory = 16 * kMostSweepBytes};
  const auto parsed = parse_json(text, file, limits);
  if (!parsed) return fail(parsed.error());
  if (!parsed->is_object() || member(*parsed, "schema") != kSchema)
    return fail(broken(file, "schema", kSchema, parsed->is_object() ? member(*parsed, "schema") : *parsed));
  const nlohmann::json& list = member(*parsed, "points");
  if (!list.is_array()) return fail(broken(file, "points", "a list", list));
  SweepPoints sweep;
  const bool per_token = member(*parsed, "objective") == "time_per_token";
  sweep.time_name = per_token ? "time per token" : "step time";
  const auto word = [&](const char* key) {
    return member(*parsed, key).is_string() ? member(*parsed, key).get<std::string>() : std::string();
  };
  sweep.name = word("model") + (word("profile").empty() ? "" : " on " + word("profile"));
  sweep.budget = static_cast<Bytes>(number_of(member(*parsed, "budget_bytes")));
  for (std::size_t k = 0; k < list.size(); ++k) {
    auto point = read_point(list[k], per_token, file, k);
    if (!point) return fail(point.error());
    sweep.points.push_back(std::move(*point));
  }
  return sweep;
}

}  // namespace foreshard::gui
