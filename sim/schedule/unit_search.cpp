#include "sim/schedule/unit_search.h"

#include <algorithm>
#include <utility>

#include "sim/schedule/bisection.h"

namespace foreshard {
namespace {

// most_simulations: in all over a plan of so many instructions.
constexpr std::size_t kMostSimulations = 320, kLeastSimulations = 60;
constexpr std::size_t kInstructionsInAll = 3'000'000;
constexpr int kDeepest = 3;         // units ahead
constexpr double kCaughtUp = 1.01;  // by so much one decision after the other may shorten a step

/// In which order units are kept: the last ones of forward first, from both ends, evenly, the largest first.
enum class Order : std::uint8_t { Last, First, Spread, Largest };
constexpr Order kOrders[] = {Order::Last, Order::Spread, Order::First, Order::Largest};

std::vector<int> ordered(const UnitFrame& frame, std::vector<int> units, Order order) {
  switch (order) {
    case Order::First: break;
    case Order::Last: std::reverse(units.begin(), units.end()); break;
    case Order::Largest:
      std::stable_sort(units.begin(), units.end(), [&](int a, int b) {
        return frame.bytes[static_cast<std::size_t>(a)] > frame.bytes[static_cast<std::size_t>(b)];
      });
      break;
    case Order::Spread: {  // as the bits of a counter mirrored: every prefix lies evenly
      std::vector<int> even;
      std::size_t width = 1;
      while (width < units.size()) width *= 2;
      for (std::size_t k = 0; k < width; ++k) {
        std::size_t mirrored = 0;
        for (std::size_t bit = 1, to = width / 2; bit < width; bit *= 2, to /= 2) mirrored |= (k & bit) != 0 ? to : 0;
        if (mirrored < units.size()) even.push_back(units[units.size() - 1 - mirrored]);
      }
      return even;
    }
  }
  return units;
}

/// The last so many blocks keep their activations, the others recompute.
Candidate with_activations(Candidate candidate, std::size_t kept) {
  const std::size_t blocks = candidate.activations.size();
  for (std::size_t k = 0; k < blocks; ++k)
    candidate.activations[k] = k + kept >= blocks ? KeepActivations::Keep : KeepActivations::Recompute;
  return candidate;
}

/// How far its gathers run ahead at most, in units.
int depth_at(const UnitFrame& frame, const Candidate& candidate, int otherwise, bool in_forward) {
  if (!candidate.starts) return otherwise;
  int depth = 0;
  for (std::size_t u = 0; u < candidate.units.size(); ++u) {
    const int at = in_forward ? frame.forward_at[u] : frame.backward_at[u];
    const int start = in_forward ? candidate.units[u].forward : candidate.units[u].backward;
    if (at >= 0) depth = std::max(depth, at - start);
  }
  return depth;
}

}  // namespace

std::size_t most_simulations(const UnitFrame& frame) {
  const std::size_t each = std::max<std::size_t>(1, frame.plan->iterations.back().instructions.size());
  return std::clamp(kInstructionsInAll / each, kLeastSimulations, kMostSimulations);
}

UnitSearch::UnitSearch(UnitFrame frame, Workbench& bench, const SearchTask& task)
    : frame_(std::move(frame)), judge_(frame_, bench, task.budget, task.threads), task_(task) {
  most_ = most_simulations(frame_);
  const bool several = frame_.plan->iterations.back().micro_batches > 1;
  level_ = several ? KeepParams::Always : KeepParams::Keep;
  for (const int u : frame_.forward) {  // what backward does not need, a frozen table, the next forward does
    if (several || frame_.backward_at[static_cast<std::size_t>(u)] >= 0) keepable_.push_back(u);
  }
}

void UnitSearch::run(double limit_ns, const UnitSearch* to_beat) {
  limit_ns_ = limit_ns;
  begin();
  if (auto memory = KeptMemory::measure(frame_, judge_.bench())) judge_.know(std::move(*memory));
  sets();
  pacing();
  const bool behind = to_beat != nullptr && best_judged_.ns > kCaughtUp * to_beat->best_judged_.ns;
  if (behind && !task_.for_memory) return;
  sets_at_best();
  moves();
}

void UnitSearch::run_from(const Candidate& found, double limit_ns) {
  limit_ns_ = limit_ns;
  start_ = as_fsdp2(frame_);
  best_ = start_;
  consider(found);
  if (best_judged_.fits) moves();
}

void UnitSearch::try_bases(double limit_ns) {
  limit_ns_ = limit_ns;
  begin();
  const Candidate early = ahead(start_, 1, 2);
  consider(early);
  if (frame_.blocks.empty() || task_.for_memory) return;
  consider(with_activations(with_kept(early, keepable_, keepable_.size()), frame_.blocks.size()));  // if there is room
}

bool UnitSearch::promises(const UnitSearch& other) const {
  return task_.for_memory ? better(best_judged_, other.best_judged_) : best_judged_.ns < other.first_ns_;
}

Bytes UnitSearch::least_budget(Bytes known) {
  const std::vector<Candidate> lean = leanest();
  const auto any_within = [&](Bytes budget) {
    return std::any_of(lean.begin(), lean.end(),
                       [&](const Candidate& one) { return judge_.peak_within(one, budget) > 0; });
  };
  if (known <= kMiB || !any_within(known - kMiB)) return known;
  Bytes low = 0, high = known - kMiB;
  while (high - low > kMiB) {  // an allocator that is held back gives cached blocks up
    const Bytes middle = low + (high - low) / 2;
    (any_within(middle) ? high : low) = middle;
  }
  return high;
}

void UnitSearch::begin() {
  start_ = as_fsdp2(frame_);
  if (judge_.judged() == 0) best_ = start_;  // else try_bases() has found one already
  const Judged first = consider(start_);
  first_ns_ = first.ns;
  if (first.fits && first.driver_allocs == 0) return;  // else what takes less may fit, or leave more room
  std::vector<Move> all;
  for (Candidate& one : leanest()) all.push_back(to(std::move(one)));
  consider_each(all);
}

std::vector<Candidate> UnitSearch::leanest() const {
  std::vector<Candidate> lean;
  for (const bool gives_root_back : {true, false}) {
    for (const bool recompute : {true, false}) {
      for (const bool late : {true, false}) {
        Candidate one = late ? ahead(start_, 0, 0) : start_;
        for (const int u : keepable_) {
          if (gives_root_back || u != keepable_.front()) of(one, u).params = KeepParams::Reshard;
        }
        if (recompute) std::fill(one.activations.begin(), one.activations.end(), KeepActivations::Recompute);
        lean.push_back(std::move(one));
      }
    }
  }
  return lean;
}

bool UnitSearch::better(const Judged& a, const Judged& b) const {
  if (a.fits != b.fits) return a.fits;
  if (!a.fits) return false;
  if (!task_.for_memory) return std::pair(a.ns, a.reserved) < std::pair(b.ns, b.reserved);
  const bool a_in = a.ns <= limit_ns_, b_in = b.ns <= limit_ns_;
  if (a_in != b_in) return a_in;
  return a_in ? std::pair(a.reserved, a.ns) < std::pair(b.reserved, b.ns)
              : std::pair(a.ns, a.reserved) < std::pair(b.ns, b.reserved);
}

Judged UnitSearch::consider(const Candidate& candidate, double below) {
  if (spent()) return {};
  const Judged judged = judge_.judge(candidate, below);
  if (better(judged, best_judged_)) {
    best_judged_ = judged;
    best_ = candidate;
  }
  if (told_) told_();
  return judged;
}

UnitSearch::Move UnitSearch::to(Candidate candidate) {
  return [candidate = std::move(candidate)](const Candidate&) { return candidate; };
}

void UnitSearch::consider_each(const std::vector<Move>& moves) {
  for (std::size_t at = 0; at < moves.size() && !spent();) {
    std::vector<std::optional<Candidate>> next;
    std::vector<Candidate> unknown;
    for (std::size_t k = at; k < moves.size() && static_cast<int>(unknown.size()) < judge_.threads(); ++k) {
      next.push_back(moves[k](best_));
      if (next.back() && !judge_.knows(*next.back())) unknown.push_back(*next.back());
    }
    judge_.look_ahead(unknown, too_long());
    const Judged before = best_judged_;
    for (std::size_t k = 0; k < next.size() && best_judged_ == before; ++k, ++at) {
      if (next[k]) consider(*next[k], too_long());
    }
  }
}

Candidate UnitSearch::with_kept(Candidate candidate, const std::vector<int>& order, std::size_t count) const {
  for (std::size_t k = 0; k < order.size(); ++k)
    of(candidate, order[k]).params = k < count ? level_ : KeepParams::Reshard;
  return candidate;
}

int UnitSearch::most_that_fits(int all, const Make& make) {
  Bisection counts(all);
  while (const auto count = counts.next()) counts.tell(consider(make(*count), too_long()).fits);
  return counts.most();
}

void UnitSearch::each_most_that_fits(int all, const std::vector<Make>& makes) {
  for (std::size_t at = 0; at < makes.size() && !spent();) {
    const std::size_t end = std::min(makes.size(), at + static_cast<std::size_t>(judge_.threads()));
    look_ahead(all,
               {makes.begin() + static_cast<std::ptrdiff_t>(at), makes.begin() + static_cast<std::ptrdiff_t>(end)});
    for (; at < end && !spent(); ++at) most_that_fits(all, makes[at]);
  }
}

void UnitSearch::look_ahead(int all, const std::vector<Make>& makes) {
  std::vector<Bisection> counts(makes.size(), Bisection(all));
  for (bool more = makes.size() > 1; more;) {
    std::vector<Candidate> next;
    std::vector<std::size_t> whose;
    for (std::size_t i = 0; i < makes.size(); ++i) {
      const auto count = counts[i].next();
      if (!count) continue;
      next.push_back(makes[i](*count));
      whose.push_back(i);
    }
    const std::vector<Judged> judged = judge_.look_ahead(next, too_long());
    for (std::size_t k = 0; k < whose.size(); ++k) counts[whose[k]].tell(judged[k].fits);
    more = !next.empty();
  }
}

void UnitSearch::sets() {
  const int blocks = static_cast<int>(frame_.blocks.size());
  int most = -1;
  if (blocks > 0) {
    most = most_that_fits(blocks, [&](int kept) {
      return with_activations(with_kept(start_, keepable_, 0), static_cast<std::size_t>(kept));
    });
  }
  std::vector<int> amounts;
  for (int share = 4; share >= 0 && most >= 0; --share) amounts.push_back(most * share / 4);
  amounts.erase(std::unique(amounts.begin(), amounts.end()), amounts.end());
  if (amounts.empty()) amounts.push_back(-1);  // as the job has it
  std::vector<Make> makes;
  for (const Order order : kOrders) {
    // Holds longest what is needed last; of many units most are equal.
    if ((order == Order::First || order == Order::Largest) && keepable_.size() > 12) continue;
    const std::vector<int> kept = ordered(frame_, keepable_, order);
    for (const int amount : amounts) {
      Candidate base = amount < 0 ? start_ : with_activations(start_, static_cast<std::size_t>(amount));
      makes.push_back([this, base = std::move(base), kept](int count) {
        return with_kept(base, kept, static_cast<std::size_t>(count));
      });
    }
  }
  each_most_that_fits(static_cast<int>(keepable_.size()), makes);
}

Candidate UnitSearch::ahead(Candidate candidate, int forward, int backward) const {
  candidate.starts = true;
  for (std::size_t u = 0; u < candidate.units.size(); ++u) {
    candidate.units[u].forward = std::max(0, frame_.forward_at[u] - forward);
    candidate.units[u].backward = std::max(0, frame_.backward_at[u] - backward);
  }
  return candidate;
}

void UnitSearch::pacing() {
  int forward = 0, backward = 1;
  for (int round = 0; round < 2; ++round) {
    const Candidate before = best_;
    std::vector<Move> depths;
    for (int depth = 0; depth <= kDeepest; ++depth) depths.push_back(to(ahead(before, depth, backward)));
    consider_each(depths);
    forward = depth_at(frame_, best_, forward, true);
    depths.clear();
    for (int depth = best_judged_.driver_allocs > 0 ? 0 : 1; depth <= kDeepest; ++depth) {
      depths.push_back([this, forward, depth](const Candidate& best) { return ahead(best, forward, depth); });
    }
    consider_each(depths);
    backward = depth_at(frame_, best_, backward, false);
    if (best_ == before || spent()) return;
  }
}

void UnitSearch::sets_at_best() {
  if (frame_.blocks.empty() || keepable_.empty()) return;
  const std::vector<int> order = ordered(frame_, keepable_, Order::Spread);
  const auto all = static_cast<int>(frame_.blocks.size());
  for (int step = std::max(2, all / 8); step > 0 && !spent(); step /= 2) {
    for (bool improved = true; improved && !spent();) {
      const Judged before = best_judged_;
      int kept_now = 0;
      for (int block = 0; block < all; ++block) kept_now += recomputes(frame_, best_, block) ? 0 : 1;
      std::vector<int> amounts{kept_now - step, kept_now + step};
      std::erase_if(amounts, [&](int amount) { return amount < 0 || amount > all; });
      const auto filled_at = [&](int amount) -> Make {
        return [this, base = with_activations(best_, static_cast<std::size_t>(amount)), &order](int count) {
          return with_kept(base, order, static_cast<std::size_t>(count));
        };
      };
      std::vector<Make> ahead_of;
      for (const int amount : amounts) ahead_of.push_back(filled_at(amount));
      if (judge_.threads() > 1) look_ahead(static_cast<int>(order.size()), ahead_of);
      for (const int amount : amounts) most_that_fits(static_cast<int>(order.size()), filled_at(amount));
      improved = better(best_judged_, before);
    }
  }
}

void UnitSearch::moves() {
  for (bool improved = true; improved && !spent();) {
    const Judged before = best_judged_;
    std::vector<Move> all;
    const auto flip_blocks = [&](int unit) {  // -1: of no unit that may be kept
      for (std::size_t b = 0; b < frame_.blocks.size(); ++b) {
        const int own = frame_.blocks[b].unit;
        const bool keepable = std::find(keepable_.begin(), keepable_.end(), own) != keepable_.end();
        if ((keepable ? own : -1) == unit) flip_activations(static_cast<int>(b), all);
      }
    };
    for (const int u : keepable_) {
      flip_params(u, all);
      flip_blocks(u);
      shift_starts(u, all);
    }
    flip_blocks(-1);
    consider_each(all);
    swaps();
    improved = better(best_judged_, before);
  }
}

void UnitSearch::flip_params(int unit, std::vector<Move>& all) const {
  for (const KeepParams params : {KeepParams::Reshard, KeepParams::Keep, KeepParams::Always}) {
    if (params == KeepParams::Always && level_ != KeepParams::Always) continue;
    all.push_back([this, unit, params](Candidate next) {
      of(next, unit).params = params;
      return next;
    });
  }
}

void UnitSearch::flip_activations(int block, std::vector<Move>& all) const {
  all.push_back([this, block](Candidate next) {
    next.activations[static_cast<std::size_t>(block)] =
        recomputes(frame_, next, block) ? KeepActivations::Keep : KeepActivations::Recompute;
    return next;
  });
}

void UnitSearch::shift_starts(int unit, std::vector<Move>& all) const {
  for (const int by : {-1, 1}) {
    for (const bool in_forward : {true, false}) {
      const int own = (in_forward ? frame_.forward_at : frame_.backward_at)[static_cast<std::size_t>(unit)];
      all.push_back([this, unit, by, in_forward, own](Candidate next) {
        next.starts = true;
        int& start = in_forward ? of(next, unit).forward : of(next, unit).backward;
        start = std::clamp(start + by, 0, std::max(0, own));
        return next;
      });
    }
  }
}

void UnitSearch::swaps() {
  std::vector<Move> all;
  for (const int a : keepable_) {
    for (const int b : keepable_) {
      all.push_back([this, a, b](Candidate next) -> std::optional<Candidate> {
        if (!keeps_params(frame_, next, a) || keeps_params(frame_, next, b)) return std::nullopt;
        std::swap(of(next, a).params, of(next, b).params);
        if (of(next, a).params == KeepParams::AsJob) of(next, a).params = KeepParams::Reshard;
        if (of(next, b).params == KeepParams::AsJob) of(next, b).params = level_;
        return next;
      });
    }
  }
  consider_each(all);
}
}  // namespace foreshard
