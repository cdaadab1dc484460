#include "sim/search/pareto.h"

#include <algorithm>
#include <tuple>

namespace foreshard {

std::vector<FrontPoint> pareto_front(std::vector<Cost> points) {
  std::sort(points.begin(), points.end(), [](const Cost& a, const Cost& b) {
    return std::tie(a.time, a.memory, a.index) < std::tie(b.time, b.memory, b.index);
  });
  std::vector<FrontPoint> front;
  for (const Cost& point : points) {
    if (!front.empty() && point.memory >= front.back().memory) continue;
    FrontPoint next{point.index, point.time, point.memory};
    if (!front.empty()) {
      const FrontPoint& before = front.back();
      next.slower = before.time > 0 ? point.time / before.time - 1 : 0;
      next.saved = before.memory - point.memory;
    }
    front.push_back(next);
  }
  if (!front.empty()) {
    front.front().fastest = true;
    front.back().smallest = true;
  }
  return front;
}

}  // namespace foreshard
