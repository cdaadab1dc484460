// Random valid jobs: small models of the built families with every setting that a prediction depends on. A job follows
// from its seed alone; the same seed gives the same job on every machine. Of eight seeds one is cut over a mesh, one is
// an archive of torch.export, of 16 one is a captured model, and of 64 one is planned.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/result.h"
#include "sim/machine/profile.h"
#include "sim/simulate.h"

namespace foreshard::testing {

/// Sizes of a model, in the words that all families share.
struct ModelSizes {
  std::string family;  // llama | gpt2 | mixtral | t5 | vit | bert | gpt_neox | titan_llama | titan_moe
  int layers = 1, heads = 1, head_dim = 64, kv_heads = 1, inner = 4, vocab = 1000;  // inner: times the width
  bool tied = false;
  int width() const { return heads * head_dim; }
  bool operator==(const ModelSizes&) const = default;
};
std::string config_text(const ModelSizes& sizes);

/// A job as somebody would write it: settings "section.key=value" over the defaults.
struct RandomJob {
  std::uint64_t seed = 0;
  ModelSizes sizes;
  std::string file;  // in tests/data, instead of a model of these sizes: archives/NAME.pt2, captured/NAME.json
  std::vector<std::string> sets;

  /// Repeated keys: the last counts, as on the command line.
  RandomJob with(std::vector<std::string> more) const;
  RandomJob resized(const ModelSizes& other) const;
  std::string text() const;  // one line, for messages
};

/// The job that its settings say. An error if they contradict each other.
Result<Job> job_of(const RandomJob& random);

/// Of the settings that every job has. They may contradict each other: about one in ten is refused when it is planned.
RandomJob plain_job(std::uint64_t seed);

/// That, and in most jobs some of what else a job may say: adapters, losses, optimizers, operators that a block keeps,
/// autocast, compile, ranks that share sequences or experts, schedules. About one in three is refused.
RandomJob random_job(std::uint64_t seed);

/// A job to be scheduled: most over a mesh (tensor, context, expert ranks, replicated shards), with adapters, other
/// optimizers, steps in backward, offloaded activations, packed rows. About half are refused.
RandomJob scheduled_job(std::uint64_t seed);

/// A job whose schedule is searched for, with the one that was found; others as they are.
Result<RandomJob> settled(const RandomJob& random, const HardwareProfile& profile);

/// What a simulation needs, made without a file.
struct RandomCase {
  Job job;
  Model model;
  Plan plan;
  LoweredProgram lowered;
};
Result<RandomCase> make_case(const RandomJob& random, const HardwareProfile& profile);

}  // namespace foreshard::testing
