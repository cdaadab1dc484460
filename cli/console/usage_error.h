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

}  // namespace foreshard::cli
