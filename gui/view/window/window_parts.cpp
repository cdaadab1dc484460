// The window's parts: centre, docks, menus, theme, what is remembered.

#include <QAction>
#include <QApplication>
#include <QCryptographicHash>
#include <QDockWidget>
#include <QFileDialog>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLineEdit>
#include <QListWidget>
#include <QMenuBar>
#include <QMessageBox>
#include <QPainter>
#include <QProgressBar>
#include <QPushButton>
#include <QSettings>
#include <QStatusBar>
#include <QToolButton>
#include <QVBoxLayout>

#include "gui/view/window/main_window.h"

namespace foreshard::gui {
namespace {

constexpr int kLayoutVersion = 1;
constexpr int kMostRecent = 12;
constexpr const char* kOpenFilter =
    "Timelines, jobs and sweeps (*.fst *.json *.gz *.zst *.tar *.pickle *.sqlite *.toml *.pt2);;All files (*)";

/// What the colours mean, under the canvas.
class Legend : public QWidget {
 public:
  Legend(const TimelineWidget& timeline, QWidget* parent) : QWidget(parent), timeline_(timeline) {
    setAccessibleName("Legend");
    QSizePolicy policy(QSizePolicy::Preferred, QSizePolicy::Fixed);
    policy.setHeightForWidth(true);
    setSizePolicy(policy);
  }
  bool hasHeightForWidth() const override { return true; }
  int heightForWidth(int width) const override {
    if (!timeline_.hasScene()) return 0;
    const QRectF area(0, 0, width - kGutter - 12, 0);
    return static_cast<int>(paint_legend(nullptr, timeline_.scene(), area, palette(), picture_fonts())) + 8;
  }
  QSize sizeHint() const override { return {400, heightForWidth(std::max(400, width()))}; }

 protected:
  void paintEvent(QPaintEvent*) override {
    QPainter painter(this);
    painter.fillRect(rect(), color(palette().ground));
    if (!timeline_.hasScene()) return;
    paint_legend(&painter, timeline_.scene(), QRectF(kGutter, 4, width() - kGutter - 12, height()), palette(),
                 picture_fonts());
  }

 private:
  const Palette& palette() const { return palette_of(timeline_.theme()); }
  const TimelineWidget& timeline_;
};

}  // namespace

void MainWindow::buildCentre() {
  auto* page = new QWidget(this);
  auto* layout = new QVBoxLayout(page);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->setSpacing(0);
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
  column->addWidget(timeline_, 1);
  column->addWidget(legend_);
  centre_->addWidget(canvas);
  pareto_ = new ParetoWidget(centre_);
  centre_->addWidget(pareto_);
  layout->addWidget(centre_, 1);
  setCentralWidget(page);

  timeline_->onSelection = [this] { showSelection(); };
  timeline_->onStatus = [this](const QString& text) { statusBar()->showMessage(text); };
  timeline_->onView = [this] {
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

QDockWidget* MainWindow::addPanel(const QString& title, const char* name, QWidget* widget, Qt::DockWidgetArea area) {
  auto* dock = new QDockWidget(title, this);
  dock->setObjectName(name);
  widget->setAccessibleName(title);
  dock->setWidget(widget);
  addDockWidget(area, dock);
  return dock;
}

void MainWindow::buildDocks() {
  inspector_ = new FactTable({"", "Slice"}, this);
  QDockWidget* inspector = addPanel("Inspector", "inspector", inspector_, Qt::RightDockWidgetArea);
  what_if_ = new WhatIfPanel(this);
  QDockWidget* what_if = addPanel("What if", "what_if", what_if_, Qt::RightDockWidgetArea);
  range_ = new FactTable({"", "Busy", "Share"}, this);
  QDockWidget* range = addPanel("Range", "range", range_, Qt::BottomDockWidgetArea);
  differences_ = new FactTable({"Instruction", "A - B", "A", "B", "Stream"}, this);
  QDockWidget* differences = addPanel("Differences", "differences", differences_, Qt::BottomDockWidgetArea);
  auto* search = new QWidget(this);
  auto* column = new QVBoxLayout(search);
  column->setContentsMargins(4, 4, 4, 4);
  search_field_ = new QLineEdit(search);
  search_field_->setPlaceholderText("Name, unit or kind");
  search_field_->setClearButtonEnabled(true);
  search_field_->setAccessibleName("Search slices");
  search_hits_ = new QListWidget(search);
  search_hits_->setUniformItemSizes(true);
  search_hits_->setAccessibleName("Slices found");
  column->addWidget(search_field_);
  column->addWidget(search_hits_);
  QDockWidget* found = addPanel("Search", "search", search, Qt::BottomDockWidgetArea);
  runs_ = new RunList(this);
  QDockWidget* runs = addPanel("Runs", "runs", runs_, Qt::BottomDockWidgetArea);
  tabifyDockWidget(differences, found);
  tabifyDockWidget(differences, runs);
  differences->raise();
  range->raise();
  inspector->raise();
  resizeDocks({inspector, what_if}, {330, 330}, Qt::Horizontal);
  resizeDocks({range, differences}, {210, 210}, Qt::Vertical);

  runs_->onShow = [this](const Run& run) { showRun(run); };
  runs_->onCompare = [this](const Run& a, const Run& b) { compareRuns(a, b); };
  what_if_->onOutcome = [this] { showOutcome(); };
  what_if_->onProblem = [this](const QString& text) { showMessage(text); };
  QObject::connect(search_field_, &QLineEdit::textChanged, this, [this](const QString& text) { this->search(text); });
  const auto go = [this](QListWidgetItem* item) {
    if (item == nullptr) return;
    timeline_->selectSlice(SceneSlice{item->data(Qt::UserRole + 1).toInt(),
                                      static_cast<std::uint32_t>(item->data(Qt::UserRole).toULongLong())},
                           true);
  };
  QObject::connect(search_hits_, &QListWidget::currentItemChanged, this, go);
  QObject::connect(search_hits_, &QListWidget::itemActivated, this, [this, go](QListWidgetItem* item) {
    go(item);
    timeline_->setFocus();
  });
  QObject::connect(search_field_, &QLineEdit::returnPressed, this, [this] {
    const int next = search_hits_->currentRow() + 1;
    search_hits_->setCurrentRow(next < search_hits_->count() ? next : 0);
  });
  QObject::connect(differences_, &QTableWidget::currentCellChanged, this,
                   [this](int row, int, int, int) { jumpToDifference(row); });
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
  file->addAction("&Export picture…", QKeySequence("Ctrl+E"), this, [this] { exportPicture(); });
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
  const auto find = [this] {
    search_field_->window()->raise();
    for (auto* dock : findChildren<QDockWidget*>("search")) {
      dock->show();
      dock->raise();
    }
    search_field_->setFocus();
    search_field_->selectAll();
  };
  QAction* search = go->addAction("&Search", this, find);
  search->setShortcuts({QKeySequence::Find, QKeySequence("/")});
  go->addAction("&Largest difference", QKeySequence("Ctrl+D"), this, [this] {
    if (timeline_->hasScene() && timeline_->scene().comparison && differences_->rowCount() > 0)
      timeline_->selectSlice(SceneSlice{1, timeline_->scene().comparison->pairs.front().span_b}, true);
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
  };
  toggle("&Host lanes", true, [this, rebuild](bool on) { scene_options_.host = on, rebuild(); });
  toggle("&Memory", true, [this, rebuild](bool on) { scene_options_.memory = on, rebuild(); });
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
  pareto_->setTheme(theme);
  legend_->update();
}

void MainWindow::remember(const std::vector<std::string>& files) {
  if (arguments_.no_session) return;
  QSettings settings;
  QStringList recent = settings.value("recent").toStringList();
  for (const std::string& file : files) {
    const QString path = QFileInfo(text_of(file)).absoluteFilePath();
    recent.removeAll(path);
    recent.prepend(path);
  }
  settings.setValue("recent", recent.mid(0, kMostRecent));
  fillRecent();
}

void MainWindow::fillRecent() {
  if (recent_ == nullptr || arguments_.no_session) return;
  recent_->clear();
  for (const QString& path : QSettings().value("recent").toStringList())
    recent_->addAction(path, this, [this, path] { open({path.toStdString()}); });
  if (recent_->isEmpty()) return;
  recent_->addSeparator();
  recent_->addAction("&Forget these", this, [this] {
    QSettings().remove("recent");
    fillRecent();
  });
}

QString MainWindow::viewKey() const {
  QStringList files;
  for (const std::string& file : files_) files << QFileInfo(text_of(file)).absoluteFilePath();
  files << (comparison_ ? "compared" : "");
  const QByteArray sum = QCryptographicHash::hash(files.join('\n').toUtf8(), QCryptographicHash::Md5);
  return "views/" + QString::fromLatin1(sum.toHex());
}

/// Where the user was in these files, with the bookmarks.
void MainWindow::saveView() {
  if (arguments_.no_session || files_.empty() || !timeline_->hasScene()) return;
  const Navigation& navigation = timeline_->navigation();
  QStringList bookmarks;
  for (const SimTime mark : navigation.bookmarks()) bookmarks << QString::number(mark);
  QSettings settings;
  const QString key = viewKey();
  settings.setValue(key, QStringList{QString::number(navigation.range().begin), QString::number(navigation.range().end),
                                     QString::number(navigation.extent().length()), bookmarks.join(' ')});
  QStringList order = settings.value("views/order").toStringList();
  order.removeAll(key);
  order.prepend(key);
  for (const QString& old : order.mid(kMostRecent)) settings.remove(old);
  settings.setValue("views/order", order.mid(0, kMostRecent));
}

void MainWindow::restoreView() {
  if (arguments_.no_session || !timeline_->hasScene()) return;
  const QStringList view = QSettings().value(viewKey()).toStringList();
  Navigation& navigation = timeline_->navigation();
  // A file that has another length by now is another recording.
  if (view.size() != 4 || view[2].toLongLong() != navigation.extent().length()) return;
  std::vector<SimTime> bookmarks;
  for (const QString& mark : view[3].split(' ', Qt::SkipEmptyParts)) bookmarks.push_back(mark.toLongLong());
  navigation.set_bookmarks(std::move(bookmarks));
  navigation.show({view[0].toLongLong(), view[1].toLongLong()});
  timeline_->navigationChanged();
}

void MainWindow::restoreSession() {
  if (arguments_.no_session) return;
  const QSettings settings;
  restoreGeometry(settings.value("geometry").toByteArray());
  restoreState(settings.value("layout").toByteArray(), kLayoutVersion);
}

void MainWindow::saveSession() {
  if (arguments_.no_session) return;
  saveView();
  QSettings settings;
  settings.setValue("geometry", saveGeometry());
  settings.setValue("layout", saveState(kLayoutVersion));
  QStringList files;
  for (const std::string& file : files_) files << QFileInfo(text_of(file)).absoluteFilePath();
  settings.setValue("files", files);
  settings.setValue("compares", comparison_ != nullptr);
}

}  // namespace foreshard::gui
