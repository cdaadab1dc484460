#include "gui/models/lateness_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace foreshard::gui {

LatenessMap lateness_map(const Timeline& timeline, bool by_step) {
  const std::vector<CollectiveMeeting> meetings = find_meetings(timeline);
  std::set<std::int32_t> ranks;
  std::map<std::int32_t, std::size_t> column_of_step;
  for (const CollectiveMeeting& meeting : meetings) {
    column_of_step.try_emplace(meeting.iteration, 0);
    for (const MeetingMember& member : meeting.members) ranks.insert(member.rank);
  }
  LatenessMap map;
  map.ranks.assign(ranks.begin(), ranks.end());
  if (by_step) {
    for (auto& [step, column] : column_of_step) {
      column = map.columns.size();
      map.columns.push_back(fmt::format("step {}", step));
    }
  } else {
    for (const CollectiveMeeting& meeting : meetings)
      map.columns.push_back(
          fmt::format("{} {} of step {}", span_kind_name(meeting.kind), meeting.index, meeting.iteration));
  }
  map.cells.resize(map.ranks.size() * map.columns.size());
  std::vector<SimDuration> longest(map.cells.size(), -1);
  for (std::size_t m = 0; m < meetings.size(); ++m) {
    const std::size_t column = by_step ? column_of_step[meetings[m].iteration] : m;
    for (const MeetingMember& member : meetings[m].members) {
      const auto row = static_cast<std::size_t>(std::lower_bound(map.ranks.begin(), map.ranks.end(), member.rank) -
                                                map.ranks.begin());
      const std::size_t index = row * map.columns.size() + column;
      const SimDuration late = std::max<SimDuration>(0, timeline.spans[member.span.index()].start - meetings[m].first);
      LatenessCell& cell = map.cells[index];
      cell.late = std::max<SimDuration>(0, cell.late) + late;
      if (late > longest[index]) longest[index] = late, cell.span = member.span;
      map.latest = std::max(map.latest, cell.late);
    }
  }
  return map;
}

}  // namespace foreshard::gui
