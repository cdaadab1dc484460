#include "gui/view/panels/flame_panel.h"

#include <QComboBox>
#include <QMouseEvent>
#include <QPainter>
#include <QScrollArea>
#include <algorithm>

#include "gui/models/timeline/amounts.h"
#include "gui/view/paint/theme.h"

namespace foreshard::gui {
namespace {

constexpr int kRow = 18;
constexpr double kLeast = 1;  // pixels

/// The same name has the same colour wherever it stands; muted, so that words are read on it.
QColor colour_of(const std::string& name, Theme theme) {
  std::uint32_t hash = 2166136261U;
  for (const char c : name.substr(0, name.find_first_of("<(_")))
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  const int hue = 15 + static_cast<int>(hash % 45);
  return theme == Theme::Dark
             ? QColor::fromHsl(hue, 90 + static_cast<int>(hash / 64 % 40), 70 + static_cast<int>(hash / 4096 % 24))
             : QColor::fromHsl(hue, 160 + static_cast<int>(hash / 64 % 40), 170 + static_cast<int>(hash / 4096 % 30));
}

}  // namespace

FlameCanvas::FlameCanvas(QWidget* parent) : QWidget(parent) {
  setMouseTracking(true);
  setAttribute(Qt::WA_OpaquePaintEvent);
  setAccessibleName("Flame graph");
}

void FlameCanvas::setGraph(std::shared_ptr<const FlameGraph> graph) {
  graph_ = std::move(graph);
  parents_.assign(graph_ ? graph_->nodes.size() : 0, 0);
  for (std::uint32_t n = 0; n < parents_.size(); ++n)
    for (const std::uint32_t child : graph_->nodes[n].children) parents_[child] = n;
  root_ = 0;
  setMinimumHeight(graph_ ? kRow * static_cast<int>(graph_->depth()) + 4 : 0);
  update();
}

void FlameCanvas::setTheme(Theme theme) {
  theme_ = theme;
  update();
}

void FlameCanvas::setRoot(std::uint32_t node) {
  root_ = node;
  update();
}

QSize FlameCanvas::sizeHint() const { return {400, minimumHeight()}; }

/// The levels below the root are as wide as the widget; the ones above it share its width by time.
void FlameCanvas::layOut() {
  boxes_.clear();
  if (!graph_ || graph_->nodes.front().total <= 0) return;
  std::vector<std::uint32_t> path;
  for (std::uint32_t node = root_; node != 0; node = parents_[node]) path.push_back(node);
  path.push_back(0);
  std::reverse(path.begin(), path.end());
  for (std::size_t level = 0; level + 1 < path.size(); ++level)
    boxes_.push_back({QRectF(0, kRow * static_cast<double>(level), width(), kRow - 1), path[level]});
  struct Placed {
    std::uint32_t node;
    double x;
    std::size_t level;
  };
  const double scale = width() / static_cast<double>(graph_->nodes[root_].total);
  std::vector<Placed> open{{root_, 0, path.size() - 1}};
  while (!open.empty()) {
    const Placed here = open.back();
    open.pop_back();
    const FlameNode& node = graph_->nodes[here.node];
    boxes_.push_back({QRectF(here.x, kRow * static_cast<double>(here.level),
                             std::max(kLeast, scale * static_cast<double>(node.total) - 0.5), kRow - 1),
                      here.node});
    double x = here.x;
    for (const std::uint32_t child : node.children) {
      const double wide = scale * static_cast<double>(graph_->nodes[child].total);
      if (wide < kLeast) break;  // largest first
      open.push_back({child, x, here.level + 1});
      x += wide;
    }
  }
}

void FlameCanvas::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  const Palette& palette = palette_of(theme_);
  painter.fillRect(rect(), color(palette.ground));
  const Fonts fonts = picture_fonts();
  painter.setFont(fonts.small);
  if (!graph_ || graph_->nodes.front().total <= 0) {
    painter.setPen(color(palette.text_weak));
    painter.drawText(rect().adjusted(12, 8, -12, -8), Qt::AlignCenter | Qt::TextWordWrap,
                     "Open a recording with work on a device: what its host stacks or modules took stands here.");
    return;
  }
  layOut();
  const QFontMetricsF metrics(fonts.small);
  for (const Box& box : boxes_) {
    const FlameNode& node = graph_->nodes[box.node];
    const QColor fill = box.node == 0 ? color(palette.lane_other) : colour_of(node.name, theme_);
    painter.fillRect(box.box, fill);
    if (box.box.width() < 24) continue;
    painter.setPen(theme_ == Theme::Dark ? QColor(238, 240, 244) : QColor(28, 36, 48));
    painter.drawText(box.box.adjusted(4, 0, -2, 0), Qt::AlignVCenter | Qt::AlignLeft,
                     metrics.elidedText(text_of(node.name), Qt::ElideRight, box.box.width() - 6));
  }
}

const FlameCanvas::Box* FlameCanvas::boxAt(const QPointF& point) const {
  const auto found =
      std::find_if(boxes_.rbegin(), boxes_.rend(), [&](const Box& box) { return box.box.contains(point); });
  return found == boxes_.rend() ? nullptr : &*found;
}

QString FlameCanvas::wordsOf(const FlameNode& node) const {
  const double all = static_cast<double>(std::max<SimDuration>(1, graph_->nodes.front().total));
  return text_of(node.name) + "   " + text_of(duration_words(static_cast<double>(node.total))) + ", " +
         text_of(percent_words(static_cast<double>(node.total) / all)) + QString(", %1 pieces of work").arg(node.count);
}

void FlameCanvas::mouseMoveEvent(QMouseEvent* event) {
  const Box* box = boxAt(event->position());
  setToolTip(box != nullptr ? wordsOf(graph_->nodes[box->node]) : QString());
  if (onStatus && box != nullptr) onStatus(wordsOf(graph_->nodes[box->node]));
}

void FlameCanvas::mousePressEvent(QMouseEvent* event) {
  if (const Box* box = boxAt(event->position())) setRoot(box->node);
}

void FlameCanvas::mouseDoubleClickEvent(QMouseEvent* event) {
  const Box* box = boxAt(event->position());
  if (box != nullptr && onGo) onGo(graph_->nodes[box->node]);
}

FlamePanel::FlamePanel(QWidget* parent) : FlamePanel(new FlameCanvas, parent) {}

FlamePanel::FlamePanel(FlameCanvas* canvas, QWidget* parent)
    : GatheredPanel(
          {"By host stack", "By module"}, "What the flame graph is made of",
          [canvas](const TimelineModel& model, int reading) {
            FlameOptions options;
            options.by = reading == 0 ? FlameBy::Stack : FlameBy::Module;
            return [canvas, graph = std::make_shared<const FlameGraph>(flame_graph(model.timeline, options))] {
              canvas->setGraph(graph);
            };
          },
          [canvas] { canvas->setGraph(nullptr); }, parent),
      canvas_(canvas) {
  by().setToolTip("Device time by what launched it. A click widens a level, a double click goes to its longest work.");
  auto* scroll = new QScrollArea(this);
  scroll->setWidgetResizable(true);
  scroll->setFrameShape(QFrame::NoFrame);
  scroll->setAccessibleName("Flame graph, scrolled");
  scroll->setWidget(canvas_);
  show_in(scroll);
  canvas_->onGo = [this](const FlameNode& node) { go(node.example); };
  canvas_->onStatus = [this](const QString& text) { say(text); };
}

}  // namespace foreshard::gui
