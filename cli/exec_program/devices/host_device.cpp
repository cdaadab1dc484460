#include <fmt/format.h>

#include <fstream>
#include <thread>

#include "cli/exec_program/devices/emulated_peers.h"
#include "cli/exec_program/devices/run_device.h"

namespace foreshard::cli {
namespace {

/// Peers that do not exist, on this host's streams.
class EmulatedHostDevice final : public RunDevice {
 public:
  EmulatedHostDevice(EmulatedPeers peers, int rank) : peers_(std::move(peers)), rank_(rank) {}
  exec::TrainingDevice training_device() override {
    exec::TrainingDevice device;
    device.connect = [this](const std::string&,
                            const std::vector<int>& ranks) -> Result<std::shared_ptr<exec::Communicator>> {
      return exec::emulated_communicator(place_among(ranks, rank_), static_cast<int>(ranks.size()),
                                         exec::emulated_host(), peers_.duration(ranks));
    };
    return device;
  }
  std::string hardware() const override { return processor_text(); }

 private:
  EmulatedPeers peers_;
  int rank_;
};

class HostDevice final : public RunDevice {
  exec::TrainingDevice training_device() override { return {}; }
  std::string hardware() const override { return processor_text(); }
};

}  // namespace

std::string processor_text() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line, model = "unknown processor";
  while (std::getline(cpuinfo, line)) {
    if (!line.starts_with("model name")) continue;
    model = line.substr(line.find(':') + 2);
    break;
  }
  return fmt::format("{}, {} cores", model, std::thread::hardware_concurrency());
}

Result<std::unique_ptr<RunDevice>> open_host_device(const DeviceWish& wish) {
  if (!wish.emulated) return std::make_unique<HostDevice>();
  auto peers = EmulatedPeers::of(wish.job);
  if (!peers) return fail(peers.error());
  return std::make_unique<EmulatedHostDevice>(std::move(*peers), wish.place.rank);
}

}  // namespace foreshard::cli
