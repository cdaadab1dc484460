#include "sim/play/core_sharing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <numbers>
#include <string_view>
#include <utility>

#include "core/result.h"
#include "sim/device/root_streams.h"

namespace foreshard {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kLeastSpeed = 0.05;  // of compute, whatever stands beside it

double at_size(const MeasuredCollective& curve, Bytes bytes, const std::vector<SimDuration>& part,
               const std::vector<SimDuration>& of, double otherwise) {
  if (part.size() != curve.bytes.size()) return otherwise;
  const auto share = [&](std::size_t k) {
    return static_cast<double>(part[k]) / static_cast<double>(std::max<SimDuration>(of[k], 1));
  };
  if (bytes <= curve.bytes.front()) return share(0);
  if (bytes >= curve.bytes.back()) return share(curve.bytes.size() - 1);
  const auto high =
      static_cast<std::size_t>(std::upper_bound(curve.bytes.begin(), curve.bytes.end(), bytes) - curve.bytes.begin());
  const double step = std::log(static_cast<double>(bytes) / static_cast<double>(curve.bytes[high - 1])) /
                      std::log(static_cast<double>(curve.bytes[high]) / static_cast<double>(curve.bytes[high - 1]));
  return share(high - 1) + step * (share(high) - share(high - 1));
}

/// What a stream has been given and has not finished: work, or a wait or record in its place.
struct Item {
  enum class What : std::uint8_t { Work, Collective, Record, Wait };
  What what = What::Work;
  std::int32_t event = -1;  // Record, Wait
  std::size_t order = 0;    // among all work
  std::int64_t after = -1;  // Collective: the order of its communicator's last one, which ends before it begins (R4)
  double left = 0;          // ns, as if alone
  HostLoad load;
};

struct CoreLane {
  std::deque<Item> items;
  bool running = false;  // the first of them
  bool slept = true;     // before the first of them
  double wakes_at = 0;   // running from then on
};

/// One machine's threads from the tape's beginning to its end. Time is continuous; work's speed changes only when
/// something begins or ends.
class Threads {
 public:
  Threads(const IssueTape& tape, const SharedCores& cores) : tape_(tape), cores_(cores) {
    fired_.assign(static_cast<std::size_t>(tape.events()), false);
    last_of_.assign(static_cast<std::size_t>(tape.communicators()), -1);
  }

  std::vector<WorkSpan> run() {
    for (;;) {
      settle();
      const double next = next_change();
      if (next == kNever) break;
      progress(next);
    }
    FORESHARD_CHECK(issuer_done() && idle(), "work that was issued never ran");
    return std::move(spans_);
  }

 private:
  bool issuer_done() const { return entry_ >= tape_.entries().size(); }
  bool idle() const {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const CoreLane& lane) { return lane.items.empty(); });
  }
  const IssueTape::Entry& entry() const { return tape_.entries()[entry_]; }
  std::uint32_t kernels_end() const {
    return entry_ + 1 < tape_.entries().size() ? tape_.entries()[entry_ + 1].kernels
                                               : static_cast<std::uint32_t>(tape_.kernels().size());
  }

  // ---------------------------------------------------------------- the issuer

  /// What the issuer does before its next word takes effect.
  double issue_cost() const {
    return static_cast<double>(entry().kind == IssueTape::Kind::Run ? tape_.kernels()[entry().kernels + kernel_].host
                                                                    : entry().host);
  }

  bool issuer_waits() const {
    const IssueTape::Entry& now = entry();
    if (now.kind == IssueTape::Kind::HostWait) return !fired_[static_cast<std::size_t>(now.event)];
    if (now.kind == IssueTape::Kind::StreamSync) return !lanes_[now.stream].items.empty();
    return false;
  }

  /// As far as the issuer comes at this moment.
  bool issue() {
    bool moved = false;
    while (!issuer_done()) {
      if (!paying_) {
        paying_ = true;
        paid_at_ = now_ + issue_cost();
      }
      if (paid_at_ > now_) break;
      if (issuer_waits()) break;
      paying_ = false;
      moved = true;
      take_effect();
    }
    return moved;
  }

  void take_effect() {
    const IssueTape::Entry& now = entry();
    switch (now.kind) {
      case IssueTape::Kind::Run: {
        const std::uint32_t at = now.kernels + kernel_;
        push(now.stream, Item::What::Work, static_cast<double>(tape_.kernels()[at].device), {}, -1);
        if (++kernel_ < kernels_end() - now.kernels) return;  // the same entry goes on
        break;
      }
      case IssueTape::Kind::Collective:
        push(now.stream, Item::What::Collective, static_cast<double>(now.device) * next_spread(), now.load,
             std::exchange(last_of_[static_cast<std::size_t>(now.event)], static_cast<std::int64_t>(spans_.size())));
        break;
      case IssueTape::Kind::Record: mark(now.stream, Item::What::Record, now.event); break;
      case IssueTape::Kind::StreamWait: mark(now.stream, Item::What::Wait, now.event); break;
      case IssueTape::Kind::HostWait:
      case IssueTape::Kind::StreamSync: break;
      case IssueTape::Kind::Iteration: collectives_ = 0; break;
    }
    kernel_ = 0;
    ++entry_;
  }

  /// Of the iteration's next collective: the middle one first, then by steps of the golden section, of which any number
  /// lie evenly.
  double next_spread() {
    const std::size_t parts = cores_.collective_spread.size();
    if (parts == 0) return 1;
    const double place = 0.5 + static_cast<double>(collectives_++) * (std::numbers::phi - 1);
    return cores_.collective_spread[static_cast<std::size_t>((place - std::floor(place)) * static_cast<double>(parts))];
  }

  void push(std::uint8_t stream, Item::What what, double duration, const HostLoad& load, std::int64_t after) {
    lanes_[stream].items.push_back({what, -1, spans_.size(), after, duration, load});
    spans_.push_back({});
    ended_.push_back(false);
  }
  void mark(std::uint8_t stream, Item::What what, std::int32_t event) {
    lanes_[stream].items.push_back({what, event, 0, -1, 0, {}});
  }

  // ---------------------------------------------------------------- the streams

  /// Everything that happens at this moment.
  void settle() {
    bool moved = true;
    while (moved) {
      moved = issue();
      for (CoreLane& lane : lanes_) moved = advance(lane) || moved;
    }
  }

  bool advance(CoreLane& lane) {
    bool moved = false;
    while (!lane.items.empty() && !lane.running) {
      Item& item = lane.items.front();
      if (item.what == Item::What::Record) {
        fired_[static_cast<std::size_t>(item.event)] = true;
      } else if (item.what == Item::What::Wait) {
        if (!fired_[static_cast<std::size_t>(item.event)]) {
          lane.slept = true;
          break;
        }
      } else if (item.after >= 0 && !ended_[static_cast<std::size_t>(item.after)]) {
        lane.slept = true;
        break;
      } else {
        lane.running = true;
        lane.wakes_at = now_ + (lane.slept ? static_cast<double>(cores_.wake_ns) : 0);
        lane.slept = false;
        spans_[item.order].start = std::llround(lane.wakes_at);
        moved = true;
        break;
      }
      lane.items.pop_front();
      moved = true;
    }
    if (lane.items.empty()) lane.slept = true;
    return moved;
  }

  // ---------------------------------------------------------------- time

  static bool is_collective(const CoreLane& lane) { return lane.items.front().what == Item::What::Collective; }
  bool works(const CoreLane& lane) const { return lane.running && lane.wakes_at <= now_; }

  struct Speeds {
    double own = 1;               // of a rank's own work, each
    double collectives = 1;       // beside each other
    bool beside_compute = false;  // whether collectives are
  };
  Speeds speeds() const {
    int own = 0;
    double taken = 0, busy = 0;
    for (const CoreLane& lane : lanes_) {
      if (!works(lane)) continue;
      own += is_collective(lane) ? 0 : 1;
      if (!is_collective(lane)) continue;
      taken += lane.items.front().load.taken;
      busy += lane.items.front().load.busy;
    }
    Speeds speeds;
    const double issuer = paying_ && paid_at_ > now_ && !issuer_done() ? 1 : 0;
    const double cores = std::max(cores_.cores, 1.0);
    if (own > 0) speeds.own = std::min(1.0, cores / (own + issuer)) * std::max(kLeastSpeed, 1 - taken);
    if (busy > cores) speeds.collectives = cores / busy;
    speeds.beside_compute = own > 0;
    return speeds;
  }
  static double speed_of(const CoreLane& lane, const Speeds& speeds) {
    if (!is_collective(lane)) return speeds.own;
    const double beside = speeds.beside_compute ? std::max(lane.items.front().load.beside, 1.0) : 1.0;
    return speeds.collectives / beside;
  }

  double next_change() const {
    double next = !issuer_done() && paying_ && paid_at_ > now_ ? paid_at_ : kNever;
    const Speeds now = speeds();
    for (const CoreLane& lane : lanes_) {
      if (!lane.running) continue;
      next = std::min(next, works(lane) ? now_ + lane.items.front().left / speed_of(lane, now) : lane.wakes_at);
    }
    return next;
  }

  void progress(double to) {
    constexpr double kRounding = 0.01;  // ns: what counts as done
    const Speeds now = speeds();
    const double passed = to - now_;
    for (CoreLane& lane : lanes_) {
      if (!works(lane)) continue;
      Item& item = lane.items.front();
      item.left -= passed * speed_of(lane, now);
      if (item.left > kRounding) continue;
      spans_[item.order].end = std::max(spans_[item.order].start, static_cast<SimTime>(std::llround(to)));
      ended_[item.order] = true;
      lane.running = false;
      lane.items.pop_front();
    }
    now_ = to;
  }

  const IssueTape& tape_;
  SharedCores cores_;
  double now_ = 0;
  std::size_t entry_ = 0;  // the issuer's next
  std::uint32_t kernel_ = 0;
  std::int64_t collectives_ = 0;  // that the iteration has issued
  bool paying_ = false;
  double paid_at_ = 0;
  std::array<CoreLane, kPlayedStreams> lanes_;
  std::vector<bool> fired_;
  std::vector<std::int64_t> last_of_;  // by communicator: the order of what it was given last
  std::vector<bool> ended_;            // by order
  std::vector<WorkSpan> spans_;
};

}  // namespace

HostLoad host_load(const HardwareProfile& profile, CollectiveKind kind, const GroupPlacement& group, Bytes bytes) {
  constexpr std::array<std::string_view, 6> kKinds{"all_gather", "reduce_scatter", "all_reduce",
                                                   "broadcast",  "all_gather",     "all_gather"};
  for (const MeasuredCollective& curve : profile.collectives) {
    if (curve.kind != kKinds[static_cast<std::size_t>(kind)] || curve.ranks != group.ranks || group.nodes != 1)
      continue;
    return {at_size(curve, bytes, curve.beside_ns, curve.ns, 1),
            at_size(curve, bytes, curve.taken_ns, curve.beside_ns, 0),
            at_size(curve, bytes, curve.cpu_ns, curve.ns, 0)};
  }
  return {};
}

bool shares_cores(const HardwareProfile& profile) { return profile.kind == "cpu" && !profile.work.empty(); }

SharedCores shared_cores(const HardwareProfile& profile, const Job& job) {
  const std::int64_t ranks =
      std::clamp<std::int64_t>(job.cluster.ranks_per_node, 1, std::max<std::int64_t>(job.cluster.world_size, 1));
  const auto wake = profile.extra.find("wake_ns");
  return {static_cast<double>(profile.sm_count) / static_cast<double>(ranks),
          wake == profile.extra.end() ? 0 : static_cast<SimDuration>(wake->second), profile.collective_spread};
}

std::vector<WorkSpan> share_cores(const IssueTape& tape, const SharedCores& cores) {
  return Threads(tape, cores).run();
}

}  // namespace foreshard
