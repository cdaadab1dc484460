// Text from outside may be any bytes (names in recordings, paths, environment); JSON is UTF-8. Pure function.
#pragma once

#include <string>
#include <string_view>

namespace foreshard {

/// The text with every byte that is no part of UTF-8 (overlong forms, surrogates and cut-off sequences included)
/// replaced by U+FFFD. Unicode 15, table 3-7.
std::string as_utf8(std::string_view text);

/// As XML and SVG write a text, in attributes too; other control characters are spaces (XML 1.0, 2.2).
std::string xml_text(std::string_view text);

/// Of what a library threw: a backtrace may stand behind it.
std::string first_line(std::string_view text);

}  // namespace foreshard
