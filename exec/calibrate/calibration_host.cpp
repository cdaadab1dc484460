#include "exec/calibrate/calibration_host.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <utility>

#include "exec/calibrate/samples.h"
#include "exec/host/host_backend.h"
#include "exec/host/host_stream.h"
#include "exec/record/recorder.h"
#include "exec/step/gradient_norm.h"
#include "exec/step/optimizer.h"

namespace foreshard::exec {
namespace {

// ---------------------------------------------------------------- own work

/// As many equal tensors of each kind as are gone through before the first is touched again.
struct TensorSet {
  TensorSet(Bytes bytes, Bytes count, int ranks) {
    for (Bytes k = 0; k < count; ++k) {
      params.push_back(at::ones({bytes / 4}));
      gradients.push_back(at::ones({bytes / 4}));
    }
    const Numel padded = ceil_div(bytes / 4, ranks) * ranks;
    joined = at::empty({ranks, padded / ranks * count});
  }
  /// Of one optimizer, from its first step on.
  std::vector<OptimizerMoments>& moments_of(const Optimizer& optimizer, OptimizerKind kind) {
    std::vector<OptimizerMoments>& kept = moments[static_cast<std::size_t>(kind)];
    if (!kept.empty()) return kept;
    kept.resize(params.size());
    for (std::size_t k = 0; k < params.size(); ++k) {
      for (std::size_t s = 0; s < optimizer.slots().size(); ++s) kept[k].tensors.push_back(at::zeros_like(params[k]));
    }
    return kept;
  }
  std::int64_t count() const { return static_cast<std::int64_t>(params.size()); }

  std::vector<at::Tensor> params, gradients;
  std::array<std::vector<OptimizerMoments>, 2> moments;  // by OptimizerKind
  at::Tensor joined;                                     // [ranks, a part of each gradient]
};

struct NamedWork {
  const char* kind;  // tensor_work_name of sim/machine/profile.h
  std::function<void(TensorSet&)> run;
  /// Parameters, one after the other; else of a unit's, which others have just written or will read.
  bool of_all = false;
};

std::vector<NamedWork> works(const OptimizerOptions& options, int ranks) {
  const auto pairs = [](auto each) {
    return [each](TensorSet& set) {
      for (std::size_t k = 0; k < set.params.size(); ++k) each(set.params[k], set.gradients[k]);
    };
  };
  const auto step = [&options](OptimizerKind kind) {
    OptimizerOptions own = options;
    own.name = kind;
    return [optimizer = Optimizer(own), kind, lr = own.lr](TensorSet& set) {
      std::vector<OptimizerMoments>& moments = set.moments_of(optimizer, kind);
      std::vector<OptimizedShard> shards;
      for (std::size_t k = 0; k < set.params.size(); ++k) {
        shards.push_back({set.params[k], set.gradients[k], &moments[k]});
      }
      optimizer.step(shards, lr);
    };
  };
  return {
      {"copy", pairs([](at::Tensor& to, at::Tensor& from) { to.narrow(0, 0, to.numel()).copy_(from); })},
      {"fill", pairs([](at::Tensor& to, at::Tensor&) { to.zero_(); })},
      {"add", pairs([](at::Tensor& to, at::Tensor& from) { to.add_(from); })},
      {"scale", pairs([](at::Tensor& to, at::Tensor&) { to.div_(1.0); })},
      {"join",
       [ranks](TensorSet& set) { at::_chunk_cat_out(set.joined, set.gradients, /*dim=*/0, /*num_chunks=*/ranks); }},
      {"norm",
       [](TensorSet& set) {
         std::vector<NormedGradient> gradients;
         for (const at::Tensor& gradient : set.gradients) gradients.push_back({gradient, false});
         norm_share(gradients, {});
       },
       true},
      {"adamw", step(OptimizerKind::AdamW), true},
      {"sgd", step(OptimizerKind::Sgd), true},
  };
}

}  // namespace

std::vector<WorkCurve> time_work(const OptimizerOptions& optimizer, int ranks, Bytes shards, int repeats) {
  constexpr Bytes kOfAUnit = 8, kMost = 64;  // tensors
  at::NoGradGuard no_grad;
  std::vector<WorkCurve> curves;
  const std::vector<NamedWork> all = works(optimizer, ranks);
  for (const NamedWork& work : all) curves.push_back({work.kind, {}, {}});
  for (const Bytes bytes : {256 * Bytes{1}, 4 * kKiB, 32 * kKiB, 128 * kKiB, 512 * kKiB, 2 * kMiB, 8 * kMiB}) {
    TensorSet of_a_unit(bytes, bytes > kMiB ? 2 : kOfAUnit, ranks);
    TensorSet of_all(bytes, std::clamp<Bytes>(shards / bytes, 1, kMost), ranks);
    for (std::size_t w = 0; w < all.size(); ++w) {
      TensorSet& set = all[w].of_all ? of_all : of_a_unit;
      std::vector<std::int64_t> samples;
      for (int r = -kWarmUp; r < repeats; ++r) {
        const std::int64_t start = steady_now();
        all[w].run(set);
        if (r >= 0) samples.push_back((steady_now() - start) / set.count());
      }
      curves[w].bytes.push_back(bytes);
      curves[w].ns.push_back(median(std::move(samples)));
    }
  }
  return curves;
}

SimDuration time_handover(int repeats) {
  constexpr int kHops = 100;
  const auto backend = make_host_backend({.intra_op_threads = 1});
  const std::array<StreamIndex, 2> streams = {backend->create_stream("D", 0), backend->create_stream("A", 0)};
  std::vector<std::int64_t> samples;
  for (int r = -kWarmUp; r < repeats; ++r) {
    HostEvent open;
    std::int64_t start = 0;  // the streams' until the synchronisation
    backend->launch({streams[0], {}}, [&open, &start] {
      open.wait();
      start = steady_now();
    });
    for (std::size_t hop = 0; hop < kHops; ++hop) {
      const StreamIndex from = streams[hop % 2], to = streams[(hop + 1) % 2];
      backend->wait_event({to, {}}, backend->record_event({from, {}}));
      backend->launch({to, {}}, [] {});
    }
    std::int64_t end = 0;
    backend->launch({streams[kHops % 2], {}}, [&end] { end = steady_now(); });
    open.fire();
    (void)backend->synchronize();
    if (r >= 0) samples.push_back((end - start) / kHops);
  }
  return median(std::move(samples));
}

// ---------------------------------------------------------------- beside compute

ComputeLoad::ComputeLoad(const CalibrationSetup& setup, const OperatorInterpreter& interpreter)
    : setup_(setup), interpreter_(interpreter) {
  constexpr int kPasses = 7;
  std::vector<std::vector<std::int64_t>> samples(setup.model.ops.size());
  for (int p = 0; p < kPasses; ++p) {
    std::int64_t last = steady_now();
    pass([&](std::size_t op) {
      const std::int64_t now = steady_now();
      samples[op].push_back(now - last);
      last = now;
      return true;
    });
  }
  for (std::vector<std::int64_t>& of_op : samples) alone_.push_back(median(std::move(of_op)));
}

/// One forward pass; `visit` is told each operator that has run, and says whether to go on.
template <class Visit>
void ComputeLoad::pass(Visit visit) const {
  at::NoGradGuard no_grad;
  SegmentFrame frame = interpreter_.begin(setup_.inputs);
  for (std::size_t op = 0; op < setup_.model.ops.size(); ++op) {
    const auto at = static_cast<std::int32_t>(op);
    interpreter_.forward(at, at + 1, frame, setup_.params, setup_.buffers);
    if (!visit(op)) return;
  }
}

void ComputeLoad::start() {
  stopping_ = false;
  thread_ = std::thread([this] {
    if (setup_.intra_op_threads > 0) at::set_num_threads(setup_.intra_op_threads);
    while (!stopping_) {
      pass([this](std::size_t op) {
        done_.fetch_add(alone_[op], std::memory_order_relaxed);
        return !stopping_;
      });
    }
  });
}

void ComputeLoad::stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

namespace {

constexpr int kBatches = 5;  // the middle one counts: somebody else's burst is not the machine

std::int64_t process_cpu_now() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

/// The same number on all ranks: long enough for the load's progress to be seen in whole operators.
int calls_of(Bytes bytes, int repeats) {
  const int most = bytes <= 64 * kKiB ? 8 * repeats : bytes <= kMiB ? 3 * repeats : repeats;
  return static_cast<int>(ceil_div(most, kBatches));
}

/// Work done in a time, while nothing but the other ranks' compute stands beside it: passes have ends of their own.
double speed_alone(const ComputeLoad& load) {
  constexpr std::chrono::milliseconds kWatched{120};
  std::this_thread::sleep_for(kWatched / 4);
  const std::int64_t start = steady_now(), done = load.done();
  std::this_thread::sleep_for(kWatched);
  const double passed = static_cast<double>(steady_now() - start);
  return std::max(0.1, static_cast<double>(load.done() - done) / passed);
}

}  // namespace

void load_collectives(std::vector<CollectiveCurve>& curves, Communicator& group, ComputeLoad& load, int repeats) {
  for (CollectiveCurve& curve : curves) {
    for (const Bytes bytes : curve.bytes) {
      const CollectiveCall call(curve.kind, group.size(), bytes, c10::kCPU);
      const int calls = calls_of(bytes, repeats);
      std::vector<std::int64_t> busy;
      for (int b = 0; b < kBatches; ++b) {
        group.barrier();
        const std::int64_t cpu = process_cpu_now();
        for (int r = 0; r < calls; ++r) call.run(group);
        busy.push_back((process_cpu_now() - cpu) / calls / group.size());
      }
      curve.cpu_ns.push_back(median(std::move(busy)));
    }
  }
  group.barrier();
  load.start();
  group.barrier();
  const double speed = speed_alone(load);
  for (CollectiveCurve& curve : curves) {
    for (const Bytes bytes : curve.bytes) {
      const CollectiveCall call(curve.kind, group.size(), bytes, c10::kCPU);
      const int calls = calls_of(bytes, repeats);
      group.barrier();
      for (int r = 0; r < kWarmUp; ++r) call.run(group);
      std::vector<std::int64_t> beside, taken;
      for (int b = 0; b < kBatches; ++b) {
        const std::int64_t start = steady_now(), done = load.done();
        for (int r = 0; r < calls; ++r) call.run(group);
        const std::int64_t passed = steady_now() - start;
        const auto lost = passed - static_cast<std::int64_t>(static_cast<double>(load.done() - done) / speed);
        beside.push_back(passed / calls);
        taken.push_back(std::clamp<std::int64_t>(lost, 0, passed) / calls);
      }
      curve.beside_ns.push_back(median(std::move(beside)));
      curve.taken_ns.push_back(std::min(median(std::move(taken)), curve.beside_ns.back()));
    }
  }
  group.barrier();
  load.stop();
}

}  // namespace foreshard::exec
