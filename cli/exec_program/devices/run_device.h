// What `foreshard-exec run` computes on. Two programs are built from the same sources (docs/adr/0004): foreshard-exec
// knows the host alone (host_device.cpp) and links no CUDA library, foreshard-exec-cuda knows CUDA devices too
// (cuda_device.cpp).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/result.h"
#include "exec/launch/launch.h"
#include "exec/launch/rendezvous.h"
#include "exec/record/recorder.h"
#include "exec/training/training_loop.h"

namespace foreshard::cli {

struct DeviceWish {
  const Job& job;
  exec::RankPlace place;  // with --emulate-world: of the one rank among the many
  std::chrono::milliseconds timeout{0};
  exec::Recorder* recorder = nullptr;
  exec::Rendezvous* meeting = nullptr;  // null for a rank alone
  bool emulated = false;                // its peers do not exist
  bool graphs = false;                  // CUDA graphs of work that repeats
  bool nccl_register = false;           // the allocator's memory with NCCL
  exec::RecordedKinds recorded = exec::RecordedKinds::All;
};

/// Owns what the training's device needs; outlives the training.
class RunDevice {
 public:
  virtual ~RunDevice() = default;
  virtual exec::TrainingDevice training_device() = 0;
  virtual std::string hardware() const = 0;                      // for what is recorded on it: processor or card
  virtual std::vector<std::string> notes() const { return {}; }  // what does not work, though the run goes on
  /// Everything that the device did is in the recorder when this returns. REQUIRES that nothing runs.
  virtual void finish_recording() {}
};

/// The processor and its number of cores, as the kernel tells them.
std::string processor_text();

/// "host": the device of every program.
Result<std::unique_ptr<RunDevice>> open_host_device(const DeviceWish& wish);

/// "cuda". Errors: this program has no CUDA; no driver, an old one, no such card.
Result<std::unique_ptr<RunDevice>> open_cuda_device(const DeviceWish& wish);

}  // namespace foreshard::cli
