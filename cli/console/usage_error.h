// A verb that was asked for in a way it does not take: exit code 2.
#pragma once

#include <string>
#include <utility>

#include "core/result.h"

namespace foreshard::cli {

inline Error usage_error(std::string message, std::string expected, std::string got) {
  Error error;
  error.code = ErrorCode::Usage;
  error.place = "command line";
  error.message = std::move(message);
  error.expected = std::move(expected);
  error.got = std::move(got);
  return error;
}

/// Of a flag or argument of a verb, with where its usage stands.
inline Error verb_usage_error(const std::string& verb, std::string place, std::string message, std::string expected,
                              std::string got) {
  Error error = usage_error(std::move(message), std::move(expected), std::move(got));
  error.place = std::move(place);
  error.hint = "`foreshard help " + verb + "` shows the usage";
  return error;
}

}  // namespace foreshard::cli
