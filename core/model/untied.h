// Parameters that a plan over a mesh has untied, among the rows that it leaves in Model::parallel.
#pragma once

#include <string_view>

namespace foreshard {

/// Style of such a row: this prefix and the name of the parameter whose tensor it was.
inline constexpr std::string_view kUntied = "untied:";

}  // namespace foreshard
