#include "gui/view/window/main_window.h"

#include <QApplication>
#include <QCloseEvent>
#include <QDockWidget>
#include <QDragEnterEvent>
#include <QFileDialog>
#include <QLineEdit>
#include <QListWidget>
#include <QMetaObject>
#include <QMimeData>
#include <QPointer>
#include <QProgressBar>
#include <QStatusBar>
#include <QThreadPool>
#include <algorithm>

#include "gui/models/timeline/amounts.h"
#include "gui/models/timeline/slice_search.h"
#include "gui/view/paint/picture.h"

namespace foreshard::gui {
namespace {

constexpr int kTimelinePage = 1, kParetoPage = 2;

bool wants_comparison(const std::vector<std::string>& files, bool compare) {
  const auto is_job = [](const std::string& file) { return file.ends_with(".toml"); };
  return files.size() >= 2 && (compare || (files.size() == 2 && (is_job(files[0]) || is_job(files[1]))));
}

}  // namespace

MainWindow::MainWindow(const ViewerArguments& arguments, QWidget* parent) : QMainWindow(parent), arguments_(arguments) {
  setWindowTitle("Foreshard");
  setAcceptDrops(true);
  setDockNestingEnabled(true);
  resize(1440, 860);
  buildCentre();
  buildDocks();
  buildMenus();
  default_layout_ = saveState(1);
  applyTheme();
  restoreSession();
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
    for (const std::string& file : files)
      if (!take(open_input(file, options), {file})) return result;
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
    auto what_if = WhatIf::start(*result.input->job, short_name(files.front()));
    if (what_if) result.what_if = std::move(*what_if);
  }
  return result;
}

void MainWindow::showRun(const Run& run) {
  saveView();
  files_ = run.files;
  comparison_.reset();
  setWindowTitle(text_of(run.name) + " – Foreshard");
  showTimeline(timeline_scene(run.timeline, scene_options_), false);
  restoreView();
}

void MainWindow::compareRuns(const Run& a, const Run& b) {
  statusBar()->showMessage("Comparing " + text_of(a.name) + " with " + text_of(b.name) + " …");
  QThreadPool::globalInstance()->start([window = QPointer<MainWindow>(this), a, b] {
    CompareOptions options;
    options.force = true;  // two runs of a list are two plans more often than not
    auto compared = make_comparison_model(a.timeline, b.timeline, options);
    QMetaObject::invokeMethod(qApp, [window, a, b, compared = std::move(compared)] {
      if (!window) return;
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
  remember(files_);
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
  what_if_->setJob(std::move(result.what_if));
  for (Run& run : result.runs) runs_->add(std::move(run));
  showTimeline(
      comparison_ ? comparison_scene(comparison_, scene_options_) : timeline_scene(input_->timeline, scene_options_),
      false);
  restoreView();
  if (arguments_.range) {
    timeline_->navigation().show(*arguments_.range);
    timeline_->navigationChanged();
  }
}

void MainWindow::showTimeline(Scene scene, bool keep_view) {
  centre_->setCurrentIndex(kTimelinePage);
  timeline_->setScene(std::move(scene), keep_view);
  timeline_->setFocus();
  legend_->updateGeometry();
  legend_->update();
  showDifferences();
  search(search_field_->text());  // hits are places in a scene
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

void MainWindow::showDifferences() {
  differences_->setSortingEnabled(false);
  differences_->setRowCount(0);
  const auto& comparison = timeline_->scene().comparison;
  if (!comparison) return;
  constexpr std::size_t kMostRows = 2000;
  const std::size_t rows = std::min(kMostRows, comparison->pairs.size());
  differences_->setRowCount(static_cast<int>(rows));
  for (std::size_t r = 0; r < rows; ++r) {
    const InstructionPair& pair = comparison->pairs[r].numbers;
    const int row = static_cast<int>(r);
    const QString name = text_of(pair.name) + (pair.unit.empty() ? "" : " · " + text_of(pair.unit));
    auto* what = new QTableWidgetItem(name);
    what->setData(Qt::UserRole, row);  // the pair, however the table is sorted
    differences_->setItem(row, 0, what);
    const double difference = pair.duration.difference();
    differences_->setItem(row, 1, new NumberItem(text_of(duration_words(difference)), difference));
    differences_->setItem(row, 2, new NumberItem(text_of(duration_words(pair.duration.a)), pair.duration.a));
    differences_->setItem(row, 3, new NumberItem(text_of(duration_words(pair.duration.b)), pair.duration.b));
    differences_->setItem(row, 4, new QTableWidgetItem(text_of(pair.stream)));
  }
  differences_->setSortingEnabled(true);
  differences_->sortByColumn(-1, Qt::DescendingOrder);
  differences_->resizeColumnsToContents();
}

void MainWindow::jumpToDifference(int row) {
  const auto& comparison = timeline_->scene().comparison;
  const QTableWidgetItem* item = differences_->item(row, 0);
  if (!comparison || item == nullptr) return;
  const auto pair = static_cast<std::size_t>(item->data(Qt::UserRole).toInt());
  timeline_->selectSlice(SceneSlice{1, comparison->pairs[pair].span_b}, true);
}

void MainWindow::showOutcome() {
  const Outcome& now = what_if_->model().now();
  const Outcome* pinned = what_if_->model().pinned();
  if (pinned != nullptr && pinned == &now)
    runs_->add({text_of("%1, pinned at %2")
                    .arg(text_of(now.timeline->name), text_of(duration_words(now.step_ns)))
                    .toStdString(),
                {},
                now.timeline});
  if (pinned != nullptr && pinned != &now) {
    CompareOptions force;
    force.force = true;  // another choice is another plan
    const auto compared = make_comparison_model(now.timeline, pinned->timeline, force);
    if (compared) return showTimeline(comparison_scene(*compared, scene_options_), true);
  }
  showTimeline(timeline_scene(now.timeline, scene_options_), timeline_->hasScene());
}

void MainWindow::search(const QString& text) {
  search_hits_->clear();
  ++searches_;
  if (!timeline_->hasScene() || text.trimmed().isEmpty()) return;
  search_worker_.ask([this, sides = timeline_->scene().sides, words = text.toStdString(), asked = searches_] {
    constexpr std::size_t kMostHits = 1000;
    std::vector<SearchResult> results;
    for (const SceneSide& side : sides) results.push_back(search_slices(*side.model, words, kMostHits));
    QMetaObject::invokeMethod(
        this,
        [this, sides, results = std::move(results), asked] {
          if (asked == searches_) showHits(sides, results);
        },
        Qt::QueuedConnection);
  });
}

void MainWindow::showHits(const std::vector<SceneSide>& sides, const std::vector<SearchResult>& results) {
  std::size_t found = 0;
  for (std::size_t s = 0; s < sides.size(); ++s) {
    const TimelineModel& model = *sides[s].model;
    found += results[s].found;
    for (const std::uint32_t span : results[s].spans) {
      const Span& about = model.timeline.spans[span];
      auto* item = new QListWidgetItem(text_of(slice_label(model.timeline, about)) + "   " +
                                       text_of(duration_words(static_cast<double>(about.start - sides[s].origin))) +
                                       ", " + text_of(duration_words(static_cast<double>(about.duration))));
      item->setData(Qt::UserRole, static_cast<qulonglong>(span));
      item->setData(Qt::UserRole + 1, static_cast<int>(s));
      search_hits_->addItem(item);
    }
  }
  statusBar()->showMessage(QString("%1 slices").arg(found));
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

void MainWindow::exportPicture() {
  if (!timeline_->hasScene()) return;
  const QString name = QFileDialog::getSaveFileName(this, "Export picture", "timeline.svg", "Pictures (*.svg *.png)");
  if (name.isEmpty()) return;
  PictureOptions options;
  options.width = std::max(800, timeline_->width());
  options.theme = timeline_->theme();
  options.range = timeline_->navigation().range();
  const auto written = write_picture(scene_picture(timeline_->scene(), options), name.toStdString(), 2);
  showMessage(written ? QString() : text_of(to_text(written.error())));
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
  saveSession();
  QMainWindow::closeEvent(event);
}

}  // namespace foreshard::gui
