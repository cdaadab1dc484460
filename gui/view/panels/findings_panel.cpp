#include "gui/view/panels/findings_panel.h"

#include <algorithm>
#include <utility>

#include "gui/models/timeline/amounts.h"
#include "gui/view/paint/theme.h"

namespace foreshard::gui {
namespace {

constexpr const char* kHow = "What costs time and memory stands here once a recording, a job or a snapshot is open.";
constexpr const char* kNothing = "Nothing that costs more than 2 % of the step (of the memory's peak) was found.";

/// "missing_prefetch" is the name in scripts; here it is words.
QString words_of(const std::string& name) { return text_of(name).replace('_', ' '); }

QString costs_of(const DiagnosedCause& cause) {
  QStringList costs;
  if (cause.cost > 0) costs << text_of(duration_words(static_cast<double>(cause.cost)));
  if (cause.cost_bytes > 0) costs << text_of(bytes_words(static_cast<double>(cause.cost_bytes)));
  return costs.join(", ");
}

}  // namespace

FindingsTable::FindingsTable(QWidget* parent) : FactTable({"Cause", "Costs", "What happens", "What mends it"}, parent) {
  setPlaceholder(kHow);
  setAccessibleName("Findings");
  QObject::connect(this, &QTableWidget::cellClicked, this, [this](int row, int) { choose(row); });
  QObject::connect(this, &QTableWidget::cellActivated, this, [this](int row, int) { choose(row); });
}

void FindingsTable::setFindings(std::vector<DiagnosedCause> findings) {
  findings_ = std::move(findings);
  std::vector<std::vector<QString>> rows;
  for (const DiagnosedCause& cause : findings_)
    rows.push_back({words_of(cause.name), costs_of(cause), text_of(cause.cause), text_of(cause.remedy)});
  setRows(rows);
  resizeColumnToContents(0);
  resizeColumnToContents(1);
  setColumnWidth(2, std::max(200, (viewport()->width() - columnWidth(0) - columnWidth(1)) / 2));
}

void FindingsTable::choose(int row) const {
  const auto index = static_cast<std::size_t>(row);
  if (index < findings_.size() && onChosen) onChosen(findings_[index]);
}

FindingsPanel::FindingsPanel(QWidget* parent) : FindingsPanel(new FindingsTable, parent) {}

FindingsPanel::FindingsPanel(FindingsTable* table, QWidget* parent)
    : GatheredPanel(
          {"The longest step"}, "Whose findings",
          [table](const TimelineModel& model, int) {
            auto found = diagnose(model.timeline);
            const QString instead = found ? QString(kNothing) : text_of(found.error().message);
            auto findings = found ? std::move(found->findings) : std::vector<DiagnosedCause>{};
            return [table, instead, findings = std::move(findings)] {
              table->setPlaceholder(instead);
              table->setFindings(findings);
            };
          },
          [table] {
            table->setPlaceholder(kHow);
            table->setFindings({});
          },
          parent),
      table_(table) {
  show_in(table_);
  table_->onChosen = [this](const DiagnosedCause& cause) {
    say(text_of(cause.remedy));
    if (!cause.evidence.empty() && onEvidence) onEvidence(cause.evidence.front());
  };
}

}  // namespace foreshard::gui
