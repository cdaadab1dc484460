#include "exec/cuda/cuda_calibration.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "exec/cuda/cuda_check.h"
#include "exec/cuda/cuda_device.h"
#include "exec/cuda/hold_stream.h"
#include "exec/record/recorder.h"

namespace foreshard::exec {
namespace {

constexpr std::int64_t kAhead = 2'000'000;  // ns that the stream is held: the host issues some dozens of operators

class CudaStopwatch final : public Stopwatch {
 public:
  CudaStopwatch() {
    check(cudaMalloc(&mark_, sizeof(std::uint64_t)), "cudaMalloc");
    for (int i = 0; i < kEmpty; ++i) {
      start();
      stop();
    }
    std::vector<std::int64_t> empty = take();
    std::nth_element(empty.begin(), empty.begin() + kEmpty / 2, empty.end());
    own_ = empty[kEmpty / 2];
  }
  ~CudaStopwatch() override {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaFree(mark_);
  }

  void ahead() override {
    auto* mark = static_cast<std::uint64_t*>(mark_);
    mark_stream_time(stream(), mark);
    hold_stream(stream(), mark, kAhead, 1);
    check(cudaPeekAtLastError(), "hold");
  }
  void keep_ahead() override {
    const cudaError_t caught_up = cudaStreamQuery(stream());
    if (caught_up == cudaSuccess) return ahead();
    if (caught_up != cudaErrorNotReady) return check(caught_up, "cudaStreamQuery");
    (void)cudaGetLastError();  // else LibTorch takes it for its own
  }
  void start() override { record(); }
  void stop() override { record(); }

  void settle() override { check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize"); }

  std::vector<std::int64_t> take() override {
    settle();
    std::vector<std::int64_t> times;
    for (std::size_t e = 0; e + 1 < used_; e += 2) {
      float ms = 0;
      check(cudaEventElapsedTime(&ms, events_[e], events_[e + 1]), "cudaEventElapsedTime");
      times.push_back(std::max<std::int64_t>(0, static_cast<std::int64_t>(static_cast<double>(ms) * 1e6) - own_));
    }
    used_ = 0;
    return times;
  }

 private:
  static constexpr int kEmpty = 31;

  static cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }
  void record() {
    if (used_ == events_.size()) {
      events_.emplace_back();
      check(cudaEventCreate(&events_.back()), "cudaEventCreate");
    }
    check(cudaEventRecord(events_[used_++], stream()), "cudaEventRecord");
  }

  void* mark_ = nullptr;
  std::vector<cudaEvent_t> events_;
  std::size_t used_ = 0;
  std::int64_t own_ = 0;  // between two events with nothing between them
};

/// Median host time of one call; the device has nothing else to do.
template <class F>
std::int64_t each(F call) {
  constexpr int kRounds = 15, kCalls = 50;  // far from filling the launch queue
  std::vector<std::int64_t> rounds;
  for (int r = 0; r < kRounds; ++r) {
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const std::int64_t start = steady_now();
    for (int i = 0; i < kCalls; ++i) call();
    rounds.push_back((steady_now() - start) / kCalls);
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

SimDuration driver_allocation() {
  constexpr int kRounds = 9;
  constexpr std::size_t kSegment = std::size_t{64} << 20;
  std::vector<std::int64_t> rounds;
  for (int r = 0; r < kRounds; ++r) {
    void* memory = nullptr;
    const std::int64_t start = steady_now();
    check(cudaMalloc(&memory, kSegment), "cudaMalloc");
    rounds.push_back(steady_now() - start);
    cudaFree(memory);
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

class CudaCalibrationDevice final : public CalibrationDevice {
 public:
  c10::Device enter(int rank) override {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    const auto index = static_cast<c10::DeviceIndex>(rank);
    c10::cuda::set_device(index);
    return {c10::kCUDA, index};
  }
  std::unique_ptr<Stopwatch> stopwatch() override { return std::make_unique<CudaStopwatch>(); }
  Bytes largest_collective() const override { return 512 * kMiB; }

  HostCosts host_costs() override {
    enter(0);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    void* mark = nullptr;
    check(cudaMalloc(&mark, sizeof(std::uint64_t)), "cudaMalloc");
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    HostCosts costs;
    costs.issue = each([&] { mark_stream_time(stream, static_cast<std::uint64_t*>(mark)); });
    costs.event = each([&] { check(cudaEventRecord(event, stream), "cudaEventRecord"); });
    costs.allocation = driver_allocation();
    cudaEventDestroy(event);
    cudaFree(mark);
    return costs;
  }
};

}  // namespace

Result<std::unique_ptr<CalibrationDevice>> cuda_calibration_device(int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (const auto there = cuda_device(rank); !there) return fail(there.error());
  }
  return std::make_unique<CudaCalibrationDevice>();
}

}  // namespace foreshard::exec
