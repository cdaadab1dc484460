#include "sim/fit/axes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/job/job_file.h"

namespace foreshard::fit_axes {
namespace {

constexpr std::int64_t kMostSequences = 1024, kMostMicroBatches = 64;
// PyTorch's clip_grad_norm_ fails over two meshes; torchtitan's and `foreshard run` clip by a norm of each.
constexpr std::int64_t kMixedMeshes = 45;

std::string beside_text(const std::string& key, std::int64_t degree) {
  if (key == "mesh.context") return fmt::format("fsdp2 over sequences that {} ranks share", degree);
  return fmt::format("fsdp2 with experts over {} ranks", degree);
}

void add_fsdp2(const Job& job, const std::vector<MeshAxis>& beside, std::vector<Variant>& out) {
  const std::vector<std::string> fsdp2{"fsdp.runtime=fsdp2"};
  const auto add = [&](const std::string& text, std::vector<std::string> set) {
    for (const bool reshard : {true, false}) {
      std::vector<std::string> all = fsdp2;
      all.insert(all.end(), set.begin(), set.end());
      all.push_back(fmt::format("fsdp.reshard_after_forward={}", reshard));
      out.push_back({text + (reshard ? ", resharding after forward" : ", parameters kept until backward"), all});
    }
  };
  add("fsdp2", {"fsdp.strategy=FULL_SHARD"});
  if (job.cluster.world_size > job.cluster.ranks_per_node)
    add("fsdp2 in nodes, replicated between them", {"fsdp.strategy=HYBRID_SHARD"});
  for (std::int64_t tensor = 2; tensor <= std::min(job.cluster.ranks_per_node, job.cluster.world_size); tensor *= 2) {
    if (job.cluster.ranks_per_node % tensor != 0) continue;
    add(fmt::format("fsdp2 beside tensor parallelism of {}", tensor),
        {"fsdp.strategy=FULL_SHARD", fmt::format("mesh.tensor={}", tensor)});
  }
  for (const MeshAxis& axis : beside) {
    for (const std::int64_t degree : axis.degrees) {
      std::vector<std::string> set{"fsdp.strategy=FULL_SHARD", fmt::format("{}={}", axis.key, degree)};
      std::string text = beside_text(axis.key, degree);
      const bool clips = axis.key == "mesh.expert" && job.train.clip_grad_norm > 0;
      if (clips && std::ranges::count(job.fsdp.allow_traps, kMixedMeshes) == 0) {
        std::vector<std::int64_t> allowed = job.fsdp.allow_traps;
        allowed.push_back(kMixedMeshes);
        set.push_back(fmt::format("fsdp.allow_traps=[{}]", fmt::join(allowed, ", ")));
        text += ", clipped by the norms of both meshes";
      }
      add(text, set);
    }
  }
}

}  // namespace

std::vector<Variant> layouts(const Job& job, const std::vector<MeshAxis>& beside) {
  const Variant replicated{"one copy a rank, without FSDP", {"fsdp.runtime=none"}};
  std::vector<Variant> out;
  if (job.cluster.world_size == 1) return {replicated};
  add_fsdp2(job, beside, out);
  const auto fsdp1 = [&](const char* strategy) {
    out.push_back(
        {fmt::format("fsdp1 {}", strategy), {"fsdp.runtime=fsdp1", fmt::format("fsdp.strategy={}", strategy)}});
  };
  fsdp1("FULL_SHARD");
  fsdp1("SHARD_GRAD_OP");
  if (job.cluster.world_size > job.cluster.ranks_per_node) {
    fsdp1("HYBRID_SHARD");
    fsdp1("_HYBRID_SHARD_ZERO2");
  }
  out.push_back(replicated);
  return out;
}

std::vector<Variant> recomputations() {
  const auto every = [](int k) {
    return Variant{fmt::format("every {} block is recomputed", k == 2   ? "second"
                                                               : k == 3 ? "third"
                                                                        : "fourth"),
                   {"checkpointing.policy=every_k", fmt::format("checkpointing.k={}", k)}};
  };
  return {{"nothing is recomputed", {"checkpointing.policy=none"}},
          every(4),
          every(3),
          every(2),
          {"blocks recompute all but products and attention", {"checkpointing.policy=ops"}},
          {"every block is recomputed", {"checkpointing.policy=block"}}};
}

Variant offload() { return {"parameters, gradients and states on the host", {"fsdp.cpu_offload=true"}}; }

Variant one_precision(const Job& job) {
  const char* rest = job.fsdp.runtime == Runtime::Fsdp1 ? "buffer" : "output";
  return {"one dtype for parameters, reductions and outputs",
          {"fsdp.mixed_precision.reduce=bfloat16", fmt::format("fsdp.mixed_precision.{}=bfloat16", rest)}};
}

std::int64_t data_ranks(const Job& job) { return job.cluster.world_size / (job.mesh.tensor * job.mesh.context); }

Result<std::vector<Batch>> batches(const Job& job, std::int64_t tokens_per_step) {
  std::vector<Batch> out;
  if (tokens_per_step == 0) {
    for (std::int64_t power = 1; power <= kMostSequences; power *= 2) {
      out.push_back({power, 1});
      if (power > 1) out.push_back({power + power / 2, 1});
    }
    return out;
  }
  const std::int64_t at_once = data_ranks(job) * job.model.seq;
  if (tokens_per_step % at_once != 0) {
    return fail({.code = ErrorCode::OutOfRange,
                 .message = "no number of sequences makes up this many tokens a step",
                 .file = {},
                 .place = "--tokens-per-step",
                 .expected = fmt::format("a multiple of {} (data ranks x model.seq)", at_once),
                 .got = std::to_string(tokens_per_step),
                 .hint = fmt::format("{} is near", std::max<std::int64_t>(tokens_per_step / at_once, 1) * at_once)});
  }
  const std::int64_t sequences = tokens_per_step / at_once;
  for (std::int64_t batch = 1; batch <= std::min(sequences, kMostSequences); ++batch) {
    if (sequences % batch == 0 && sequences / batch <= kMostMicroBatches) out.push_back({batch, sequences / batch});
  }
  return out;
}

Result<Job> with_settings(const Job& job, const std::vector<std::string>& set) {
  Job out = job;
  for (const std::string& text : set) {
    const auto settings = parse_setting(text);
    if (!settings) return fail(settings.error());
    for (const JobSetting& setting : *settings) {
      if (auto applied = apply_setting(setting, out); !applied) return fail(applied.error());
    }
  }
  if (auto valid = validate_job(out); !valid) return fail(valid.error());
  return out;
}

}  // namespace foreshard::fit_axes
