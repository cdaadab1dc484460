// Reads the keys of one config.json: every getter checks type and range and gives an Error that names key, expected and
// got.
//
// The first error is kept and later getters return defaults, so that a family reads all its keys and asks once.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/result.h"

namespace foreshard {

class ConfigReader {
 public:
  /// `object` must outlive the reader. `prefix` is the place of the object in the file ("rope_scaling").
  ConfigReader(const nlohmann::json& object, std::string file, std::string prefix = {});

  /// False for an absent key and for null.
  bool has(std::string_view key) const;
  /// Written down as null, which for some keys is not the same as absent.
  bool is_null(std::string_view key) const;

  std::int64_t integer(std::string_view key, std::int64_t least, std::int64_t most);
  std::int64_t integer_or(std::string_view key, std::int64_t otherwise, std::int64_t least, std::int64_t most);
  /// "pad_token_id" as nn.Embedding takes it: null is none (-1), a negative one counts from the end.
  std::int64_t padding_index(std::int64_t otherwise, std::int64_t vocabulary);
  double number_or(std::string_view key, double otherwise, double least, double most);
  bool boolean_or(std::string_view key, bool otherwise);
  std::string text_or(std::string_view key, std::string otherwise);
  std::vector<std::string> texts(std::string_view key);
  /// How many numbers the list holds; 0 for an absent key. Anything else in it is an error.
  std::int64_t numbers(std::string_view key);
  /// Entries of an object or list; 0 for anything else.
  std::int64_t entries(std::string_view key) const;

  /// The file's own dtype of parameters (torch_dtype, or dtype in newer files); float32 if it names none.
  DType parameter_dtype();

  /// Reader of an object inside, with this file; nullopt if absent or null. Errors of it must be taken over with
  /// `adopt`.
  std::optional<ConfigReader> inside(std::string_view key);
  void adopt(const ConfigReader& inner);

  void fail_with(ErrorCode code, std::string_view key, std::string message, std::string expected, std::string got,
                 std::string hint = {});
  bool failed() const { return error_.has_value(); }
  const Error& error() const { return *error_; }
  const std::string& file() const { return file_; }

 private:
  const nlohmann::json* find(std::string_view key) const;
  std::string place(std::string_view key) const;

  const nlohmann::json& object_;
  std::string file_;
  std::string prefix_;
  std::optional<Error> error_;
};

}  // namespace foreshard
