// How far two words are from each other, for errors that name what may have been meant.
#pragma once

#include <cstddef>
#include <string_view>

namespace foreshard {

/// Letters to insert, drop or change (Levenshtein). Only the first 128 letters of each word count, so that hostile
/// names stay cheap.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace foreshard
