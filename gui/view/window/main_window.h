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
#include "gui/models/viewer_arguments.h"
#include "gui/view/panels/fact_table.h"
#include "gui/view/panels/findings_panel.h"
#include "gui/view/panels/flame_panel.h"
#include "gui/view/panels/lateness_panel.h"
#include "gui/view/panels/query_panel.h"
#include "gui/view/window/differences_table.h"
#include "gui/view/window/figure_strip.h"
#include "gui/view/window/overview_strip.h"
#include "gui/view/window/pareto_widget.h"
#include "gui/view/window/run_list.h"
#include "gui/view/window/search_panel.h"
#include "gui/view/window/timeline_widget.h"
#include "gui/view/window/viewer_session.h"
#include "gui/view/window/what_if_dock.h"

class QFrame;
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
  DifferencesTable& differences() { return *differences_; }
  RunList& runs() { return *runs_; }
  SearchPanel& searchPanel() { return *search_; }
  FigureStrip& strip() { return *strip_; }
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
    int job_side = -1;  // of the comparison, of the job that is edited: 0 or 1; -1: neither is a job
    std::vector<std::string> files, notes;
    std::optional<Error> error;
  };

  void buildCentre();
  void buildMessageBar(QWidget* page);
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
  const Outcome* shownOutcome(const Scene& scene) const;
  void showSelection();
  void showOutcome();
  void showBeside(const Outcome& now, std::shared_ptr<const TimelineModel> other, int side);
  void showPanel(const char* name);
  void openSweepPoint(const ParetoPoint& point);
  void showKeys();
  void applyTheme();
  void fillRecent();
  void saveView();
  void restoreView();

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
  FigureStrip* strip_ = nullptr;
  OverviewStrip* overview_ = nullptr;
  FactTable *inspector_ = nullptr, *range_ = nullptr;
  DifferencesTable* differences_ = nullptr;
  SearchPanel* search_ = nullptr;
  WhatIfPanel* what_if_ = nullptr;
  RunList* runs_ = nullptr;
  FindingsPanel* findings_ = nullptr;
  FlamePanel* flame_ = nullptr;
  LatenessPanel* lateness_ = nullptr;
  QueryPanel* query_ = nullptr;
  QProgressBar* progress_ = nullptr;
  QMenu* recent_ = nullptr;
  QAction* host_lanes_ = nullptr;
  bool many_ranks_ = false;
  QByteArray default_layout_;
  ViewerSession session_;
  std::shared_ptr<const TimelineModel> job_;        // what the panel's job was opened as
  std::shared_ptr<const TimelineModel> recording_;  // opened beside the job of the what-if panel; null: none
  int recording_side_ = 1;
  std::shared_ptr<const ComparisonModel> opened_;  // as it was opened, whatever has been edited since
  std::uint64_t comparisons_ = 0;
  NewestFirst compare_worker_;  // last: nothing of the above is gone while it works
};

}  // namespace foreshard::gui
