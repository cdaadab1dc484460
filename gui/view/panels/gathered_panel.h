// A panel that shows one of several readings of a timeline. A worker gathers it, once the panel is seen. GUI thread.
#pragma once

#include <QStringList>
#include <QWidget>
#include <cstdint>
#include <functional>
#include <memory>

#include "gui/models/scene.h"
#include "gui/models/timeline/newest_first.h"

class QComboBox;

namespace foreshard::gui {

class GatheredPanel : public QWidget {
 public:
  /// The first side's.
  void setScene(const Scene& scene);
  QComboBox& by() { return *by_; }

  std::function<void(SceneSlice)> onGo;
  std::function<void(const QString&)> onStatus;

 protected:
  /// What the worker calls with the index of a reading (one alone needs no name), on its thread: it captures nothing of
  /// the panel. What it returns shows the result, on the GUI thread.
  using Gather = std::function<std::function<void()>(const TimelineModel& model, int reading)>;
  /// `clear`: shows nothing, until a timeline is gathered.
  GatheredPanel(const QStringList& readings, const QString& accessible, Gather gather, std::function<void()> clear,
                QWidget* parent);
  /// Below the readings.
  void show_in(QWidget* content);
  void go(SpanId span) const;
  void say(const QString& text) const;
  void showEvent(QShowEvent* event) override;

 private:
  void ask();

  Gather gather_;
  std::function<void()> clear_;
  std::shared_ptr<const TimelineModel> model_;
  bool gathered_ = false;
  std::uint64_t asked_ = 0;
  QComboBox* by_ = nullptr;
  NewestFirst worker_;  // last: nothing of the above is gone while it works
};

}  // namespace foreshard::gui
