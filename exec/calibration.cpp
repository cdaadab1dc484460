#include "exec/calibration.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <barrier>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/model/operator_signature.h"
#include "exec/data/batch_source.h"
#include "exec/host_backend.h"
#include "exec/recorder.h"
#include "exec/starting_weights.h"
#include "exec/torch_types.h"

namespace foreshard::exec {
namespace {

constexpr int kWarmUp = 3;
constexpr Bytes kSmallest = kKiB, kLargest = 16 * kMiB;

using Samples = std::vector<std::int64_t>;

std::int64_t quantile(Samples samples, double share) {
  if (samples.empty()) return 0;
  const auto at = samples.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(samples.size() - 1) + 0.5);
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}
std::int64_t median(const Samples& samples) { return quantile(samples, 0.5); }

template <class F>
std::int64_t timed(F work) {
  const std::int64_t start = steady_now();
  work();
  return steady_now() - start;
}

/// One rank's samples of the model.
struct ModelSamples {
  std::vector<Samples> forward, backward;  // by operator
  Samples whole_forward, whole_backward;
};

class ModelTimer {
 public:
  ModelTimer(const CalibrationSetup& setup, const OperatorInterpreter& interpreter)
      : setup_(setup), interpreter_(interpreter), operators_(static_cast<std::int32_t>(setup.model.ops.size())) {
    samples_.forward.resize(setup.model.ops.size());
    samples_.backward.resize(setup.model.ops.size());
  }

  void operators_alone(bool keep) {
    SegmentFrame frame = interpreter_.begin(setup_.inputs);
    std::vector<SegmentGraph> graphs;
    for (std::int32_t i = 0; i < operators_; ++i) {
      const std::int64_t ns =
          timed([&] { graphs.push_back(interpreter_.forward(i, i + 1, frame, setup_.params, setup_.buffers)); });
      if (keep) samples_.forward[static_cast<std::size_t>(i)].push_back(ns);
    }
    seed(frame);
    for (std::int32_t i = operators_; i-- > 0;) {
      SegmentGraph& graph = graphs[static_cast<std::size_t>(i)];
      if (!graph.valid()) continue;
      const std::int64_t ns =
          timed([&] { interpreter_.backward(std::move(graph), frame, [](ParamId, const at::Tensor&) {}); });
      if (keep) samples_.backward[static_cast<std::size_t>(i)].push_back(ns);
    }
  }

  void whole_model(bool keep) {
    SegmentFrame frame = interpreter_.begin(setup_.inputs);
    SegmentGraph graph;
    const std::int64_t forward =
        timed([&] { graph = interpreter_.forward(0, operators_, frame, setup_.params, setup_.buffers); });
    seed(frame);
    const std::int64_t backward =
        timed([&] { interpreter_.backward(std::move(graph), frame, [](ParamId, const at::Tensor&) {}); });
    if (!keep) return;
    samples_.whole_forward.push_back(forward);
    samples_.whole_backward.push_back(backward);
  }

  ModelSamples take() { return std::move(samples_); }

 private:
  void seed(SegmentFrame& frame) const {
    const std::size_t loss = setup_.model.outputs.front().index();
    const at::Tensor& value = frame.values[loss];
    frame.grads[loss] = at::ones_like(value, at::TensorOptions().requires_grad(false));
  }

  const CalibrationSetup& setup_;
  const OperatorInterpreter& interpreter_;
  std::int32_t operators_;
  ModelSamples samples_;
};

std::vector<CollectiveCurve> time_collectives(Communicator& group, int repeats) {
  std::vector<CollectiveCurve> curves;
  const auto ranks = static_cast<Bytes>(group.size());
  for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"}) {
    CollectiveCurve curve{kind, group.size(), {}, {}};
    for (Bytes bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
      const Numel share = bytes / 4 / ranks;
      std::vector<float> whole(static_cast<std::size_t>(share * ranks)), part(static_cast<std::size_t>(share));
      Samples samples;
      for (int r = -kWarmUp; r < repeats; ++r) {
        group.barrier();
        const std::int64_t ns = timed([&] {
          if (curve.kind == "all_gather") group.all_gather(whole.data(), part.data(), share, DType::Float32);
          if (curve.kind == "reduce_scatter")
            group.reduce_scatter(part.data(), whole.data(), share, DType::Float32, ReduceOp::Avg);
          if (curve.kind == "all_reduce") group.all_reduce(whole.data(), share * ranks, DType::Float32, ReduceOp::Sum);
        });
        if (r >= 0) samples.push_back(ns);
      }
      curve.bytes.push_back(share * ranks * 4);
      curve.ns.push_back(median(samples));
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

/// Copies and products by one rank while the others do the same; the largest copy lies beyond the caches.
void time_memory_and_products(Calibration& into, int repeats) {
  at::NoGradGuard no_grad;
  const auto copy_ns = [&](Bytes bytes) {
    const at::Tensor from = at::ones({bytes / 4}), to = at::empty({bytes / 4});
    Samples samples;
    for (int r = 0; r < repeats + kWarmUp; ++r) samples.push_back(timed([&] { to.copy_(from); }));
    return median(samples);
  };
  constexpr Bytes kCopy = 4 * kMiB;
  into.smallest_copy_ns = copy_ns(256);
  into.copy_gb_per_s =
      2.0 * static_cast<double>(kCopy) / static_cast<double>(std::max<std::int64_t>(copy_ns(kCopy), 1));
  constexpr std::int64_t kSize = 512;
  const at::Tensor a = at::ones({kSize, kSize}), b = at::ones({kSize, kSize});
  Samples samples;
  for (int r = 0; r < repeats + kWarmUp; ++r) samples.push_back(timed([&] { at::mm(a, b); }));
  into.gemm_tflops =
      2.0 * kSize * kSize * kSize / static_cast<double>(std::max<std::int64_t>(median(samples), 1)) / 1e3;
  samples.clear();
  for (int r = 0; r < repeats + kWarmUp; ++r) samples.push_back(timed([&] { at::empty({1 << 18}); }));
  into.allocation_ns = median(samples);
}

void time_host(Calibration& into) {
  constexpr int kCalls = 4000;
  const auto backend = make_host_backend({.intra_op_threads = 1});
  const StreamIndex stream = backend->create_stream("D", 0);
  into.issue_ns = timed([&] {
                    for (int i = 0; i < kCalls; ++i) backend->launch({stream, {}}, [] {});
                  }) /
                  kCalls;
  into.event_ns = timed([&] {
                    for (int i = 0; i < kCalls; ++i) backend->record_event({stream, {}});
                  }) /
                  kCalls;
  (void)backend->synchronize();
}

/// Parameters whole, in the dtype that segments compute in.
OperatorInterpreter::ParamTensors computing_params(const Model& model, const Job& job,
                                                   const OperatorInterpreter::ParamTensors& whole) {
  auto made = std::make_shared<std::vector<at::Tensor>>(model.params.size());
  for (std::size_t p = 0; p < model.params.size(); ++p) {
    const ParamId id(p);
    if (model.storage_of(id) != id) continue;
    at::Tensor tensor = whole(id).detach().clone();
    const auto& dtype = job.fsdp.mixed_precision.param;
    if (dtype && job.fsdp.runtime != Runtime::None) tensor = tensor.to(scalar_type_of(*dtype));
    (*made)[p] = tensor.set_requires_grad(model.params[p].requires_grad);
  }
  return [made](ParamId id) { return (*made)[id.index()]; };
}

/// What a segment of one operator costs beside its operator: the same for each.
SimDuration surplus(const std::vector<std::int64_t>& alone, std::int64_t whole) {
  std::int64_t sum = 0, count = 0;
  for (const std::int64_t ns : alone) {
    sum += ns;
    count += ns > 0 ? 1 : 0;
  }
  return count > 0 ? std::max<std::int64_t>(0, (sum - whole) / count) : 0;
}

std::vector<std::int64_t> medians(const std::vector<Samples>& samples) {
  std::vector<std::int64_t> values;
  for (const Samples& s : samples) values.push_back(median(s));
  return values;
}

void tell_operators(Calibration& into, const Model& model, const ModelSamples& samples) {
  std::vector<std::int64_t> forward = medians(samples.forward), backward = medians(samples.backward);
  into.whole_forward_ns = median(samples.whole_forward);
  into.whole_backward_ns = median(samples.whole_backward);
  const SimDuration less_forward = surplus(forward, into.whole_forward_ns);
  const SimDuration less_backward = surplus(backward, into.whole_backward_ns);
  std::unordered_map<std::string, std::size_t> known;
  std::vector<Samples> all_forward, all_backward;
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    const std::string signature = operator_signature(model, model.ops[i]);
    const auto [found, fresh] = known.try_emplace(signature, into.operators.size());
    if (fresh) {
      into.operators.push_back({signature, 0, 0, 0});
      all_forward.emplace_back();
      all_backward.emplace_back();
    }
    ++into.operators[found->second].count;
    all_forward[found->second].push_back(std::max<std::int64_t>(0, forward[i] - less_forward));
    all_backward[found->second].push_back(std::max<std::int64_t>(0, backward[i] - less_backward));
  }
  for (std::size_t k = 0; k < into.operators.size(); ++k) {
    OperatorTime& op = into.operators[k];
    op.forward_ns = median(all_forward[k]);
    op.backward_ns = median(all_backward[k]);
    into.sum_forward_ns += op.count * op.forward_ns;
    into.sum_backward_ns += op.count * op.backward_ns;
  }
  Samples steps;
  for (std::size_t r = 0; r < samples.whole_forward.size(); ++r)
    steps.push_back(samples.whole_forward[r] + samples.whole_backward[r]);
  const double middle = static_cast<double>(std::max<std::int64_t>(median(steps), 1));
  into.spread = static_cast<double>(quantile(steps, 0.95) - quantile(steps, 0.05)) / 2 / middle;
}

}  // namespace

Result<Calibration> calibrate(const CalibrationSetup& setup) {
  const auto interpreter = OperatorInterpreter::create(setup.model);
  if (!interpreter) return fail(interpreter.error());
  const std::size_t ranks = std::max<std::size_t>(setup.communicators.size(), 1);
  Calibration result;
  time_host(result);
  ModelSamples samples;
  std::string failure;
  std::mutex mutex;
  std::barrier<> together(static_cast<std::ptrdiff_t>(ranks));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        if (setup.intra_op_threads > 0) at::set_num_threads(setup.intra_op_threads);
        ModelTimer timer(setup, *interpreter);
        timer.whole_model(false);  // what fails, fails here, on all ranks
        for (int r = -kWarmUp; r < setup.repeats; ++r) {
          together.arrive_and_wait();
          timer.operators_alone(r >= 0);
          together.arrive_and_wait();
          timer.whole_model(r >= 0);
        }
        Calibration own;
        together.arrive_and_wait();
        time_memory_and_products(own, setup.repeats);
        if (!setup.communicators.empty()) own.collectives = time_collectives(*setup.communicators[rank], setup.repeats);
        if (rank != 0) return;
        std::lock_guard lock(mutex);
        samples = timer.take();
        own.issue_ns = result.issue_ns;
        own.event_ns = result.event_ns;
        result = std::move(own);
      } catch (const std::exception& error) {
        std::lock_guard lock(mutex);
        failure = error.what();
        together.arrive_and_drop();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!failure.empty()) {
    Error error;
    error.code = ErrorCode::Unsupported;
    error.message = "the model cannot be measured: " + failure;
    return fail(std::move(error));
  }
  tell_operators(result, setup.model, samples);
  return result;
}

Result<Calibration> calibrate_job(const Model& model, const Job& job, int intra_op_threads, int repeats,
                                  std::vector<std::shared_ptr<Communicator>> communicators) {
  const auto weights = starting_weights(model, job);
  if (!weights) return fail(weights.error());
  const auto data = open_batch_source(model, job);
  if (!data) return fail(data.error());
  auto inputs = (*data)->batch(0);
  if (!inputs) return fail(inputs.error());
  return calibrate({model, std::move(*inputs), computing_params(model, job, weights->params), weights->buffers,
                    intra_op_threads, repeats, std::move(communicators)});
}

}  // namespace foreshard::exec
