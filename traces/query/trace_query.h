// Questions to a timeline in SQL. Its tables (spans, lanes, flows, counters, samples, marks, iterations) are SQLite's
// virtual tables over the timeline's own columns: nothing is copied, a question starts at once. docs/formats/sql.md has
// the columns.
//
// Read only: statements that write, attach files or load code are refused. Pure; the timeline outlives the call. Where
// the build has no SQLite every question is an Error.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/result.h"
#include "core/timeline.h"

namespace foreshard {

/// NULL, integer, real, text.
using QueryValue = std::variant<std::monostate, std::int64_t, double, std::string_view>;

struct QueryReceiver {
  std::function<void(const std::vector<std::string>& columns)> columns;
  std::function<bool(const std::vector<QueryValue>& row)> row;  // texts live until it returns; false = no more
  std::function<bool()> stopped;  // asked now and then, by the same thread; true = no more, which is no error
};

/// One statement that reads. Errors: what SQLite says of the statement, with its place; statements that write.
Result<void> query_timeline(const Timeline& timeline, std::string_view sql, const QueryReceiver& receiver);

/// "CREATE TABLE spans(...)" and so on, one a line, as in docs/formats/sql.md.
std::vector<std::string> timeline_schema();

}  // namespace foreshard
