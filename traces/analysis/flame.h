// Flame graphs: time by stack. Of host stacks (Python frames, operators, kernel) or of modules, weighed by what their
// work took on devices; and as folded text or SVG. Pure functions. Times in nanoseconds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/timeline.h"

namespace foreshard {

enum class FlameBy : std::uint8_t { Stack, Module };
std::optional<FlameBy> flame_by_of_name(std::string_view name);  // "stack", "module"

struct FlameNode {
  std::string name;
  SimDuration total = 0;  // with all above it
  SimDuration own = 0;    // of work that ends here
  std::int64_t count = 0;
  SpanId example;                       // the longest piece of work in it
  std::vector<std::uint32_t> children;  // largest first
};

struct FlameGraph {
  std::vector<FlameNode> nodes;  // the first is the root, of everything
  std::size_t depth() const;
};

struct FlameOptions {
  FlameBy by = FlameBy::Stack;
  std::optional<std::int32_t> rank;
  std::optional<SimTime> from, to;  // work that begins in it
};
/// Each kernel, copy or memset counts with its own duration: streams side by side are more than the time that passed.
/// Of a stack of more than 512 levels the first 512 stand there, then "(deeper)".
FlameGraph flame_graph(const Timeline& timeline, const FlameOptions& options = {});

/// "outer;inner;kernel 1234" a line, as flamegraph.pl and speedscope read it; nanoseconds.
std::string folded_text(const FlameGraph& graph);

/// A picture that browsers show, with what is under the mouse as its title.
std::string flame_svg(const FlameGraph& graph, const std::string& title, int width = 1400);

}  // namespace foreshard
