#include "core/text/format_append.h"

#include <iterator>

namespace foreshard {

void vformat_append(std::string& to, fmt::string_view format, fmt::format_args args) {
  fmt::vformat_to(std::back_inserter(to), format, args);
}

void vformat_append(fmt::memory_buffer& to, fmt::string_view format, fmt::format_args args) {
  fmt::vformat_to(std::back_inserter(to), format, args);
}

}  // namespace foreshard
