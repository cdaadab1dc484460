// What is known of a slice, and of a range of time, as rows of words: for the inspector, the range table and the
// report. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gui/models/scene.h"

namespace foreshard::gui {

struct Fact {
  std::string name, value;
  std::optional<SceneSlice> slice = std::nullopt;  // the slice that the fact is about: one can go there
  bool operator==(const Fact&) const = default;
};

/// What it is and where it comes from (operator, module, Python), what it launched, shapes and grids, unit, phase,
/// bytes and rate, when, what it waited for, whom it issued or was issued by, and its partner on the other side.
std::vector<Fact> slice_facts(const Scene& scene, const SceneSlice& slice);

/// One row of the table of a range: a lane, busy time and share.
struct RangeRow {
  std::string lane;
  int side = 0;
  SimDuration busy = 0;
  double share = 0;
  std::size_t slices = 0;
};
/// `range` from the sides' origins. O(lanes log slices).
std::vector<RangeRow> range_table(const Scene& scene, TimeRange range);
std::vector<Fact> range_facts(const Scene& scene, TimeRange range);

/// Both tables as tab-separated text, for the clipboard.
std::string as_tsv(const std::vector<Fact>& facts);

}  // namespace foreshard::gui
