// Paints the canvas off the GUI thread: the newest request wins, and the last picture stays to be shown meanwhile.
//
// GUI thread, but for `ready`, which the worker's thread calls.
#pragma once

#include <QImage>
#include <array>
#include <functional>
#include <memory>
#include <mutex>

#include "gui/models/timeline/newest_first.h"
#include "gui/view/paint/scene_painter.h"

namespace foreshard::gui {

struct FrameRequest {
  std::shared_ptr<const Scene> scene;
  Theme theme = Theme::Light;
  QSizeF size;       // of the canvas
  double ratio = 1;  // pixels of the device to one of the canvas
  SceneView view;
  bool operator==(const FrameRequest&) const = default;
};

struct Frame {
  FrameRequest of;
  QImage image;
  double milliseconds = 0;  // what painting it took
};

class FrameWorker {
 public:
  /// `ready`: another frame can be had.
  explicit FrameWorker(std::function<void()> ready) : ready_(std::move(ready)) {}

  void ask(FrameRequest request);
  /// Runs on the worker's thread before each frame that is asked for from now on: tests make frames slow by it.
  void set_before_frame(std::function<void()> work) { before_frame_ = std::move(work); }
  /// The last that was painted; nullptr before the first.
  std::shared_ptr<const Frame> latest() const;
  /// True once the newest request is painted.
  bool wait(std::chrono::milliseconds most) { return thread_.idle_within(most); }

 private:
  void paint(const FrameRequest& request);

  std::function<void()> ready_, before_frame_;
  // Of the worker's thread:
  std::unique_ptr<ScenePainter> painter_;
  std::shared_ptr<const Scene> painted_;  // painter_ refers to it
  Theme theme_ = Theme::Light;
  Fonts fonts_ = picture_fonts();
  std::array<std::shared_ptr<Frame>, 3> frames_;  // painted into in turn: one is shown, one is the newest
  mutable std::mutex mutex_;
  std::shared_ptr<const Frame> latest_;
  NewestFirst thread_;  // last: it uses the others
};

/// What a frame shows, moved to where a newer view has it; what it does not show is ground.
void draw_moved(QPainter& painter, const Frame& frame, const QRectF& area, const SceneView& view,
                const Palette& palette);

}  // namespace foreshard::gui
