#include "gui/models/timeline/meaning.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "traces/timeline/phase_group.h"

namespace foreshard::gui {
namespace {

constexpr std::array<std::string_view, kMeanings> kNames{
    "compute, forward", "compute, backward", "optimizer",  "all-gather", "reduce-scatter", "all-reduce",
    "send, receive",    "copies, casts",     "host issue", "wait",       "named range",    "other"};

constexpr std::array<std::string_view, 12> kCategories{
    "sharded_params", "optimizer_state", "sharded_grads", "inputs",           "full_params", "param_grads",
    "comm_buffers",   "activations",     "outputs",       "activation_grads", "temporaries", "workspace"};

// Blue is work, warm is the network, green is what FSDP copies and the optimizer, grey is the host. Neighbours differ
// in lightness too, so that they part without hue.
constexpr Palette kLight{
    .slices = {0x5b9bd5, 0x2f66ad, 0x00876a, 0xf0a202, 0xc2478f, 0xd1495b, 0x5c4033, 0x7fc8a9, 0x9aa5b1, 0xd5d9df,
               0xe3dccb, 0xb59e7a},
    .memory = {0x4a6fa5, 0x2a9d8f, 0x7d6b9e, 0xb0b7c0, 0xf0a202, 0xc2478f, 0xe07a5f, 0x7fb7e6, 0xb09f8c, 0x3d8bc9,
               0xa8d5ba, 0xd9c27e},
    .ground = 0xffffff,
    .lane = 0xf6f7f9,
    .lane_other = 0xf0f2f5,
    .text = 0x1c2430,
    .text_weak = 0x66707d,
    .line = 0xd6dbe1,
    .accent = 0x0b5cad,
    .exposed = 0xd62828,
    .allocated = 0x1c2430,
    .reserved = 0x8a2be2,
    .too_short = 0x2166ac,
    .too_long = 0xd6604d,
};

constexpr Palette kDark{
    .slices = {0x6fb1ec, 0x3f7fce, 0x18a888, 0xf5b62e, 0xd868a9, 0xe4687a, 0xa5673f, 0x93d8ba, 0x6c7887, 0x454d58,
               0x57503f, 0xe6c79c},
    .memory = {0x6189c2, 0x35b5a6, 0x9583b8, 0x7d8692, 0xf5b62e, 0xd868a9, 0xe98d74, 0x86c0ee, 0x9c8c79, 0x4f9bd8,
               0xa8d5ba, 0xd9c27e},
    .ground = 0x14181d,
    .lane = 0x1b2027,
    .lane_other = 0x20262e,
    .text = 0xe8ecf1,
    .text_weak = 0x98a3b0,
    .line = 0x343c46,
    .accent = 0x6cb6ff,
    .exposed = 0xff6b6b,
    .allocated = 0xf2f5f9,
    .reserved = 0xc39bff,
    .too_short = 0x67a9e6,
    .too_long = 0xf4a582,
};

double channel(Rgb color, int shift) { return static_cast<double>((color >> shift) & 0xffU); }

double luminance(Rgb color) {
  const auto linear = [](double value) {
    const double share = value / 255.0;
    return share <= 0.04045 ? share / 12.92 : std::pow((share + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(channel(color, 16)) + 0.7152 * linear(channel(color, 8)) + 0.0722 * linear(channel(color, 0));
}

double contrast(Rgb a, Rgb b) {
  const auto [dark, light] = std::minmax({luminance(a), luminance(b)});
  return (light + 0.05) / (dark + 0.05);
}

}  // namespace

Meaning meaning_of(const Span& span) {
  switch (span.kind) {
    case SpanKind::HostIssue: return Meaning::HostIssue;
    case SpanKind::HostWait:
    case SpanKind::Wait: return Meaning::Wait;
    case SpanKind::Compute:
      if (phase_group(span.phase) == "backward") return Meaning::ComputeBackward;
      return phase_group(span.phase) == "optimizer" || phase_group(span.phase) == "clip" ? Meaning::Optimizer
                                                                                         : Meaning::ComputeForward;
    case SpanKind::AllGather: return Meaning::AllGather;
    case SpanKind::ReduceScatter: return Meaning::ReduceScatter;
    case SpanKind::AllReduce:
    case SpanKind::Broadcast: return Meaning::AllReduce;
    case SpanKind::Copy:
    case SpanKind::Cast:
    case SpanKind::Memset: return Meaning::Copy;
    case SpanKind::Optimizer: return Meaning::Optimizer;
    case SpanKind::SendRecv: return Meaning::SendRecv;
    case SpanKind::Annotation: return Meaning::Annotation;
    default: return Meaning::Other;
  }
}

std::string_view meaning_name(Meaning meaning) { return kNames[static_cast<std::size_t>(meaning)]; }

const Palette& palette_of(Theme theme) { return theme == Theme::Light ? kLight : kDark; }

Rgb ink_on(Rgb ground) {
  constexpr Rgb kDarkInk = 0x10151b, kLightInk = 0xffffff;
  return contrast(ground, kDarkInk) > contrast(ground, kLightInk) ? kDarkInk : kLightInk;
}

Rgb blend(Rgb ground, Rgb over, double share) {
  share = std::clamp(share, 0.0, 1.0);
  Rgb color = 0;
  for (const int shift : {16, 8, 0}) {
    const double value = channel(ground, shift) * (1 - share) + channel(over, shift) * share;
    color |= static_cast<Rgb>(std::lround(value)) << shift;
  }
  return color;
}

Rgb category_color(const Palette& palette, std::string_view category) {
  const auto known = std::find(kCategories.begin(), kCategories.end(), category);
  if (known != kCategories.end()) return palette.memory[static_cast<std::size_t>(known - kCategories.begin())];
  return palette.memory[std::hash<std::string_view>{}(category) % palette.memory.size()];
}

}  // namespace foreshard::gui
