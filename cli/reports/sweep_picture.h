// The front as a picture: time against peak reserved memory, an SVG without scripts or fonts of its own.
#pragma once

#include <string>

#include "cli/reports/sweep_document.h"

namespace foreshard::cli {

/// Points that fit as dots, the front as a stair, the memory as a line. Hover
/// texts say what each point is. Equal documents give equal bytes.
std::string sweep_picture(const SweepDocument& document);

}  // namespace foreshard::cli
