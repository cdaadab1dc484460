// Where the user is looking, and the way back: the window of time, the selected range and slice, their history with
// undo and redo, bookmarks. The model behind keys and mouse; knows no widgets.
//
// Times are from the sides' origins, as in Scene. The window never gets narrower than a few nanoseconds and never
// leaves the extent by more than its own length.
#pragma once

#include <optional>
#include <vector>

#include "gui/models/scene.h"

namespace foreshard::gui {

class Navigation {
 public:
  Navigation() = default;
  /// `home` is what fit() shows when nothing is selected.
  Navigation(TimeRange extent, TimeRange home);

  TimeRange range() const { return range_; }
  TimeRange extent() const { return extent_; }
  TimeRange home() const { return home_; }
  const std::optional<TimeRange>& selection() const { return selection_; }
  const std::optional<SceneSlice>& selected() const { return selected_; }
  const std::vector<SimTime>& bookmarks() const { return bookmarks_; }

  /// factor < 1 zooms in; the time `about` stays where it is.
  void zoom(double factor, SimTime about);
  /// By a share of the window's length.
  void pan(double share);
  void show(TimeRange range);
  /// The selected range, else `slice`, else home; asked again, the whole extent.
  void fit(const std::optional<TimeRange>& slice);

  bool undo();
  bool redo();

  void select_range(std::optional<TimeRange> range);
  void select_slice(std::optional<SceneSlice> slice);
  /// What comes next is another step of the history: the mouse has been let go.
  void settle() { last_ = Act::None; }
  /// Sets a bookmark, or takes away one that is near (within a hundredth of the window).
  void toggle_bookmark(SimTime at);
  void set_bookmarks(std::vector<SimTime> bookmarks) { bookmarks_ = std::move(bookmarks); }
  std::optional<SimTime> next_bookmark(SimTime after) const;

 private:
  /// What one step of the history takes back.
  struct Look {
    TimeRange range;
    std::optional<TimeRange> selection;
    std::optional<SceneSlice> selected;
    bool operator==(const Look&) const = default;
  };
  /// A run of the same small act is one step: a pan, a drag of a range's edge, a walk from slice to slice.
  enum class Act { None, Move, Jump, SelectRange, SelectSlice };

  Look look() const { return {range_, selection_, selected_}; }
  void take(const Look& look);
  /// To be called before the change.
  void remember(Act act);
  void move_to(TimeRange range, Act act);
  TimeRange kept_inside(TimeRange range) const;

  TimeRange extent_{0, 1}, home_{0, 1}, range_{0, 1};
  std::optional<TimeRange> selection_;
  std::optional<SceneSlice> selected_;
  std::vector<SimTime> bookmarks_;
  std::vector<Look> before_, after_;
  Act last_ = Act::None;
};

}  // namespace foreshard::gui
