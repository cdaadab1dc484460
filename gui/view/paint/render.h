// Arguments in, a picture or a report out: the viewer without a window.
#pragma once

#include <string>
#include <vector>

#include "core/result.h"
#include "gui/models/viewer_arguments.h"
#include "gui/view/paint/picture.h"

namespace foreshard::gui {

struct Rendered {
  Picture picture;
  std::vector<std::string> notes;
};

/// Opens the files and lays out the view that was asked for, or that suits them.
Result<Rendered> render_view(const ViewerArguments& arguments);

/// render_view and write_picture; returns the notes.
Result<std::vector<std::string>> render_to_file(const ViewerArguments& arguments);

}  // namespace foreshard::gui
