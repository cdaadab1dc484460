// Where the user is looking, and the way back: the window of time, the selected range and slice, their history with
// undo and redo, bookmarks, notes. The model behind keys and mouse; knows no widgets.
//
// Times are from the sides' origins, as in Scene. The window never gets narrower than a few nanoseconds and never
// leaves the extent by more than its own length.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gui/models/scene.h"

namespace foreshard::gui {

/// What the user wrote at a moment (an empty range) or a range.
struct Note {
  TimeRange at;
  std::string text;
  bool operator==(const Note&) const = default;
};

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
  const std::vector<Note>& notes() const { return notes_; }
  /// In place of the one at the same range; an empty text takes it away.
  void set_note(TimeRange at, std::string text);
  void set_notes(std::vector<Note> notes) { notes_ = std::move(notes); }
  /// Its text; nullptr where nothing was written.
  const Note* note_at(TimeRange at) const;
  /// Where a new note belongs: at the selected range, else at `slice`, else at the note that is `near` to `at`, else at
  /// that moment.
  TimeRange note_range(const std::optional<TimeRange>& slice, SimTime at, SimDuration near) const;
  /// Bookmarks and the middles of notes; from the last on to the first.
  std::optional<SimTime> next_mark(SimTime after) const;

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
  std::vector<Note> notes_;  // by begin
  std::vector<Look> before_, after_;
  Act last_ = Act::None;
};

}  // namespace foreshard::gui
