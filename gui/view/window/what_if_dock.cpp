#include "gui/view/window/what_if_dock.h"

#include <QClipboard>
#include <QComboBox>
#include <QFormLayout>
#include <QGuiApplication>
#include <QHBoxLayout>
#include <QLabel>
#include <QPushButton>
#include <QScrollArea>
#include <QSpinBox>
#include <QTimer>
#include <QVBoxLayout>

#include "gui/models/timeline/amounts.h"
#include "gui/view/paint/theme.h"

namespace foreshard::gui {
namespace {

constexpr const char* kNoJob = "Open a job file to change its choices and see what follows.";

/// "1.32 s &#8594; 1.21 s (-8.3 %)": before and now; one value where they are equal.
QString change_text(double before, double now, std::string (*words)(double)) {
  const QString text = text_of(words(now));
  if (before <= 0 || before == now) return "<b>" + text + "</b>";
  const double share = 100 * (now - before) / before;
  return text_of(words(before)) + " → <b>" + text +
         QString("</b> (%1%2 %)").arg(share > 0 ? "+" : "").arg(share, 0, 'f', 1);
}

QString card_text(const Outcome& outcome) {
  const QString reserved = text_of(bytes_words(static_cast<double>(outcome.peak_reserved)));
  if (outcome.card_bytes <= 0) return reserved;
  const double share = static_cast<double>(outcome.peak_reserved) / static_cast<double>(outcome.card_bytes);
  return text_of(percent_words(share)) + " of the card's " +
         text_of(bytes_words(static_cast<double>(outcome.card_bytes)));
}

QString outcome_text(const Outcome& before, const Outcome& now) {
  if (!now.fits)
    return "<b>Does not fit</b><br>" + text_of(now.misfit).toHtmlEscaped() + "<br>" + card_text(now) + " reserved";
  const bool same = !before.fits;  // nothing to set beside it
  const auto line = [&](const char* name, double Outcome::*value, std::string (*words)(double)) {
    if (now.*value <= 0) return QString();
    return QString("<tr><td>%1&nbsp;</td><td>%2</td></tr>")
        .arg(name, change_text(same ? 0 : before.*value, now.*value, words));
  };
  QString text = "<table>" + line("step", &Outcome::step_ns, duration_words) +
                 line("tokens/s", &Outcome::tokens_per_s, count_words) + line("MFU", &Outcome::mfu, percent_words) +
                 line("exposed", &Outcome::exposed_ns, duration_words);
  const auto bytes = [&](const char* name, Bytes from, Bytes to) {
    text += QString("<tr><td>%1&nbsp;</td><td>%2</td></tr>")
                .arg(name, change_text(same ? 0 : static_cast<double>(from), static_cast<double>(to), bytes_words));
  };
  bytes("allocated", before.peak_allocated, now.peak_allocated);
  bytes("reserved", before.peak_reserved, now.peak_reserved);
  return text + "</table>" + card_text(now) + ": fits";
}

}  // namespace

WhatIfPanel::WhatIfPanel(QWidget* parent) : QWidget(parent) {
  auto* layout = new QVBoxLayout(this);
  outcome_ = new QLabel(kNoJob, this);
  outcome_->setWordWrap(true);
  outcome_->setTextFormat(Qt::RichText);
  outcome_->setAccessibleName("Outcome");
  layout->addWidget(outcome_);
  auto* scroll = new QScrollArea(this);
  scroll->setWidgetResizable(true);
  scroll->setFrameShape(QFrame::NoFrame);
  scroll->setAccessibleName("Choices");
  controls_ = new QWidget(scroll);
  form_ = new QFormLayout(controls_);
  form_->setContentsMargins(0, 0, 0, 0);
  form_->setRowWrapPolicy(QFormLayout::WrapLongRows);
  form_->setFieldGrowthPolicy(QFormLayout::AllNonFixedFieldsGrow);
  scroll->setWidget(controls_);
  layout->addWidget(scroll, 1);
  auto* buttons = new QHBoxLayout;
  const auto button = [&](const char* text, const char* tip) {
    auto* made = new QPushButton(text, this);
    made->setToolTip(tip);
    buttons->addWidget(made);
    return made;
  };
  undo_ = button("Undo", "The job before the last change");
  redo_ = button("Redo", "The change that was undone");
  pin_ = button("Pin", "Keep this job to compare with: changes are drawn against it");
  copy_ = button("Copy job", "The whole job file to the clipboard");
  layout->addLayout(buttons);
  QObject::connect(undo_, &QPushButton::clicked, this, [this] { undo(); });
  QObject::connect(redo_, &QPushButton::clicked, this, [this] { redo(); });
  QObject::connect(pin_, &QPushButton::clicked, this, [this] {
    what_if_->toggle_pin();
    tell();
  });
  QObject::connect(copy_, &QPushButton::clicked, this,
                   [this] { QGuiApplication::clipboard()->setText(text_of(what_if_->job_file())); });
  for (QPushButton* made : {undo_, redo_, pin_, copy_}) made->setEnabled(false);
}

void WhatIfPanel::setJob(std::optional<WhatIf> what_if) {
  forgetRequests();
  what_if_ = std::move(what_if);
  rebuild();
  showOutcome();
}

void WhatIfPanel::forgetRequests() {
  forgotten_ = requests_;
  wanted_.reset();
}

void WhatIfPanel::tell() {
  showOutcome();
  if (onOutcome) onOutcome();
}

bool WhatIfPanel::change(const std::vector<std::string>& settings) {
  if (!what_if_) return false;
  // Changes of one after the other add up, also while the first is being simulated.
  const Job& base = wanted_ ? *wanted_ : what_if_->now().job;
  auto job = WhatIf::with(base, settings);
  if (onProblem) onProblem(job ? QString() : text_of(to_text(job.error())));
  // Which controls mean something may have changed; the one that is at work must not be deleted under its own signal.
  QTimer::singleShot(0, this, [this] { rebuild(); });
  if (!job) return false;
  if (*job == base) return true;
  wanted_ = std::move(*job);
  worker_.ask([this, request = ++requests_, job = *wanted_, simulator = what_if_->simulator()] {
    auto outcome = simulator->simulate(job);
    QMetaObject::invokeMethod(
        this, [this, request, outcome = std::move(outcome)] { arrived(request, outcome); }, Qt::QueuedConnection);
  });
  return true;
}

void WhatIfPanel::arrived(std::uint64_t request, const Result<std::shared_ptr<const Outcome>>& outcome) {
  if (request <= forgotten_) return;
  if (request == requests_) wanted_.reset();
  if (outcome)
    what_if_->accept(*outcome);
  else if (onProblem)
    onProblem(text_of(to_text(outcome.error())));
  rebuild();
  if (outcome) tell();
}

void WhatIfPanel::undo() {
  if (!what_if_) return;
  forgetRequests();
  if (!what_if_->undo()) return rebuild();
  rebuild();
  tell();
}

void WhatIfPanel::redo() {
  if (!what_if_) return;
  forgetRequests();
  if (!what_if_->redo()) return rebuild();
  rebuild();
  tell();
}

QWidget* WhatIfPanel::controlOf(const Choice& choice, const QString& value) {
  QWidget* control = nullptr;
  if (choice.values.empty()) {
    auto* number = new QSpinBox(controls_);
    number->setRange(static_cast<int>(choice.low), static_cast<int>(choice.high));
    number->setValue(value.toInt());
    number->setKeyboardTracking(false);
    QObject::connect(number, &QSpinBox::valueChanged, this,
                     [this, key = choice.key](int now) { change(key, std::to_string(now)); });
    control = number;
  } else {
    auto* box = new QComboBox(controls_);
    // As wide as the panel lets it be, not as its longest word.
    box->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
    box->setMinimumContentsLength(6);
    for (const std::string& word : choice.values) box->addItem(text_of(word));
    box->setCurrentText(value);
    QObject::connect(box, &QComboBox::textActivated, this,
                     [this, key = choice.key](const QString& now) { change(key, now.toStdString()); });
    control = box;
  }
  control->setObjectName(text_of(choice.key));
  control->setAccessibleName(text_of(choice.name));
  control->setToolTip(text_of(choice.key));
  control->setFocusPolicy(Qt::StrongFocus);  // the wheel does not take the focus either
  control->installEventFilter(this);
  return control;
}

void WhatIfPanel::rebuild() {
  const QWidget* focused = controls_->focusWidget();
  const QString focus = focused != nullptr ? focused->objectName() : QString();
  while (form_->rowCount() > 0) form_->removeRow(0);
  if (!what_if_) return;
  for (const Choice& choice : what_if_->choices()) {
    if (!choice.has_meaning) continue;
    const QString value = text_of(WhatIf::value_of(choice.key, wanted_ ? *wanted_ : what_if_->now().job));
    QWidget* control = controlOf(choice, value);
    form_->addRow(text_of(choice.name), control);
    if (control->objectName() == focus) control->setFocus();
  }
}

void WhatIfPanel::showOutcome() {
  for (QPushButton* made : {pin_, copy_}) made->setEnabled(what_if_.has_value());
  undo_->setEnabled(what_if_ && what_if_->can_undo());
  redo_->setEnabled(what_if_ && what_if_->can_redo());
  if (!what_if_) return outcome_->setText(kNoJob);
  const Outcome* pinned = what_if_->pinned();
  pin_->setText(pinned != nullptr ? "Unpin" : "Pin");
  outcome_->setText(outcome_text(pinned != nullptr ? *pinned : what_if_->opened(), what_if_->now()));
}

bool WhatIfPanel::eventFilter(QObject* watched, QEvent* event) {
  if (event->type() != QEvent::Wheel) return QWidget::eventFilter(watched, event);
  event->ignore();  // goes on to the area that scrolls
  return true;
}

}  // namespace foreshard::gui
