// The rows of published tables that constants of this program were fitted to. They never count towards an accuracy, and
// docs/accuracy.md lists them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace foreshard::cli {

struct FittedRows {
  std::string_view constants;          // which
  std::string_view table;              // "training" | "collectives"
  std::vector<std::string_view> rows;  // ids; a trailing * stands for the sizes of a sweep that are even powers of two
};
const std::vector<FittedRows>& fitted_rows();

/// `bytes` is the message of a collective.
bool is_fitted(std::string_view table, const std::string& id, std::int64_t bytes = 0);

}  // namespace foreshard::cli
