// The what-if panel: one control a choice, what came of it, undo, pin, copy as job file. GUI thread.
//
// A change is simulated at once on this thread: it takes milliseconds (docs/measurements).
#pragma once

#include <QWidget>
#include <functional>
#include <optional>

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
  /// As a control does. False if the job does not allow it; the reason is shown.
  bool change(const std::string& key, const std::string& value);
  void undo();
  void redo();

  std::function<void()> onOutcome;                // now() or pinned() is another one
  std::function<void(const QString&)> onProblem;  // why a change was not made; empty: none

 private:
  void rebuild();
  void showOutcome();

  std::optional<WhatIf> what_if_;
  QFormLayout* form_ = nullptr;
  QWidget* controls_ = nullptr;
  QLabel* outcome_ = nullptr;
  QPushButton *undo_ = nullptr, *redo_ = nullptr, *pin_ = nullptr, *copy_ = nullptr;
};

}  // namespace foreshard::gui
