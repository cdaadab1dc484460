#include "gui/view/panels/gathered_panel.h"

#include <QComboBox>
#include <QVBoxLayout>
#include <utility>

namespace foreshard::gui {

GatheredPanel::GatheredPanel(const QStringList& readings, const QString& accessible, Gather gather,
                             std::function<void()> clear, QWidget* parent)
    : QWidget(parent), gather_(std::move(gather)), clear_(std::move(clear)), by_(new QComboBox(this)) {
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(4, 4, 4, 4);
  by_->addItems(readings);
  by_->setAccessibleName(accessible);
  by_->setVisible(readings.size() > 1);
  column->addWidget(by_, 0, Qt::AlignLeft);
  QObject::connect(by_, &QComboBox::currentIndexChanged, this, [this] {
    gathered_ = false;
    ask();
  });
}

void GatheredPanel::show_in(QWidget* content) { static_cast<QVBoxLayout*>(layout())->addWidget(content, 1); }

void GatheredPanel::go(SpanId span) const {
  if (onGo && span.valid()) onGo({0, static_cast<std::uint32_t>(span.index())});
}

void GatheredPanel::say(const QString& text) const {
  if (onStatus) onStatus(text);
}

void GatheredPanel::setScene(const Scene& scene) {
  const auto model = scene.sides.empty() ? nullptr : scene.sides.front().model;
  if (model == model_) return;
  model_ = model;
  ++asked_;  // answers on their way are about another timeline
  gathered_ = false;
  clear_();
  if (isVisible()) ask();
}

void GatheredPanel::showEvent(QShowEvent*) { ask(); }

void GatheredPanel::ask() {
  if (gathered_ || !model_) return;
  gathered_ = true;
  worker_.ask([this, gather = gather_, model = model_, reading = by_->currentIndex(), asked = ++asked_] {
    auto show = gather(*model, reading);
    QMetaObject::invokeMethod(
        this,
        [this, show = std::move(show), asked] {
          if (asked == asked_) show();
        },
        Qt::QueuedConnection);
  });
}

}  // namespace foreshard::gui
