#include "gui/view/window/main_window.h"

#include <QAction>
#include <QApplication>
#include <QCloseEvent>
#include <QDockWidget>
#include <QDragEnterEvent>
#include <QLayout>
#include <QMetaObject>
#include <QMimeData>
#include <QPointer>
#include <QProgressBar>
#include <QSignalBlocker>
#include <QStatusBar>
#include <QThreadPool>
#include <algorithm>
#include <utility>

#include "gui/models/headline.h"
#include "gui/models/timeline/amounts.h"

namespace foreshard::gui {
namespace {

constexpr int kTimelinePage = 1, kParetoPage = 2;
constexpr int kPanelWithJob = 70, kPanelWithoutJob = 15;  // of the inspector and the what-if panel, in hundredths

bool wants_comparison(const std::vector<std::string>& files, bool compare) {
  const auto is_job = [](const std::string& file) { return file.ends_with(".toml"); };
  return files.size() >= 2 && (compare || (files.size() == 2 && (is_job(files[0]) || is_job(files[1]))));
}

/// Threads of many ranks leave room for one: then streams alone are shown, until somebody asks for the threads.
bool has_many_ranks(const OpenedInput& input) {
  constexpr std::size_t kMany = 4;
  return input.timeline && input.timeline->ranks.size() >= kMany;
}

}  // namespace

MainWindow::MainWindow(const ViewerArguments& arguments, QWidget* parent)
    : QMainWindow(parent), arguments_(arguments), session_(!arguments.no_session) {
  scene_options_.from_step = true;
  setWindowTitle("Foreshard");
  setAcceptDrops(true);
  setDockNestingEnabled(true);
  resize(1440, 860);
  buildCentre();
  buildDocks();
  buildMenus();
  default_layout_ = saveState(kLayoutVersion);
  applyTheme();
  session_.restoreWindow(*this);
}

MainWindow::~MainWindow() {
  if (cancelled_) *cancelled_ = true;
}

void MainWindow::open(const std::vector<std::string>& files, bool compare) {
  if (files.empty()) return;
  if (cancelled_) *cancelled_ = true;  // what was being opened is not wanted any more
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  cancelled_ = cancelled;
  loading_ = true;
  progress_->setRange(0, 0);
  progress_->show();
  statusBar()->showMessage("Opening " + text_of(short_name(files.front())) + " …");
  const QPointer<MainWindow> window(this);
  QThreadPool::globalInstance()->start([=, arguments = arguments_] {
    const auto tell = [window](double share) {
      QMetaObject::invokeMethod(qApp, [window, share] {
        if (!window) return;
        window->progress_->setRange(0, 100);
        window->progress_->setValue(static_cast<int>(100 * share));
      });
    };
    const OpenInputOptions options{arguments.sets, [cancelled, tell](double share) {
                                     tell(share);
                                     return !cancelled->load();
                                   }};
    Loaded result = load(files, compare, arguments, options);
    QMetaObject::invokeMethod(qApp, [window, cancelled, result = std::move(result)]() mutable {
      if (window && !cancelled->load()) window->loaded(std::move(result));
    });
  });
}

MainWindow::Loaded MainWindow::load(const std::vector<std::string>& files, bool compare,
                                    const ViewerArguments& arguments, const OpenInputOptions& options) {
  Loaded result;
  result.files = files;
  const auto take = [&](Result<OpenedInput> input, std::vector<std::string> of) {
    if (!input) return result.error = input.error(), false;
    std::copy(input->notes.begin(), input->notes.end(), std::back_inserter(result.notes));
    if (input->timeline) result.runs.push_back({input->timeline->name, std::move(of), input->timeline});
    if (result.input && !input->job) input->job = result.input->job;
    result.input = std::move(*input);
    return true;
  };
  if (!wants_comparison(files, compare)) {
    if (!take(open_inputs(files, options), files)) return result;
  } else {
    for (std::size_t f = 0; f < files.size(); ++f) {
      auto input = open_input(files[f], options);
      if (input && input->job && f < 2) result.job_side = static_cast<int>(f);  // of two the second is edited
      if (!take(std::move(input), {files[f]})) return result;
    }
    CompareOptions wanted;
    wanted.rank = arguments.rank;
    wanted.force = arguments.force;
    auto compared =
        result.runs.size() == files.size()
            ? make_comparison_model(result.runs[0].timeline, result.runs[1].timeline, wanted)
            : Result<std::shared_ptr<const ComparisonModel>>(fail(Error{.message = "a sweep cannot be compared"}));
    if (!compared) return result.error = compared.error(), result;
    result.comparison = std::move(*compared);
  }
  if (result.input->job) {
    auto what_if =
        WhatIf::start(*result.input->job, short_name(files[static_cast<std::size_t>(std::max(0, result.job_side))]));
    if (what_if) result.what_if = std::move(*what_if);
  }
  return result;
}

void MainWindow::showRun(const Run& run) {
  ++comparisons_;  // what is still on its way is not wanted any more
  saveView();
  files_ = run.files;
  comparison_.reset();
  setWindowTitle(text_of(run.name) + " – Foreshard");
  showTimeline(timeline_scene(run.timeline, scene_options_), false);
  restoreView();
}

void MainWindow::compareRuns(const Run& a, const Run& b) {
  ++comparisons_;
  statusBar()->showMessage("Comparing " + text_of(a.name) + " with " + text_of(b.name) + " …");
  QThreadPool::globalInstance()->start([window = QPointer<MainWindow>(this), asked = comparisons_, a, b] {
    CompareOptions options;
    options.force = true;  // two runs of a list are two plans more often than not
    auto compared = make_comparison_model(a.timeline, b.timeline, options);
    QMetaObject::invokeMethod(qApp, [window, asked, a, b, compared = std::move(compared)] {
      if (!window || asked != window->comparisons_) return;
      window->statusBar()->clearMessage();
      if (!compared) return window->showMessage(text_of(to_text(compared.error())));
      window->saveView();
      window->comparison_ = *compared;
      window->files_ = a.files;
      window->files_.insert(window->files_.end(), b.files.begin(), b.files.end());
      window->setWindowTitle(text_of(a.name) + " against " + text_of(b.name) + " – Foreshard");
      window->showTimeline(comparison_scene(*compared, window->scene_options_), false);
      window->restoreView();
    });
  });
}

void MainWindow::loaded(Loaded result) {
  loading_ = false;
  progress_->hide();
  statusBar()->clearMessage();
  if (result.error) return showMessage(text_of(to_text(*result.error)));  // what is on screen stays
  QStringList notes;
  for (const std::string& note : result.notes) notes << text_of(note);
  showMessage(notes.join("\n"));
  saveView();
  files_ = result.files;
  session_.addRecent(files_);
  fillRecent();
  input_ = std::move(result.input);
  comparison_ = std::move(result.comparison);
  QStringList names;
  for (const std::string& file : files_) names << text_of(short_name(file));
  setWindowTitle(names.join(" against ") + " – Foreshard");
  if (input_->sweep) {
    pareto_->setSweep(*input_->sweep);
    centre_->setCurrentIndex(kParetoPage);
    pareto_->setFocus();
    return;
  }
  ++comparisons_;  // of what was open before
  opened_ = comparison_;
  recording_side_ = result.job_side == 1 ? 0 : 1;
  job_ = nullptr;
  if (input_->job)
    job_ = result.job_side < 0 ? input_->timeline : result.runs[static_cast<std::size_t>(result.job_side)].timeline;
  recording_ = result.job_side < 0 ? nullptr : result.runs[static_cast<std::size_t>(recording_side_)].timeline;
  what_if_->setJob(std::move(result.what_if));
  // A panel without a job has one line to say: its room is the inspector's.
  const int panel = what_if_->hasJob() ? kPanelWithJob : kPanelWithoutJob;
  resizeDocks({findChild<QDockWidget*>("inspector"), findChild<QDockWidget*>("what_if")}, {100 - panel, panel},
              Qt::Vertical);
  for (Run& run : result.runs) runs_->add(std::move(run));
  const bool many = has_many_ranks(*input_);
  if (many != std::exchange(many_ranks_, many)) {
    const QSignalBlocker quiet(host_lanes_);  // what is open still is not drawn once more
    host_lanes_->setChecked(!many);
    scene_options_.host = !many;
  }
  if (many && !scene_options_.host)
    statusBar()->showMessage("Threads are hidden, so that ranks have room: View, Host lanes");
  showTimeline(
      comparison_ ? comparison_scene(comparison_, scene_options_) : timeline_scene(input_->timeline, scene_options_),
      false);
  restoreView();
  if (arguments_.range) {
    const Scene& scene = timeline_->scene();  // the option counts from the recording's begin, or the iteration's
    const SimTime begin = scene.compares() ? 0 : scene.extent.begin;
    timeline_->navigation().show({arguments_.range->begin + begin, arguments_.range->end + begin});
    timeline_->navigationChanged();
  }
}

void MainWindow::showTimeline(Scene scene, bool keep_view) {
  const bool compared_before = timeline_->hasScene() && timeline_->scene().compares();
  centre_->setCurrentIndex(kTimelinePage);
  strip_->setFigures(deciding_figures(scene, shownOutcome(scene)));
  centre_->currentWidget()->layout()->activate();  // the canvas has its size before it has its scene
  timeline_->setScene(std::move(scene), keep_view);
  overview_->sceneChanged();
  timeline_->setFocus();
  legend_->updateGeometry();
  legend_->update();
  const Scene& shown = timeline_->scene();
  differences_->show(shown.comparison);
  if (shown.compares() != compared_before) showPanel(shown.compares() ? "differences" : "findings");
  search_->setScene(shown);
  findings_->setScene(shown);
  flame_->setScene(shown);
  lateness_->setScene(shown);
  query_->setScene(shown);
}

/// What the what-if panel has come to, where it is on the canvas.
const Outcome* MainWindow::shownOutcome(const Scene& scene) const {
  if (!what_if_->hasJob()) return nullptr;
  const WhatIf& model = what_if_->model();
  const bool shown = std::any_of(scene.sides.begin(), scene.sides.end(), [&](const SceneSide& side) {
    return side.model == model.now().timeline || (model.as_opened() && side.model == job_);
  });
  return shown ? &model.now() : nullptr;
}

void MainWindow::showSelection() {
  if (!timeline_->hasScene()) return;
  const Scene& scene = timeline_->scene();
  const Navigation& navigation = timeline_->navigation();
  inspector_->setFacts(navigation.selected() ? slice_facts(scene, *navigation.selected()) : std::vector<Fact>{});
  const TimeRange range = navigation.selection().value_or(navigation.range());
  std::vector<std::vector<QString>> rows;
  for (const Fact& fact : range_facts(scene, range)) rows.push_back({text_of(fact.name), text_of(fact.value), ""});
  const int facts = static_cast<int>(rows.size());
  for (const RangeRow& row : range_table(scene, range)) {
    if (row.slices == 0) continue;
    rows.push_back({text_of(row.lane), text_of(duration_words(static_cast<double>(row.busy))),
                    text_of(percent_words(row.share)) + QString(", %1 slices").arg(row.slices)});
  }
  range_->clearSpans();
  range_->setRows(rows);
  for (int row = 0; row < facts; ++row) range_->setSpan(row, 1, 1, 2);  // words, not a number and its share
  range_->resizeColumnToContents(0);
}

// [Note: a recording stays] What was opened beside the job is never replaced by an edited prediction: that is a third
// run, in the list, shown in the job's place. As it was opened, the job is what it was opened as.
void MainWindow::showOutcome() {
  const WhatIf& model = what_if_->model();
  const Outcome& now = model.now();
  const Outcome* pinned = model.pinned();
  if (!model.as_opened()) runs_->add({now.timeline->name + ", what if", {}, now.timeline});
  if (pinned != nullptr && pinned == &now)
    runs_->add({text_of("%1, pinned at %2")
                    .arg(text_of(now.timeline->name), text_of(duration_words(now.step_ns)))
                    .toStdString(),
                {},
                now.timeline});
  ++comparisons_;
  if (pinned != nullptr && pinned != &now) return showBeside(now, pinned->timeline, 1);
  if (opened_ != nullptr && model.as_opened()) {
    comparison_ = opened_;
    return showTimeline(comparison_scene(opened_, scene_options_), true);
  }
  if (recording_ != nullptr) return showBeside(now, recording_, recording_side_);
  comparison_.reset();
  showTimeline(timeline_scene(now.timeline, scene_options_), timeline_->hasScene());
}

/// On a worker: a recording may have ten million slices. What cannot be laid beside leaves the canvas as it is.
void MainWindow::showBeside(const Outcome& now, std::shared_ptr<const TimelineModel> other, int side) {
  compare_worker_.ask([this, asked = comparisons_, edited = now.timeline, other = std::move(other), side] {
    CompareOptions force;
    force.force = true;  // another choice is another plan
    auto compared =
        side == 1 ? make_comparison_model(edited, other, force) : make_comparison_model(other, edited, force);
    QMetaObject::invokeMethod(
        this,
        [this, asked, compared = std::move(compared)] {
          if (asked != comparisons_) return;  // an older change
          if (!compared)
            return showMessage(
                "The edited prediction cannot be laid beside what is shown; it is in the list of runs. " +
                text_of(to_text(compared.error())));
          comparison_ = *compared;
          showTimeline(comparison_scene(*compared, scene_options_), true);
        },
        Qt::QueuedConnection);
  });
}

void MainWindow::openSweepPoint(const ParetoPoint& point) {
  if (!what_if_->hasJob()) {
    showMessage("Open the sweep's job file first; then a point sets its choices in the what-if panel. This one: " +
                [&] {
                  QString text;
                  for (const std::string& setting : point.set) text += " --set " + text_of(setting);
                  return text;
                }());
    return;
  }
  // A point that is the job as it stands changes nothing, and is shown nevertheless.
  if (what_if_->change(point.set) && !what_if_->isBusy()) showOutcome();
}

void MainWindow::showMessage(const QString& text) {
  message_text_->setText(text);
  message_bar_->setVisible(!text.isEmpty());
}

void MainWindow::dragEnterEvent(QDragEnterEvent* event) {
  if (event->mimeData()->hasUrls()) event->acceptProposedAction();
}

void MainWindow::dropEvent(QDropEvent* event) {
  std::vector<std::string> files;
  for (const QUrl& url : event->mimeData()->urls())
    if (url.isLocalFile()) files.push_back(url.toLocalFile().toStdString());
  open(files);
}

void MainWindow::changeEvent(QEvent* event) {
  if (event->type() == QEvent::PaletteChange && timeline_ != nullptr) applyTheme();
  QMainWindow::changeEvent(event);
}

void MainWindow::closeEvent(QCloseEvent* event) {
  saveView();
  session_.saveWindow(*this, files_, comparison_ != nullptr);
  QMainWindow::closeEvent(event);
}

}  // namespace foreshard::gui
