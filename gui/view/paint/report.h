// A report: one HTML file that needs nothing else, with the pictures as SVG inside and the numbers as tables.
//
// Of a timeline, of A against B, or of a sweep. Light and dark as the reader's desktop is, printable.
#pragma once

#include <string>
#include <vector>

#include "core/result.h"
#include "gui/models/viewer_arguments.h"

namespace foreshard::gui {

/// Opens the files, writes arguments.report; returns the notes.
Result<std::vector<std::string>> write_report(const ViewerArguments& arguments);

}  // namespace foreshard::gui
