// The runs that have been opened, with the numbers of their steps: one is shown, any two are compared. GUI thread.
#pragma once

#include <QWidget>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gui/models/timeline/timeline_model.h"
#include "gui/view/panels/fact_table.h"

class QPushButton;

namespace foreshard::gui {

struct Run {
  std::string name;
  std::vector<std::string> files;  // empty: of the what-if panel
  std::shared_ptr<const TimelineModel> timeline;
};

class RunList : public QWidget {
 public:
  explicit RunList(QWidget* parent = nullptr);

  /// A run of the same name and files takes the place of the one before. The oldest goes where there are too many.
  void add(Run run);
  const std::vector<Run>& runs() const { return runs_; }
  FactTable& table() { return *table_; }
  /// As the buttons do, with the selected rows.
  void show();
  void compare();
  void remove();

  std::function<void(const Run&)> onShow;
  std::function<void(const Run& a, const Run& b)> onCompare;

 private:
  std::vector<std::size_t> selected() const;
  void fill();
  void enable();

  std::vector<Run> runs_;
  FactTable* table_ = nullptr;
  QPushButton *show_ = nullptr, *compare_ = nullptr, *remove_ = nullptr;
};

}  // namespace foreshard::gui
