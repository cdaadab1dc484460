#include <fmt/format.h>

#include <algorithm>

#include "cli/exec_program/devices/cuda_findings.h"
#include "cli/exec_program/devices/emulated_peers.h"
#include "cli/exec_program/devices/run_device.h"
#include "exec/communicators/nccl_communicator.h"
#include "exec/communicators/nccl_meeting.h"
#include "exec/cuda/allocator_settings.h"
#include "exec/cuda/cuda_backend.h"
#include "exec/cuda/cuda_device.h"
#include "exec/cuda/loaded_libraries.h"
#include "exec/record/cupti_recorder.h"
#ifdef FORESHARD_WITH_HOLD_STREAM
#include "exec/cuda/emulated_cuda.h"
#endif

namespace foreshard::cli {
namespace {

#ifndef FORESHARD_WITH_HOLD_STREAM
Error cannot_emulate() {
  Error error;
  error.code = ErrorCode::Unsupported;
  error.place = "--emulate-world";
  error.message = "this build has no kernel that holds a CUDA stream: it was configured without nvcc";
  error.expected = "a build with nvcc";
  error.hint = "configure again where nvcc is found; --backend host emulates without";
  return error;
}
#endif

class CudaRunDevice final : public RunDevice {
 public:
  explicit CudaRunDevice(const DeviceWish& wish) : wish_(wish) {}

  Result<void> open() {
    if (wish_.emulated) {
      auto peers = EmulatedPeers::of(wish_.job);
      if (!peers) return fail(peers.error());
      peers_ = std::make_unique<EmulatedPeers>(std::move(*peers));
    }
    if (wish_.recorder != nullptr) record();  // CUPTI before any other CUDA call
    index_ = device_index();
    const auto there = exec::cuda_device(index_);
    if (!there) return fail(there.error());
    name_ = there->name;
    return exec::apply_allocator_settings(wish_.job.allocator);
  }

  std::string hardware() const override { return name_; }

  exec::TrainingDevice training_device() override {
    exec::TrainingDevice device;
    device.kind = exec::DeviceKind::Cuda;
    device.make_backend = [this](const Plan& plan) {
      return exec::make_cuda_backend({.device = index_,
                                      .rank = wish_.place.rank,
                                      .timeout = wish_.timeout,
                                      .recorder = wish_.recorder,
                                      .cupti = cupti_.get(),
                                      .recorded = wish_.recorded,
                                      .plan = &plan,
                                      .graphs = wish_.graphs,
                                      .arena = exec::arena_places(plan, wish_.job)});
    };
    device.connect = [this](const std::string& name, const std::vector<int>& ranks) {
      return wish_.emulated
                 ? emulate(ranks)
                 : exec::connect_nccl(*wish_.meeting, {name, ranks, index_, wish_.timeout, wish_.nccl_register,
                                                       static_cast<int>(wish_.job.cluster.nccl_max_ctas)});
    };
    return device;
  }

  std::vector<std::string> notes() const override { return notes_; }

  void finish_recording() override {
    if (cupti_ != nullptr) wish_.recorder->device_recorded(cupti_->finish());
  }

 private:
  /// What CUPTI refuses stops no training.
  void record() {
    auto started = exec::CuptiRecorder::start(wish_.recorded);
    if (started) {
      cupti_ = std::move(*started);
      for (const Error& refused : cupti_->refused()) notes_.push_back(to_text(refused));
    } else {
      notes_.push_back(to_text(started.error()));
    }
  }

  /// Its own card for each rank of a machine. Slurm, and scripts that mpirun starts, may show every task one card
  /// alone, its own; NCCL says so where two share one.
  int device_index() const {
    if (wish_.emulated) return 0;
    const bool by_task = wish_.place.launcher == "slurm" || wish_.place.launcher == "mpi";
    return by_task && exec::cuda_device_count() == 1 ? 0 : wish_.place.local_rank;
  }

  Result<std::shared_ptr<exec::Communicator>> emulate(const std::vector<int>& ranks) const {
#ifdef FORESHARD_WITH_HOLD_STREAM
    return exec::emulated_communicator(place_among(ranks, wish_.place.rank), static_cast<int>(ranks.size()),
                                       exec::emulated_cuda(index_, peers_->channels(ranks)), peers_->duration(ranks));
#else
    return fail(cannot_emulate());
#endif
  }

  DeviceWish wish_;
  int index_ = 0;
  std::unique_ptr<EmulatedPeers> peers_;
  std::unique_ptr<exec::CuptiRecorder> cupti_;
  std::vector<std::string> notes_;
  std::string name_;  // of the card
};

Finding card(int index) {
  const auto device = exec::cuda_device(index);
  Finding finding{fmt::format("GPU {}", index), device.has_value(), "", "run --backend cuda", ""};
  if (!device) {
    finding.remedy = to_text(device.error());
    return finding;
  }
  constexpr double kGiBytes = 1024.0 * 1024.0 * 1024.0;
  finding.detail = fmt::format("{}, {:.1f} of {:.1f} GiB free, compute capability {}.{}, driver for CUDA {}.{}",
                               device->name, static_cast<double>(device->free_memory) / kGiBytes,
                               static_cast<double>(device->total_memory) / kGiBytes, device->major, device->minor,
                               device->driver_version / 1000, device->driver_version % 1000 / 10);
  return finding;
}

/// By what the loader has, not by what was linked.
Finding one_source() {
  const auto libraries = exec::loaded_libraries();
  std::string files;
  for (const auto& library : libraries) {
    for (const std::string& file : library.files) files += (files.empty() ? "" : ", ") + file;
  }
  const std::string wrong = exec::wrong_with(libraries);
  return {"CUDA libraries, as loaded", wrong.empty(), files, "run --backend cuda",
          wrong.empty() ? "" : wrong + ": LD_LIBRARY_PATH should name the folders of LibTorch's own first"};
}

}  // namespace

Result<std::unique_ptr<RunDevice>> open_cuda_device(const DeviceWish& wish) {
#ifndef FORESHARD_WITH_HOLD_STREAM
  if (wish.emulated) return fail(cannot_emulate());
#endif
  auto device = std::make_unique<CudaRunDevice>(wish);
  if (auto opened = device->open(); !opened) return fail(opened.error());
  return device;
}

std::vector<Finding> cuda_findings() {
  std::vector<Finding> findings;
  {
    const auto cupti = exec::CuptiRecorder::start();
    findings.push_back({"CUPTI", cupti.has_value(), "records of the device's work",
                        "run --timeline: what the device did and when", cupti ? "" : to_text(cupti.error())});
  }
  const int cards = exec::cuda_device_count();
  for (int index = 0; index < std::max(cards, 1); ++index) findings.push_back(card(index));
  findings.push_back(one_source());
  const std::string loaded = exec::nccl_version(), built = exec::nccl_built_version();
  const bool same = exec::nccl_serves(loaded, built);
  findings.push_back({"NCCL, as loaded", same, fmt::format("{} (built for {})", loaded, built),
                      "collectives between GPUs",
                      fmt::format("libnccl.so.2 is {}, this program was built for {}: put a newer one first in "
                                  "LD_LIBRARY_PATH",
                                  loaded, built)});
  return findings;
}

}  // namespace foreshard::cli
