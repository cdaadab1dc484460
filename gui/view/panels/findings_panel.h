// What the shown step loses and why, as `foreshard diagnose` tells it: the dearest cause first. A click goes to where
// it is seen. GUI thread; a worker diagnoses.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "gui/view/panels/fact_table.h"
#include "gui/view/panels/gathered_panel.h"
#include "traces/diagnosis/diagnosis.h"

namespace foreshard::gui {

class FindingsTable : public FactTable {
 public:
  explicit FindingsTable(QWidget* parent = nullptr);
  void setFindings(std::vector<DiagnosedCause> findings);
  const std::vector<DiagnosedCause>& findings() const { return findings_; }

  std::function<void(const DiagnosedCause&)> onChosen;

 private:
  void choose(int row) const;

  std::vector<DiagnosedCause> findings_;
};

class FindingsPanel : public GatheredPanel {
 public:
  explicit FindingsPanel(QWidget* parent = nullptr);
  FindingsTable& table() { return *table_; }

  std::function<void(const Evidence&)> onEvidence;

 private:
  FindingsPanel(FindingsTable* table, QWidget* parent);

  FindingsTable* table_ = nullptr;
};

}  // namespace foreshard::gui
