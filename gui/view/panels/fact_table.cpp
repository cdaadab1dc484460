#include "gui/view/panels/fact_table.h"

#include <QClipboard>
#include <QGuiApplication>
#include <QHeaderView>
#include <QKeyEvent>
#include <QPainter>
#include <set>

#include "gui/view/paint/theme.h"

namespace foreshard::gui {

FactTable::FactTable(const QStringList& columns, QWidget* parent)
    : QTableWidget(0, static_cast<int>(columns.size()), parent) {
  setHorizontalHeaderLabels(columns);
  verticalHeader()->hide();
  verticalHeader()->setDefaultSectionSize(22);
  horizontalHeader()->setStretchLastSection(true);
  setEditTriggers(QAbstractItemView::NoEditTriggers);
  setSelectionBehavior(QAbstractItemView::SelectRows);
  setAlternatingRowColors(true);
  setShowGrid(false);
  QObject::connect(this, &QTableWidget::cellActivated, this, [this](int row, int) { go(row); });
  QObject::connect(this, &QTableWidget::cellDoubleClicked, this, [this](int row, int) { go(row); });
}

void FactTable::go(int row) {
  const auto index = static_cast<std::size_t>(row);
  if (index < slices_.size() && slices_[index] && onGo) onGo(*slices_[index]);
}

void FactTable::setRows(const std::vector<std::vector<QString>>& rows) {
  setRowCount(static_cast<int>(rows.size()));
  slices_.clear();
  for (int r = 0; r < rowCount(); ++r) {
    const auto& cells = rows[static_cast<std::size_t>(r)];
    for (int c = 0; c < columnCount() && c < static_cast<int>(cells.size()); ++c) {
      auto* item = new QTableWidgetItem(cells[static_cast<std::size_t>(c)]);  // the table owns it
      item->setToolTip(item->text());
      setItem(r, c, item);
    }
  }
}

void FactTable::setFacts(const std::vector<Fact>& facts) {
  std::vector<std::vector<QString>> rows;
  for (const Fact& fact : facts) rows.push_back({text_of(fact.name), text_of(fact.value)});
  setRows(rows);
  for (int row = 0; row < rowCount(); ++row) {
    const Fact& fact = facts[static_cast<std::size_t>(row)];
    slices_.push_back(fact.slice);
    if (!fact.slice) continue;
    QFont font = item(row, 1)->font();
    font.setUnderline(true);
    item(row, 1)->setFont(font);
    item(row, 1)->setToolTip(item(row, 1)->text() + "\nEnter or a double click goes there");
  }
  resizeColumnToContents(0);
}

void FactTable::copy() const {
  std::set<int> rows;
  for (const QModelIndex& index : selectionModel()->selectedRows()) rows.insert(index.row());
  if (rows.empty())
    for (int r = 0; r < rowCount(); ++r) rows.insert(r);
  QString text;
  for (const int r : rows) {
    for (int c = 0; c < columnCount(); ++c)
      text += (c > 0 ? "\t" : "") + (item(r, c) != nullptr ? item(r, c)->text() : QString());
    text += "\n";
  }
  QGuiApplication::clipboard()->setText(text);
}

void FactTable::keyPressEvent(QKeyEvent* event) {
  if (event->matches(QKeySequence::Copy)) return copy();
  QTableWidget::keyPressEvent(event);
}

void FactTable::paintEvent(QPaintEvent* event) {
  QTableWidget::paintEvent(event);
  if (rowCount() > 0 || placeholder_.isEmpty()) return;
  QPainter painter(viewport());
  painter.setPen(palette().color(QPalette::Disabled, QPalette::Text));
  painter.drawText(viewport()->rect().adjusted(12, 8, -12, -8), Qt::AlignCenter | Qt::TextWordWrap, placeholder_);
}

NumberItem::NumberItem(const QString& text, double number) : QTableWidgetItem(text) {
  setData(Qt::UserRole, number);
  setTextAlignment(Qt::AlignRight | Qt::AlignVCenter);
}

bool NumberItem::operator<(const QTableWidgetItem& other) const {
  return data(Qt::UserRole).toDouble() < other.data(Qt::UserRole).toDouble();
}

}  // namespace foreshard::gui
