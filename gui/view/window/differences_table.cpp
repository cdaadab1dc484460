#include "gui/view/window/differences_table.h"

#include <QHeaderView>
#include <algorithm>
#include <cmath>

#include "gui/models/timeline/amounts.h"
#include "gui/view/paint/theme.h"

namespace foreshard::gui {
namespace {

constexpr int kMostRows = 2000;
constexpr int kDifference = 1;

}  // namespace

DifferencesTable::DifferencesTable(QWidget* parent) : FactTable({"Instruction", "A - B", "A", "B", "Stream"}, parent) {
  setPlaceholder("Open a job and a recording, or two runs of the list, to see where they part.");
  QObject::connect(this, &QTableWidget::currentCellChanged, this, [this](int row, int, int, int) { jump(row); });
}

void DifferencesTable::show(std::shared_ptr<const ComparisonModel> comparison) {
  comparison_ = std::move(comparison);
  filling_ = true;
  setSortingEnabled(false);
  setRowCount(0);
  const int rows = comparison_ ? static_cast<int>(std::min<std::size_t>(kMostRows, comparison_->pairs.size())) : 0;
  setRowCount(rows);
  for (int row = 0; row < rows; ++row) {
    const InstructionPair& pair = comparison_->pairs[static_cast<std::size_t>(row)].numbers;
    auto* what = new QTableWidgetItem(text_of(pair.name) + (pair.unit.empty() ? "" : " · " + text_of(pair.unit)));
    what->setData(Qt::UserRole, row);  // the pair, however the table is sorted
    setItem(row, 0, what);
    const double difference = pair.duration.difference();
    const auto time = [](double nanoseconds) { return text_of(duration_words(nanoseconds)); };
    setItem(row, kDifference, new NumberItem(time(difference), std::abs(difference)));  // sorts by size
    setItem(row, 2, new NumberItem(time(pair.duration.a), pair.duration.a));
    setItem(row, 3, new NumberItem(time(pair.duration.b), pair.duration.b));
    setItem(row, 4, new QTableWidgetItem(text_of(pair.stream)));
  }
  sortByColumn(kDifference, Qt::DescendingOrder);
  setSortingEnabled(true);
  resizeColumnsToContents();
  setCurrentItem(nullptr);
  filling_ = false;
}

bool DifferencesTable::jumpToLargest() {
  if (rowCount() == 0) return false;
  sortByColumn(kDifference, Qt::DescendingOrder);
  if (currentRow() == 0) jump(0);  // the same row again is no change
  setCurrentCell(0, 0);
  return true;
}

void DifferencesTable::jump(int row) {
  const QTableWidgetItem* name = item(row, 0);
  if (filling_ || !comparison_ || name == nullptr || !onJump) return;
  onJump(comparison_->pairs[static_cast<std::size_t>(name->data(Qt::UserRole).toInt())]);
}

}  // namespace foreshard::gui
