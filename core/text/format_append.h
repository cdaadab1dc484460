// Text appended to a string or buffer. fmt::format_to compiles fmt's engine into every source that calls it: here once.
#pragma once

#include <fmt/format.h>

#include <string>

namespace foreshard {

void vformat_append(std::string& to, fmt::string_view format, fmt::format_args args);
void vformat_append(fmt::memory_buffer& to, fmt::string_view format, fmt::format_args args);

template <class Text, class... Args>
void format_append(Text& to, fmt::format_string<Args...> format, Args&&... args) {
  vformat_append(to, format, fmt::make_format_args(args...));
}

}  // namespace foreshard
