#include "core/job/located_error.h"

#include <algorithm>

namespace foreshard {

Error located(Error error, const LoadedJob& loaded) {
  if (!error.file.empty() || error.place.empty()) return error;
  const std::string key = error.place.substr(0, error.place.find('['));  // of an entry of a list
  const auto value = std::find_if(loaded.values.begin(), loaded.values.end(),
                                  [&](const EffectiveValue& each) { return each.key == key; });
  const std::string origin = value == loaded.values.end() ? "default" : value->origin;
  if (origin == "--set") {
    error.place = origin + " " + error.place;
  } else if (const std::size_t colon = origin.rfind(':'); colon != std::string::npos) {
    error.file = origin.substr(0, colon);
    error.place += " (line " + origin.substr(colon + 1) + ")";
  } else {
    error.file = loaded.file;
  }
  return error;
}

}  // namespace foreshard
