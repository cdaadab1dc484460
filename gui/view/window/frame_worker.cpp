#include "gui/view/window/frame_worker.h"

#include <QElapsedTimer>
#include <algorithm>

namespace foreshard::gui {

void FrameWorker::ask(FrameRequest request) {
  thread_.ask([this, request = std::move(request), before = before_frame_] {
    if (before) before();
    paint(request);
  });
}

std::shared_ptr<const Frame> FrameWorker::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

void FrameWorker::paint(const FrameRequest& request) {
  QElapsedTimer timer;
  timer.start();
  if (painted_ != request.scene || theme_ != request.theme || !painter_) {
    painter_ = std::make_unique<ScenePainter>(*request.scene, palette_of(request.theme), fonts_);
    painted_ = request.scene;
    theme_ = request.theme;
  }
  // An image that nobody shows any more: a new one would be zeroed by the system page by page.
  auto free = std::find_if(frames_.begin(), frames_.end(), [](const auto& frame) { return frame.use_count() <= 1; });
  if (free == frames_.end()) free = frames_.begin();
  if (!*free || free->use_count() > 1) *free = std::make_shared<Frame>();
  Frame& frame = **free;
  const QSize pixels = (request.size * request.ratio).toSize();
  if (frame.image.size() != pixels) frame.image = QImage(pixels, QImage::Format_RGB32);
  frame.image.setDevicePixelRatio(request.ratio);
  frame.of = request;
  if (!pixels.isEmpty()) {
    QPainter painter(&frame.image);
    painter_->paint(painter, QRectF(QPointF(0, 0), request.size), request.view, request.ratio);
  }
  frame.milliseconds = static_cast<double>(timer.nsecsElapsed()) / 1e6;
  {
    const std::lock_guard lock(mutex_);
    latest_ = *free;
  }
  ready_();
}

void draw_moved(QPainter& painter, const Frame& frame, const QRectF& area, const SceneView& view,
                const Palette& palette) {
  painter.fillRect(area, color(palette.ground));
  const QRectF lanes = ScenePainter::lanes_of(area);
  const TimeScale scale = ScenePainter::scale_of(area, view);
  const QSizeF size = frame.of.size;
  const double ratio = frame.of.ratio, down = frame.of.view.scroll - view.scroll;
  const auto part = [&](double left, double top, double width, double height) {
    return QRectF(left * ratio, top * ratio, width * ratio, height * ratio);
  };
  painter.save();
  painter.setClipRect(area.adjusted(0, kRuler, 0, 0), Qt::IntersectClip);
  painter.drawImage(QRectF(area.left(), lanes.top() + down, kGutter, size.height() - kRuler), frame.image,
                    part(0, kRuler, kGutter, size.height() - kRuler));
  painter.setClipRect(lanes, Qt::IntersectClip);
  const double left = scale.x(frame.of.view.range.begin), right = scale.x(frame.of.view.range.end);
  painter.drawImage(QRectF(lanes.left() + left, lanes.top() + down, right - left, size.height() - kRuler), frame.image,
                    part(kGutter, kRuler, size.width() - kGutter, size.height() - kRuler));
  painter.restore();
}

}  // namespace foreshard::gui
