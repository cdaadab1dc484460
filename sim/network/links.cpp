#include "sim/network/links.h"

#include <algorithm>

namespace foreshard {
namespace {

/// Searches rings one after another; each takes its links in both directions, one for a ring the other way round.
class RingSearch {
 public:
  RingSearch(const LinkGraph& links, int ranks) : free_(links), ranks_(static_cast<std::size_t>(ranks)) {
    most_ = bound();
  }

  int count() {
    next_ring(0);
    return best_;
  }

 private:
  /// A ring takes two link ends of each card.
  int bound() const {
    int least = -1;
    for (std::size_t a = 0; a < ranks_; ++a) {
      int ends = 0;
      for (std::size_t b = 0; b < ranks_; ++b) ends += free_[a][b];
      least = least < 0 ? ends : std::min(least, ends);
    }
    return least / 2;
  }

  void next_ring(int found) {
    best_ = std::max(best_, found);
    if (best_ >= most_ || found + bound() <= best_) return;
    std::vector<std::size_t> path = {0};
    std::vector<bool> seen(ranks_, false);
    seen[0] = true;
    extend(path, seen, found);
  }

  void extend(std::vector<std::size_t>& path, std::vector<bool>& seen, int found) {
    if (best_ >= most_) return;
    const std::size_t at = path.back();
    if (path.size() == ranks_) {
      // Each ring once: not the same one the other way round.
      if (free_[at][0] == 0 || path[1] > at) return;
      take(at, 0, -1);
      next_ring(found + 1);
      take(at, 0, +1);
      return;
    }
    for (std::size_t to = 1; to < ranks_; ++to) {
      if (seen[to] || free_[at][to] == 0) continue;
      take(at, to, -1);
      seen[to] = true;
      path.push_back(to);
      extend(path, seen, found);
      path.pop_back();
      seen[to] = false;
      take(at, to, +1);
    }
  }

  void take(std::size_t a, std::size_t b, int change) {
    free_[a][b] += change;
    free_[b][a] += change;
  }

  LinkGraph free_;
  std::size_t ranks_;
  int most_ = 0, best_ = 0;
};

}  // namespace

LinkGraph cube_mesh() {
  return {{0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0}, {1, 2, 0, 2, 0, 0, 1, 0}, {2, 1, 2, 0, 0, 0, 0, 1},
          {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1}, {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0}};
}

int rings_through(const LinkGraph& links, int ranks) {
  if (ranks < 2 || static_cast<std::size_t>(ranks) > links.size()) return 0;
  if (ranks == 2) return links[0][1];  // there in one direction of a link, back in the other
  return 2 * RingSearch(links, ranks).count();
}

int rings_of_full_mesh(int ranks, int links) {
  if (ranks < 2) return 0;
  const int left = (ranks == 4 || ranks == 6) && links % 2 == 1 ? 1 : 0;
  return (ranks - 1) * links - left;
}

std::optional<double> share_of_rings(const HardwareProfile& profile, int ranks) {
  const auto share = [](int rings, int of_all) { return static_cast<double>(rings) / of_all; };
  switch (profile.fabric) {
    case Fabric::Switch:
    case Fabric::Host: return std::nullopt;
    case Fabric::Pairs: return ranks <= 2 ? 1.0 : 0.0;
    case Fabric::Mesh: {
      const auto rings = [&](int cards) { return rings_of_full_mesh(cards, profile.pair_links); };
      return share(rings(std::min(ranks, profile.cards)), std::max(rings(profile.cards), 1));
    }
    case Fabric::CubeMesh: {
      const LinkGraph links = cube_mesh();
      const int cards = static_cast<int>(links.size());
      return share(rings_through(links, std::min(ranks, cards)), rings_through(links, cards));
    }
  }
  return std::nullopt;
}

double network_gb_per_s(const HardwareProfile& profile, int group_ranks, int job_ranks) {
  const double of_card = profile.scale_out_gb_per_s;
  if (job_ranks >= profile.cards) return of_card * group_ranks;
  const double ports = std::min(profile.rails, job_ranks) * of_card * profile.cards / profile.rails;
  return std::min(ports * group_ranks / job_ranks, std::max(profile.host_link_gb_per_s, of_card) * group_ranks);
}

bool is_network_measured(const HardwareProfile& profile) {
  const auto source = profile.sources.find("scale_out_gb_per_s");
  return profile.level >= CalibrationLevel::Microbenchmark ||
         (source != profile.sources.end() && source->second.starts_with("measured"));
}

}  // namespace foreshard
