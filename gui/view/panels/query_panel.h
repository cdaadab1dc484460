// Questions in SQL over the timeline that is shown. GUI thread; a worker asks. A row with a span's id goes to it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gui/models/scene.h"
#include "gui/models/timeline/newest_first.h"
#include "gui/view/panels/fact_table.h"

class QLineEdit;
class QLabel;

namespace foreshard::gui {

class QueryPanel : public QWidget {
 public:
  explicit QueryPanel(QWidget* parent = nullptr);
  ~QueryPanel() override;  // a question that is being asked ends
  void setScene(const Scene& scene);
  QLineEdit& field() { return *field_; }
  FactTable& answer() { return *answer_; }
  QLabel& state() { return *state_; }

  std::function<void(SceneSlice)> onGo;

 private:
  struct Answer {
    std::vector<std::string> columns;
    std::vector<std::vector<QString>> rows;
    bool more = false;
    std::string error;
  };
  Answer answer_to(const Timeline& timeline, const std::string& question, std::uint64_t asked) const;
  void ask();
  void show(const Answer& answer, double milliseconds);
  void go(int row);

  std::shared_ptr<const TimelineModel> model_;
  std::atomic<std::uint64_t> asked_ = 0;  // the worker's question ends where it is another
  QLineEdit* field_ = nullptr;
  FactTable* answer_ = nullptr;
  QLabel* state_ = nullptr;
  NewestFirst worker_;  // last: nothing of the above is gone while it works
};

}  // namespace foreshard::gui
