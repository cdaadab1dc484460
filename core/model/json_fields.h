// Fields of one JSON object whose keys are all known: typed getters that keep the first error, with file and place.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/model/model.h"
#include "core/result.h"

namespace foreshard {

/// The first error of a document, and the file it stands in.
struct JsonProblem {
  std::string file;
  std::optional<Error> error;

  /// Keeps the first error. Always false, so that readers can `return problem.set(...)`.
  bool set(ErrorCode code, std::string place, std::string message, std::string expected, std::string got,
           std::string hint = {});
};

/// The most that a count or an index of a document may be.
inline constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

class JsonFields {
 public:
  /// Reports a value that is no object and keys that are not among `known`.
  JsonFields(const nlohmann::json& value, std::string place, JsonProblem& problem,
             std::initializer_list<std::string_view> known);

  bool good() const { return !problem_.error; }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const nlohmann::json* find(std::string_view key) const;  // nullptr if absent or null
  std::string place(std::string_view key) const { return place_ + (place_.empty() ? "" : ".") + std::string(key); }
  JsonProblem& problem() { return problem_; }

  std::string text(std::string_view key);  // required
  std::string text_or(std::string_view key, std::string otherwise);
  bool boolean_or(std::string_view key, bool otherwise);
  std::int64_t integer_or(std::string_view key, std::int64_t otherwise, std::int64_t least, std::int64_t most);
  Shape shape(std::string_view key);  // required; a countable number of elements
  DType dtype(std::string_view key);  // required
  DType dtype_or(std::string_view key, DType otherwise);
  std::vector<std::string> texts(std::string_view key);          // a list of texts; empty if absent
  std::vector<std::string> text_or_texts(std::string_view key);  // a text, or a list of texts
  const nlohmann::json* array(std::string_view key);             // nullptr if absent or no array

 private:
  bool wrong_type(std::string_view key, std::string_view expected, const nlohmann::json& got);
  bool missing(std::string_view key, std::string_view expected);

  const nlohmann::json& value_;
  std::string place_;
  JsonProblem& problem_;
};

}  // namespace foreshard
