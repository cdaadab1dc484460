// The window's parts: centre, docks, menus, theme, what is remembered.

#include <QAction>
#include <QApplication>
#include <QClipboard>
#include <QDockWidget>
#include <QFileDialog>
#include <QHBoxLayout>
#include <QInputDialog>
#include <QMenuBar>
#include <QMessageBox>
#include <QPainter>
#include <QProgressBar>
#include <QPushButton>
#include <QStatusBar>
#include <QToolButton>
#include <QVBoxLayout>

#include "gui/view/paint/picture.h"
#include "gui/view/paint/theme.h"
#include "gui/view/window/main_window.h"
#include "traces/formats/fst.h"
#include "traces/timeline/cut_timeline.h"

namespace foreshard::gui {
namespace {

constexpr const char* kOpenFilter =
    "Timelines, jobs and sweeps (*.fst *.json *.gz *.zst *.tar *.pickle *.sqlite *.toml *.pt2);;All files (*)";

/// What the colours mean, under the canvas.
class Legend : public QWidget {
 public:
  Legend(const TimelineWidget& timeline, QWidget* parent) : QWidget(parent), timeline_(timeline) {
    setAccessibleName("Legend");
    setToolTip("What the colours mean; a click shows all or one line");
    QSizePolicy policy(QSizePolicy::Preferred, QSizePolicy::Fixed);
    policy.setHeightForWidth(true);
    setSizePolicy(policy);
  }
  bool hasHeightForWidth() const override { return true; }
  int heightForWidth(int width) const override {
    if (!timeline_.hasScene()) return 0;
    return (open_ ? wholeHeight(width) : std::min(kOneLine, wholeHeight(width))) + 8;
  }
  QSize sizeHint() const override { return {400, heightForWidth(std::max(400, width()))}; }

 protected:
  void paintEvent(QPaintEvent*) override {
    QPainter painter(this);
    painter.fillRect(rect(), color(palette().ground));
    if (!timeline_.hasScene()) return;
    painter.setClipRect(rect().adjusted(0, 0, 0, open_ ? 0 : -4));
    paint_legend(&painter, timeline_.scene(), QRectF(kGutter, 4, width() - kGutter - 12, height()), palette(),
                 picture_fonts());
    if (wholeHeight(width()) <= kOneLine) return;
    painter.setFont(picture_fonts().small);
    painter.setPen(color(palette().text_weak));
    painter.drawText(QRectF(8, 4, kGutter - 16, kOneLine), Qt::AlignVCenter, open_ ? "▾ less" : "▸ all colours");
  }
  void resizeEvent(QResizeEvent*) override { updateGeometry(); }
  void mousePressEvent(QMouseEvent*) override {
    open_ = !open_;
    updateGeometry();
    update();
  }

 private:
  static constexpr int kOneLine = 18;
  int wholeHeight(int width) const {
    const QRectF area(0, 0, width - kGutter - 12, 0);
    return static_cast<int>(paint_legend(nullptr, timeline_.scene(), area, palette(), picture_fonts()));
  }

  bool open_ = false;
  const Palette& palette() const { return palette_of(timeline_.theme()); }
  const TimelineWidget& timeline_;
};

/// The range that is selected, else what is seen: from the recording's begin; of a comparison from the iteration's.
TimeRange told_range(TimelineWidget& timeline) {
  const Navigation& navigation = timeline.navigation();
  const TimeRange range = navigation.selection().value_or(navigation.range());
  const SimTime begin = timeline.scene().compares() ? 0 : timeline.scene().extent.begin;
  return {std::max<SimTime>(0, range.begin - begin), range.end - begin};
}

/// What to send to someone, on the clipboard; returns what was copied.
QString copy_link(TimelineWidget& timeline, const std::vector<std::string>& files) {
  if (!timeline.hasScene() || files.empty()) return {};
  const QString link = text_of(view_command(files, timeline.scene().compares(), told_range(timeline)));
  QApplication::clipboard()->setText(link);
  return "Copied: " + link;
}

void ask_for_note(TimelineWidget& timeline, TimeRange at) {
  auto* ask = new QInputDialog(&timeline);
  ask->setAttribute(Qt::WA_DeleteOnClose);
  ask->setWindowTitle("Note");
  ask->setLabelText(at.length() > 0 ? "At this range (empty: none):" : "At this moment (empty: none):");
  const Note* before = timeline.navigation().note_at(at);
  ask->setTextValue(before == nullptr ? QString() : text_of(before->text));
  QObject::connect(ask, &QInputDialog::textValueSelected, &timeline, [&timeline, at](const QString& text) {
    timeline.navigation().set_note(at, text.trimmed().toStdString());
    timeline.navigationChanged();
  });
  ask->open();
}

/// Asks where to and writes what the range holds; returns what went wrong.
QString save_range(TimelineWidget& timeline) {
  if (!timeline.hasScene()) return {};
  if (timeline.scene().compares()) return "A part of a recording is saved of one: open it alone first (Runs, Enter).";
  const QString name = QFileDialog::getSaveFileName(&timeline, "Save the range", "part.fst", "Recordings (*.fst)");
  if (name.isEmpty()) return {};
  const SceneSide& side = timeline.scene().sides.front();
  const Navigation& navigation = timeline.navigation();
  const TimeRange range = navigation.selection().value_or(navigation.range());
  const TimelineCut part =
      cut_timeline(side.model->timeline, side.model->arguments, {range.begin + side.origin, range.end + side.origin});
  const auto written = write_fst(part.timeline, name.toStdString(), part.arguments);
  return written ? QString() : text_of(to_text(written.error()));
}

/// Asks where to and writes what is seen; returns what went wrong.
QString export_picture(TimelineWidget& timeline) {
  if (!timeline.hasScene()) return {};
  const QString name =
      QFileDialog::getSaveFileName(&timeline, "Export picture", "timeline.svg", "Pictures (*.svg *.png)");
  if (name.isEmpty()) return {};
  PictureOptions options;
  options.width = std::max(800, timeline.width());
  options.theme = timeline.theme();
  options.range = timeline.navigation().range();
  const auto written = write_picture(scene_picture(timeline.scene(), options), name.toStdString(), 2);
  return written ? QString() : text_of(to_text(written.error()));
}

/// A third of the window is what it costs.
void show_evidence(TimelineWidget& timeline, const Evidence& evidence) {
  if (!timeline.hasScene()) return;
  const SimTime origin = timeline.scene().sides.front().origin;
  const TimeRange time{evidence.time.begin - origin, evidence.time.end - origin};
  const SimDuration around = std::max<SimDuration>(20, time.length());
  timeline.navigation().show({time.begin - around, time.end + around});
  timeline.navigation().select_range(time);
  timeline.navigationChanged();
  if (timeline.onSelection) timeline.onSelection();
}

/// The theme that widgets have from now on.
Theme worn(bool dark) {
  const Theme theme = dark ? Theme::Dark : Theme::Light;
  QApplication::setPalette(qt_palette(theme));
  return theme;
}

}  // namespace

void MainWindow::buildMessageBar(QWidget* page) {
  message_bar_ = new QFrame(page);
  message_bar_->setObjectName("message");
  message_bar_->setStyleSheet("#message { background: #f3c86a; } #message QLabel { color: #1c2430; }");
  auto* bar = new QHBoxLayout(message_bar_);
  bar->setContentsMargins(10, 5, 5, 5);
  message_text_ = new QLabel(message_bar_);
  message_text_->setWordWrap(true);
  message_text_->setTextFormat(Qt::PlainText);
  message_text_->setTextInteractionFlags(Qt::TextSelectableByMouse | Qt::TextSelectableByKeyboard);
  message_text_->setAccessibleName("Message");
  auto* close = new QToolButton(message_bar_);
  close->setText("✕");
  close->setAutoRaise(true);
  close->setAccessibleName("Close the message");
  QObject::connect(close, &QToolButton::clicked, this, [this] { showMessage({}); });
  bar->addWidget(message_text_, 1);
  bar->addWidget(close);
  message_bar_->hide();
}

void MainWindow::buildCentre() {
  auto* page = new QWidget(this);
  auto* layout = new QVBoxLayout(page);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->setSpacing(0);
  buildMessageBar(page);
  layout->addWidget(message_bar_);

  centre_ = new QStackedWidget(page);
  auto* start = new QLabel(
      "<h2>Foreshard</h2><p>Open a recording (.fst, Kineto or Chrome JSON, a memory snapshot, nsys' sqlite), a job "
      "file or a "
      "sweep:<br>Ctrl+O, or drop files here. A job and a recording are compared.</p><p>? shows the keys.</p>",
      centre_);
  start->setAlignment(Qt::AlignCenter);
  centre_->addWidget(start);
  auto* canvas = new QWidget(centre_);
  auto* column = new QVBoxLayout(canvas);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(0);
  timeline_ = new TimelineWidget(canvas);
  legend_ = new Legend(*timeline_, canvas);
  strip_ = new FigureStrip(canvas);
  overview_ = new OverviewStrip(*timeline_, canvas);
  column->addWidget(strip_);
  column->addWidget(overview_);
  column->addWidget(timeline_, 1);
  column->addWidget(legend_);
  centre_->addWidget(canvas);
  pareto_ = new ParetoWidget(centre_);
  centre_->addWidget(pareto_);
  layout->addWidget(centre_, 1);
  setCentralWidget(page);

  timeline_->onSelection = [this] { showSelection(); };
  timeline_->onStatus = [this](const QString& text) { statusBar()->showMessage(text); };
  timeline_->onNote = [this](TimeRange at) { ask_for_note(*timeline_, at); };
  timeline_->onView = [this] {
    overview_->update();
    if (!timeline_->navigation().selection()) showSelection();
  };
  pareto_->onStatus = [this](const QString& text) { statusBar()->showMessage(text); };
  pareto_->onOpen = [this](const ParetoPoint& point) { openSweepPoint(point); };
  progress_ = new QProgressBar(this);
  progress_->setMaximumWidth(180);
  progress_->setAccessibleName("Opening");
  progress_->hide();
  statusBar()->addPermanentWidget(progress_);
}

void MainWindow::showPanel(const char* name) {
  auto* dock = findChild<QDockWidget*>(name);
  if (dock == nullptr) return;
  dock->show();
  dock->raise();
}

QDockWidget* MainWindow::addPanel(const QString& title, const char* name, QWidget* widget, Qt::DockWidgetArea area) {
  auto* dock = new QDockWidget(title, this);
  dock->setObjectName(name);
  widget->setAccessibleName(title);
  dock->setWidget(widget);
  addDockWidget(area, dock);
  return dock;
}

void MainWindow::buildDocks() {
  inspector_ = new FactTable({"Fact", "Slice"}, this);
  inspector_->setPlaceholder(
      "Click a slice, or step through them with . and , to see what it is, when, and what it waited for.");
  QDockWidget* inspector = addPanel("Inspector", "inspector", inspector_, Qt::RightDockWidgetArea);
  what_if_ = new WhatIfPanel(this);
  QDockWidget* what_if = addPanel("What if", "what_if", what_if_, Qt::RightDockWidgetArea);
  range_ = new FactTable({"Lane or cause", "Time", "Share"}, this);
  range_->setPlaceholder("What the time of the window, or of a range that is dragged, went to.");
  QDockWidget* range = addPanel("Range", "range", range_, Qt::BottomDockWidgetArea);
  findings_ = new FindingsPanel(this);
  QDockWidget* findings = addPanel("Findings", "findings", findings_, Qt::BottomDockWidgetArea);
  differences_ = new DifferencesTable(this);
  QDockWidget* differences = addPanel("Differences", "differences", differences_, Qt::BottomDockWidgetArea);
  search_ = new SearchPanel(this);
  QDockWidget* found = addPanel("Search", "search", search_, Qt::BottomDockWidgetArea);
  runs_ = new RunList(this);
  QDockWidget* runs = addPanel("Runs", "runs", runs_, Qt::BottomDockWidgetArea);
  tabifyDockWidget(findings, differences);
  tabifyDockWidget(differences, found);
  flame_ = new FlamePanel(this);
  tabifyDockWidget(differences, addPanel("Flame graph", "flame", flame_, Qt::BottomDockWidgetArea));
  lateness_ = new LatenessPanel(this);
  tabifyDockWidget(differences, addPanel("Stragglers", "lateness", lateness_, Qt::BottomDockWidgetArea));
  query_ = new QueryPanel(this);
  tabifyDockWidget(differences, addPanel("SQL", "query", query_, Qt::BottomDockWidgetArea));
  const auto go = [this](SceneSlice slice) { timeline_->selectSlice(slice, true); };
  const auto tell = [this](const QString& text) { statusBar()->showMessage(text); };
  flame_->onGo = lateness_->onGo = query_->onGo = go;
  flame_->onStatus = lateness_->onStatus = findings_->onStatus = tell;
  tabifyDockWidget(differences, runs);
  findings->raise();
  range->raise();
  inspector->raise();
  resizeDocks({inspector, what_if}, {330, 330}, Qt::Horizontal);
  resizeDocks({inspector, what_if}, {230, 520}, Qt::Vertical);
  resizeDocks({range, differences}, {210, 210}, Qt::Vertical);

  inspector_->onGo = go;
  findings_->onEvidence = [this](const Evidence& evidence) { show_evidence(*timeline_, evidence); };
  runs_->onShow = [this](const Run& run) { showRun(run); };
  runs_->onCompare = [this](const Run& a, const Run& b) { compareRuns(a, b); };
  what_if_->onOutcome = [this] { showOutcome(); };
  what_if_->onProblem = [this](const QString& text) { showMessage(text); };
  search_->onFound = [this](SceneSlice slice) { timeline_->selectSlice(slice, true); };
  search_->onChosen = [this] { timeline_->setFocus(); };
  differences_->onJump = [this](const ComparedPair& pair) {  // a third of the window is the difference
    const SimDuration around = std::max<SimDuration>(20, pair.b.length());
    timeline_->navigation().show({pair.b.begin - around, pair.b.end + around});
    timeline_->selectSlice(SceneSlice{1, pair.span_b}, true);
  };
}

void MainWindow::buildFileMenu() {
  QMenu* file = menuBar()->addMenu("&File");
  const auto ask = [this](const QString& title) {
    std::vector<std::string> files;
    for (const QString& name : QFileDialog::getOpenFileNames(this, title, {}, kOpenFilter))
      files.push_back(name.toStdString());
    return files;
  };
  file->addAction("&Open…", QKeySequence::Open, this, [this, ask] { open(ask("Open")); });
  file->addAction("&Compare with…", QKeySequence("Ctrl+Shift+O"), this, [this, ask] {
    const auto others = ask("Compare with");
    if (others.empty() || files_.empty()) return;
    open({files_.front(), others.front()}, true);
  });
  recent_ = file->addMenu("&Recent");
  fillRecent();
  file->addAction("&Reload", QKeySequence("F5"), this, [this] { open(files_, comparison_ != nullptr); });
  file->addAction("&Export picture…", QKeySequence("Ctrl+E"), this,
                  [this] { showMessage(export_picture(*timeline_)); });
  file->addAction("&Save the range…", QKeySequence::Save, this, [this] { showMessage(save_range(*timeline_)); });
  file->addAction("Copy &link to what is seen", QKeySequence("Ctrl+L"), this,
                  [this] { statusBar()->showMessage(copy_link(*timeline_, files_)); });
  file->addSeparator();
  file->addAction("&Quit", QKeySequence::Quit, this, [this] { close(); });
}

void MainWindow::buildMenus() {
  buildFileMenu();
  QMenu* go = menuBar()->addMenu("&Go");
  const auto look_changed = [this] {
    timeline_->navigationChanged();
    showSelection();
  };
  go->addAction("&Back to what was seen and selected before", QKeySequence("Backspace"), this, [this, look_changed] {
    if (timeline_->navigation().undo()) look_changed();
  });
  go->addAction("&Forward again", QKeySequence("Shift+Backspace"), this, [this, look_changed] {
    if (timeline_->navigation().redo()) look_changed();
  });
  QAction* search = go->addAction("&Search", this, [this] {
    showPanel("search");
    search_->begin();
  });
  search->setShortcuts({QKeySequence::Find, QKeySequence("/")});
  go->addAction("&Largest difference", QKeySequence("Ctrl+D"), this, [this] {
    if (differences_->jumpToLargest()) showPanel("differences");
  });
  go->addAction("&Undo what-if", QKeySequence::Undo, this, [this] { what_if_->undo(); });
  go->addAction("&Redo what-if", QKeySequence::Redo, this, [this] { what_if_->redo(); });

  QMenu* view = menuBar()->addMenu("&View");
  const auto rebuild = [this] {
    if (!timeline_->hasScene()) return;
    const Scene& scene = timeline_->scene();
    showTimeline(scene.comparison ? comparison_scene(scene.comparison, scene_options_)
                                  : timeline_scene(scene.sides.front().model, scene_options_),
                 true);
  };
  const auto toggle = [&](const QString& text, bool on, const std::function<void(bool)>& set) {
    QAction* action = view->addAction(text);
    action->setCheckable(true);
    action->setChecked(on);
    QObject::connect(action, &QAction::toggled, this, set);
    return action;
  };
  host_lanes_ = toggle("&Host lanes", true, [this, rebuild](bool on) { scene_options_.host = on, rebuild(); });
  toggle("&Memory", true, [this, rebuild](bool on) { scene_options_.memory = on, rebuild(); });
  toggle("&Compact rows", false, [this, rebuild](bool on) {
    const SceneOptions usual;
    scene_options_.row_height = on ? usual.row_height / 2 : usual.row_height;
    scene_options_.memory_height = on ? usual.memory_height / 3 : usual.memory_height;
    rebuild();
  });
  timeline_->onOptions = [this, rebuild](const std::function<void(SceneOptions&)>& change) {
    change(scene_options_);
    rebuild();
  };
  toggle("&Dark", arguments_.theme == Theme::Dark, [this](bool on) { arguments_.theme = worn(on), applyTheme(); });
  toggle("Frame &time", false, [this](bool on) { timeline_->setFrameTimeShown(on); });
  view->addSeparator();
  for (QDockWidget* dock : findChildren<QDockWidget*>()) view->addAction(dock->toggleViewAction());
  view->addAction("&Default layout", this, [this] { restoreState(default_layout_, kLayoutVersion); });
  QMenu* help = menuBar()->addMenu("&Help");
  QAction* keys = help->addAction("&Keys", this, [this] { showKeys(); });
  keys->setShortcuts({QKeySequence("?"), QKeySequence("Shift+?"), QKeySequence("F1")});
}

void MainWindow::showKeys() {
  auto* box = new QMessageBox(this);
  box->setAttribute(Qt::WA_DeleteOnClose);
  box->setWindowTitle("Keys");
  box->setTextFormat(Qt::RichText);
  box->setText(
      "<table cellpadding=3>"
      "<tr><td><b>W S</b></td><td>zoom in, out at the mouse</td><td><b>A D ← →</b></td><td>pan</td></tr>"
      "<tr><td><b>F</b></td><td>fit the selection; twice: everything</td><td><b>Home</b></td><td>everything</td></tr>"
      "<tr><td><b>. ,</b></td><td>next, previous slice</td><td><b>↑ ↓</b></td><td>lane above, below</td></tr>"
      "<tr><td><b>M</b></td><td>measure the slice, or what is seen</td><td><b>R</b></td><td>range of the "
      "slice</td></tr>"
      "<tr><td><b>B N</b></td><td>bookmark, next bookmark</td><td><b>/ Ctrl+F</b></td><td>search</td></tr>"
      "<tr><td><b>T</b></td><td>note at the range, the slice or the mouse</td><td><b>Ctrl+L Ctrl+S</b></td><td>copy a "
      "link "
      "to what is seen; save the range</td></tr>"
      "<tr><td><b>O</b></td><td>to the operator that a kernel comes from, and outwards</td><td><b>K</b></td><td>to the "
      "kernels of an operator</td></tr>"
      "<tr><td><b>Backspace</b></td><td>seen and selected before</td><td><b>Ctrl+D</b></td><td>largest "
      "difference</td></tr>"
      "<tr><td><b>Esc</b></td><td>let go of range, then slice</td><td><b>Ctrl+wheel</b></td><td>zoom; Shift+wheel "
      "pans</td></tr>"
      "<tr><td><b>drag</b></td><td>select a range</td><td><b>Shift+drag</b></td><td>pan</td></tr>"
      "</table>");
  box->open();
}

void MainWindow::applyTheme() {
  const bool dark = QApplication::palette().color(QPalette::Window).lightness() < 128;
  const Theme theme = arguments_.theme.value_or(dark ? Theme::Dark : Theme::Light);
  timeline_->setTheme(theme);
  strip_->setTheme(theme);
  pareto_->setTheme(theme);
  flame_->setTheme(theme);
  lateness_->setTheme(theme);
  legend_->update();
}

void MainWindow::fillRecent() {
  if (recent_ == nullptr) return;
  recent_->clear();
  for (const QString& path : session_.recent())
    recent_->addAction(path, this, [this, path] { open({path.toStdString()}); });
  if (recent_->isEmpty()) return;
  recent_->addSeparator();
  recent_->addAction("&Forget these", this, [this] {
    session_.forgetRecent();
    fillRecent();
  });
}

void MainWindow::saveView() {
  if (timeline_->hasScene()) session_.saveView(files_, comparison_ != nullptr, timeline_->navigation());
}

void MainWindow::restoreView() {
  if (timeline_->hasScene() && session_.restoreView(files_, comparison_ != nullptr, timeline_->navigation()))
    timeline_->navigationChanged();
}

}  // namespace foreshard::gui
