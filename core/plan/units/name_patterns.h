// Patterns of a job (fnmatch words) against the names of a model: which entries each matches, and what to say when it
// matches none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/model/model.h"
#include "core/result.h"

namespace foreshard {

/// The name that a misspelt one most resembles; empty if there are no names.
std::string nearest_name(std::string_view word, const std::vector<std::string_view>& names);

/// "[root]" for the root's empty name.
std::string shown_name(std::string_view fqn);

/// Indices of the names that `pattern` matches, in order. Error (place = the job's key): it matches none; the hint has
/// the nearest name.
Result<std::vector<std::size_t>> match_names(const std::string& pattern, const std::vector<std::string_view>& names,
                                             const std::string& place, const char* what);

/// Names in which many patterns are looked up: most of these are names themselves, which are found at once.
class NameTable {
 public:
  explicit NameTable(std::vector<std::string_view> names);

  /// As match_names.
  Result<std::vector<std::size_t>> match(const std::string& pattern, const std::string& place, const char* what) const;

 private:
  std::vector<std::string_view> names_;
  std::vector<std::size_t> sorted_;  // indices by name, equal names in order
};

/// Whether a pattern is a name: it matches nothing else.
bool is_plain_name(std::string_view pattern);

/// Names of all modules and of all parameters of a model, in its order.
std::vector<std::string_view> module_names(const Model& model);
std::vector<std::string_view> param_names(const Model& model);

}  // namespace foreshard
