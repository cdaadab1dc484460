#include "gui/models/viewer_arguments.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "core/model/json_input.h"

namespace foreshard::gui {
namespace {

Error usage(const std::string& flag, std::string message, std::string expected, std::string got) {
  Error error;
  error.code = ErrorCode::Usage;
  error.place = flag;
  error.message = std::move(message);
  error.expected = std::move(expected);
  error.got = std::move(got);
  error.hint = "`foreshard-viewer --help` shows the usage";
  return error;
}

std::optional<double> parsed_number(std::string_view text) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

/// "1.5", "ms": the number and its unit.
std::optional<std::pair<double, std::string>> amount_of(const std::string& text) {
  const std::size_t unit = text.find_first_not_of("+-.0123456789e");
  const auto number = parsed_number(std::string_view(text).substr(0, unit));
  if (!number) return std::nullopt;
  return std::pair{*number, unit == std::string::npos ? std::string() : text.substr(unit)};
}

std::optional<double> unit_ns(const std::string& unit) {
  if (unit == "ns") return 1.0;
  if (unit == "us") return 1e3;
  if (unit == "ms") return 1e6;
  if (unit == "s") return 1e9;
  return std::nullopt;
}

Result<void> read_size(const std::string& text, ViewerArguments& arguments) {
  const std::size_t x = text.find('x');
  const auto width = parsed_number(std::string_view(text).substr(0, x));
  const auto height =
      x == std::string::npos ? std::optional<double>(0) : parsed_number(std::string_view(text).substr(x + 1));
  const auto good = [](std::optional<double> value, double least) {
    return value && *value >= least && *value <= 20'000 && *value == std::floor(*value);
  };
  if (!good(width, 200) || !(height == 0.0 || good(height, 100)))
    return fail(
        usage("--size", "a picture's size is its width, or width and height", "1600 or 1600x900, up to 20000", text));
  arguments.width = static_cast<int>(*width);
  arguments.height = static_cast<int>(*height);
  return {};
}

Result<void> read_view(const std::string& text, ViewerArguments& arguments) {
  static const std::map<std::string, ViewKind> kViews{{"timeline", ViewKind::Timeline},
                                                      {"memory", ViewKind::Memory},
                                                      {"compare", ViewKind::Compare},
                                                      {"pareto", ViewKind::Pareto}};
  const auto found = kViews.find(text);
  if (found == kViews.end())
    return fail(usage("--view", "there is no such view", "timeline, memory, compare or pareto", text));
  arguments.view = found->second;
  return {};
}

using Setter = std::function<Result<void>(const std::string&, ViewerArguments&)>;

const std::map<std::string, Setter>& setters() {
  static const std::map<std::string, Setter> kSetters{
      {"--set", [](const std::string& v, ViewerArguments& a) { return a.sets.push_back(v), Result<void>(); }},
      {"--render", [](const std::string& v, ViewerArguments& a) { return a.render = v, Result<void>(); }},
      {"--report", [](const std::string& v, ViewerArguments& a) { return a.report = v, Result<void>(); }},
      {"--view", read_view},
      {"--size", read_size},
      {"--range",
       [](const std::string& v, ViewerArguments& a) -> Result<void> {
         const auto range = parse_range(v);
         if (!range) return fail(range.error());
         a.range = *range;
         return {};
       }},
      {"--scale",
       [](const std::string& v, ViewerArguments& a) -> Result<void> {
         const auto scale = parsed_number(v);
         if (!scale || *scale < 0.5 || *scale > 4) return fail(usage("--scale", "no such scale", "0.5 to 4", v));
         a.scale = *scale;
         return {};
       }},
      {"--rank",
       [](const std::string& v, ViewerArguments& a) -> Result<void> {
         const auto rank = parsed_number(v);
         if (!rank || *rank < 0 || *rank > 1e9 || *rank != std::floor(*rank))
           return fail(usage("--rank", "no such rank", "an integer from 0", v));
         a.rank = static_cast<std::int32_t>(*rank);
         return {};
       }},
      {"--theme",
       [](const std::string& v, ViewerArguments& a) -> Result<void> {
         if (v != "light" && v != "dark") return fail(usage("--theme", "there is no such theme", "light or dark", v));
         a.theme = v == "dark" ? Theme::Dark : Theme::Light;
         return {};
       }},
  };
  return kSetters;
}

}  // namespace

Result<TimeRange> parse_range(const std::string& text) {
  const auto bad = [&] {
    return fail(usage("--range", "a range is two times", "100ms..250ms; units ns, us, ms, s", text));
  };
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) return bad();
  auto begin = amount_of(text.substr(0, dots)), end = amount_of(text.substr(dots + 2));
  if (!begin || !end) return bad();
  if (begin->second.empty()) begin->second = end->second.empty() ? "ns" : end->second;
  if (end->second.empty()) end->second = begin->second;
  const auto begin_unit = unit_ns(begin->second), end_unit = unit_ns(end->second);
  if (!begin_unit || !end_unit) return bad();
  const double from = begin->first * *begin_unit, to = end->first * *end_unit;
  constexpr double kMost = 9e17;  // of a nanosecond count, with room to subtract
  if (!(from < to) || std::fabs(from) > kMost || std::fabs(to) > kMost) return bad();
  return TimeRange{static_cast<SimTime>(from), static_cast<SimTime>(to)};
}

std::string view_command(const std::vector<std::string>& files, bool compared, TimeRange range) {
  const auto quoted = [](const std::string& word) {
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
  };
  const std::string time =
      fmt::format("{:.3f}us..{:.3f}us", static_cast<double>(range.begin) / 1e3, static_cast<double>(range.end) / 1e3);
  std::string command = "foreshard view";
  for (const std::string& file : files) command += " " + quoted(files.size() == 1 ? file + "#t=" + time : file);
  if (compared) command += " --view compare";
  return files.size() == 1 ? command : command + " --range " + time;
}

Result<ViewerArguments> parse_viewer_arguments(const std::vector<std::string>& arguments) {
  ViewerArguments parsed;
  bool only_files = false;
  for (std::size_t k = 0; k < arguments.size(); ++k) {
    const std::string& word = arguments[k];
    if (only_files || word.size() < 2 || word[0] != '-') {
      parsed.files.push_back(word);
      continue;
    }
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (name == "--") {
      only_files = true;
    } else if (name == "--help" || name == "-h") {
      parsed.help = true;
    } else if (name == "--force") {
      parsed.force = true;
    } else if (name == "--quiet" || name == "-q") {
      parsed.quiet = true;
    } else if (name == "--no-session") {
      parsed.no_session = true;
    } else if (const auto setter = setters().find(name); setter != setters().end()) {
      if (equals == std::string::npos && k + 1 >= arguments.size())
        return fail(usage(name, "the flag takes a value", "a value behind it", "the end of the line"));
      const std::string value = equals == std::string::npos ? arguments[++k] : word.substr(equals + 1);
      if (auto set = setter->second(value, parsed); !set) return fail(set.error());
    } else {
      std::vector<std::string_view> known;
      for (const auto& [flag, set] : setters()) known.push_back(flag);
      const std::string near = nearest_word(name, known);
      Error error = usage(name, "there is no such flag", "", name);
      if (!near.empty()) error.hint = fmt::format("did you mean {}?", near);
      return fail(std::move(error));
    }
  }
  if ((!parsed.render.empty() || !parsed.report.empty()) && parsed.files.empty() && !parsed.help)
    return fail(usage("FILE", "there is nothing to draw", "a recording, a job or a sweep", "no file"));
  return parsed;
}

std::string viewer_usage() {
  return "usage: foreshard-viewer [FILE...] [options]\n\n"
         "Shows timelines. A FILE is a recording (.fst, Kineto or Chrome JSON, a memory snapshot, nsys' sqlite), a job "
         "or model\n"
         "(it is simulated), or the JSON of a sweep. A job and a recording are compared; several recordings are ranks "
         "of one run.\n\n"
         "  --render OUT.svg|png   draw a picture instead of opening a window\n"
         "  --report OUT.html      write a report with pictures and tables instead of opening a window\n"
         "  --view VIEW            timeline, memory, compare (two files: A against B) or pareto\n"
         "  --range A..B           for example 100ms..250ms; else the step that stands for the run\n"
         "  --size W[xH]           of the picture, default 1600 wide and as high as the lanes\n"
         "  --scale S              device pixels to a pixel of a PNG, default 1\n"
         "  --theme light|dark     pictures are light, the window is as the desktop\n"
         "  --rank N               compare this rank only\n"
         "  --force                compare timelines of different plans all the same\n"
         "  --set KEY=VALUE        override a value of the job (repeatable)\n"
         "  --quiet                no notes\n"
         "  --no-session           neither read nor write what was open the last time\n";
}

}  // namespace foreshard::gui
