#include "cli/reports/sweep_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/console/amount_text.h"
#include "cli/console/json_text.h"
#include "core/model/json_input.h"

namespace foreshard::cli {
namespace {

constexpr const char* kSchema = "foreshard.sweep/1";
const JsonLimits kLimits{.max_depth = 16, .max_text = 64 * kMiB, .max_memory = 1024 * kMiB};

const char* objective_name(SweepObjective objective) {
  return objective == SweepObjective::StepTime ? "step_time" : "time_per_token";
}

const SweepValue& value_of(const SweepDocument& document, const SweepPoint& point, std::size_t axis) {
  return document.axes[axis].values[point.values[axis]];
}

/// A value of `set` with its type where it is a single one.
void write_value(JsonText& out, const SweepValue& value) {
  if (value.settings.size() != 1) {
    out.value(value.text);
    return;
  }
  const JobValue& typed = value.settings.front().value;
  switch (typed.kind) {
    case JobValue::Kind::Bool: out.value(typed.boolean); return;
    case JobValue::Kind::Integer: out.value(typed.integer); return;
    case JobValue::Kind::Float: out.value(typed.number); return;
    default: out.value(typed.kind == JobValue::Kind::Text ? typed.text : value.text); return;
  }
}

/// "checkpointing.policy none -> block": what differs between two points.
std::string difference(const SweepDocument& document, const SweepPoint& from, const SweepPoint& to) {
  std::string text;
  for (std::size_t a = 0; a < document.axes.size(); ++a) {
    if (from.values[a] == to.values[a]) continue;
    text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", document.axes[a].key,
                        value_of(document, from, a).text, value_of(document, to, a).text);
  }
  return text;
}

std::map<std::size_t, const SweepPoint*> by_index(const SweepDocument& document) {
  std::map<std::size_t, const SweepPoint*> points;
  for (const SweepPoint& point : document.result.points) points.emplace(point.index, &point);
  return points;
}

std::string front_reason(const SweepDocument& document, const std::vector<FrontPoint>& front, std::size_t k,
                         const std::map<std::size_t, const SweepPoint*>& points) {
  const FrontPoint& point = front[k];
  if (point.fastest && point.smallest) return "fastest and least memory of all that fit";
  if (point.fastest) {
    return fmt::format("fastest; the next on the front takes {} less memory and {} longer",
                       bytes_text(front[k + 1].saved), percent_text(front[k + 1].slower));
  }
  const SweepPoint& before = *points.at(front[k - 1].index);
  return fmt::format("{}{} less memory than point {} for {} more time: {}", point.smallest ? "least memory; " : "",
                     bytes_text(point.saved), before.index, percent_text(point.slower),
                     difference(document, before, *points.at(point.index)));
}

void write_point(JsonText& out, const SweepDocument& document, const SweepPoint& point, bool pareto,
                 const std::string& reason) {
  out.begin_object().field("index", point.index).key("set").begin_object();
  for (std::size_t a = 0; a < document.axes.size(); ++a) {
    out.key(document.axes[a].key);
    write_value(out, value_of(document, point, a));
  }
  out.end_object().key("step_time_ns");
  if (point.fits)
    out.value(point.step_time_ns);
  else
    out.null();
  out.field("peak_reserved_bytes", point.peak_reserved).field("fits", point.fits).field("pareto", pareto);
  out.field("reason", reason).field("peak_allocated_bytes", point.peak_allocated);
  out.field("tokens_per_step", point.tokens_per_step).field("exposed_comm_ns", point.exposed_ns);
  out.field("misfit", point.misfit).key("same_as");
  if (point.same_as)
    out.value(*point.same_as);
  else
    out.null();
  out.key("refused");
  if (point.refused) {
    out.begin_object().field("code", error_code_name(point.refused->code));
    out.field("message", point.refused->message).field("place", point.refused->place);
    out.field("expected", point.refused->expected).end_object();
  } else {
    out.null();
  }
  out.end_object();
}

std::string quoted_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::vector<bool> on_front(const SweepDocument& document) {
  std::vector<bool> flags(document.result.points.size(), false);
  for (std::size_t k = 0; k < flags.size(); ++k) {
    const std::size_t index = document.result.points[k].index;
    flags[k] = std::any_of(document.result.front.begin(), document.result.front.end(),
                           [&](const FrontPoint& point) { return point.index == index; });
  }
  return flags;
}

// ------------------------------------------------------------------------------------------------ reading

Error broken(const std::string& file, std::string place, std::string message, std::string expected, std::string got) {
  return {.code = ErrorCode::Inconsistent,
          .message = std::move(message),
          .file = file,
          .place = std::move(place),
          .expected = std::move(expected),
          .got = std::move(got),
          .hint = "`foreshard sweep --json` writes such files"};
}

/// Getters that keep the first error.
class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  const std::optional<Error>& error() const { return error_; }

  const nlohmann::json& at(const nlohmann::json& object, const char* key, const std::string& place) {
    static const nlohmann::json kNull;
    if (!object.is_object() || !object.contains(key)) {
      set(place + "." + key, "a key is missing", key, describe_json(object));
      return kNull;
    }
    return object.at(key);
  }
  std::string text(const nlohmann::json& object, const char* key, const std::string& place) {
    const nlohmann::json& value = at(object, key, place);
    if (!value.is_string())
      return set(place + "." + key, "the value has the wrong type", "a text", describe_json(value)), "";
    return value.get<std::string>();
  }
  bool flag(const nlohmann::json& object, const char* key, const std::string& place) {
    const nlohmann::json& value = at(object, key, place);
    if (!value.is_boolean())
      return set(place + "." + key, "the value has the wrong type", "true or false", describe_json(value)), false;
    return value.get<bool>();
  }
  std::int64_t count(const nlohmann::json& object, const char* key, const std::string& place) {
    const nlohmann::json& value = at(object, key, place);
    if (!value.is_number_integer() || value.get<std::int64_t>() < 0)
      return set(place + "." + key, "the value has the wrong type", "an integer from 0", describe_json(value)), 0;
    return value.get<std::int64_t>();
  }
  double number(const nlohmann::json& object, const char* key, const std::string& place) {
    const nlohmann::json& value = at(object, key, place);
    if (value.is_null()) return 0;
    if (!value.is_number())
      return set(place + "." + key, "the value has the wrong type", "a number", describe_json(value)), 0;
    return value.get<double>();
  }
  void set(std::string place, std::string message, std::string expected, std::string got) {
    if (!error_) error_ = broken(file_, std::move(place), std::move(message), std::move(expected), std::move(got));
  }
  const std::string& file() const { return file_; }

 private:
  std::string file_;
  std::optional<Error> error_;
};

Result<std::vector<SweepAxis>> read_axes(Reader& read, const nlohmann::json& list) {
  std::vector<SweepAxis> axes;
  if (!list.is_array()) read.set("axes", "the value has the wrong type", "a list", describe_json(list));
  if (read.error()) return axes;
  for (const nlohmann::json& entry : list) {
    SweepAxis axis{read.text(entry, "key", "axes"), {}};
    const nlohmann::json& values = read.at(entry, "values", "axes");
    if (!values.is_array() || values.empty()) read.set("axes", "an axis has no values", "texts", describe_json(values));
    if (read.error()) return axes;
    for (const nlohmann::json& value : values) {
      if (!value.is_string()) {
        read.set("axes." + axis.key, "the value has the wrong type", "a text", describe_json(value));
        return axes;
      }
      const auto text = value.get<std::string>();
      auto settings = parse_setting(axis.key + "=" + text);
      if (!settings) return fail(settings.error());
      axis.values.push_back({text, std::move(*settings)});
    }
    axes.push_back(std::move(axis));
  }
  return axes;
}

ErrorCode code_of(const std::string& name) {
  for (int c = 0; c <= static_cast<int>(ErrorCode::Refused); ++c) {
    if (name == error_code_name(static_cast<ErrorCode>(c))) return static_cast<ErrorCode>(c);
  }
  return ErrorCode::Inconsistent;
}

SweepPoint read_point(Reader& read, const nlohmann::json& entry, const SweepGrid& grid) {
  const std::string place = "points";
  SweepPoint point;
  point.index = static_cast<std::size_t>(read.count(entry, "index", place));
  if (!read.error() && point.index >= grid.size())
    read.set(place, "a point lies outside the grid", fmt::format("below {}", grid.size()),
             fmt::format("{}", point.index));
  if (read.error()) return point;
  point.values = grid.values_of(point.index);
  point.step_time_ns = read.number(entry, "step_time_ns", place);
  point.peak_reserved = read.count(entry, "peak_reserved_bytes", place);
  point.peak_allocated = read.count(entry, "peak_allocated_bytes", place);
  point.fits = read.flag(entry, "fits", place);
  point.misfit = read.text(entry, "misfit", place);
  point.tokens_per_step = read.number(entry, "tokens_per_step", place);
  point.exposed_ns = read.number(entry, "exposed_comm_ns", place);
  if (!read.at(entry, "same_as", place).is_null())
    point.same_as = static_cast<std::size_t>(read.count(entry, "same_as", place));
  const nlohmann::json& refused = read.at(entry, "refused", place);
  if (!refused.is_null()) {
    Error error;
    error.code = code_of(read.text(refused, "code", place));
    error.message = read.text(refused, "message", place);
    error.place = read.text(refused, "place", place);
    if (refused.contains("expected")) error.expected = read.text(refused, "expected", place);  // not in older ones
    point.refused = std::move(error);
  }
  return point;
}

}  // namespace

std::vector<std::string> settings_of(const SweepDocument& document, const SweepPoint& point) {
  std::vector<std::string> settings;
  for (std::size_t a = 0; a < document.axes.size(); ++a)
    settings.push_back(document.axes[a].key + "=" + value_of(document, point, a).text);
  return settings;
}

std::vector<std::string> reasons(const SweepDocument& document) {
  const SweepResult& result = document.result;
  const auto points = by_index(document);
  std::map<std::size_t, std::string> front;
  for (std::size_t k = 0; k < result.front.size(); ++k)
    front.emplace(result.front[k].index, front_reason(document, result.front, k, points));
  std::vector<std::string> texts;
  for (const SweepPoint& point : result.points) {
    const auto at = front.find(point.index);
    if (at != front.end()) {
      texts.push_back(at->second);
    } else if (point.refused) {
      texts.push_back("refused: " + point.refused->message);
    } else if (!point.fits) {
      texts.push_back("does not fit: " + point.misfit);
    } else if (point.same_as) {
      texts.push_back(fmt::format("the same job as point {}", *point.same_as));
    } else {
      // The fastest of the front that needs no more memory; there is one, or the point were on it.
      const double time = objective_time(point, result.objective);
      const auto beats = std::find_if(result.front.begin(), result.front.end(), [&](const FrontPoint& other) {
        return other.memory <= point.peak_reserved && other.time <= time;
      });
      texts.push_back(beats == result.front.end()
                          ? std::string()
                          : fmt::format("beaten by point {}: {} less time, {} less memory", beats->index,
                                        percent_text(time > 0 ? 1 - beats->time / time : 0),
                                        bytes_text(point.peak_reserved - beats->memory)));
    }
  }
  return texts;
}

std::string sweep_json(const SweepDocument& document) {
  const SweepResult& result = document.result;
  JsonText out(2);
  out.begin_object().field("schema", kSchema).field("model", document.model).field("profile", document.profile);
  out.field("job_digest", document.job).field("budget_bytes", document.budget);
  out.field("objective", objective_name(result.objective)).key("axes").begin_array();
  for (const SweepAxis& axis : document.axes) {
    out.begin_object().field("key", axis.key).key("values").begin_array();
    for (const SweepValue& value : axis.values) out.value(value.text);
    out.end_array().end_object();
  }
  out.end_array().key("parts").begin_object().field("of", document.of).key("have").begin_array();
  for (const std::size_t part : document.have) out.value(part);
  out.end_array().end_object().field("points_in_all", document.points_in_all).key("points").begin_array();
  const std::vector<std::string> why = reasons(document);
  const std::vector<bool> front = on_front(document);
  for (std::size_t k = 0; k < result.points.size(); ++k) write_point(out, document, result.points[k], front[k], why[k]);
  out.end_array().field("evaluated", result.points.size()).field("simulated", result.simulated);
  return out.field("seconds", result.seconds).end_object().take();
}

std::string sweep_csv(const SweepDocument& document) {
  std::string out = "index";
  for (const SweepAxis& axis : document.axes) out += "," + quoted_cell(axis.key);
  out += ",step_time_ns,tokens_per_step,peak_reserved_bytes,peak_allocated_bytes,exposed_comm_ns,fits,pareto,reason\n";
  const std::vector<std::string> why = reasons(document);
  const std::vector<bool> front = on_front(document);
  for (std::size_t k = 0; k < document.result.points.size(); ++k) {
    const SweepPoint& point = document.result.points[k];
    out += fmt::format("{}", point.index);
    for (std::size_t a = 0; a < document.axes.size(); ++a) out += "," + quoted_cell(value_of(document, point, a).text);
    out += point.fits ? fmt::format(",{:.0f},{:.0f}", point.step_time_ns, point.tokens_per_step) : std::string(",,");
    out += fmt::format(",{},{},{:.0f},{},{},{}\n", point.peak_reserved, point.peak_allocated, point.exposed_ns,
                       point.fits, static_cast<bool>(front[k]), quoted_cell(why[k]));
  }
  return out;
}

Result<SweepDocument> parse_sweep(std::string_view text, const std::string& file) {
  const auto parsed = parse_json(text, file, kLimits);
  if (!parsed) return fail(parsed.error());
  Reader read(file);
  SweepDocument document;
  const std::string schema = read.text(*parsed, "schema", "");
  if (!read.error() && schema != kSchema) read.set("schema", "this is no sweep", kSchema, schema);
  document.model = read.text(*parsed, "model", "");
  document.profile = read.text(*parsed, "profile", "");
  document.job = read.text(*parsed, "job_digest", "");
  document.budget = read.count(*parsed, "budget_bytes", "");
  const nlohmann::json& parts = read.at(*parsed, "parts", "");
  document.of = static_cast<std::size_t>(read.count(parts, "of", "parts"));
  const nlohmann::json& have = read.at(parts, "have", "parts");
  document.have.clear();
  if (!have.is_array()) read.set("parts.have", "the value has the wrong type", "a list", describe_json(have));
  if (read.error()) return fail(*read.error());
  for (const nlohmann::json& part : have) {
    if (!part.is_number_unsigned() || part.get<std::size_t>() < 1 || part.get<std::size_t>() > document.of)
      return fail(broken(file, "parts.have", "there is no such part", fmt::format("1 to {}", document.of),
                         describe_json(part)));
    document.have.push_back(part.get<std::size_t>());
  }
  auto axes = read_axes(read, read.at(*parsed, "axes", ""));
  if (!axes) return fail(axes.error());
  if (read.error()) return fail(*read.error());
  const auto grid = SweepGrid::make(std::move(*axes));
  if (!grid) return fail(grid.error());
  document.axes = grid->axes();
  document.points_in_all = grid->size();
  const nlohmann::json& points = read.at(*parsed, "points", "");
  if (!points.is_array()) read.set("points", "the value has the wrong type", "a list", describe_json(points));
  if (read.error()) return fail(*read.error());
  for (const nlohmann::json& entry : points) {
    document.result.points.push_back(read_point(read, entry, *grid));
    if (read.error()) return fail(*read.error());
  }
  std::sort(document.result.points.begin(), document.result.points.end(),
            [](const SweepPoint& a, const SweepPoint& b) { return a.index < b.index; });
  const auto twice = std::adjacent_find(document.result.points.begin(), document.result.points.end(),
                                        [](const SweepPoint& a, const SweepPoint& b) { return a.index == b.index; });
  if (twice != document.result.points.end())
    return fail(broken(file, "points", "a point stands twice", "each point once", fmt::format("{}", twice->index)));
  document.result.simulated = static_cast<std::size_t>(read.count(*parsed, "simulated", ""));
  document.result.seconds = read.number(*parsed, "seconds", "");
  if (read.error()) return fail(*read.error());
  find_front(document.result);
  return document;
}

Result<SweepDocument> merge_sweeps(const std::vector<SweepDocument>& parts) {
  SweepDocument whole = parts.front();
  const auto keys = [](const SweepDocument& document) {
    std::string text;
    for (const SweepAxis& axis : document.axes) {
      text += axis.key + "=";
      for (const SweepValue& value : axis.values) text += value.text + ",";
      text += ";";
    }
    return text;
  };
  for (std::size_t k = 1; k < parts.size(); ++k) {
    const SweepDocument& part = parts[k];
    if (part.job != whole.job || part.profile != whole.profile || part.budget != whole.budget || part.of != whole.of ||
        keys(part) != keys(whole)) {
      return fail(broken("", fmt::format("part {} of the list", k + 1), "the parts are of different sweeps",
                         "one job, one budget, the same axes, the same n of --part i/n", keys(part)));
    }
    for (const std::size_t index : part.have) {
      if (std::find(whole.have.begin(), whole.have.end(), index) != whole.have.end())
        return fail(broken("", "parts", fmt::format("part {} is given twice", index), "each part once", "two"));
      whole.have.push_back(index);
    }
    whole.result.points.insert(whole.result.points.end(), part.result.points.begin(), part.result.points.end());
    whole.result.simulated += part.result.simulated;
    whole.result.seconds += part.result.seconds;
  }
  std::sort(whole.have.begin(), whole.have.end());
  std::sort(whole.result.points.begin(), whole.result.points.end(),
            [](const SweepPoint& a, const SweepPoint& b) { return a.index < b.index; });
  find_front(whole.result);
  return whole;
}

}  // namespace foreshard::cli
