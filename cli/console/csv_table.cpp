#include "cli/console/csv_table.h"

#include <algorithm>
#include <utility>

namespace foreshard::cli {
namespace {

constexpr std::size_t kMostCells = 1'000'000;

/// Reads cell after cell; a row ends at a line end outside quotes.
class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  bool at_end() const { return at_ >= text_.size(); }

  Result<CsvTable::Row> row() {
    CsvTable::Row row;
    row.line = line_;
    for (;;) {
      auto cell = this->cell();
      if (!cell) return fail(cell.error());
      row.cells.push_back(std::move(*cell));
      if (++cells_ > kMostCells) {
        return fail(
            {ErrorCode::TooLarge, "the table has too many cells", file_, place(), "at most a million", "more", ""});
      }
      if (at_end()) return row;
      const char c = text_[at_++];
      if (c == ',') continue;
      if (c == '\r' && !at_end() && text_[at_] == '\n') ++at_;
      ++line_;
      return row;
    }
  }

 private:
  std::string place() const { return "line " + std::to_string(line_); }

  Result<std::string> cell() {
    if (!at_end() && text_[at_] == '"') return quoted();
    const std::size_t begin = at_;
    while (!at_end() && text_[at_] != ',' && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  Result<std::string> quoted() {
    const std::string opened = place();
    std::string cell;
    for (++at_; !at_end(); ++at_) {
      if (text_[at_] == '\n') ++line_;
      if (text_[at_] != '"') {
        cell += text_[at_];
      } else if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
        cell += text_[at_++];
      } else {
        ++at_;
        if (at_end() || text_[at_] == ',' || text_[at_] == '\n' || text_[at_] == '\r') return cell;
        return fail({ErrorCode::BadSyntax, "a quoted cell goes on after its closing quote", file_, place(),
                     "a comma or a line end", std::string(1, text_[at_]), "double the quotes inside a cell"});
      }
    }
    return fail({ErrorCode::BadSyntax, "a quoted cell does not end", file_, opened, "a closing quote",
                 "the end of the file", ""});
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t at_ = 0, cells_ = 0;
  int line_ = 1;
};

}  // namespace

Result<CsvTable> CsvTable::parse(std::string_view text, const std::string& file) {
  CsvTable table;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  Reader reader(text, file);
  while (!reader.at_end()) {
    auto row = reader.row();
    if (!row) return fail(row.error());
    if (row->cells.size() == 1 && row->cells[0].empty()) continue;
    if (table.header_.empty()) {
      table.header_ = std::move(row->cells);
      continue;
    }
    if (row->cells.size() != table.header_.size()) {
      return fail({ErrorCode::Inconsistent, "a row has another number of cells than the header", file,
                   "line " + std::to_string(row->line), std::to_string(table.header_.size()),
                   std::to_string(row->cells.size()), ""});
    }
    table.rows_.push_back(std::move(*row));
  }
  if (table.header_.empty())
    return fail({ErrorCode::BadSyntax, "the table is empty", file, "line 1", "a header row", "nothing", ""});
  return table;
}

std::optional<std::size_t> CsvTable::index(std::string_view column) const {
  const auto found = std::find(header_.begin(), header_.end(), column);
  if (found == header_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - header_.begin());
}

const std::string& CsvTable::cell(const Row& row, std::string_view column) const {
  static const std::string kNothing;
  const auto at = index(column);
  return at && *at < row.cells.size() ? row.cells[*at] : kNothing;
}

std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace foreshard::cli
