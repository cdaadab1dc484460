#include "traces/analysis/collective_meetings.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "traces/timeline/exposed_comm.h"
#include "traces/timeline/iterations.h"

namespace foreshard {
namespace {

using GroupKey = std::tuple<std::string, SpanKind, std::int32_t>;  // communicator, kind, iteration
using ByRank = std::map<std::int32_t, std::vector<SpanId>>;

std::map<GroupKey, ByRank> collectives_by_group(const Timeline& t) {
  std::map<GroupKey, ByRank> groups;
  for (const std::int32_t rank : ranks_of(t)) {
    for (const TimelineIteration& iteration : iterations_of(t, rank)) {
      for (const SpanId id : iteration.spans) {
        const Span& span = t.spans[id.index()];
        // Point to point has two ends, which are not those of a group.
        if (!is_collective(span.kind) || span.kind == SpanKind::SendRecv) continue;
        groups[{std::string(t.name_of(span.communicator)), span.kind, iteration.index}][rank].push_back(id);
      }
    }
  }
  return groups;
}

CollectiveMeeting meeting_of(const Timeline& t, std::vector<MeetingMember> members) {
  const auto start = [&](const MeetingMember& m) { return t.spans[m.span.index()].start; };
  std::stable_sort(members.begin(), members.end(),
                   [&](const MeetingMember& a, const MeetingMember& b) { return start(a) < start(b); });
  CollectiveMeeting meeting;
  meeting.kind = t.spans[members.front().span.index()].kind;
  meeting.first = start(members.front());
  meeting.last = start(members.back());
  meeting.lateness = meeting.last - start(members[(members.size() - 1) / 2]);
  for (const MeetingMember& member : members) meeting.waited += meeting.last - start(member);
  meeting.waited /= static_cast<SimDuration>(members.size() - 1);
  meeting.members = std::move(members);
  return meeting;
}

/// Whoever takes part in a collective ends with the others: what does not overlap at all was none of one group.
bool overlap(const Timeline& t, const std::vector<MeetingMember>& members) {
  SimTime latest_start = t.spans[members.front().span.index()].start, earliest_end = 0;
  bool first = true;
  for (const MeetingMember& member : members) {
    const Span& span = t.spans[member.span.index()];
    latest_start = std::max(latest_start, span.start);
    earliest_end = first ? span.start + span.duration : std::min(earliest_end, span.start + span.duration);
    first = false;
  }
  return latest_start < earliest_end;
}

/// Groups of a mesh share a name ("mesh_shard"): whoever leaves together is one group. The last to come has the
/// shortest kernel, the transfer alone, and the others end with it.
std::vector<std::vector<MeetingMember>> leaving_together(const Timeline& t, std::vector<MeetingMember> members) {
  constexpr SimDuration kClocks = 100'000;  // ns by which the clocks of ranks part
  const auto span = [&](const MeetingMember& m) -> const Span& { return t.spans[m.span.index()]; };
  const auto end = [&](const MeetingMember& m) { return span(m).start + span(m).duration; };
  std::stable_sort(members.begin(), members.end(),
                   [&](const MeetingMember& a, const MeetingMember& b) { return end(a) < end(b); });
  std::vector<std::vector<MeetingMember>> groups;
  SimDuration shortest = 0;
  for (const MeetingMember& member : members) {
    const SimDuration least = groups.empty() ? span(member).duration : std::min(shortest, span(member).duration);
    if (groups.empty() || end(member) - end(groups.back().front()) > std::max(kClocks, least / 2)) {
      groups.emplace_back();
      shortest = span(member).duration;
    } else {
      shortest = least;
    }
    groups.back().push_back(member);
  }
  std::erase_if(groups, [](const auto& group) { return group.size() < 2; });
  return groups;
}

}  // namespace

std::vector<CollectiveMeeting> find_meetings(const Timeline& t) {
  std::vector<CollectiveMeeting> meetings;
  for (auto& [key, ranks] : collectives_by_group(t)) {
    if (ranks.size() < 2) continue;
    const std::size_t count = ranks.begin()->second.size();
    if (std::any_of(ranks.begin(), ranks.end(), [&](const auto& r) { return r.second.size() != count; })) continue;
    for (auto& [rank, spans] : ranks) {
      std::stable_sort(spans.begin(), spans.end(),
                       [&](SpanId a, SpanId b) { return t.spans[a.index()].start < t.spans[b.index()].start; });
    }
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<MeetingMember> members;
      for (const auto& [rank, spans] : ranks) members.push_back({rank, spans[i]});
      for (auto& group : leaving_together(t, std::move(members))) {
        if (!overlap(t, group)) continue;
        CollectiveMeeting meeting = meeting_of(t, std::move(group));
        meeting.iteration = std::get<2>(key);
        meeting.index = static_cast<std::int32_t>(i);
        meetings.push_back(std::move(meeting));
      }
    }
  }
  std::stable_sort(meetings.begin(), meetings.end(),
                   [](const CollectiveMeeting& a, const CollectiveMeeting& b) { return a.first < b.first; });
  return meetings;
}

std::vector<StragglerRow> straggler_table(const std::vector<CollectiveMeeting>& meetings) {
  std::map<std::pair<std::int32_t, SpanKind>, StragglerRow> rows;
  std::map<std::pair<std::int32_t, SpanKind>, std::int64_t> count;
  for (const CollectiveMeeting& meeting : meetings) {
    for (const MeetingMember& member : meeting.members) ++count[{member.rank, meeting.kind}];
    StragglerRow& row = rows[{meeting.members.back().rank, meeting.kind}];
    row.rank = meeting.members.back().rank;
    row.kind = meeting.kind;
    ++row.last;
    row.lateness += meeting.lateness;
    row.waited += meeting.waited;
  }
  std::vector<StragglerRow> table;
  for (auto& [key, row] : rows) {
    row.meetings = count[key];
    table.push_back(row);
  }
  std::stable_sort(table.begin(), table.end(),
                   [](const StragglerRow& a, const StragglerRow& b) { return a.waited > b.waited; });
  return table;
}

}  // namespace foreshard
