// The nearest change of a job that would fit, found by simulating a short list of changes in the order of what they
// cost.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/session/simulation.h"
#include "core/job.h"

namespace foreshard::cli {

/// One change; `set` are the keys in the spelling of --set.
struct Change {
  std::string text;
  std::vector<std::string> set;
  Job job;  // the job with the change applied
};

/// Changes that make sense for this job, nearest first: resharding, checkpointing, both, a smaller batch, more ranks,
/// CPU offload.
std::vector<Change> changes_to_try(const Job& job);

struct RemedySearch {
  std::optional<Remedy> remedy;
  std::vector<std::string> tried;
};
RemedySearch find_remedy(const Job& job);

}  // namespace foreshard::cli
