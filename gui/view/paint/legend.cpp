#include <algorithm>
#include <array>
#include <vector>

#include "gui/view/paint/scene_painter.h"

namespace foreshard::gui {
namespace {

enum class Mark { Box, Hatched, Line, Dashed };

struct Entry {
  QString text;
  Rgb rgb = 0;
  Mark mark = Mark::Box;
};

QString spoken(std::string text) {
  std::replace(text.begin(), text.end(), '_', ' ');
  return text_of(text);
}

std::vector<Entry> slice_entries(const Scene& scene, const Palette& palette) {
  std::array<bool, kMeanings> used{};
  bool exposed = false, lanes = false;
  for (const Track& track : scene.tracks) {
    exposed = exposed || track.kind == TrackKind::Exposed;
    if (track.kind != TrackKind::Lane) continue;
    lanes = true;
    const TimelineModel& model = *scene.sides[static_cast<std::size_t>(track.side)].model;
    for (const SliceRow& row : model.lanes[track.lane].rows) {
      // Meanings repeat: a sample of a long row names them all but for the rarest.
      const std::size_t step = std::max<std::size_t>(1, row.size() / 20'000);
      for (std::size_t k = 0; k < row.size(); k += step)
        used[static_cast<std::size_t>(meaning_of(model.timeline.spans[row.span[k]]))] = true;
    }
  }
  std::vector<Entry> entries;
  for (std::size_t m = 0; m < kMeanings; ++m)
    if (used[m]) entries.push_back({text_of(meaning_name(static_cast<Meaning>(m))), palette.slices[m], Mark::Box});
  if (exposed) entries.push_back({"exposed communication", palette.exposed, Mark::Box});
  if (lanes &&
      std::any_of(scene.sides.begin(), scene.sides.end(), [](const SceneSide& s) { return s.model->predicted(); }))
    entries.push_back({"hatched: predicted", palette.text_weak, Mark::Hatched});
  if (scene.compares() && lanes) {
    entries.push_back({"A shorter than B", palette.too_short, Mark::Box});
    entries.push_back({"A longer than B", palette.too_long, Mark::Box});
  }
  return entries;
}

std::vector<Entry> memory_entries(const Scene& scene, const Palette& palette) {
  std::vector<Entry> entries;
  bool allocated = false, reserved = false;
  for (const Track& track : scene.tracks) {
    if (track.kind != TrackKind::Memory) continue;
    const MemoryTracks* memory = scene.sides[static_cast<std::size_t>(track.side)].model->memory_of(track.rank);
    allocated = allocated || memory->allocated;
    reserved = reserved || memory->reserved;
    for (const auto& [name, counter] : memory->categories) {
      const QString text = spoken(name);
      if (std::none_of(entries.begin(), entries.end(), [&](const Entry& e) { return e.text == text; }))
        entries.push_back({text, category_color(palette, name), Mark::Box});
    }
  }
  if (allocated) entries.push_back({"allocated", palette.allocated, Mark::Line});
  if (reserved) entries.push_back({"reserved", palette.reserved, Mark::Dashed});
  return entries;
}

void paint_mark(QPainter& painter, const QRectF& box, const Entry& entry, const Palette& palette) {
  switch (entry.mark) {
    case Mark::Line:
    case Mark::Dashed:
      painter.setPen(QPen(color(entry.rgb), 1.5, entry.mark == Mark::Line ? Qt::SolidLine : Qt::DashLine));
      painter.drawLine(QPointF(box.left(), box.center().y()), QPointF(box.right(), box.center().y()));
      return;
    case Mark::Hatched:
      painter.fillRect(box, color(blend(palette.ground, entry.rgb, 0.6)));
      hatch(painter, box, color(palette.ground));
      return;
    case Mark::Box: painter.fillRect(box, color(entry.rgb)); return;
  }
}

}  // namespace

double paint_legend(QPainter* painter, const Scene& scene, const QRectF& area, const Palette& palette,
                    const Fonts& fonts) {
  constexpr double kLine = 18, kMark = 12, kBetween = 16;
  const QFontMetricsF metrics(fonts.small);
  double y = area.top();
  for (const auto& entries : {slice_entries(scene, palette), memory_entries(scene, palette)}) {
    if (entries.empty()) continue;
    double x = area.left();
    for (const Entry& entry : entries) {
      const double width = kMark + 5 + metrics.horizontalAdvance(entry.text);
      if (x + width > area.right() && x > area.left()) {
        x = area.left();
        y += kLine;
      }
      if (painter != nullptr) {
        paint_mark(*painter, QRectF(x, y + 3, kMark, kMark), entry, palette);
        painter->setFont(fonts.small);
        painter->setPen(color(palette.text));
        painter->drawText(QPointF(x + kMark + 5, y + 3 + kMark - 2), entry.text);
      }
      x += width + kBetween;
    }
    y += kLine;
  }
  return y - area.top();
}

}  // namespace foreshard::gui
