// Text put together line by line, for the reports of verbs.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/text/format_append.h"

namespace foreshard::cli {

/// A report inherits it and hands `out_` out when it is done.
class TextLines {
 protected:
  /// One line; blanks at its end are cut off.
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    format_append(out_, format, std::forward<Args>(args)...);
    while (!out_.empty() && out_.back() == ' ') out_.pop_back();
    out_ += '\n';
  }

  std::string out_;
};

}  // namespace foreshard::cli
