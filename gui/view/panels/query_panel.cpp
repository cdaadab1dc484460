#include "gui/view/panels/query_panel.h"

#include <QHeaderView>
#include <QLabel>
#include <QLineEdit>
#include <QVBoxLayout>
#include <algorithm>
#include <chrono>

#include "gui/view/paint/theme.h"
#include "traces/query/trace_query.h"

namespace foreshard::gui {
namespace {

constexpr std::size_t kMostRows = 1000;
constexpr int kWidest = 320;

QString words_of(const QueryValue& value) {
  if (const auto* number = std::get_if<std::int64_t>(&value)) return QString::number(*number);
  if (const auto* real = std::get_if<double>(&value)) return QString::number(*real, 'g', 8);
  if (const auto* text = std::get_if<std::string_view>(&value)) return text_of(*text);
  return "NULL";
}

}  // namespace

QueryPanel::QueryPanel(QWidget* parent) : QWidget(parent) {
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(4, 4, 4, 4);
  field_ = new QLineEdit(this);
  field_->setPlaceholderText("select name, count(*), sum(duration_ns) from spans group by name order by 3 desc");
  field_->setClearButtonEnabled(true);
  field_->setAccessibleName("Question in SQL");
  QString schema;
  for (const std::string& table : timeline_schema()) schema += text_of(table) + "\n";
  field_->setToolTip(schema.trimmed());
  answer_ = new FactTable({""}, this);
  answer_->setAccessibleName("Answer");
  answer_->setPlaceholder(
      "Ask in SQL (Enter): tables spans, lanes, flows, counters, samples, marks, iterations. A row "
      "with a column id of spans goes to its slice by a double click.");
  answer_->horizontalHeader()->setDefaultAlignment(Qt::AlignLeft | Qt::AlignVCenter);
  state_ = new QLabel(this);
  state_->setTextFormat(Qt::PlainText);
  state_->setWordWrap(true);
  column->addWidget(field_);
  column->addWidget(answer_, 1);
  column->addWidget(state_);
  QObject::connect(field_, &QLineEdit::returnPressed, this, [this] { ask(); });
  QObject::connect(answer_, &QTableWidget::cellActivated, this, [this](int row, int) { go(row); });
  QObject::connect(answer_, &QTableWidget::cellDoubleClicked, this, [this](int row, int) { go(row); });
}

QueryPanel::~QueryPanel() { ++asked_; }

void QueryPanel::setScene(const Scene& scene) {
  const auto model = scene.sides.empty() ? nullptr : scene.sides.front().model;
  if (model == model_) return;
  model_ = model;
  ++asked_;  // answers on their way are about another timeline
  answer_->setRows({});
  state_->clear();
}

QueryPanel::Answer QueryPanel::answer_to(const Timeline& timeline, const std::string& question,
                                         std::uint64_t asked) const {
  Answer answer;
  QueryReceiver receiver;
  receiver.columns = [&](const std::vector<std::string>& columns) { answer.columns = columns; };
  receiver.row = [&](const std::vector<QueryValue>& row) {
    answer.more = answer.rows.size() == kMostRows;
    if (answer.more) return false;
    std::vector<QString>& cells = answer.rows.emplace_back();
    for (const QueryValue& value : row) cells.push_back(words_of(value));
    return true;
  };
  receiver.stopped = [&] { return asked != asked_; };
  const auto done = query_timeline(timeline, question, receiver);
  if (!done) answer.error = done.error().message + (done.error().got.empty() ? "" : " (" + done.error().got + ")");
  return answer;
}

void QueryPanel::ask() {
  if (!model_ || field_->text().trimmed().isEmpty()) return;
  state_->setText("…");
  worker_.ask([this, model = model_, question = field_->text().toStdString(), asked = ++asked_] {
    const auto begin = std::chrono::steady_clock::now();
    Answer answer = answer_to(model->timeline, question, asked);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    QMetaObject::invokeMethod(
        this,
        [this, answer = std::move(answer), took = took.count(), asked] {
          if (asked == asked_) show(answer, took);
        },
        Qt::QueuedConnection);
  });
}

void QueryPanel::show(const Answer& answer, double milliseconds) {
  QStringList columns;
  for (const std::string& name : answer.columns) columns << text_of(name);
  if (columns.isEmpty()) columns << "";
  answer_->setRowCount(0);
  answer_->setColumnCount(static_cast<int>(columns.size()));
  answer_->setHorizontalHeaderLabels(columns);
  answer_->setRows(answer.rows);
  answer_->resizeColumnsToContents();
  for (int column = 0; column < answer_->columnCount(); ++column)
    answer_->setColumnWidth(column, std::min(kWidest, answer_->columnWidth(column)));
  state_->setText(answer.error.empty() ? QString("%1%2 rows, %3 ms")
                                             .arg(answer.more ? "the first " : "")
                                             .arg(answer.rows.size())
                                             .arg(milliseconds, 0, 'f', 0)
                                       : text_of(answer.error));
}

void QueryPanel::go(int row) {
  for (int column = 0; column < answer_->columnCount(); ++column) {
    const auto* header = answer_->horizontalHeaderItem(column);
    if (header == nullptr || header->text() != "id" || !onGo || !model_) continue;
    bool number = false;
    const qulonglong id = answer_->item(row, column)->text().toULongLong(&number);
    if (number && id < model_->timeline.spans.size()) onGo({0, static_cast<std::uint32_t>(id)});
    return;
  }
}

}  // namespace foreshard::gui
