// foreshard-viewer: the window, or with --render and --report a picture or a page without a screen. `foreshard view`
// and `foreshard report` start it.

#include <QApplication>
#include <QFile>
#include <QSettings>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "core/output_file.h"
#include "gui/models/viewer_arguments.h"
#include "gui/view/paint/render.h"
#include "gui/view/paint/report.h"
#include "gui/view/paint/theme.h"
#include "gui/view/window/main_window.h"

namespace {

using foreshard::Error;
using foreshard::ErrorCode;
using foreshard::gui::ViewerArguments;
using foreshard::gui::ViewKind;

constexpr int kOk = 0, kFailed = 1, kUsage = 2, kBadInput = 3;

int tell(const Error& error) {
  std::fprintf(stderr, "error: %s\n", to_text(error).c_str());
  return error.code == ErrorCode::Usage ? kUsage : kBadInput;
}

/// Qt tells about folders that a picture does not need.
void tell_qt_message(QtMsgType type, const QMessageLogContext&, const QString& text) {
  if (type == QtDebugMsg || type == QtInfoMsg || text.startsWith("QStandardPaths:")) return;
  std::fprintf(stderr, "%s\n", text.toUtf8().constData());
}

int draw(const ViewerArguments& arguments) {
  if (auto possible = foreshard::try_outputs({arguments.report, arguments.render}); !possible)
    return tell(possible.error());
  const auto notes = arguments.report.empty() ? render_to_file(arguments) : write_report(arguments);
  if (!notes) return tell(notes.error());
  if (arguments.quiet) return kOk;
  for (const std::string& note : *notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  std::fprintf(stderr, "note: written: %s\n", (arguments.report.empty() ? arguments.render : arguments.report).c_str());
  return kOk;
}

/// What was open the last time, where it still is.
void reopen(foreshard::gui::MainWindow& window) {
  const QSettings settings;
  std::vector<std::string> files;
  for (const QString& file : settings.value("files").toStringList())
    if (QFile::exists(file)) files.push_back(file.toStdString());
  window.open(files, settings.value("compares").toBool());
}

}  // namespace

int main(int argc, char** argv) {
  foreshard::write_errors_as_errors();
  const auto arguments = foreshard::gui::parse_viewer_arguments({argv + 1, argv + argc});
  if (!arguments) return tell(arguments.error());
  if (arguments->help) {
    const bool told = std::fputs(foreshard::gui::viewer_usage().c_str(), stdout) >= 0;
    return std::fflush(stdout) == 0 && told ? kOk : kFailed;
  }
  const bool pictures = !arguments->render.empty() || !arguments->report.empty();
  if (pictures) qputenv("QT_QPA_PLATFORM", "offscreen");  // whatever the environment says, no screen is looked for
  qInstallMessageHandler(tell_qt_message);
  QCoreApplication::setOrganizationName("foreshard");
  QCoreApplication::setApplicationName("foreshard-viewer");
  QApplication application(argc, argv);
  if (pictures) {
    try {
      return draw(*arguments);
    } catch (const std::bad_alloc&) {
      std::fputs("error: memory: there is not enough memory for this input\n", stderr);
      return kBadInput;
    }
  }
  if (arguments->theme) QApplication::setPalette(foreshard::gui::qt_palette(*arguments->theme));
  foreshard::gui::MainWindow window(*arguments);
  window.show();
  if (!arguments->files.empty())
    window.open(arguments->files, arguments->view == ViewKind::Compare);
  else if (!arguments->no_session)
    reopen(window);
  return QApplication::exec();
}
