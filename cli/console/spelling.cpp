#include "cli/console/spelling.h"

#include <algorithm>

#include "core/text/edit_distance.h"

namespace foreshard::cli {

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  if (word.size() > 64) return {};
  std::string best;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < least) least = distance, best = candidate;
  }
  return best;
}

}  // namespace foreshard::cli
