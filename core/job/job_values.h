// Reading and writing single values of a job file: what core/job/job_keys.cpp's table is made of. Private to
// core/job_keys.
#pragma once

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/job/job_keys.h"
#include "core/text/edit_distance.h"

namespace foreshard::job_values {

// Groups, world sizes and ranks end here: 2^20.
inline constexpr std::int64_t kMaxRanks = 1 << 20;

using Failure = std::optional<Error>;

/// What was found, for messages: "the text \"4\"", "a list of 3".
std::string describe(const JobValue& value);
/// A place inside the value, then where in the file: "[0].strategy", line 3, column 5.
struct Spot {
  const JobValue& value;
  std::string path;

  std::string place() const {
    return value.line == 0 ? path : fmt::format("{} (line {}, column {})", path, value.line, value.column);
  }
  Error error(ErrorCode code, std::string message, std::string expected, std::string hint = {}) const {
    return {.code = code,
            .message = std::move(message),
            .file = {},
            .place = place(),
            .expected = std::move(expected),
            .got = describe(value),
            .hint = std::move(hint)};
  }
  Error wrong_type(std::string expected) const {
    return error(ErrorCode::WrongType, "the value has the wrong type", std::move(expected));
  }
  Spot item(std::size_t i) const { return {value.items[i], fmt::format("{}[{}]", path, i)}; }
  Spot entry(std::size_t i) const { return {value.entries[i].value, path + "." + value.entries[i].name}; }
};

template <class Words>
std::string nearest_word(std::string_view word, const Words& words) {
  std::string best;
  std::size_t distance = std::string_view::npos;
  for (const auto& candidate : words) {
    const std::size_t d = edit_distance(word, candidate);
    if (d < distance) distance = d, best = candidate;
  }
  return best;
}

template <class Words>
std::string join_words(const Words& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

// One reader and one writer a type. A reader that fails leaves its target alone.
std::string quoted_text(std::string_view text);
std::string number_text(double value);
std::string texts_text(const std::vector<std::string>& texts);
std::string key_text(const std::string& key);
Failure read_bool(const Spot& spot, bool& out);
Failure read_integer(const Spot& spot, std::int64_t min, std::int64_t max, std::int64_t& out);
Failure read_number(const Spot& spot, double min, double max, double& out);
Failure read_text(const Spot& spot, std::string& out);
Failure read_word(const Spot& spot, const std::vector<std::string>& words, std::string& out);
Failure read_texts(const Spot& spot, std::vector<std::string>& out);
Failure read_dtype(const Spot& spot, std::string_view empty_word, std::optional<DType>& out);
std::string dtype_text(const std::optional<DType>& dtype, std::string_view empty_word);
Failure read_cast_inputs(const Spot& spot, std::optional<bool>& out);
std::string cast_inputs_text(const std::optional<bool>& value);
Failure read_comm_hook(const Spot& spot, std::string& out);
Failure read_reshard(const Spot& spot, ReshardAfterForward& out);
std::string reshard_text(const ReshardAfterForward& value);

/// An enumeration and the words of its values.
template <class E>
struct Words {
  std::vector<std::pair<std::string, E>> pairs;
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& [name, value] : pairs) out.push_back(name);
    return out;
  }
};

const Words<Strategy>& strategies();
const Words<OptimizerKind>& optimizer_kinds();
const Words<OptimizerImpl>& optimizer_impls();
const Words<OptimizerLibrary>& optimizer_libraries();
const Words<BackwardPrefetch>& backward_prefetches();

template <class E>
Failure read_enum(const Spot& spot, const Words<E>& words, E& out) {
  std::string word;
  if (Failure failure = read_word(spot, words.names(), word)) return failure;
  for (const auto& [name, value] : words.pairs) {
    if (name == word) out = value;
  }
  return {};
}

template <class E>
std::string enum_text(const Words<E>& words, E value) {
  for (const auto& [name, candidate] : words.pairs) {
    if (candidate == value) return quoted_text(name);
  }
  return quoted_text("");
}

// Values that are tables or lists of lists.
using PrefetchLists = std::map<std::string, std::vector<std::string>>;
Failure read_sizes(const Spot& spot, std::map<std::string, std::int64_t>& out);
std::string sizes_text(const std::map<std::string, std::int64_t>& sizes);
Failure read_overrides(const Spot& spot, Job& job);
std::string overrides_text(const std::vector<UnitOverride>& overrides);
/// A key of a table that it does not have: the i-th.
Failure unknown_field(const Spot& spot, std::size_t i, const std::vector<std::string>& fields);
Failure read_optimizer_parts(const Spot& spot, std::vector<OptimizerPart>& out);
std::string optimizer_parts_text(const std::vector<OptimizerPart>& parts);
Failure read_prefetch_lists(const Spot& spot, PrefetchLists& out);
std::string prefetch_lists_text(const PrefetchLists& lists);
Failure read_wrap_units(const Spot& spot, std::vector<std::vector<std::string>>& out);
std::string wrap_units_text(const std::vector<std::vector<std::string>>& units);
Failure read_script(const Spot& spot, std::vector<std::vector<std::string>>& out);
std::string script_text(const std::vector<std::vector<std::string>>& script);
Failure read_traps(const Spot& spot, std::vector<std::int64_t>& out);
Failure read_betas(const Spot& spot, OptimizerOptions& out);
Failure read_memory(const Spot& spot, Bytes& out);
Failure read_budget(const Spot& spot, Bytes& out);
Failure read_init(const Spot& spot, std::string& out);
Failure read_mesh_plan(const Spot& spot, std::map<std::string, std::string>& out);
Failure read_text_table(const Spot& spot, std::map<std::string, std::string>& out);
std::string text_table(const std::map<std::string, std::string>& table);
std::string mesh_plan_text(const std::map<std::string, std::string>& plan);

}  // namespace foreshard::job_values
