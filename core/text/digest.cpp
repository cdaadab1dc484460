#include "core/text/digest.h"

#include <fmt/format.h>

namespace foreshard {

std::string digest_of(std::string_view text) { return fmt::format("{:016x}", fnv1a(text)); }

}  // namespace foreshard
