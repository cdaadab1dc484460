#include "gui/models/navigation.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace foreshard::gui {
namespace {

constexpr SimDuration kShortest = 20;
constexpr std::size_t kMostPlacesKept = 200;

}  // namespace

Navigation::Navigation(TimeRange extent, TimeRange home) : extent_(extent), home_(home) {
  if (extent_.length() < kShortest) extent_.end = extent_.begin + kShortest;
  range_ = kept_inside(home.length() > 0 ? home : extent_);
  home_ = range_;
}

void Navigation::zoom(double factor, SimTime about) {
  const double length = static_cast<double>(range_.length());
  const double most = 4.0 * static_cast<double>(extent_.length());
  const double wanted = std::clamp(length * factor, static_cast<double>(kShortest), std::max(most, length));
  const double share = static_cast<double>(about - range_.begin) / length;
  const auto begin = about - static_cast<SimDuration>(std::llround(share * wanted));
  move_to({begin, begin + static_cast<SimDuration>(std::llround(wanted))}, Act::Move);
}

void Navigation::pan(double share) {
  const auto by = static_cast<SimDuration>(std::llround(share * static_cast<double>(range_.length())));
  move_to({range_.begin + by, range_.end + by}, Act::Move);
}

void Navigation::show(TimeRange range) {
  if (range.length() < kShortest) {
    const SimTime middle = range.begin + range.length() / 2;
    range = {middle - kShortest / 2, middle + kShortest / 2};
  }
  move_to(range, Act::Jump);
}

void Navigation::fit(const std::optional<TimeRange>& slice) {
  TimeRange wanted = home_;
  if (selection_)
    wanted = *selection_;
  else if (slice)
    wanted = {slice->begin - slice->length() / 4 - 1, slice->end + slice->length() / 4 + 1};
  show(kept_inside(wanted) == range_ ? extent_ : wanted);
}

void Navigation::take(const Look& look) {
  range_ = look.range;
  selection_ = look.selection;
  selected_ = look.selected;
  last_ = Act::None;
}

bool Navigation::undo() {
  if (before_.empty()) return false;
  after_.push_back(look());
  take(before_.back());
  before_.pop_back();
  return true;
}

bool Navigation::redo() {
  if (after_.empty()) return false;
  before_.push_back(look());
  take(after_.back());
  after_.pop_back();
  return true;
}

void Navigation::remember(Act act) {
  // The jump that brings a selected slice into sight belongs to the selection.
  const bool same_step = act == last_ && act != Act::Jump;
  const bool follows = act == Act::Jump && last_ == Act::SelectSlice;
  if (!same_step && !follows) {
    before_.push_back(look());
    if (before_.size() > kMostPlacesKept) before_.erase(before_.begin());
  }
  after_.clear();
  if (!follows) last_ = act;
}

void Navigation::select_range(std::optional<TimeRange> range) {
  if (range && range->end < range->begin) std::swap(range->begin, range->end);
  if (range && range->length() == 0) range.reset();
  if (range == selection_) return;
  if (!range || !selection_) settle();  // letting go of a range is a step of its own
  remember(Act::SelectRange);
  selection_ = range;
}

void Navigation::select_slice(std::optional<SceneSlice> slice) {
  if (slice == selected_) return;
  remember(Act::SelectSlice);
  selected_ = slice;
}

void Navigation::toggle_bookmark(SimTime at) {
  const SimDuration near = range_.length() / 100;
  const auto found =
      std::find_if(bookmarks_.begin(), bookmarks_.end(), [&](SimTime mark) { return std::llabs(mark - at) <= near; });
  if (found != bookmarks_.end()) {
    bookmarks_.erase(found);
    return;
  }
  bookmarks_.insert(std::upper_bound(bookmarks_.begin(), bookmarks_.end(), at), at);
}

const Note* Navigation::note_at(TimeRange at) const {
  const auto found = std::find_if(notes_.begin(), notes_.end(), [&](const Note& note) { return note.at == at; });
  return found == notes_.end() ? nullptr : &*found;
}

TimeRange Navigation::note_range(const std::optional<TimeRange>& slice, SimTime at, SimDuration near) const {
  if (selection_) return *selection_;
  if (slice) return *slice;
  for (const Note& note : notes_)
    if (note.at.begin - near <= at && at <= note.at.end + near) return note.at;
  return {at, at};
}

void Navigation::set_note(TimeRange at, std::string text) {
  std::erase_if(notes_, [&](const Note& note) { return note.at == at; });
  if (text.empty()) return;
  const auto later = std::upper_bound(notes_.begin(), notes_.end(), at.begin,
                                      [](SimTime begin, const Note& note) { return begin < note.at.begin; });
  notes_.insert(later, {at, std::move(text)});
}

std::optional<SimTime> Navigation::next_mark(SimTime after) const {
  std::vector<SimTime> marks = bookmarks_;
  for (const Note& note : notes_) marks.push_back(note.at.begin + note.at.length() / 2);
  if (marks.empty()) return std::nullopt;
  std::sort(marks.begin(), marks.end());
  const auto next = std::upper_bound(marks.begin(), marks.end(), after);
  return next == marks.end() ? marks.front() : *next;
}

void Navigation::move_to(TimeRange range, Act act) {
  range = kept_inside(range);
  if (range == range_) return;
  remember(act);
  range_ = range;
}

TimeRange Navigation::kept_inside(TimeRange range) const {
  const SimDuration length = std::max(kShortest, range.length());
  SimTime begin = range.begin;
  begin = std::max(begin, extent_.begin - length / 2);
  begin = std::min(begin, extent_.end - length / 2);
  return {begin, begin + length};
}

}  // namespace foreshard::gui
