// Tables as comma-separated text (RFC 4180: quotes, doubled quotes, line ends inside quotes), with a header row.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace foreshard::cli {

class CsvTable {
 public:
  struct Row {
    std::vector<std::string> cells;
    int line = 0;  // where it begins in the file
  };

  /// `file` only names it in errors. Every row must have as many cells as the header.
  static Result<CsvTable> parse(std::string_view text, const std::string& file);

  const std::vector<std::string>& header() const { return header_; }
  const std::vector<Row>& rows() const { return rows_; }
  bool has(std::string_view column) const { return index(column).has_value(); }
  /// "" if there is no such column.
  const std::string& cell(const Row& row, std::string_view column) const;

 private:
  std::optional<std::size_t> index(std::string_view column) const;

  std::vector<std::string> header_;
  std::vector<Row> rows_;
};

/// One cell as it stands in a file: quoted if it has to be.
std::string csv_cell(std::string_view text);

}  // namespace foreshard::cli
