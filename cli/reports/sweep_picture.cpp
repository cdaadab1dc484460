#include "cli/reports/sweep_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/console/amount_text.h"
#include "core/amounts.h"
#include "core/text/utf8.h"

namespace foreshard::cli {
namespace {

constexpr double kWidth = 900, kHeight = 560, kLeft = 90, kRight = 30, kTop = 50, kBottom = 60;
constexpr std::size_t kMostDots = 20'000;  // more cannot be told apart, and make files that browsers dislike

/// One axis of the picture: values to places, with round numbers to label.
struct Scale {
  double low = 0, high = 1, begin = 0, end = 1;
  double at(double value) const { return begin + (value - low) / (high - low) * (end - begin); }

  std::vector<double> ticks() const { return round_ticks(low, high, 6); }
};

Scale scale_of(double low, double high, double begin, double end) {
  if (!(high > low)) high = low + std::max(1.0, std::fabs(low) * 0.1);
  const double margin = (high - low) * 0.06;
  return {std::max(0.0, low - margin), high + margin, begin, end};
}

class Picture {
 public:
  explicit Picture(const SweepDocument& document) : document_(document), result_(document.result) {}

  std::string draw() {
    measure();
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        kWidth, kHeight);
    text(kLeft, 24, "start",
         fmt::format("{} on {}: {} of {} points fit", document_.model, document_.profile, fitting_,
                     result_.points.size()),
         15);
    frame();
    dots();
    front();
    return out_ + "</svg>\n";
  }

 private:
  double time_of(const SweepPoint& point) const {
    return objective_time(point, result_.objective) * (result_.objective == SweepObjective::StepTime ? 1e-6 : 1e-3);
  }
  static double gib(Bytes bytes) { return static_cast<double>(bytes) / static_cast<double>(kGiB); }

  void measure() {
    double slowest = 0, fastest = 0, largest = 0, smallest = 0;
    for (const SweepPoint& point : result_.points) {
      if (!point.fits) continue;
      const double time = time_of(point), memory = gib(point.peak_reserved);
      if (fitting_++ == 0) slowest = fastest = time, largest = smallest = memory;
      slowest = std::max(slowest, time), fastest = std::min(fastest, time);
      largest = std::max(largest, memory), smallest = std::min(smallest, memory);
    }
    if (document_.budget > 0) largest = std::max(largest, gib(document_.budget));
    x_ = scale_of(fastest, slowest, kLeft, kWidth - kRight);
    y_ = scale_of(smallest, largest, kHeight - kBottom, kTop);
  }

  void text(double x, double y, const char* anchor, const std::string& content, int size = 12) {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" fill=\"#222\">{}</text>\n",
                        x, y, anchor, size, xml_text(content));
  }
  void line(double x1, double y1, double x2, double y2, const char* style) {
    out_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
  }

  void frame() {
    for (const double tick : x_.ticks()) {
      line(x_.at(tick), kTop, x_.at(tick), kHeight - kBottom, "stroke=\"#e4e4e4\"");
      text(x_.at(tick), kHeight - kBottom + 18, "middle", fmt::format("{:g}", tick));
    }
    for (const double tick : y_.ticks()) {
      line(kLeft, y_.at(tick), kWidth - kRight, y_.at(tick), "stroke=\"#e4e4e4\"");
      text(kLeft - 8, y_.at(tick) + 4, "end", fmt::format("{:g}", tick));
    }
    const bool step = result_.objective == SweepObjective::StepTime;
    text((kLeft + kWidth - kRight) / 2, kHeight - 16, "middle", step ? "step time, ms" : "time per token, us");
    text(kLeft - 8, kTop - 12, "end", "GiB reserved");
    if (document_.budget <= 0) return;
    const double budget = y_.at(gib(document_.budget));
    line(kLeft, budget, kWidth - kRight, budget, "stroke=\"#c33\" stroke-dasharray=\"6 4\"");
    text(kWidth - kRight, budget - 5, "end", "memory of one device");
  }

  std::string hover(const SweepPoint& point) const {
    std::string content = fmt::format("point {}", point.index);
    for (const std::string& setting : settings_of(document_, point)) content += "\n" + setting;
    content +=
        fmt::format("\nstep {}, reserved {}", duration_text(point.step_time_ns), bytes_text(point.peak_reserved));
    return "<title>" + xml_text(content) + "</title>";
  }

  void dots() {
    const std::size_t every = std::max<std::size_t>(1, result_.points.size() / kMostDots);
    for (std::size_t k = 0; k < result_.points.size(); k += every) {
      const SweepPoint& point = result_.points[k];
      if (!point.fits || point.same_as) continue;
      out_ +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"#8aa4c8\" fill-opacity=\"0.6\">{}</circle>\n",
                      x_.at(time_of(point)), y_.at(gib(point.peak_reserved)), hover(point));
    }
  }

  void front() {
    if (result_.front.empty()) return;
    std::string path;
    double last_y = 0;
    for (const FrontPoint& member : result_.front) {
      const SweepPoint& point = find(member.index);
      const double x = x_.at(time_of(point)), y = y_.at(gib(point.peak_reserved));
      if (path.empty())
        path = fmt::format("M{:.1f} {:.1f}", x, y);
      else
        path += fmt::format(" L{:.1f} {:.1f} L{:.1f} {:.1f}", x, last_y, x, y);
      last_y = y;
    }
    out_ += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"#c60\" stroke-width=\"1.5\"/>\n", path);
    for (const FrontPoint& member : result_.front) {
      const SweepPoint& point = find(member.index);
      const double x = x_.at(time_of(point)), y = y_.at(gib(point.peak_reserved));
      out_ +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"#c60\">{}</circle>\n", x, y, hover(point));
      text(x + 7, y - 6, "start", fmt::format("{}", point.index));
    }
  }

  const SweepPoint& find(std::size_t index) const {
    return *std::lower_bound(result_.points.begin(), result_.points.end(), index,
                             [](const SweepPoint& point, std::size_t wanted) { return point.index < wanted; });
  }

  const SweepDocument& document_;
  const SweepResult& result_;
  Scale x_, y_;
  std::size_t fitting_ = 0;
  std::string out_;
};

}  // namespace

std::string sweep_picture(const SweepDocument& document) { return Picture(document).draw(); }

}  // namespace foreshard::cli
