#include "exec/calibrate/calibration_device.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "exec/host/host_backend.h"
#include "exec/record/recorder.h"

namespace foreshard::exec {
namespace {

class HostStopwatch final : public Stopwatch {
 public:
  void ahead() override {}
  void keep_ahead() override {}
  void start() override { start_ = steady_now(); }
  void stop() override { taken_.push_back(steady_now() - start_); }
  std::vector<std::int64_t> take() override { return std::exchange(taken_, {}); }
  void settle() override {}

 private:
  std::int64_t start_ = 0;
  std::vector<std::int64_t> taken_;
};

template <class F>
std::int64_t each(int calls, F call) {
  const std::int64_t start = steady_now();
  for (int i = 0; i < calls; ++i) call();
  return (steady_now() - start) / calls;
}

class HostCalibrationDevice final : public CalibrationDevice {
 public:
  c10::Device enter(int) override { return c10::kCPU; }
  std::unique_ptr<Stopwatch> stopwatch() override { return std::make_unique<HostStopwatch>(); }
  Bytes largest_collective() const override { return 16 * kMiB; }

  HostCosts host_costs() override {
    constexpr int kCalls = 4000, kAllocations = 15;
    HostCosts costs;
    const auto backend = make_host_backend({.intra_op_threads = 1});
    const StreamIndex stream = backend->create_stream("D", 0);
    costs.issue = each(kCalls, [&] { backend->launch({stream, {}}, [] {}); });
    costs.event = each(kCalls, [&] { backend->record_event({stream, {}}); });
    (void)backend->synchronize();
    std::vector<std::int64_t> times;
    for (int i = 0; i < kAllocations; ++i) times.push_back(each(1, [] { at::empty({1 << 18}); }));
    std::nth_element(times.begin(), times.begin() + kAllocations / 2, times.end());
    costs.allocation = times[kAllocations / 2];
    return costs;
  }
};

}  // namespace

std::unique_ptr<CalibrationDevice> host_calibration_device() { return std::make_unique<HostCalibrationDevice>(); }

}  // namespace foreshard::exec
