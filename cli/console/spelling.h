// The known word that somebody may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace foreshard::cli {

/// Empty if nothing is near: more than a third of the letters (at least 2) would have to change.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace foreshard::cli
