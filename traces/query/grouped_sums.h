// Questions that only count and sum by group are answered from the columns: SQLite's own loop costs a third of a
// microsecond a row. Private to traces/query.
//
// Taken apart is "select ITEMS from spans [where CONDITIONS] group by COLUMNS [having ...] [order by ...] [limit ...]":
// columns of few values, count(*), count, sum, min and max of integer columns, conditions joined by AND that compare a
// column with a number or a text. The groups become a small table, and SQLite answers the rest of the question from it.
// Whatever is not understood is left to SQLite as it stands.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traces/query/timeline_tables.h"

namespace foreshard {

/// A question over the table "grouped" in the place of another over "spans".
struct GroupedQuestion {
  std::string sql;
  std::vector<std::string> columns;           // of the table: texts or integers
  std::vector<std::vector<QueryValue>> rows;  // texts live as long as the timeline
};
std::optional<GroupedQuestion> grouped_question(const QueriedTimeline& of, std::string_view sql);

/// Places of a column's texts in order, by code + 1; 0 is NULL's.
std::vector<std::uint32_t> text_places(const QueriedTimeline& of, const QueryColumn& column);

}  // namespace foreshard
