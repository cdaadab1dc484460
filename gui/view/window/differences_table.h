// The table of differences of a comparison, largest first; a row leads to its slices. GUI thread.
#pragma once

#include <functional>
#include <memory>

#include "gui/models/comparison_model.h"
#include "gui/view/panels/fact_table.h"

namespace foreshard::gui {

class DifferencesTable : public FactTable {
 public:
  explicit DifferencesTable(QWidget* parent = nullptr);

  /// Null: nothing is compared.
  void show(std::shared_ptr<const ComparisonModel> comparison);
  /// Marks the largest difference, as a click on its row does. False where there is none.
  bool jumpToLargest();

  std::function<void(const ComparedPair&)> onJump;

 private:
  void jump(int row);

  std::shared_ptr<const ComparisonModel> comparison_;
  bool filling_ = false;
};

}  // namespace foreshard::gui
