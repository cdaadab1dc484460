// Where the threads of all ranks meet: communicators by name and ranks.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "exec/communicators/in_process_communicator.h"

namespace foreshard::exec {

class RankMeeting {
 public:
  std::shared_ptr<Communicator> connect(const std::string& name, const std::vector<int>& ranks, int rank) {
    const std::lock_guard lock(mutex_);
    auto& group = groups_[{name, ranks}];
    if (group.empty()) group = in_process_communicators(static_cast<int>(ranks.size()), std::chrono::seconds(60));
    return group[static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin())];
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::vector<int>>, std::vector<std::shared_ptr<Communicator>>> groups_;
};

}  // namespace foreshard::exec
