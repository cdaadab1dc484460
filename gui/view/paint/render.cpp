#include "gui/view/paint/render.h"

#include <algorithm>
#include <iterator>

#include "gui/models/open_input.h"
#include "gui/view/paint/pareto_painter.h"

namespace foreshard::gui {
namespace {

Error wrong_view(std::string message, std::string expected, std::string got) {
  Error error;
  error.code = ErrorCode::Usage;
  error.place = "--view";
  error.message = std::move(message);
  error.expected = std::move(expected);
  error.got = std::move(got);
  return error;
}

PictureOptions picture_options(const ViewerArguments& arguments) {
  PictureOptions options;
  options.width = arguments.width;
  options.height = arguments.height;
  options.theme = arguments.theme.value_or(Theme::Light);
  options.scale = arguments.scale;
  options.range = arguments.range;
  return options;
}

SceneOptions scene_options(const ViewerArguments& arguments) {
  SceneOptions options;
  if (arguments.view == ViewKind::Memory) {
    options.lanes = false;
    options.memory_height = 360;
  }
  return options;
}

Result<Rendered> rendered_comparison(const ViewerArguments& arguments) {
  const OpenInputOptions options{arguments.sets, {}};
  auto a = open_input(arguments.files[0], options);
  if (!a) return fail(a.error());
  auto b = open_input(arguments.files[1], options);
  if (!b) return fail(b.error());
  if (!a->timeline || !b->timeline)
    return fail(wrong_view("a sweep cannot be compared", "two recordings or jobs",
                           a->timeline ? arguments.files[1] : arguments.files[0]));
  CompareOptions compare;
  compare.rank = arguments.rank;
  compare.force = arguments.force;
  auto comparison = make_comparison_model(a->timeline, b->timeline, compare);
  if (!comparison) return fail(comparison.error());
  SceneOptions scene = scene_options(arguments);
  std::vector<std::string> notes = a->notes;
  std::copy(b->notes.begin(), b->notes.end(), std::back_inserter(notes));
  return Rendered{scene_picture(comparison_scene(std::move(*comparison), scene), picture_options(arguments)), notes};
}

bool compares(const ViewerArguments& arguments) {
  if (arguments.view == ViewKind::Compare) return true;
  // A job beside a recording is there to be compared with it.
  const auto is_job = [](const std::string& file) { return file.ends_with(".toml"); };
  return arguments.view == ViewKind::Auto && arguments.files.size() == 2 &&
         (is_job(arguments.files[0]) || is_job(arguments.files[1]));
}

}  // namespace

Result<Rendered> render_view(const ViewerArguments& arguments) {
  if (compares(arguments)) {
    if (arguments.files.size() != 2)
      return fail(wrong_view("two files are compared", "A and B", std::to_string(arguments.files.size()) + " files"));
    return rendered_comparison(arguments);
  }
  auto opened = open_inputs(arguments.files, {arguments.sets, {}});
  if (!opened) return fail(opened.error());
  const PictureOptions options = picture_options(arguments);
  if (opened->sweep) {
    if (arguments.view != ViewKind::Pareto && arguments.view != ViewKind::Auto)
      return fail(wrong_view("the file is a sweep", "--view pareto", "another view"));
    return Rendered{pareto_picture(std::move(*opened->sweep), options), opened->notes};
  }
  if (arguments.view == ViewKind::Pareto)
    return fail(wrong_view("the file is no sweep", "what `foreshard sweep --json` writes", arguments.files.front()));
  return Rendered{scene_picture(timeline_scene(opened->timeline, scene_options(arguments)), options), opened->notes};
}

Result<std::vector<std::string>> render_to_file(const ViewerArguments& arguments) {
  auto rendered = render_view(arguments);
  if (!rendered) return fail(rendered.error());
  if (auto written = write_picture(rendered->picture, arguments.render, arguments.scale); !written)
    return fail(written.error());
  return std::move(rendered->notes);
}

}  // namespace foreshard::gui
