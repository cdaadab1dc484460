// The words on slices as masks: shaped and drawn once, stamped often. A window has thousands of them in a frame, and
// Qt lays each of them out anew.
//
// Belongs to the thread that paints. Bounded by the memory of the masks: where it is full, it begins anew.
#pragma once

#include <QFont>
#include <QImage>
#include <QPoint>
#include <QString>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/timeline.h"
#include "gui/models/timeline/timeline_model.h"
#include "gui/view/paint/pixel_canvas.h"

namespace foreshard::gui {

/// One label in the pixels of the device.
struct LabelMask {
  QImage mask;            // Alpha8
  std::vector<int> upto;  // where the n-th letter ends
  bool whole = true;      // not cut off in itself
};

class LabelMasks {
 public:
  explicit LabelMasks(QFont font) : font_(std::move(font)) {}

  const LabelMask& of(const TimelineModel& model, const Span& span, double device_ratio);
  /// What of a label fits into `room` pixels, with an ellipsis if it is not all; less than three letters are nothing.
  void stamp(PixelCanvas& canvas, const LabelMask& label, int room, QPoint at, QRgb color);
  int height() const { return ellipsis_.mask.height(); }

 private:
  LabelMask drawn(const QString& text) const;
  void start_anew(const TimelineModel& model, double device_ratio);

  QFont font_;
  double ratio_ = 0;
  const TimelineModel* model_ = nullptr;
  LabelMask ellipsis_;
  std::unordered_map<std::uint64_t, LabelMask> labels_;  // by name and unit
  qsizetype bytes_ = 0;
};

}  // namespace foreshard::gui
