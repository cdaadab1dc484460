// The calls to CUDA and NCCL that a plan asks for, and their comparison with those that the virtual device has logged.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/plan.h"
#include "tests/virtual_gpu/call_log.h"

namespace foreshard::exec {

/// A call as the plan asks for it.
struct PlannedCall {
  std::string api;
  Stream stream = Stream::D;
  std::optional<Stream> waits_for;
  Bytes bytes = 0;
  std::size_t instruction = 0;
  CommunicatorId communicator = {};
};

/// Collectives, waits between streams and waits of the host, as one iteration of the plan has them; `recorded_on` goes
/// from one iteration to the next.
std::vector<PlannedCall> planned_calls(const Plan& plan, const PlanIteration& iteration,
                                       std::map<EventId, Stream>& recorded_on);

/// Those of the log that planned_calls knows.
std::vector<DeviceCall> calls_of_interest(std::vector<DeviceCall> calls);

/// Which of the device's streams and communicators stands for which of the plan's: learnt at first sight, then held to.
class DeviceNames {
 public:
  bool same(Stream letter, std::int64_t id) { return streams_.same(letter, id); }
  bool same(CommunicatorId communicator, std::int64_t id) { return communicators_.same(communicator, id); }

 private:
  template <class Key>
  class OneToOne {
   public:
    bool same(Key key, std::int64_t id) {
      const auto [known, fresh] = ids_.try_emplace(key, id);
      if (fresh && !used_.insert(id).second) return false;
      return known->second == id;
    }

   private:
    std::map<Key, std::int64_t> ids_;
    std::set<std::int64_t> used_;
  };
  OneToOne<Stream> streams_;
  OneToOne<CommunicatorId> communicators_;
};

/// The first difference in words; empty: the same calls, in order, on the plan's streams and communicators, of the
/// plan's bytes.
std::string difference(const std::vector<PlannedCall>& planned, const std::vector<DeviceCall>& calls,
                       DeviceNames& names);

}  // namespace foreshard::exec
