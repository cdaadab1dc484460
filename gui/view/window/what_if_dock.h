// The what-if panel: one control a choice, what came of it, undo, pin, copy as job file. GUI thread.
//
// A change is simulated at once, on a worker: the window goes on, and of changes that come faster than answers the
// newest wins.
#pragma once

#include <QWidget>
#include <functional>
#include <optional>

#include "gui/models/timeline/newest_first.h"
#include "gui/models/what_if.h"

class QFormLayout;
class QLabel;
class QPushButton;

namespace foreshard::gui {

class WhatIfPanel : public QWidget {
 public:
  explicit WhatIfPanel(QWidget* parent = nullptr);

  void setJob(std::optional<WhatIf> what_if);
  bool hasJob() const { return what_if_.has_value(); }
  WhatIf& model() { return *what_if_; }
  /// As a control does; the outcome follows. False if the job does not allow it; the reason is shown.
  bool change(const std::string& key, const std::string& value) { return change({key + "=" + value}); }
  bool change(const std::vector<std::string>& settings);
  /// A change has been asked for whose outcome is not there yet.
  bool isBusy() const { return wanted_.has_value(); }
  void undo();
  void redo();
  /// The wheel over a control scrolls; it does not edit.
  bool eventFilter(QObject* watched, QEvent* event) override;

  std::function<void()> onOutcome;                // now() or pinned() is another one
  std::function<void(const QString&)> onProblem;  // why a change was not made; empty: none

 private:
  void rebuild();
  void showOutcome();
  QWidget* controlOf(const Choice& choice, const QString& value);
  void arrived(std::uint64_t request, const Result<std::shared_ptr<const Outcome>>& outcome);
  void forgetRequests();
  void tell();

  std::optional<WhatIf> what_if_;
  std::optional<Job> wanted_;  // the newest that is being simulated
  std::uint64_t requests_ = 0, forgotten_ = 0;
  QFormLayout* form_ = nullptr;
  QWidget* controls_ = nullptr;
  QLabel* outcome_ = nullptr;
  QPushButton *undo_ = nullptr, *redo_ = nullptr, *pin_ = nullptr, *copy_ = nullptr;
  NewestFirst worker_;  // last: nothing of the above is gone while it works
};

}  // namespace foreshard::gui
