#include "gui/view/window/run_list.h"

#include <QHBoxLayout>
#include <QPushButton>
#include <QVBoxLayout>
#include <algorithm>
#include <set>

#include "gui/models/headline.h"
#include "gui/models/timeline/amounts.h"
#include "gui/view/paint/theme.h"

namespace foreshard::gui {
namespace {

constexpr std::size_t kMostRuns = 24;  // all are kept in memory

}  // namespace

RunList::RunList(QWidget* parent) : QWidget(parent) {
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(4, 4, 4, 4);
  table_ = new FactTable({"Run", "Step", "Compute", "Exposed", "Peak allocated"}, this);
  table_->setAccessibleName("Runs");
  table_->setSelectionMode(QAbstractItemView::ExtendedSelection);
  column->addWidget(table_);
  auto* row = new QHBoxLayout;
  const auto button = [&](const char* text, const char* tip, void (RunList::*act)()) {
    auto* made = new QPushButton(text, this);
    made->setToolTip(tip);
    QObject::connect(made, &QPushButton::clicked, this, [this, act] { (this->*act)(); });
    row->addWidget(made);
    return made;
  };
  show_ = button("Show", "The selected run alone", &RunList::show);
  compare_ = button("Compare", "Two selected runs: the upper one is A", &RunList::compare);
  remove_ = button("Remove", "The selected runs from this list", &RunList::remove);
  row->addStretch();
  column->addLayout(row);
  QObject::connect(table_, &QTableWidget::itemSelectionChanged, this, [this] { enable(); });
  QObject::connect(table_, &QTableWidget::itemActivated, this, [this](QTableWidgetItem*) { show(); });
  enable();
}

void RunList::add(Run run) {
  const auto same = std::find_if(runs_.begin(), runs_.end(),
                                 [&](const Run& other) { return other.name == run.name && other.files == run.files; });
  if (same != runs_.end())
    *same = std::move(run);
  else
    runs_.push_back(std::move(run));
  if (runs_.size() > kMostRuns) runs_.erase(runs_.begin());
  fill();
}

void RunList::show() {
  const auto rows = selected();
  if (rows.size() == 1 && onShow) onShow(runs_[rows[0]]);
}

void RunList::compare() {
  const auto rows = selected();
  if (rows.size() == 2 && onCompare) onCompare(runs_[rows[0]], runs_[rows[1]]);
}

void RunList::remove() {
  const auto rows = selected();
  for (auto row = rows.rbegin(); row != rows.rend(); ++row)
    runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(*row));
  fill();
}

std::vector<std::size_t> RunList::selected() const {
  std::set<std::size_t> rows;
  for (const QModelIndex& index : table_->selectionModel()->selectedRows())
    rows.insert(static_cast<std::size_t>(index.row()));
  return {rows.begin(), rows.end()};
}

void RunList::fill() {
  std::vector<std::vector<QString>> rows;
  for (const Run& run : runs_) {
    const TimeRange step = steady_range(*run.timeline);
    const RangeNumbers n = run.timeline->ranks.empty()
                               ? RangeNumbers{}
                               : range_numbers(*run.timeline, run.timeline->ranks.front().rank, step);
    const auto time = [](SimDuration ns) { return text_of(duration_words(static_cast<double>(ns))); };
    rows.push_back({text_of(run.name), time(step.length()), time(n.compute), time(n.exposed),
                    n.peak_allocated > 0 ? text_of(bytes_words(static_cast<double>(n.peak_allocated))) : QString()});
  }
  table_->setRows(rows);
  table_->resizeColumnsToContents();
  enable();
}

void RunList::enable() {
  const std::size_t count = selected().size();
  show_->setEnabled(count == 1);
  compare_->setEnabled(count == 2);
  remove_->setEnabled(count > 0);
}

}  // namespace foreshard::gui
