// The communicators of ranks that are threads of one process: for tests with several ranks, and plans tried out without
// processes.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "exec/communicators/throttled_communicator.h"
#include "exec/step/plan_groups.h"

namespace foreshard::exec {

/// Shared by the ranks' threads.
class InProcessGroups {
 public:
  explicit InProcessGroups(std::chrono::milliseconds timeout = std::chrono::seconds(60), LinkLimit link = {})
      : timeout_(timeout), link_(link) {}

  /// Those of one rank's plan; ranks whose communicators have name and ranks in common meet.
  Communicators of(const Plan& plan);

 private:
  const std::chrono::milliseconds timeout_;
  const LinkLimit link_;
  std::mutex mutex_;
  std::map<std::string, std::vector<std::shared_ptr<Communicator>>> made_;  // by meeting_name, then place in the group
};

}  // namespace foreshard::exec
