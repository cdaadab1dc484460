#include "traces/query/trace_query.h"

#include <fmt/format.h>

#ifdef FORESHARD_WITH_SQLITE
#include <sqlite3.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "traces/query/timeline_tables.h"

namespace foreshard {
namespace {

std::string create_text(const QueryTable& table) {
  std::string text = fmt::format("CREATE TABLE {}(", table.name);
  for (const QueryColumn& column : table.columns)
    text += fmt::format("{}{} {}", &column == table.columns.data() ? "" : ", ", column.name, column.type);
  return text + ")";
}

Error query_error(std::string message, std::string_view sql, std::string got, std::string hint) {
  Error error;
  error.code = ErrorCode::Usage;
  error.place = "the question";
  error.message = std::move(message);
  error.expected = "one SELECT over spans, lanes, flows, counters, samples, marks, iterations";
  error.got = got.empty() ? std::string(sql) : std::move(got);
  error.hint = std::move(hint);
  return error;
}

#ifdef FORESHARD_WITH_SQLITE

/// What SQLite hands back to a table's functions: which of the tables, over which timeline.
struct TableOfTimeline {
  const QueryTable* table = nullptr;
  const QueriedTimeline* of = nullptr;
};

struct VirtualTable : sqlite3_vtab {
  TableOfTimeline what;
};

/// A comparison of an integer column with a number, asked at every row before SQLite sees it.
struct Bound {
  const QueryColumn* column = nullptr;
  int op = 0;
  std::int64_t value = 0;
};

struct Cursor : sqlite3_vtab_cursor {
  TableOfTimeline what;
  std::size_t row = 0, rows = 0;
  std::vector<Bound> bounds;

  bool passes() const {
    for (const Bound& bound : bounds) {
      const QueryValue value = bound.column->value(*what.of, row);
      const auto* number = std::get_if<std::int64_t>(&value);
      if (number == nullptr) return false;  // a comparison with NULL is never true
      switch (bound.op) {
        case SQLITE_INDEX_CONSTRAINT_EQ:
          if (*number != bound.value) return false;
          break;
        case SQLITE_INDEX_CONSTRAINT_GT:
          if (*number <= bound.value) return false;
          break;
        case SQLITE_INDEX_CONSTRAINT_GE:
          if (*number < bound.value) return false;
          break;
        case SQLITE_INDEX_CONSTRAINT_LT:
          if (*number >= bound.value) return false;
          break;
        default:
          if (*number > bound.value) return false;
      }
    }
    return true;
  }
  void skip() {
    while (row < rows && !passes()) ++row;
  }
};

int connect(sqlite3* database, void* data, int, const char* const*, sqlite3_vtab** made, char**) {
  const auto* what = static_cast<const TableOfTimeline*>(data);
  const int code = sqlite3_declare_vtab(database, create_text(*what->table).c_str());
  if (code != SQLITE_OK) return code;
  auto table = std::make_unique<VirtualTable>();
  table->what = *what;
  *made = table.release();
  return SQLITE_OK;
}

int disconnect(sqlite3_vtab* table) {
  delete static_cast<VirtualTable*>(table);
  return SQLITE_OK;
}

bool comparable(int op) {
  return op == SQLITE_INDEX_CONSTRAINT_EQ || op == SQLITE_INDEX_CONSTRAINT_GT || op == SQLITE_INDEX_CONSTRAINT_GE ||
         op == SQLITE_INDEX_CONSTRAINT_LT || op == SQLITE_INDEX_CONSTRAINT_LE;
}

/// A row's place in the table: what joins ask for.
bool is_place(const QueryTable& table, int column) { return column == 0 && table.columns.front().name == "id"; }

/// idxStr lists "column op" of what filter() is to ask; SQLite asks again, so that other types compare as it does.
int best_index(sqlite3_vtab* table, sqlite3_index_info* info) {
  const TableOfTimeline& what = static_cast<VirtualTable*>(table)->what;
  const auto rows = static_cast<double>(what.table->rows(*what.of));
  std::string plan;
  int arguments = 0;
  bool by_place = false;
  for (int i = 0; i < info->nConstraint; ++i) {
    const auto& constraint = info->aConstraint[i];
    if (constraint.usable == 0 || constraint.iColumn < 0 || !comparable(constraint.op)) continue;
    if (what.table->columns[static_cast<std::size_t>(constraint.iColumn)].type != "INTEGER") continue;
    info->aConstraintUsage[i].argvIndex = ++arguments;
    plan += fmt::format("{} {} ", constraint.iColumn, static_cast<int>(constraint.op));
    by_place = by_place || (constraint.op == SQLITE_INDEX_CONSTRAINT_EQ && is_place(*what.table, constraint.iColumn));
  }
  info->estimatedCost = by_place ? 1 : arguments > 0 ? rows / 4 : rows;
  if (by_place) info->idxFlags = SQLITE_INDEX_SCAN_UNIQUE;
  info->estimatedRows = static_cast<sqlite3_int64>(info->estimatedCost);
  info->idxStr = sqlite3_mprintf("%s", plan.c_str());
  info->needToFreeIdxStr = 1;
  return SQLITE_OK;
}

int open(sqlite3_vtab* table, sqlite3_vtab_cursor** made) {
  auto cursor = std::make_unique<Cursor>();
  cursor->what = static_cast<VirtualTable*>(table)->what;
  *made = cursor.release();
  return SQLITE_OK;
}

int close(sqlite3_vtab_cursor* cursor) {
  delete static_cast<Cursor*>(cursor);
  return SQLITE_OK;
}

int filter(sqlite3_vtab_cursor* base, int, const char* plan, int count, sqlite3_value** values) {
  Cursor& cursor = *static_cast<Cursor*>(base);
  cursor.row = 0;
  cursor.rows = cursor.what.table->rows(*cursor.what.of);
  cursor.bounds.clear();
  for (int i = 0; i < count; ++i) {
    char* next = nullptr;
    const long column = std::strtol(plan, &next, 10);
    const long op = std::strtol(next, &next, 10);
    plan = next;
    // Reals and texts are left to SQLite.
    if (sqlite3_value_type(values[i]) != SQLITE_INTEGER) continue;
    const sqlite3_int64 value = sqlite3_value_int64(values[i]);
    if (op == SQLITE_INDEX_CONSTRAINT_EQ && is_place(*cursor.what.table, static_cast<int>(column))) {
      const bool there = value >= 0 && static_cast<std::size_t>(value) < cursor.rows;
      cursor.row = there ? static_cast<std::size_t>(value) : cursor.rows;
      cursor.rows = std::min(cursor.rows, cursor.row + 1);
      continue;
    }
    cursor.bounds.push_back(
        {&cursor.what.table->columns[static_cast<std::size_t>(column)], static_cast<int>(op), value});
  }
  cursor.skip();
  return SQLITE_OK;
}

int next(sqlite3_vtab_cursor* base) {
  Cursor& cursor = *static_cast<Cursor*>(base);
  ++cursor.row;
  cursor.skip();
  return SQLITE_OK;
}

int eof(sqlite3_vtab_cursor* base) {
  const Cursor& cursor = *static_cast<Cursor*>(base);
  return cursor.row >= cursor.rows ? 1 : 0;
}

int column(sqlite3_vtab_cursor* base, sqlite3_context* context, int index) {
  const Cursor& cursor = *static_cast<Cursor*>(base);
  const QueryValue value =
      cursor.what.table->columns[static_cast<std::size_t>(index)].value(*cursor.what.of, cursor.row);
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    sqlite3_result_int64(context, *number);
  } else if (const auto* real = std::get_if<double>(&value)) {
    sqlite3_result_double(context, *real);
  } else if (const auto* text = std::get_if<std::string_view>(&value)) {
    sqlite3_result_text64(context, text->data(), text->size(), SQLITE_STATIC, SQLITE_UTF8);  // outlives the statement
  } else {
    sqlite3_result_null(context);
  }
  return SQLITE_OK;
}

int row_id(sqlite3_vtab_cursor* base, sqlite3_int64* id) {
  *id = static_cast<sqlite3_int64>(static_cast<Cursor*>(base)->row);
  return SQLITE_OK;
}

sqlite3_module module_of_tables() {
  sqlite3_module module{};  // no xCreate: the tables are there without being made
  module.xConnect = connect;
  module.xBestIndex = best_index;
  module.xDisconnect = disconnect;
  module.xOpen = open;
  module.xClose = close;
  module.xFilter = filter;
  module.xNext = next;
  module.xEof = eof;
  module.xColumn = column;
  module.xRowid = row_id;
  return module;
}

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
};
struct EndStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};

/// Reading and functions are allowed; files, settings and code are not.
int allow(void*, int action, const char*, const char* second, const char*, const char*) {
  const bool reads = action == SQLITE_SELECT || action == SQLITE_READ || action == SQLITE_RECURSIVE;
  const bool calls = action == SQLITE_FUNCTION && std::string_view(second != nullptr ? second : "") != "load_extension";
  return reads || calls ? SQLITE_OK : SQLITE_DENY;
}

QueryValue value_of(sqlite3_stmt* statement, int index) {
  switch (sqlite3_column_type(statement, index)) {
    case SQLITE_INTEGER: return QueryValue(std::int64_t{sqlite3_column_int64(statement, index)});
    case SQLITE_FLOAT: return QueryValue(sqlite3_column_double(statement, index));
    case SQLITE_NULL: return {};
    default: {
      const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement, index));
      return QueryValue(std::string_view(text, static_cast<std::size_t>(sqlite3_column_bytes(statement, index))));
    }
  }
}

Result<void> run(sqlite3* database, std::string_view sql, const QueryReceiver& receiver) {
  sqlite3_stmt* made = nullptr;
  const char* rest = nullptr;
  const int code = sqlite3_prepare_v2(database, sql.data(), static_cast<int>(sql.size()), &made, &rest);
  const std::unique_ptr<sqlite3_stmt, EndStatement> statement(made);
  if (code == SQLITE_AUTH) return fail(query_error("the question does more than read", sql, "", ""));
  if (code != SQLITE_OK) {
    const int at = sqlite3_error_offset(database);
    return fail(
        query_error(sqlite3_errmsg(database), sql,
                    at >= 0 ? fmt::format("at letter {}: {}", at + 1, sql.substr(static_cast<std::size_t>(at))) : "",
                    "docs/formats/sql.md has the tables and their columns"));
  }
  if (made == nullptr) return fail(query_error("the question is empty", sql, "nothing", ""));
  const std::string_view behind(rest, static_cast<std::size_t>(sql.data() + sql.size() - rest));
  if (behind.find_first_not_of(" \t\r\n;") != std::string_view::npos)
    return fail(query_error("there is more than one statement", sql, std::string(behind), "ask them one by one"));
  std::vector<std::string> columns;
  for (int i = 0; i < sqlite3_column_count(made); ++i) columns.emplace_back(sqlite3_column_name(made, i));
  if (receiver.columns) receiver.columns(columns);
  std::vector<QueryValue> row(columns.size());
  int step = sqlite3_step(made);
  for (; step == SQLITE_ROW; step = sqlite3_step(made)) {
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = value_of(made, static_cast<int>(i));
    if (receiver.row && !receiver.row(row)) return {};
  }
  if (step != SQLITE_DONE) return fail(query_error(sqlite3_errmsg(database), sql, "", ""));
  return {};
}

#endif

}  // namespace

std::vector<std::string> timeline_schema() {
  std::vector<std::string> texts;
  for (const QueryTable& table : timeline_tables()) texts.push_back(create_text(table));
  return texts;
}

#ifdef FORESHARD_WITH_SQLITE
Result<void> query_timeline(const Timeline& timeline, std::string_view sql, const QueryReceiver& receiver) {
  const QueriedTimeline queried(timeline);
  sqlite3* opened = nullptr;
  const int code = sqlite3_open(":memory:", &opened);
  const std::unique_ptr<sqlite3, CloseDatabase> database(opened);
  if (code != SQLITE_OK) return fail(query_error("SQLite cannot be started", sql, "", ""));
  const sqlite3_module module = module_of_tables();
  std::vector<TableOfTimeline> tables;
  tables.reserve(timeline_tables().size());
  for (const QueryTable& table : timeline_tables()) {
    tables.push_back({&table, &queried});
    sqlite3_create_module(database.get(), std::string(table.name).c_str(), &module, &tables.back());
  }
  // Tables come to be when they are first named, which the authorizer would take for writing.
  for (const QueryTable& table : timeline_tables())
    sqlite3_exec(database.get(), fmt::format("SELECT 1 FROM {} LIMIT 0", table.name).c_str(), nullptr, nullptr,
                 nullptr);
  sqlite3_limit(database.get(), SQLITE_LIMIT_ATTACHED, 0);
  sqlite3_set_authorizer(database.get(), allow, nullptr);
  return run(database.get(), sql, receiver);
}
#else
Result<void> query_timeline(const Timeline&, std::string_view sql, const QueryReceiver&) {
  Error error = query_error("this build asks no questions in SQL", sql, "", "build with libsqlite3-dev installed");
  error.code = ErrorCode::Unsupported;
  return fail(std::move(error));
}
#endif

}  // namespace foreshard
