// The window: canvas in the middle, docks around it, a message bar for what went wrong. GUI thread; files are opened on
// a worker, and a file that cannot be opened leaves on screen what was there.
#pragma once

#include <QLabel>
#include <QMainWindow>
#include <QStackedWidget>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gui/models/open_input.h"
#include "gui/models/timeline/newest_first.h"
#include "gui/models/timeline/slice_search.h"
#include "gui/models/viewer_arguments.h"
#include "gui/view/window/fact_table.h"
#include "gui/view/window/pareto_widget.h"
#include "gui/view/window/run_list.h"
#include "gui/view/window/timeline_widget.h"
#include "gui/view/window/what_if_dock.h"

class QFrame;
class QLineEdit;
class QListWidget;
class QProgressBar;

namespace foreshard::gui {

class MainWindow : public QMainWindow {
 public:
  explicit MainWindow(const ViewerArguments& arguments, QWidget* parent = nullptr);
  ~MainWindow() override;

  /// Opens on a worker; a job beside a recording, or `compare`, is compared: the first two, all are in the list of
  /// runs.
  void open(const std::vector<std::string>& files, bool compare = false);
  bool isLoading() const { return loading_; }
  TimelineWidget& timeline() { return *timeline_; }
  ParetoWidget& pareto() { return *pareto_; }
  WhatIfPanel& whatIf() { return *what_if_; }
  FactTable& inspector() { return *inspector_; }
  FactTable& differences() { return *differences_; }
  RunList& runs() { return *runs_; }
  QLineEdit& searchField() { return *search_field_; }
  QListWidget& searchHits() { return *search_hits_; }
  QString message() const { return message_text_->text(); }
  void showMessage(const QString& text);

 protected:
  void closeEvent(QCloseEvent* event) override;
  void dragEnterEvent(QDragEnterEvent* event) override;
  void dropEvent(QDropEvent* event) override;
  void changeEvent(QEvent* event) override;

 private:
  struct Loaded {
    std::optional<OpenedInput> input;
    std::optional<WhatIf> what_if;
    std::vector<Run> runs;
    std::shared_ptr<const ComparisonModel> comparison;
    std::vector<std::string> files, notes;
    std::optional<Error> error;
  };

  void buildCentre();
  void buildDocks();
  void buildMenus();
  void buildFileMenu();
  QDockWidget* addPanel(const QString& title, const char* name, QWidget* widget, Qt::DockWidgetArea area);
  static Loaded load(const std::vector<std::string>& files, bool compare, const ViewerArguments& arguments,
                     const OpenInputOptions& options);
  void loaded(Loaded result);
  void showRun(const Run& run);
  void compareRuns(const Run& a, const Run& b);
  void showTimeline(Scene scene, bool keep_view);
  void showSelection();
  void showDifferences();
  void showOutcome();
  void search(const QString& text);
  void showHits(const std::vector<SceneSide>& sides, const std::vector<SearchResult>& results);
  void jumpToDifference(int row);
  void openSweepPoint(const ParetoPoint& point);
  void exportPicture();
  void showKeys();
  void applyTheme();
  void remember(const std::vector<std::string>& files);
  void fillRecent();
  QString viewKey() const;
  void saveView();
  void restoreView();
  void restoreSession();
  void saveSession();

  ViewerArguments arguments_;
  SceneOptions scene_options_;
  std::vector<std::string> files_;
  std::optional<OpenedInput> input_;
  std::shared_ptr<const ComparisonModel> comparison_;
  bool loading_ = false;
  std::shared_ptr<std::atomic<bool>> cancelled_;

  QStackedWidget* centre_ = nullptr;
  QFrame* message_bar_ = nullptr;
  QLabel* message_text_ = nullptr;
  QWidget* legend_ = nullptr;
  TimelineWidget* timeline_ = nullptr;
  ParetoWidget* pareto_ = nullptr;
  FactTable *inspector_ = nullptr, *range_ = nullptr, *differences_ = nullptr;
  QLineEdit* search_field_ = nullptr;
  QListWidget* search_hits_ = nullptr;
  WhatIfPanel* what_if_ = nullptr;
  RunList* runs_ = nullptr;
  QProgressBar* progress_ = nullptr;
  QMenu* recent_ = nullptr;
  QByteArray default_layout_;
  std::uint64_t searches_ = 0;
  NewestFirst search_worker_;  // last: nothing of the above is gone while it works
};

}  // namespace foreshard::gui
