#include "gui/view/window/search_panel.h"

#include <QLabel>
#include <QLineEdit>
#include <QListWidget>
#include <QVBoxLayout>

#include "gui/models/timeline/amounts.h"
#include "gui/view/paint/theme.h"

namespace foreshard::gui {
namespace {

constexpr std::size_t kMostHits = 1000;

}  // namespace

SearchPanel::SearchPanel(QWidget* parent) : QWidget(parent) {
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(4, 4, 4, 4);
  field_ = new QLineEdit(this);
  field_->setPlaceholderText("Name, unit or kind; stream:NAME");
  field_->setClearButtonEnabled(true);
  field_->setAccessibleName("Search slices");
  hits_ = new QListWidget(this);
  hits_->setUniformItemSizes(true);
  hits_->setAccessibleName("Slices found");
  column->addWidget(field_);
  sums_ = new QLabel(this);
  sums_->setWordWrap(true);
  sums_->setTextInteractionFlags(Qt::TextSelectableByMouse);
  sums_->setAccessibleName("What was found, by stream");
  sums_->hide();
  column->addWidget(sums_);
  column->addWidget(hits_);
  QObject::connect(field_, &QLineEdit::textChanged, this, [this] { search(); });
  QObject::connect(hits_, &QListWidget::currentItemChanged, this, [this](QListWidgetItem* item) { go(item); });
  QObject::connect(hits_, &QListWidget::itemActivated, this, [this](QListWidgetItem* item) {
    go(item);
    if (onChosen) onChosen();
  });
  QObject::connect(field_, &QLineEdit::returnPressed, this, [this] {
    const int next = hits_->currentRow() + 1;
    hits_->setCurrentRow(next < hits_->count() ? next : 0);
  });
}

void SearchPanel::setScene(const Scene& scene) {
  sides_ = scene.sides;
  search();
}

void SearchPanel::begin() {
  field_->setFocus();
  field_->selectAll();
}

void SearchPanel::go(const QListWidgetItem* item) {
  if (item == nullptr || !onFound) return;
  onFound({item->data(Qt::UserRole + 1).toInt(), static_cast<std::uint32_t>(item->data(Qt::UserRole).toULongLong())});
}

void SearchPanel::search() {
  hits_->clear();
  sums_->hide();
  ++searches_;
  const QString text = field_->text();
  if (sides_.empty() || text.trimmed().isEmpty()) return;
  worker_.ask([this, sides = sides_, words = text.toStdString(), asked = searches_] {
    std::vector<SearchResult> results;
    for (const SceneSide& side : sides) results.push_back(search_slices(*side.model, words, kMostHits));
    QMetaObject::invokeMethod(
        this,
        [this, results = std::move(results), asked] {
          if (asked == searches_) showHits(results);
        },
        Qt::QueuedConnection);
  });
}

void SearchPanel::showHits(const std::vector<SearchResult>& results) {
  std::size_t found = 0;
  QStringList streams;
  for (std::size_t s = 0; s < results.size(); ++s) {
    const TimelineModel& model = *sides_[s].model;
    found += results[s].found;
    const QString side = results.size() == 1 ? "" : s == 0 ? "A " : "B ";
    for (const FoundOnStream& there : results[s].streams)
      streams << side + text_of(there.stream) + QString(" %1, ").arg(there.slices) +
                     text_of(duration_words(static_cast<double>(there.time)));
    for (const std::uint32_t span : results[s].spans) {
      const Span& about = model.timeline.spans[span];
      const auto length = static_cast<double>(about.duration);
      auto* item = new QListWidgetItem(text_of(slice_label(model.timeline, about)) + "   " +
                                       text_of(duration_words(static_cast<double>(about.start - sides_[s].origin))) +
                                       ", " + text_of(duration_words(length)));
      item->setData(Qt::UserRole, static_cast<qulonglong>(span));
      item->setData(Qt::UserRole + 1, static_cast<int>(s));
      hits_->addItem(item);
    }
  }
  const QString shown =
      found > static_cast<std::size_t>(hits_->count()) ? QString(", the first %1 below").arg(hits_->count()) : "";
  sums_->setText(QString("%1 slices").arg(found) + shown + (streams.isEmpty() ? "" : " – " + streams.join("; ")));
  sums_->show();
}

}  // namespace foreshard::gui
