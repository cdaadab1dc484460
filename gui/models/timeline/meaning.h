// What a slice means, in the few words that decide its colour, and the palettes: safe for colour-blind eyes, one for
// light and one for dark ground. Pure functions; colours are 0xRRGGBB.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/timeline.h"

namespace foreshard::gui {

enum class Meaning : std::uint8_t {
  ComputeForward,
  ComputeBackward,
  Optimizer,
  AllGather,
  ReduceScatter,
  AllReduce,
  SendRecv,
  Copy,
  HostIssue,
  Wait,
  Annotation,
  Other,
  Count,
};
inline constexpr std::size_t kMeanings = static_cast<std::size_t>(Meaning::Count);

Meaning meaning_of(const Span& span);
/// "compute, backward", "all-gather", ...
std::string_view meaning_name(Meaning meaning);

using Rgb = std::uint32_t;

struct Palette {
  std::array<Rgb, kMeanings> slices;
  std::array<Rgb, 12> memory;  // of the stack's categories, in the order of their names below
  Rgb ground, lane, lane_other, text, text_weak, line, accent;
  Rgb exposed;  // communication that nothing hides
  Rgb allocated, reserved;
  Rgb too_short, too_long;  // of a prediction, against the measurement
};

enum class Theme : std::uint8_t { Light, Dark };
const Palette& palette_of(Theme theme);

/// Black or white, whichever is read better on `ground`.
Rgb ink_on(Rgb ground);
/// `share` of `over` on `ground`, 0 to 1.
Rgb blend(Rgb ground, Rgb over, double share);
/// Colour of a memory category; unknown ones take turns.
Rgb category_color(const Palette& palette, std::string_view category);

}  // namespace foreshard::gui
