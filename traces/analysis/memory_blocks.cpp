#include "traces/analysis/memory_blocks.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <unordered_map>

namespace foreshard {
namespace {

bool is_block(const Timeline& t, const Span& span) {
  return span.lane.valid() && span.kind == SpanKind::Annotation && span.bytes > 0 &&
         t.lanes[span.lane.index()].stream == "allocations";
}

std::optional<std::int32_t> rank_with_blocks(const Timeline& t) {
  std::optional<std::int32_t> lowest;
  for (const Span& span : t.spans) {
    if (!is_block(t, span)) continue;
    const std::int32_t rank = t.lanes[span.lane.index()].rank;
    if (!lowest || rank < *lowest) lowest = rank;
  }
  return lowest;
}

/// Samples stand by counter, then time.
std::vector<CounterSample> allocated(const Timeline& t, std::int32_t rank) {
  std::vector<CounterSample> samples;
  for (const CounterSample& sample : t.samples) {
    if (!sample.counter.valid()) continue;
    const Counter& counter = t.counters[sample.counter.index()];
    if (counter.rank == rank && counter.name == "allocated") samples.push_back(sample);
  }
  return samples;
}

void sort_rows(std::vector<BlockRow>& rows) {
  std::sort(rows.begin(), rows.end(), [](const BlockRow& a, const BlockRow& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.frame < b.frame;
  });
}

}  // namespace

std::optional<LiveBlocks> live_blocks(const Timeline& timeline, const BlockOptions& options) {
  const auto rank = options.rank ? options.rank : rank_with_blocks(timeline);
  if (!rank) return std::nullopt;
  const std::vector<CounterSample> samples = allocated(timeline, *rank);
  if (samples.empty()) return std::nullopt;
  LiveBlocks live;
  live.rank = *rank;
  const auto most =
      std::max_element(samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.value < b.value; });
  live.at = options.at.value_or(most->time);
  for (const CounterSample& sample : samples)
    if (sample.time <= live.at) live.allocated = sample.value;
  std::unordered_map<std::int32_t, BlockRow> by_name;
  Bytes known = 0;
  bool any = false;
  for (const Span& span : timeline.spans) {
    if (!is_block(timeline, span) || timeline.lanes[span.lane.index()].rank != *rank) continue;
    any = true;
    // A block that ends with the recording lives at its end.
    const bool lives =
        span.start <= live.at && (span.start + span.duration > live.at ||
                                  (live.at >= samples.back().time && span.start + span.duration == live.at));
    if (!lives) continue;
    BlockRow& row = by_name[span.name.value];
    ++row.blocks;
    row.bytes += span.bytes;
    row.largest = std::max(row.largest, span.bytes);
    known += span.bytes;
  }
  if (!any) return std::nullopt;
  std::map<std::string, BlockRow> by_frame;  // several names may be the same text
  for (const auto& [name, row] : by_name) {
    BlockRow& all = by_frame[std::string(timeline.name_of(NameId(name)))];
    all.blocks += row.blocks;
    all.bytes += row.bytes;
    all.largest = std::max(all.largest, row.largest);
  }
  if (live.allocated != known)
    by_frame[live.allocated > known ? "" : std::string(kBeyondCounter)].bytes += live.allocated - known;
  for (auto& [frame, row] : by_frame) {
    row.frame = frame;
    live.rows.push_back(std::move(row));
  }
  sort_rows(live.rows);
  return live;
}

std::vector<BlockDifference> block_differences(const LiveBlocks& a, const LiveBlocks& b) {
  std::map<std::string, BlockDifference> rows;
  for (const BlockRow& row : a.rows) rows[row.frame].a = row;
  for (const BlockRow& row : b.rows) rows[row.frame].b = row;
  std::vector<BlockDifference> all;
  for (auto& [frame, row] : rows) {
    row.frame = row.a.frame = row.b.frame = frame;
    all.push_back(std::move(row));
  }
  std::stable_sort(all.begin(), all.end(), [](const BlockDifference& x, const BlockDifference& y) {
    return std::llabs(x.difference()) > std::llabs(y.difference());
  });
  return all;
}

}  // namespace foreshard
