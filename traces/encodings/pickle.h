// Python's pickle format read as data: numbers, texts, lists, dicts and tuples, protocols 2 to 5. Nothing is executed:
// opcodes that would name a class or call anything are an Error, as is whatever this reader does not know.
//
// Values refer to each other by index, so that shared and even cyclic ones are no trouble: never walk a value without a
// limit. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace foreshard {

struct PickleValue {
  enum class Type : std::uint8_t { None, Bool, Integer, Float, Text, List, Dict };  // tuples and sets are lists
  Type type = Type::None;
  std::int64_t integer = 0;  // Bool too
  double number = 0;
  std::string_view text;             // into the pickled bytes
  std::vector<std::uint32_t> items;  // of a dict: key, value, key, value
};

class Pickle {
 public:
  /// `bytes` must live as long as the Pickle; `file` only names it in errors. More than `max_values` is TooLarge.
  static Result<Pickle> parse(std::string_view bytes, const std::string& file, std::size_t max_values = 1U << 28U);

  const PickleValue& root() const { return values_[root_]; }
  const PickleValue& at(std::uint32_t index) const { return values_[index]; }

  /// The value of a dict's key; null if there is none or `dict` is no dict.
  const PickleValue* get(const PickleValue& dict, std::string_view key) const;
  std::int64_t integer(const PickleValue& dict, std::string_view key, std::int64_t otherwise) const;
  std::string_view text(const PickleValue& dict, std::string_view key) const;

 private:
  friend class PickleReader;
  std::vector<PickleValue> values_;
  std::uint32_t root_ = 0;
};

}  // namespace foreshard
