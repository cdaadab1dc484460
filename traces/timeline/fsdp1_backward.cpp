#include "traces/timeline/fsdp1_backward.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "traces/timeline/trace_names.h"

namespace foreshard {
namespace {

enum class What : std::uint8_t { Other, Evaluate, Recompute, Accumulate, Prefetch, Forward, PostForward };

What what_is(std::string_view name) {
  if (name.starts_with("autograd::engine::evaluate_function")) {
    if (name.ends_with("CheckpointFunctionBackward")) return What::Recompute;
    return name.ends_with("AccumulateGrad") ? What::Accumulate : What::Evaluate;
  }
  const auto range = fsdp_range(name);
  if (!range || range->runtime != FsdpRange::Runtime::Fsdp1) return What::Other;
  if (range->what == "forward") return What::Forward;
  if (range->what == "_post_forward") return What::PostForward;
  const bool prefetch = range->what == "_pre_backward_prefetch" || range->what == "_post_backward_prefetch";
  return prefetch ? What::Prefetch : What::Other;
}

class BackwardUnits {
 public:
  explicit BackwardUnits(TimelineBuilder& builder) : b_(builder), t_(builder.timeline) {
    for (const std::string& name : t_.names) whats_.push_back(what_is(name));
  }

  void join() {
    if (std::find(whats_.begin(), whats_.end(), What::PostForward) == whats_.end()) return;
    find_order();
    follow_arrows();
    std::vector<Open> open;
    std::int32_t last = -1;
    LaneId lane;
    for (std::size_t i = 0; i < t_.spans.size(); ++i) {
      Span& span = t_.spans[i];
      if (!on_host(span)) continue;
      if (span.lane != lane) open.clear(), last = -1, lane = span.lane;
      while (!open.empty() && open.back().end <= span.start) open.pop_back();
      std::int32_t unit = open.empty() ? -1 : open.back().unit;
      const What what = what_of(span);
      if (what == What::Evaluate) {
        if (const std::int32_t own = forward_inside(i); own >= 0) unit = last = own;
      } else if (what == What::Recompute) {
        // A reentrant checkpoint around a unit: its node is of what surrounds it, and nothing says which unit that is.
        unit = last = first_inside(i, [&](std::size_t k) { return what_of(t_.spans[k]) == What::Forward; })
                          ? -1
                          : forward_inside(i);
      } else if (what == What::Accumulate) {
        unit = last;
      } else if (what == What::Prefetch && unit >= 0 && before_[static_cast<std::size_t>(unit)] >= 0) {
        unit = before_[static_cast<std::size_t>(unit)];
      }
      open.push_back({span.start + span.duration, unit});
      if (span.unit < 0) span.unit = unit;
    }
  }

 private:
  struct Open {
    SimTime end = 0;
    std::int32_t unit = -1;
  };

  bool on_host(const Span& span) const { return b_.lanes[span.lane.index()].role == LaneRole::Host; }
  What what_of(const Span& span) const { return span.name.valid() ? whats_[span.name.index()] : What::Other; }

  void find_order() {
    before_.assign(t_.units.size(), -1);
    std::vector<bool> seen(t_.units.size(), false);
    std::int32_t last = -1;
    for (const Span& span : t_.spans) {
      if (!on_host(span) || what_of(span) != What::PostForward || span.unit < 0) continue;
      const auto unit = static_cast<std::size_t>(span.unit);
      if (!seen[unit]) before_[unit] = last, last = span.unit;
      seen[unit] = true;
    }
  }

  void follow_arrows() {
    forward_.assign(t_.spans.size(), -1);
    for (const Flow& flow : t_.flows) {
      const Span &from = t_.spans[flow.from.index()], &to = t_.spans[flow.to.index()];
      if (on_host(from) && on_host(to) && from.unit >= 0 && to.unit < 0) forward_[flow.to.index()] = from.unit;
    }
  }

  /// The first slice from `i` on, and inside it, that is so.
  template <class Is>
  std::optional<std::size_t> first_inside(std::size_t i, const Is& is) const {
    constexpr std::size_t kLookedAt = 4096;
    const Span& whole = t_.spans[i];
    const std::size_t end = std::min(t_.spans.size(), i + kLookedAt);
    for (std::size_t k = i; k < end && t_.spans[k].lane == whole.lane; ++k) {
      if (k > i && t_.spans[k].start >= whole.start + whole.duration) break;
      if (is(k)) return k;
    }
    return std::nullopt;
  }

  /// The unit whose forward the first arrow into this slice comes from: the hooks before it have none.
  std::int32_t forward_inside(std::size_t i) const {
    const auto arrow = first_inside(i, [this](std::size_t k) { return forward_[k] >= 0; });
    return arrow ? forward_[*arrow] : -1;
  }

  TimelineBuilder& b_;
  Timeline& t_;
  std::vector<What> whats_;            // by name
  std::vector<std::int32_t> before_;   // by unit: the one whose forward ended before its own
  std::vector<std::int32_t> forward_;  // by span
};

}  // namespace

void join_fsdp1_backward(TimelineBuilder& builder) { BackwardUnits(builder).join(); }

}  // namespace foreshard
