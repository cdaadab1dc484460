#include "gui/models/navigation.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace foreshard::gui {
namespace {

constexpr SimDuration kShortest = 20;
constexpr std::size_t kHistory = 200;

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
  move_to({begin, begin + static_cast<SimDuration>(std::llround(wanted))}, false);
}

void Navigation::pan(double share) {
  const auto by = static_cast<SimDuration>(std::llround(share * static_cast<double>(range_.length())));
  move_to({range_.begin + by, range_.end + by}, false);
}

void Navigation::show(TimeRange range) {
  if (range.length() < kShortest) {
    const SimTime middle = range.begin + range.length() / 2;
    range = {middle - kShortest / 2, middle + kShortest / 2};
  }
  move_to(range, true);
}

void Navigation::fit(const std::optional<TimeRange>& slice) {
  TimeRange wanted = home_;
  if (selection_)
    wanted = *selection_;
  else if (slice)
    wanted = {slice->begin - slice->length() / 4 - 1, slice->end + slice->length() / 4 + 1};
  show(kept_inside(wanted) == range_ ? extent_ : wanted);
}

bool Navigation::undo() {
  if (before_.empty()) return false;
  after_.push_back(range_);
  range_ = before_.back();
  before_.pop_back();
  panning_ = false;
  return true;
}

bool Navigation::redo() {
  if (after_.empty()) return false;
  before_.push_back(range_);
  range_ = after_.back();
  after_.pop_back();
  panning_ = false;
  return true;
}

void Navigation::select_range(std::optional<TimeRange> range) {
  if (range && range->end < range->begin) std::swap(range->begin, range->end);
  if (range && range->length() == 0) range.reset();
  selection_ = range;
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

std::optional<SimTime> Navigation::next_bookmark(SimTime after) const {
  if (bookmarks_.empty()) return std::nullopt;
  const auto next = std::upper_bound(bookmarks_.begin(), bookmarks_.end(), after);
  return next == bookmarks_.end() ? bookmarks_.front() : *next;
}

void Navigation::move_to(TimeRange range, bool step) {
  range = kept_inside(range);
  if (range == range_) return;
  if (step || !panning_) {
    before_.push_back(range_);
    if (before_.size() > kHistory) before_.erase(before_.begin());
  }
  panning_ = !step;
  after_.clear();
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
