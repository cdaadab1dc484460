#include "core/text/edit_distance.h"

#include <algorithm>
#include <array>

namespace foreshard {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  constexpr std::size_t kMost = 128;
  a = a.substr(0, kMost);
  b = b.substr(0, kMost);
  std::array<std::size_t, kMost + 1> row{};
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

}  // namespace foreshard
