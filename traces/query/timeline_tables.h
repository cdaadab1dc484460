// The tables of a timeline as columns that can be read by place. Private to traces/query.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/timeline.h"
#include "traces/query/trace_query.h"
#include "traces/timeline/iterations.h"

namespace foreshard {

struct QueryColumn {
  std::string_view name, type;
  QueryValue (*value)(const struct QueriedTimeline& of, std::size_t row);
  /// Of texts that are few: a row's number of its text, -1 = NULL; and how many there are, with each's text. Different
  /// numbers may have the same text.
  std::int32_t (*code)(const struct QueriedTimeline& of, std::size_t row) = nullptr;
  std::size_t (*codes)(const struct QueriedTimeline& of) = nullptr;
  std::string_view (*text)(const struct QueriedTimeline& of, std::size_t code) = nullptr;
};

struct QueryTable {
  std::string_view name;
  std::vector<QueryColumn> columns;
  std::size_t (*rows)(const struct QueriedTimeline& of);
};

/// The timeline with what its tables need beside it.
struct QueriedTimeline {
  explicit QueriedTimeline(const Timeline& timeline);
  const Timeline& t;
  std::vector<std::pair<std::int32_t, TimelineIteration>> iterations;  // rank, and one of its iterations
};

const std::vector<QueryTable>& timeline_tables();

}  // namespace foreshard
