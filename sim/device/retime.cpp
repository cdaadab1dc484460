#include "sim/device/retime.h"

#include <algorithm>
#include <cmath>

#include "sim/device/root_streams.h"

namespace foreshard {
namespace {

SimDuration scaled(SimDuration duration, double factor) {
  return factor == 1.0 ? duration : std::llround(static_cast<double>(duration) * factor);
}

}  // namespace

std::vector<SimTime> retime(const IssueTape& tape, const std::vector<UnitChange>& changes) {
  std::array<SimTime, kPlayedStreams> tails{};
  std::vector<SimTime> communicators(static_cast<std::size_t>(tape.communicators()), 0);
  std::vector<SimTime> events(static_cast<std::size_t>(tape.events()), 0), ends;
  SimTime host = 0;
  const std::vector<IssueTape::Entry>& entries = tape.entries();
  for (std::size_t k = 0; k < entries.size(); ++k) {
    const IssueTape::Entry& entry = entries[k];
    double compute = 1.0, communication = 1.0;
    for (const UnitChange& change : changes) {
      if (change.unit != entry.unit) continue;
      compute = change.compute;
      communication = change.communication;
    }
    SimTime& tail = tails[entry.stream];
    switch (entry.kind) {
      case IssueTape::Kind::Run:
        if (compute == 1.0) {
          tail = std::max(tail + entry.device, host + entry.behind);
          host += entry.host;
        } else {
          const std::uint32_t end =
              k + 1 < entries.size() ? entries[k + 1].kernels : static_cast<std::uint32_t>(tape.kernels().size());
          for (std::uint32_t at = entry.kernels; at < end; ++at) {
            const IssueTape::Kernel& kernel = tape.kernels()[at];
            host += kernel.host;
            tail = std::max(tail, host) + scaled(kernel.device, compute);
          }
        }
        break;
      case IssueTape::Kind::Collective: {
        host += entry.host;
        SimTime& communicator = communicators[static_cast<std::size_t>(entry.event)];
        tail = std::max({tail, host, communicator}) + scaled(entry.device, communication);
        communicator = tail;
        break;
      }
      case IssueTape::Kind::Record:
        host += entry.host;
        events[static_cast<std::size_t>(entry.event)] = tail;
        break;
      case IssueTape::Kind::StreamWait:
        host += entry.host;
        tail = std::max(tail, events[static_cast<std::size_t>(entry.event)]);
        break;
      case IssueTape::Kind::HostWait:
        host = std::max(host + entry.host, events[static_cast<std::size_t>(entry.event)]);
        break;
      case IssueTape::Kind::StreamSync: host = std::max(host + entry.host, tail); break;
      case IssueTape::Kind::Iteration:
        host += entry.host;
        ends.push_back(*std::max_element(tails.begin(), tails.end()));
        break;
    }
  }
  return ends;
}

}  // namespace foreshard
