#include "sim/search/auto_wrap.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "core/job/optimizer_facts.h"
#include "core/plan/units/groups.h"
#include "sim/network/collectives.h"

namespace foreshard {
namespace {

constexpr std::int64_t kMostBlocksInUnit = 8;
constexpr double kLargeLeaf = 0.25;  // of a block
constexpr std::size_t kMostLeaves = 4;

using Unit = std::vector<std::string>;  // module names

/// Modules that may become a unit, with what their parameters hold.
struct UnitCandidate {
  Unit modules;
  Numel numel = 0;
};

bool is_inside(const std::string& name, const std::string& outer) { return name.starts_with(outer + "."); }

class Search {
 public:
  Search(const Job& job, const Model& model, const HardwareProfile& profile, Workbench& bench)
      : job_(job), model_(model), profile_(profile), bench_(bench) {
    best_.job = job;
    memory_ = job.cluster.memory > 0 ? job.cluster.memory : profile.memory_bytes;
  }

  Result<WrapSearch> run() {
    list_candidates();
    if (blocks_.empty()) return best_;
    const auto groups = rank_groups(job_.cluster, is_hybrid(job_.fsdp.strategy), job_.mesh.tensor);
    if (!groups) return fail(groups.error());
    groups_ = *groups;
    placement_ = place_group(groups->groups.shard, job_.cluster.ranks_per_node);
    for (const std::int64_t blocks : granularities()) branch(blocks, {}, 0);
    if (!found_) return fail(*first_error_);
    best_.text = fmt::format("wrap policy auto: {}{}; {} groupings simulated, {} cut", shown(best_blocks_),
                             shown_leaves(), best_.simulated, best_.cut);
    return best_;
  }

 private:
  void list_candidates() {
    if (model_.block_class.empty()) return;
    std::vector<Numel> numel(model_.modules.size(), 0);
    for (std::size_t m = model_.modules.size(); m-- > 0;) {  // parents stand before their children
      const ModuleInfo& module = model_.modules[m];
      if (module.alias_of.valid()) continue;
      for (const ParamId param : module.params) {
        if (!model_.params[param.index()].shares.valid()) numel[m] += numel_of(model_.params[param.index()].shape);
      }
      if (module.parent.valid()) numel[module.parent.index()] += numel[m];
    }
    for (std::size_t m = 0; m < model_.modules.size(); ++m) {
      const ModuleInfo& module = model_.modules[m];
      if (!module.alias_of.valid() && module.class_name == model_.block_class && !is_ignored(module.fqn))
        blocks_.push_back({{module.fqn}, numel[m]});
    }
    Numel largest = 0;
    for (const UnitCandidate& block : blocks_) largest = std::max(largest, block.numel);
    all_numel_ = model_.modules.empty() ? 0 : numel.front();
    for (std::size_t m = 0; m < model_.modules.size(); ++m) {
      const ModuleInfo& module = model_.modules[m];
      if (module.alias_of.valid() || is_ignored(module.fqn)) continue;
      const auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const UnitCandidate& candidate) {
        return module.fqn == candidate.modules.front() || is_inside(module.fqn, candidate.modules.front());
      });
      if (block != blocks_.end()) {
        const ModuleId parent = module.parent;
        if (parent.valid() && model_.modules[parent.index()].fqn == block->modules.front() &&
            4 * numel[m] >= block->numel)
          halves_.push_back({{module.fqn}, numel[m]});
        continue;
      }
      if (module.children.empty() && static_cast<double>(numel[m]) >= kLargeLeaf * static_cast<double>(largest) &&
          !is_tied(module) && leaves_.size() < kMostLeaves)
        leaves_.push_back({{module.fqn}, numel[m]});
    }
    if (halves_.size() < 2 * blocks_.size()) halves_.clear();
  }

  bool is_ignored(const std::string& name) const {
    return std::any_of(job_.fsdp.ignored.begin(), job_.fsdp.ignored.end(), [&](const std::string& pattern) {
      return matches_pattern(pattern, name) || matches_pattern(pattern + ".*", name);
    });
  }

  /// Trap 3 and 9: a tensor that another module uses too stays where both are.
  bool is_tied(const ModuleInfo& module) const {
    return std::any_of(module.params.begin(), module.params.end(), [&](ParamId id) {
      const ParamId storage = model_.storage_of(id);
      return std::any_of(model_.params.begin(), model_.params.end(),
                         [&](const ParamInfo& other) { return other.shares.valid() && other.shares == storage; });
    });
  }

  /// 0 stands for parts of a block.
  std::vector<std::int64_t> granularities() const {
    std::vector<std::int64_t> list{1};
    if (job_.fsdp.runtime == Runtime::Fsdp2) {  // fsdp1 cannot group modules (W8)
      for (std::int64_t g = 2; g <= kMostBlocksInUnit && 2 * g <= static_cast<std::int64_t>(blocks_.size()); g *= 2)
        list.push_back(g);
    }
    if (!halves_.empty()) list.push_back(0);
    return list;
  }

  std::vector<UnitCandidate> units_of(std::int64_t blocks, const std::vector<bool>& leaves) const {
    std::vector<UnitCandidate> units;
    if (blocks == 0) {
      units = blocks_;
      for (UnitCandidate& block : units) {  // what its parts leave of a block
        for (const UnitCandidate& half : halves_) {
          if (is_inside(half.modules.front(), block.modules.front())) block.numel -= half.numel;
        }
      }
      units.insert(units.end(), halves_.begin(), halves_.end());
    } else {
      for (std::size_t b = 0; b < blocks_.size(); ++b) {
        if (b % static_cast<std::size_t>(blocks) == 0) units.emplace_back();
        units.back().modules.push_back(blocks_[b].modules.front());
        units.back().numel += blocks_[b].numel;
      }
    }
    for (std::size_t k = 0; k < leaves.size(); ++k) {
      if (leaves[k]) units.push_back(leaves_[k]);
    }
    return units;
  }

  SimDuration gather_time(Numel numel, CollectiveKind kind) {
    const DType dtype =
        kind == CollectiveKind::AllGather
            ? job_.fsdp.mixed_precision.param.value_or(DType::Float32)
            : job_.fsdp.mixed_precision.reduce.value_or(job_.fsdp.mixed_precision.param.value_or(DType::Float32));
    return collective_time(profile_, kind, placement_, numel * itemsize(dtype));
  }

  /// A step is at least this long: what its collectives take one after the other.
  SimDuration least_time(const std::vector<UnitCandidate>& units, Numel in_root) {
    const bool again = job_.fsdp.runtime == Runtime::Fsdp2
                           ? job_.fsdp.reshard_after_forward.kind == ReshardAfterForward::Kind::True
                           : job_.fsdp.strategy == Strategy::FullShard || job_.fsdp.strategy == Strategy::HybridShard;
    SimDuration time =
        gather_time(in_root, CollectiveKind::AllGather) + gather_time(in_root, CollectiveKind::ReduceScatter);
    for (const UnitCandidate& unit : units) {
      time += (again ? 2 : 1) * gather_time(unit.numel, CollectiveKind::AllGather);
      time += gather_time(unit.numel, CollectiveKind::ReduceScatter);
    }
    return time;
  }

  /// At the peak at least the shards with their optimizer states are there, the root's parameters and the largest unit.
  Bytes least_memory(const std::vector<UnitCandidate>& units, Numel in_root) const {
    const Bytes element = itemsize(job_.model.dtype.value_or(DType::Float32));
    const Bytes compute = itemsize(job_.fsdp.mixed_precision.param.value_or(DType::Float32));
    const auto moments = static_cast<std::int64_t>(optimizer_facts(job_.train.optimizer).states.size());
    Numel largest = 0;
    for (const UnitCandidate& unit : units) largest = std::max(largest, unit.numel);
    const Bytes resident = job_.fsdp.cpu_offload
                               ? 0
                               : (1 + moments) * element * (all_numel_ / std::max<std::int32_t>(groups_.shard_size, 1));
    return resident + compute * (in_root + largest);
  }

  void branch(std::int64_t blocks, const std::vector<bool>& leaves, std::size_t depth) {
    const std::vector<UnitCandidate> units = units_of(blocks, leaves);
    Numel in_root = all_numel_, undecided = 0;
    for (const UnitCandidate& unit : units) in_root -= unit.numel;
    for (std::size_t k = depth; k < leaves_.size(); ++k) undecided += leaves_[k].numel;
    // Undecided leaves at their best: gathered with the root for time, not at all for memory.
    const bool slow = found_ && best_fits_ && static_cast<double>(least_time(units, in_root)) >= best_time_;
    const bool large = found_ && least_memory(units, in_root - undecided) > memory_;
    if (slow || large) {
      ++best_.cut;
      return;
    }
    if (depth < leaves_.size()) {
      for (const bool own : {true, false}) {
        std::vector<bool> next = leaves;
        next.push_back(own);
        branch(blocks, next, depth + 1);
      }
      return;
    }
    evaluate(blocks, leaves, units);
  }

  void evaluate(std::int64_t blocks, const std::vector<bool>& leaves, const std::vector<UnitCandidate>& units) {
    Job job = job_;
    job.fsdp.wrap = {};
    job.fsdp.wrap.policy = WrapPolicyKind::Units;
    for (const UnitCandidate& unit : units) job.fsdp.wrap.units.push_back(unit.modules);
    const auto prediction = bench_.predict(job);
    ++best_.simulated;
    if (!prediction) {
      if (!first_error_) first_error_ = prediction.error();
      return;
    }
    const bool fits = prediction->fits && prediction->deadlock.empty();
    const double time = prediction->step_time_ns.value;
    const Bytes reserved = prediction->memory.reserved;
    // What fits before what does not; then the shorter step, then less memory. What does not fit at all: the one that
    // got furthest.
    const auto progress = prediction->iterations.size();
    const bool better =
        !found_ || std::tuple(fits, fits ? 0 : progress) > std::tuple(best_fits_, best_fits_ ? 0 : best_progress_) ||
        (fits && best_fits_ && std::tuple(time, reserved) < std::tuple(best_time_, best_reserved_));
    if (!better) return;
    found_ = true;
    best_fits_ = fits;
    best_time_ = time;
    best_reserved_ = reserved;
    best_progress_ = progress;
    best_blocks_ = blocks;
    best_leaves_ = leaves;
    best_.job = std::move(job);
  }

  std::string shown(std::int64_t blocks) const {
    if (blocks == 0) return fmt::format("units are the parts of each {}", model_.block_class);
    if (blocks == 1) return fmt::format("units are the modules of class {}", model_.block_class);
    return fmt::format("units are {} modules of class {} each", blocks, model_.block_class);
  }
  std::string shown_leaves() const {
    std::string text;
    for (std::size_t k = 0; k < best_leaves_.size(); ++k) {
      if (best_leaves_[k]) text += ", and " + leaves_[k].modules.front();
    }
    return text;
  }

  const Job& job_;
  const Model& model_;
  const HardwareProfile& profile_;
  Workbench& bench_;
  std::vector<UnitCandidate> blocks_, halves_, leaves_;
  Numel all_numel_ = 0;
  RankGroups groups_;
  GroupPlacement placement_;
  Bytes memory_ = 0;

  WrapSearch best_;
  bool found_ = false, best_fits_ = false;
  double best_time_ = 0;
  Bytes best_reserved_ = 0;
  std::size_t best_progress_ = 0;
  std::int64_t best_blocks_ = 1;
  std::vector<bool> best_leaves_;
  std::optional<Error> first_error_;
};

}  // namespace

bool wants_wrap_search(const Job& job) {
  return job.fsdp.wrap.policy == WrapPolicyKind::Auto && job.fsdp.runtime != Runtime::None;
}

Result<WrapSearch> settle_wrap(const Job& job, const Model& model, const HardwareProfile& profile) {
  WrapSearch as_it_is;
  as_it_is.job = job;
  if (!wants_wrap_search(job)) return as_it_is;
  SharedParts shared;
  Workbench bench(shared);
  return search_wrap(job, model, profile, bench);
}

Result<WrapSearch> search_wrap(const Job& job, const Model& model, const HardwareProfile& profile, Workbench& bench) {
  Job judged = job;  // a schedule is searched for the units that are found
  if (job.fsdp.runtime == Runtime::Planned) judged.fsdp.runtime = Runtime::Fsdp2;
  auto found = Search(judged, model, profile, bench).run();
  if (found) found->job.fsdp.runtime = job.fsdp.runtime;
  return found;
}

}  // namespace foreshard
