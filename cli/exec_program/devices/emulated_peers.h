// `--emulate-world N`: how long the collectives of a rank whose peers do not exist are to take, by the job's profile.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/result.h"
#include "exec/communicators/emulated_communicator.h"
#include "sim/machine/profile.h"

namespace foreshard::cli {

class EmulatedPeers {
 public:
  /// The job's profile, of cluster.profile. Errors: those of load_profile.
  static Result<EmulatedPeers> of(const Job& job);

  /// Of a group of `ranks` as they lie over the job's nodes.
  exec::CollectiveDuration duration(const std::vector<int>& ranks) const;
  /// Blocks that NCCL's kernels of this group take from the multiprocessors.
  int channels(const std::vector<int>& ranks) const;

 private:
  EmulatedPeers(HardwareProfile profile, std::int64_t ranks_per_node)
      : profile_(std::move(profile)), ranks_per_node_(ranks_per_node) {}
  HardwareProfile profile_;
  std::int64_t ranks_per_node_;
};

/// Where `rank` stands among `ranks`.
int place_among(const std::vector<int>& ranks, int rank);

}  // namespace foreshard::cli
