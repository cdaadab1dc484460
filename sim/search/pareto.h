// The front of time against memory: the points that no other point beats in both. A pure function.
#pragma once

#include <cstddef>
#include <vector>

#include "core/units.h"

namespace foreshard {

/// A candidate: smaller is better in both. `index` breaks ties: of equal points the first is on the front.
struct Cost {
  std::size_t index = 0;
  double time = 0;
  Bytes memory = 0;
};

/// One point of the front, with what it gives and takes against its neighbours there.
struct FrontPoint {
  std::size_t index = 0;
  double time = 0;
  Bytes memory = 0;
  bool fastest = false, smallest = false;  // the ends
  double slower = 0;                       // share by which it takes longer than the next faster one; 0 for the fastest
  Bytes saved = 0;                         // what it takes less than that one
  bool operator==(const FrontPoint&) const = default;
};

/// From the fastest to the smallest.
std::vector<FrontPoint> pareto_front(std::vector<Cost> points);

}  // namespace foreshard
