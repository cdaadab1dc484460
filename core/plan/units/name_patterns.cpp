#include "core/plan/units/name_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/job.h"
#include "core/text/edit_distance.h"

namespace foreshard {

std::string nearest_name(std::string_view word, const std::vector<std::string_view>& names) {
  const auto nearer = [&](std::string_view a, std::string_view b) {
    return edit_distance(word, a) < edit_distance(word, b);
  };
  // Only the first few thousand names: an error must not take longer than the work it replaces.
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(names.size(), 4096));
  const auto best = std::min_element(names.begin(), end, nearer);
  return best == end ? std::string() : std::string(*best);
}

std::string shown_name(std::string_view fqn) { return fqn.empty() ? "[root]" : std::string(fqn); }

Result<std::vector<std::size_t>> match_names(const std::string& pattern, const std::vector<std::string_view>& names,
                                             const std::string& place, const char* what) {
  std::vector<std::size_t> matches;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (matches_pattern(pattern, names[i])) matches.push_back(i);
  }
  if (!matches.empty()) return matches;
  const std::string nearest = nearest_name(pattern, names);
  return fail({ErrorCode::NotFound,
               fmt::format("the pattern '{}' matches no {}", pattern, what),
               {},
               place,
               fmt::format("a pattern that matches a {}", what),
               pattern,
               nearest.empty() ? std::string() : fmt::format("the nearest name is '{}'", nearest)});
}

NameTable::NameTable(std::vector<std::string_view> names) : names_(std::move(names)), sorted_(names_.size()) {
  std::iota(sorted_.begin(), sorted_.end(), std::size_t{0});
  std::stable_sort(sorted_.begin(), sorted_.end(), [&](std::size_t a, std::size_t b) { return names_[a] < names_[b]; });
}

Result<std::vector<std::size_t>> NameTable::match(const std::string& pattern, const std::string& place,
                                                  const char* what) const {
  if (!is_plain_name(pattern)) return match_names(pattern, names_, place, what);
  const auto begin = std::lower_bound(sorted_.begin(), sorted_.end(), std::string_view(pattern),
                                      [&](std::size_t at, std::string_view name) { return names_[at] < name; });
  const auto end = std::find_if(begin, sorted_.end(), [&](std::size_t at) { return names_[at] != pattern; });
  if (begin == end) return match_names(pattern, names_, place, what);  // says what is near
  return std::vector<std::size_t>(begin, end);
}

bool is_plain_name(std::string_view pattern) { return pattern.find_first_of("*?") == std::string_view::npos; }

std::vector<std::string_view> module_names(const Model& model) {
  std::vector<std::string_view> names;
  for (const ModuleInfo& module : model.modules) names.push_back(module.fqn);
  return names;
}

std::vector<std::string_view> param_names(const Model& model) {
  std::vector<std::string_view> names;
  for (const ParamInfo& param : model.params) names.push_back(param.fqn);
  return names;
}

}  // namespace foreshard
