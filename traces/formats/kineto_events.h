// One Chrome event, taken apart: the fields as text, numbers not yet judged. Private to the readers of Chrome JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/timeline.h"

namespace foreshard {

/// Texts live as long as the chunk that they stand in. Tokens are JSON as it stands: strings with their quotes.
struct ChromeEvent {
  struct Argument {
    std::string_view key, token;
  };
  char phase = 0;
  std::string_view category, name, process, thread, time, duration, id;  // name without quotes, the rest as tokens
  std::string_view all_arguments;                                        // the object "args" as it stands
  std::vector<Argument> arguments;  // of "args"; of objects and arrays only "{", "["

  void clear();
  std::string_view argument(std::string_view key) const;  // its token; empty if absent
};

/// A JSON number of microseconds as nanoseconds, digit by digit: a double has too few for Unix time. NaN, infinities,
/// texts and what fits no 62 bits are nothing.
std::optional<std::int64_t> microseconds_token(std::string_view token);
std::optional<std::int64_t> integer_token(std::string_view token);  // also of a number in quotes
std::string_view text_token(std::string_view token);                // without quotes, escapes as they stand

/// Thread and process are numbers or texts: texts get a number of their own, below every real one.
std::int64_t identity_token(std::string_view token);

}  // namespace foreshard
