#include "cli/reports/remedies.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/session/pipeline.h"

namespace foreshard::cli {
namespace {

constexpr std::int64_t kMostRanks = 1024;

/// Collects changes; each is applied to the job, and remembered so that later ones may build on it.
class List {
 public:
  explicit List(const Job& job) : job_(job) {}

  template <class Apply>
  void add(std::string text, std::vector<std::string> set, const Apply& apply) {
    Change change{std::move(text), std::move(set), job_};
    apply(change.job);
    changes_.push_back(std::move(change));
  }

  template <class Apply>
  void add_upon(const Change& base, const std::string& text, const std::vector<std::string>& set, const Apply& apply) {
    Change change = base;
    change.text += ", " + text;
    change.set.insert(change.set.end(), set.begin(), set.end());
    apply(change.job);
    changes_.push_back(std::move(change));
  }

  const std::vector<Change>& changes() const { return changes_; }
  std::vector<Change> take() { return std::move(changes_); }

 private:
  const Job& job_;
  std::vector<Change> changes_;
};

bool keeps_parameters(const FsdpOptions& fsdp) {
  if (fsdp.runtime == Runtime::Fsdp2) return fsdp.reshard_after_forward.kind != ReshardAfterForward::Kind::True;
  return fsdp.strategy == Strategy::ShardGradOp || fsdp.strategy == Strategy::HybridShardZero2 ||
         fsdp.strategy == Strategy::NoShard;
}

void add_resharding(List& list, const Job& job) {
  if ((job.cluster.init.starts_with("device") || job.cluster.init == "parts") && job.fsdp.runtime != Runtime::None) {
    list.add("make parameters on the meta device", {"cluster.init=meta"}, [](Job& j) { j.cluster.init = "meta"; });
  }
  if (job.fsdp.runtime == Runtime::None && job.cluster.world_size > 1) {
    list.add("shard with fsdp2", {"fsdp.runtime=fsdp2", "fsdp.strategy=FULL_SHARD"}, [](Job& j) {
      j.fsdp.runtime = Runtime::Fsdp2;
      j.fsdp.strategy = Strategy::FullShard;
    });
  }
  if (job.fsdp.runtime == Runtime::Fsdp2 && keeps_parameters(job.fsdp)) {
    list.add("reshard after forward", {"fsdp.reshard_after_forward=true"},
             [](Job& j) { j.fsdp.reshard_after_forward = {}; });
  }
  if (job.fsdp.runtime != Runtime::None && job.fsdp.strategy != Strategy::FullShard) {
    list.add("shard parameters over all ranks", {"fsdp.strategy=FULL_SHARD"},
             [](Job& j) { j.fsdp.strategy = Strategy::FullShard; });
  }
}

void checkpoint_blocks(Job& job) {
  job.checkpointing = {};
  job.checkpointing.policy = CheckpointPolicy::Block;
}

void add_batches(List& list, const Job& job, const std::optional<Change>& base) {
  for (std::int64_t batch = job.model.batch / 2; batch >= 1; batch /= 2) {
    const auto set = std::vector<std::string>{fmt::format("model.batch={}", batch)};
    const auto text = fmt::format("batch {} instead of {}", batch, job.model.batch);
    const auto apply = [&](Job& j) { j.model.batch = batch; };
    base ? list.add_upon(*base, text, set, apply) : list.add(text, set, apply);
  }
}

}  // namespace

std::vector<Change> changes_to_try(const Job& job) {
  List list(job);
  add_resharding(list, job);
  const auto resharding = list.changes();
  std::optional<Change> savings;
  if (!resharding.empty()) savings = resharding.back();
  if (job.checkpointing.policy != CheckpointPolicy::Block) {
    const std::vector<std::string> set{"checkpointing.policy=block"};
    list.add("checkpoint every block", set, checkpoint_blocks);
    const Change checkpointing = list.changes().back();
    if (savings) list.add_upon(*savings, "checkpoint every block", set, checkpoint_blocks);
    savings = savings ? list.changes().back() : checkpointing;
  }
  if (job.fsdp.runtime != Runtime::None && job.fsdp.wrap.policy == WrapPolicyKind::ModuleClass) {
    const std::vector<std::string> set{"fsdp.wrap.policy=auto"};
    const auto apply = [](Job& j) { j.fsdp.wrap.policy = WrapPolicyKind::Auto; };
    const char* text = "units found by search";
    list.add(text, set, apply);
    const Change units = list.changes().back();
    if (savings) list.add_upon(*savings, text, set, apply);
    savings = savings ? list.changes().back() : units;
  }
  add_batches(list, job, std::nullopt);
  if (savings) add_batches(list, job, savings);
  for (std::int64_t ranks = job.cluster.world_size * 2; ranks <= std::min(kMostRanks, job.cluster.world_size * 32);
       ranks *= 2) {
    const std::vector<std::string> set{fmt::format("cluster.world_size={}", ranks)};
    const auto apply = [&](Job& j) { j.cluster.world_size = ranks; };
    const std::string text = fmt::format("{} ranks instead of {}", ranks, job.cluster.world_size);
    if (job.fsdp.runtime == Runtime::None) continue;
    savings ? list.add_upon(*savings, text, set, apply) : list.add(text, set, apply);
  }
  if (!job.fsdp.cpu_offload && job.fsdp.runtime != Runtime::None) {
    const std::vector<std::string> set{"fsdp.cpu_offload=true"};
    const auto apply = [](Job& j) { j.fsdp.cpu_offload = true; };
    savings ? list.add_upon(*savings, "parameters and optimizer on the host", set, apply)
            : list.add("parameters and optimizer on the host", set, apply);
  }
  return list.take();
}

RemedySearch find_remedy(const Job& job) {
  RemedySearch search;
  for (const Change& change : changes_to_try(job)) {
    const auto prepared = prepare(change.job);
    if (!prepared) continue;  // the change makes a job that cannot be: no remedy
    SimulateOptions options = simulate_options(change.job);
    options.per_kernel = false;
    const auto prediction =
        simulate(prepared->plan, prepared->model, prepared->lowered, change.job, prepared->profile, options);
    if (!prediction) continue;
    search.tried.push_back(change.text);
    if (!prediction->fits || !prediction->deadlock.empty()) continue;
    search.remedy = Remedy{change.text, change.set, prediction->memory.reserved, prediction->step_time_ns.value};
    break;
  }
  return search;
}

}  // namespace foreshard::cli
