#include "traces/query/trace_query.h"

#include <fmt/format.h>

#ifdef FORESHARD_WITH_SQLITE
#include <sqlite3.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "traces/query/grouped_sums.h"
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

/// A comparison of an integer column with a number, or of a column of few texts with one of them, asked at every row
/// before SQLite sees it.
struct Bound {
  const QueryColumn* column = nullptr;
  int op = 0;
  std::int64_t value = 0;
  std::vector<bool> passes;  // by code of a text; empty: a number is compared
};

struct Cursor : sqlite3_vtab_cursor {
  TableOfTimeline what;
  std::size_t at = 0, end = 0;       // in `order`, or rows
  std::vector<std::uint32_t> order;  // rows in the wanted order
  bool ordered = false;
  std::vector<Bound> bounds;

  std::size_t row() const { return ordered ? order[at] : at; }

  bool passes(std::size_t row) const {
    for (const Bound& bound : bounds) {
      if (bound.column->code != nullptr) {
        const std::int32_t code = bound.column->code(*what.of, row);
        if (code < 0 || !bound.passes[static_cast<std::size_t>(code)]) return false;
        continue;
      }
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
    if (ordered) return;  // only rows that pass are there
    while (at < end && !passes(at)) ++at;
  }

  /// Rows that pass, sorted by texts column after column: each is one pass of counting, last column first.
  void sort_by(const std::vector<const QueryColumn*>& columns) {
    for (std::size_t row = at; row < end; ++row)
      if (passes(row)) order.push_back(static_cast<std::uint32_t>(row));
    std::vector<std::uint32_t> next(order.size());
    for (auto column = columns.rbegin(); column != columns.rend(); ++column) {
      const std::vector<std::uint32_t> places = text_places(*what.of, **column);
      const auto place = [&](std::uint32_t row) {
        return places[static_cast<std::size_t>((*column)->code(*what.of, row) + 1)];
      };
      std::vector<std::size_t> first(places.size() + 2, 0);
      for (const std::uint32_t row : order) ++first[place(row) + 1];
      for (std::size_t p = 1; p < first.size(); ++p) first[p] += first[p - 1];
      for (const std::uint32_t row : order) next[first[place(row)]++] = row;
      order.swap(next);
    }
    ordered = true;
    at = 0;
    end = order.size();
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

constexpr std::size_t kMostRows = 0xffffffffU;  // that an order holds

/// Columns of the wanted order, where all are texts that can be sorted by counting; else nothing.
std::string wanted_order(const TableOfTimeline& what, sqlite3_index_info* info) {
  std::string columns;
  // Equal rows side by side, in any order, is what DISTINCT asks for (2). GROUP BY (1) may have an ORDER BY's DESC in
  // it.
  const bool any_direction = sqlite3_vtab_distinct(info) == 2;
  for (int i = 0; i < info->nOrderBy; ++i) {
    const auto& term = info->aOrderBy[i];
    if (term.iColumn < 0 || (term.desc != 0 && !any_direction)) return {};
    if (what.table->columns[static_cast<std::size_t>(term.iColumn)].code == nullptr) return {};
    columns += fmt::format("{} ", term.iColumn);
  }
  return what.table->rows(*what.of) < kMostRows ? columns : std::string();
}

/// idxStr lists "column op" of what filter() is to ask, then "|" and the columns to sort by. SQLite compares numbers
/// again, so that other types compare as it does; texts have been compared as it would.
int best_index(sqlite3_vtab* table, sqlite3_index_info* info) {
  const TableOfTimeline& what = static_cast<VirtualTable*>(table)->what;
  const auto rows = static_cast<double>(what.table->rows(*what.of));
  std::string plan;
  int arguments = 0;
  bool by_place = false;
  for (int i = 0; i < info->nConstraint; ++i) {
    const auto& constraint = info->aConstraint[i];
    if (constraint.usable == 0 || constraint.iColumn < 0 || !comparable(constraint.op)) continue;
    const QueryColumn& column = what.table->columns[static_cast<std::size_t>(constraint.iColumn)];
    const bool text = column.code != nullptr && constraint.op == SQLITE_INDEX_CONSTRAINT_EQ &&
                      std::string_view(sqlite3_vtab_collation(info, i)) == "BINARY";
    if (column.type != "INTEGER" && !text) continue;
    info->aConstraintUsage[i].argvIndex = ++arguments;
    info->aConstraintUsage[i].omit = text ? 1 : 0;
    plan += fmt::format("{} {} ", constraint.iColumn, static_cast<int>(constraint.op));
    by_place = by_place || (constraint.op == SQLITE_INDEX_CONSTRAINT_EQ && is_place(*what.table, constraint.iColumn));
  }
  info->estimatedCost = by_place ? 1 : arguments > 0 ? rows / 4 : rows;
  if (by_place) info->idxFlags = SQLITE_INDEX_SCAN_UNIQUE;
  info->estimatedRows = static_cast<sqlite3_int64>(info->estimatedCost);
  if (const std::string order = by_place ? std::string() : wanted_order(what, info); !order.empty()) {
    plan += "| " + order;
    info->orderByConsumed = 1;
  }
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

/// The texts of a column that equal a value, as SQLite compares texts with it: numbers become texts.
Bound text_bound(const QueriedTimeline& of, const QueryColumn& column, sqlite3_value* value) {
  Bound bound{&column, SQLITE_INDEX_CONSTRAINT_EQ, 0, std::vector<bool>(column.codes(of), false)};
  const int type = sqlite3_value_type(value);
  if (type == SQLITE_NULL || type == SQLITE_BLOB) return bound;
  const auto* letters = reinterpret_cast<const char*>(sqlite3_value_text(value));
  const std::string_view wanted(letters, static_cast<std::size_t>(sqlite3_value_bytes(value)));
  for (std::size_t code = 0; code < bound.passes.size(); ++code) bound.passes[code] = column.text(of, code) == wanted;
  return bound;
}

int filter(sqlite3_vtab_cursor* base, int, const char* plan, int count, sqlite3_value** values) {
  Cursor& cursor = *static_cast<Cursor*>(base);
  const QueryTable& table = *cursor.what.table;
  cursor.at = 0;
  cursor.end = table.rows(*cursor.what.of);
  cursor.bounds.clear();
  cursor.order.clear();
  cursor.ordered = false;
  for (int i = 0; i < count; ++i) {
    char* next = nullptr;
    const long index = std::strtol(plan, &next, 10);
    const long op = std::strtol(next, &next, 10);
    plan = next;
    const QueryColumn& column = table.columns[static_cast<std::size_t>(index)];
    if (column.code != nullptr) {
      cursor.bounds.push_back(text_bound(*cursor.what.of, column, values[i]));
      continue;
    }
    // Reals and texts are left to SQLite.
    if (sqlite3_value_type(values[i]) != SQLITE_INTEGER) continue;
    const sqlite3_int64 value = sqlite3_value_int64(values[i]);
    if (op == SQLITE_INDEX_CONSTRAINT_EQ && is_place(table, static_cast<int>(index))) {
      const bool there = value >= 0 && static_cast<std::size_t>(value) < cursor.end;
      cursor.at = there ? static_cast<std::size_t>(value) : cursor.end;
      cursor.end = std::min(cursor.end, cursor.at + 1);
      continue;
    }
    cursor.bounds.push_back({&column, static_cast<int>(op), value, {}});
  }
  std::vector<const QueryColumn*> order;
  plan = std::strchr(plan, '|');
  for (char* next = nullptr; plan != nullptr; plan = next) {
    const char* number = plan + (*plan == '|' ? 1 : 0);
    const long index = std::strtol(number, &next, 10);
    if (next == number) break;
    order.push_back(&table.columns[static_cast<std::size_t>(index)]);
  }
  if (!order.empty()) cursor.sort_by(order);
  cursor.skip();
  return SQLITE_OK;
}

int next(sqlite3_vtab_cursor* base) {
  Cursor& cursor = *static_cast<Cursor*>(base);
  ++cursor.at;
  cursor.skip();
  return SQLITE_OK;
}

int eof(sqlite3_vtab_cursor* base) {
  const Cursor& cursor = *static_cast<Cursor*>(base);
  return cursor.at >= cursor.end ? 1 : 0;
}

int column(sqlite3_vtab_cursor* base, sqlite3_context* context, int index) {
  const Cursor& cursor = *static_cast<Cursor*>(base);
  const QueryValue value =
      cursor.what.table->columns[static_cast<std::size_t>(index)].value(*cursor.what.of, cursor.row());
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
  *id = static_cast<sqlite3_int64>(static_cast<Cursor*>(base)->row());
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

constexpr int kStepsPerLook = 100;  // of SQLite's machine: some rows

int is_stopped(void* asked) { return (*static_cast<std::function<bool()>*>(asked))() ? 1 : 0; }

Result<void> run(sqlite3* database, std::string_view sql, const QueryReceiver& receiver) {
  std::function<bool()> stopped = receiver.stopped;
  if (stopped) sqlite3_progress_handler(database, kStepsPerLook, is_stopped, &stopped);
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
  if (step == SQLITE_INTERRUPT) return {};  // the receiver is answered no more
  if (step != SQLITE_DONE) return fail(query_error(sqlite3_errmsg(database), sql, "", ""));
  return {};
}

/// The groups as a table of their own; false if SQLite does not take them.
bool keep_groups(sqlite3* database, const GroupedQuestion& grouped) {
  std::string columns, places;
  for (const std::string& name : grouped.columns) {
    // A sum has no type, as in SQLite: count(*) > '5' compares a number with a text.
    columns += fmt::format("{}{}{}", columns.empty() ? "" : ", ", name,
                           name.starts_with("sum_") ? ""
                           : name == "rank"         ? " INTEGER"
                                                    : " TEXT");
    places += places.empty() ? "?" : ", ?";
  }
  const std::string create = fmt::format("CREATE TABLE grouped({})", columns);
  if (sqlite3_exec(database, create.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) return false;
  sqlite3_stmt* made = nullptr;
  sqlite3_prepare_v2(database, fmt::format("INSERT INTO grouped VALUES({})", places).c_str(), -1, &made, nullptr);
  const std::unique_ptr<sqlite3_stmt, EndStatement> statement(made);
  if (made == nullptr) return false;
  for (const std::vector<QueryValue>& row : grouped.rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const int place = static_cast<int>(c) + 1;
      if (const auto* number = std::get_if<std::int64_t>(&row[c]))
        sqlite3_bind_int64(made, place, *number);
      else if (const auto* text = std::get_if<std::string_view>(&row[c]))
        sqlite3_bind_text64(made, place, text->data(), text->size(), SQLITE_STATIC, SQLITE_UTF8);
      else
        sqlite3_bind_null(made, place);
    }
    if (sqlite3_step(made) != SQLITE_DONE) return false;
    sqlite3_reset(made);
  }
  return true;
}

/// What is wrong with a question is told of the question as it was asked.
bool understands(sqlite3* database, const std::string& sql) {
  sqlite3_stmt* made = nullptr;
  const int code = sqlite3_prepare_v2(database, sql.c_str(), -1, &made, nullptr);
  const std::unique_ptr<sqlite3_stmt, EndStatement> statement(made);
  return code == SQLITE_OK && made != nullptr;
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
  std::optional<GroupedQuestion> grouped = grouped_question(queried, sql);
  if (grouped && !keep_groups(database.get(), *grouped)) grouped.reset();
  sqlite3_limit(database.get(), SQLITE_LIMIT_ATTACHED, 0);
  sqlite3_set_authorizer(database.get(), allow, nullptr);
  if (grouped && understands(database.get(), grouped->sql)) return run(database.get(), grouped->sql, receiver);
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
