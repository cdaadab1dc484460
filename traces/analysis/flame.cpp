#include "traces/analysis/flame.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "core/text/utf8.h"
#include "traces/analysis/kernel_table.h"
#include "traces/analysis/range_statistics.h"
#include "traces/analysis/slice_origins.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostLevels = 512;  // what draws and writes goes down level by level

class Growing {
 public:
  Growing() { graph.nodes.push_back({.name = "all"}); }

  void add(std::vector<std::string> path, const Span& span, SpanId id) {
    if (path.size() > kMostLevels) {
      path.resize(kMostLevels);
      path.emplace_back("(deeper)");
    }
    std::uint32_t node = 0;
    for (std::size_t depth = 0;; ++depth) {
      FlameNode& here = graph.nodes[node];
      here.total += span.duration;
      ++here.count;
      if (!here.example.valid() || span.duration > longest_[node]) here.example = id, longest_[node] = span.duration;
      if (depth == path.size()) {
        here.own += span.duration;
        return;
      }
      node = child(node, path[depth]);
    }
  }

  FlameGraph finish() {
    for (FlameNode& node : graph.nodes) {
      std::sort(node.children.begin(), node.children.end(), [&](std::uint32_t a, std::uint32_t b) {
        const FlameNode &x = graph.nodes[a], &y = graph.nodes[b];
        return x.total != y.total ? x.total > y.total : x.name < y.name;
      });
    }
    return std::move(graph);
  }

 private:
  std::uint32_t child(std::uint32_t node, const std::string& name) {
    const auto [found, fresh] = of_.try_emplace({node, name}, static_cast<std::uint32_t>(graph.nodes.size()));
    if (fresh) {
      graph.nodes.push_back({.name = name});
      graph.nodes[node].children.push_back(found->second);
    }
    return found->second;
  }

  FlameGraph graph;
  std::map<std::pair<std::uint32_t, std::string>, std::uint32_t> of_;
  std::map<std::uint32_t, SimDuration> longest_;
};

std::string kernel_name(const Timeline& t, const Span& span) {
  const std::string_view name = t.name_of(span.name);
  return name.empty() ? std::string(span_kind_name(span.kind)) : folded_kernel_name(name);
}

/// Frames, operators and ranges around the launch; a backward stands above the frames of its forward.
std::vector<std::string> stack_of(const Timeline& t, const SliceOrigins& origins, SpanId id) {
  std::vector<std::string> path;
  const SliceOrigin origin = origins.of(id);
  const auto name = [&](SpanId span) { return std::string(t.name_of(t.spans[span.index()].name)); };
  if (origin.call.valid()) {
    const Span& call = t.spans[origin.call.index()];
    std::vector<SpanId> around = origins.around(call.lane, call.start);
    if (!around.empty() && around.back() == origin.call) around.pop_back();
    if (origin.forward.valid()) {
      for (auto frame = origin.frames.rbegin(); frame != origin.frames.rend(); ++frame) path.push_back(name(*frame));
      path.push_back("(backward)");
    }
    for (const SpanId span : around) {
      if (!name(span).starts_with("ProfilerStep")) path.push_back(name(span));
    }
  }
  path.push_back(kernel_name(t, t.spans[id.index()]));
  return path;
}

std::vector<std::string> modules_of(const Timeline& t, const SliceOrigins& origins, SpanId id) {
  const SliceOrigin origin = origins.of(id);
  std::vector<std::string> path = origin.modules;
  if (path.empty()) path.emplace_back("(no module)");
  const auto name = [&](SpanId span) { return std::string(t.name_of(t.spans[span.index()].name)); };
  if (!origin.operators.empty()) path.push_back(name(origin.operators.back()));
  path.push_back(kernel_name(t, t.spans[id.index()]));
  return path;
}

std::string milliseconds(SimDuration time) { return fmt::format("{:.3f} ms", static_cast<double>(time) / 1e6); }

/// Modules and frames blue, operators green, kernels orange would need to know what a level is: by name it is stable.
std::string colour_of(std::string_view name) {
  std::uint32_t hash = 2166136261U;
  for (const char c : name.substr(0, name.find_first_of("<(_")))
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return fmt::format("hsl({},{}%,{}%)", 15 + hash % 45, 62 + hash / 64 % 18, 62 + hash / 4096 % 12);
}

}  // namespace

std::optional<FlameBy> flame_by_of_name(std::string_view name) {
  if (name == "stack") return FlameBy::Stack;
  if (name == "module") return FlameBy::Module;
  return std::nullopt;
}

std::size_t FlameGraph::depth() const {
  const std::function<std::size_t(std::uint32_t)> below = [&](std::uint32_t node) {
    std::size_t most = 0;
    for (const std::uint32_t child : nodes[node].children) most = std::max(most, below(child));
    return most + 1;
  };
  return nodes.empty() ? 0 : below(0);
}

FlameGraph flame_graph(const Timeline& timeline, const FlameOptions& options) {
  const SliceOrigins origins(timeline);
  Growing graph;
  for (std::size_t i = 0; i < timeline.spans.size(); ++i) {
    const Span& span = timeline.spans[i];
    if (!is_device_work(span.kind) || !span.lane.valid() || span.duration <= 0) continue;
    if (options.rank && timeline.lanes[span.lane.index()].rank != *options.rank) continue;
    if ((options.from && span.start < *options.from) || (options.to && span.start >= *options.to)) continue;
    const SpanId id(i);
    graph.add(options.by == FlameBy::Stack ? stack_of(timeline, origins, id) : modules_of(timeline, origins, id), span,
              id);
  }
  return graph.finish();
}

std::string folded_text(const FlameGraph& graph) {
  std::string text;
  const std::function<void(std::uint32_t, const std::string&)> visit = [&](std::uint32_t index,
                                                                           const std::string& above) {
    const FlameNode& node = graph.nodes[index];
    std::string name = node.name;
    for (char& c : name)
      if (c == ';' || c == '\n' || c == '\r') c = ',';
    const std::string path = index == 0 ? "" : above.empty() ? name : above + ";" + name;
    if (node.own > 0 && index != 0) text += fmt::format("{} {}\n", path, node.own);
    for (const std::uint32_t child : node.children) visit(child, path);
  };
  if (!graph.nodes.empty()) visit(0, "");
  return text;
}

std::string flame_svg(const FlameGraph& graph, const std::string& title, int width) {
  constexpr double kRow = 18, kTop = 34, kSide = 10, kLeast = 0.4;
  const double room = width - 2 * kSide;
  const auto all = static_cast<double>(std::max<SimDuration>(1, graph.nodes.front().total));
  const double height = kTop + kRow * static_cast<double>(graph.depth()) + kSide;
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1:.0f}" viewBox="0 0 {0} {1:.0f}" font-family="sans-serif" font-size="11">)"
      "\n"
      R"(<rect width="100%" height="100%" fill="#ffffff"/><text x="{2}" y="20" font-size="13" fill="#1c2430">{3}: {4}</text>)"
      "\n",
      width, height, kSide, xml_text(title), milliseconds(graph.nodes.front().total));
  const std::function<void(std::uint32_t, double, int)> draw = [&](std::uint32_t index, double x, int level) {
    const FlameNode& node = graph.nodes[index];
    const double wide = room * static_cast<double>(node.total) / all;
    if (wide < kLeast) return;
    const double y = kTop + kRow * level;
    const auto letters = static_cast<std::size_t>(std::max(0.0, (wide - 6) / 6.2));
    std::string label = letters < 3 ? "" : node.name;
    if (label.size() > letters) {
      std::size_t cut = letters - 1;
      while (cut > 0 && (static_cast<unsigned char>(label[cut]) & 0xc0U) == 0x80U) --cut;  // not inside a letter
      label = label.substr(0, cut) + "…";
    }
    svg += fmt::format(
        R"(<g><title>{} ({}, {:.1f} %, {} pieces)</title><rect x="{:.2f}" y="{:.0f}" width="{:.2f}" height="{:.0f}" rx="1" fill="{}"/>)",
        xml_text(node.name), milliseconds(node.total), 100 * static_cast<double>(node.total) / all, node.count,
        kSide + x, y, std::max(kLeast, wide - 0.6), kRow - 1, index == 0 ? "#d5dae3" : colour_of(node.name));
    if (!label.empty())
      svg += fmt::format(R"(<text x="{:.2f}" y="{:.0f}" fill="#1c2430">{}</text>)", kSide + x + 3, y + 12.5,
                         xml_text(label));
    svg += "</g>\n";
    double at = x;
    for (const std::uint32_t child : node.children) {
      draw(child, at, level + 1);
      at += room * static_cast<double>(graph.nodes[child].total) / all;
    }
  };
  draw(0, 0, 0);
  return svg + "</svg>\n";
}

}  // namespace foreshard
