#include "exec/calibrate/calibration.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/operators/operator_signature.h"
#include "core/text/utf8.h"
#include "exec/calibrate/calibration_host.h"
#include "exec/calibrate/calibration_journal.h"
#include "exec/calibrate/samples.h"
#include "exec/data/batch_source.h"
#include "exec/record/recorder.h"
#include "exec/torch/torch_types.h"
#include "exec/training/starting_weights.h"

namespace foreshard::exec {
namespace {

constexpr Bytes kSmallest = kKiB;
constexpr std::int32_t kAheadOf = 16;       // operators that are issued behind a stream that stands still
constexpr std::int32_t kIssuedAtOnce = 64;  // ... and that a device's launch queue takes without making the issuer wait

/// Median of some rounds of one piece of work.
template <class F>
std::int64_t median_of(Stopwatch& watch, int rounds, F work) {
  for (int r = 0; r < rounds; ++r) {
    watch.start();
    work();
    watch.stop();
  }
  return median(watch.take());
}

/// One rank's samples of the model.
struct ModelSamples {
  std::vector<Samples> forward, backward;  // by operator
  Samples whole_forward, whole_backward;
  Samples issue_forward, issue_backward;  // of the whole model, on the issuer's clock
};

class ModelTimer {
 public:
  ModelTimer(const CalibrationSetup& setup, const OperatorInterpreter& interpreter, Stopwatch& watch)
      : setup_(setup),
        interpreter_(interpreter),
        watch_(watch),
        operators_(static_cast<std::int32_t>(setup.model.ops.size())) {
    samples_.forward.resize(setup.model.ops.size());
    samples_.backward.resize(setup.model.ops.size());
  }

  void operators_alone(bool keep) {
    SegmentFrame frame = interpreter_.begin(setup_.inputs);
    std::vector<SegmentGraph> graphs;
    std::vector<Samples*> places;  // of each lap
    for (std::int32_t i = 0; i < operators_; ++i) {
      if (i % kAheadOf == 0) watch_.ahead();
      lap([&] { graphs.push_back(interpreter_.forward(i, i + 1, frame, setup_.params, setup_.buffers)); });
      places.push_back(&samples_.forward[static_cast<std::size_t>(i)]);
    }
    seed(frame);
    for (std::int32_t i = operators_; i-- > 0;) {
      if (i % kAheadOf == 0) watch_.ahead();
      SegmentGraph& graph = graphs[static_cast<std::size_t>(i)];
      if (!graph.valid()) continue;
      lap([&] { interpreter_.backward(std::move(graph), frame, [](ParamId, const at::Tensor&) {}); });
      places.push_back(&samples_.backward[static_cast<std::size_t>(i)]);
    }
    const std::vector<std::int64_t> laps = watch_.take();
    for (std::size_t l = 0; keep && l < laps.size(); ++l) places[l]->push_back(laps[l]);
  }

  void whole_model(bool keep) {
    SegmentFrame frame = interpreter_.begin(setup_.inputs);
    SegmentGraph graph;
    watch_.ahead();
    lap([&] { graph = interpreter_.forward(0, operators_, frame, setup_.params, setup_.buffers); });
    seed(frame);
    lap([&] { interpreter_.backward(std::move(graph), frame, [](ParamId, const at::Tensor&) {}); });
    const std::vector<std::int64_t> laps = watch_.take();
    if (!keep) return;
    samples_.whole_forward.push_back(laps[0]);
    samples_.whole_backward.push_back(laps[1]);
  }

  /// What the issuer pays: in pieces, each behind a device that has nothing else to do.
  void issue(bool keep) {
    if (setup_.device == nullptr) {  // the host does the work itself
      samples_.issue_forward.push_back(0);
      samples_.issue_backward.push_back(0);
      return;
    }
    SegmentFrame frame = interpreter_.begin(setup_.inputs);
    std::vector<SegmentGraph> graphs;
    const auto issued = [&](auto work) {
      watch_.settle();
      const std::int64_t start = steady_now();
      work();
      return steady_now() - start;
    };
    std::int64_t forward = 0, backward = 0;
    for (std::int32_t i = 0; i < operators_; i += kIssuedAtOnce) {
      const std::int32_t end = std::min(i + kIssuedAtOnce, operators_);
      forward += issued([&] { graphs.push_back(interpreter_.forward(i, end, frame, setup_.params, setup_.buffers)); });
    }
    seed(frame);
    for (auto graph = graphs.rbegin(); graph != graphs.rend(); ++graph) {
      if (!graph->valid()) continue;
      backward += issued([&] { interpreter_.backward(std::move(*graph), frame, [](ParamId, const at::Tensor&) {}); });
    }
    watch_.settle();
    if (!keep) return;
    samples_.issue_forward.push_back(forward);
    samples_.issue_backward.push_back(backward);
  }

  /// The last round as a journal keeps it: operators forward and backward (-1: has none), the whole model, its issuing.
  std::vector<std::int64_t> last_round() {
    std::vector<std::int64_t> numbers;
    for (const auto* list : {&samples_.forward, &samples_.backward}) {
      for (const Samples& of : *list) numbers.push_back(of.empty() ? -1 : of.back());
    }
    for (const Samples* of : wholes()) numbers.push_back(of->back());
    return numbers;
  }
  /// Takes a round that a journal has kept; false: it is of no use.
  bool recall(const std::vector<std::int64_t>& numbers) {
    const std::size_t operators = samples_.forward.size();
    if (numbers.size() != 2 * operators + wholes().size()) return false;
    for (std::size_t i = 0; i < 2 * operators; ++i) {
      Samples& of = i < operators ? samples_.forward[i] : samples_.backward[i - operators];
      if (numbers[i] >= 0) of.push_back(numbers[i]);
    }
    for (std::size_t w = 0; w < wholes().size(); ++w) wholes()[w]->push_back(numbers[2 * operators + w]);
    return true;
  }

  ModelSamples take() { return std::move(samples_); }

 private:
  template <class F>
  void lap(F work) {
    watch_.keep_ahead();
    watch_.start();
    work();
    watch_.stop();
  }
  std::array<Samples*, 4> wholes() {
    return {&samples_.whole_forward, &samples_.whole_backward, &samples_.issue_forward, &samples_.issue_backward};
  }
  void seed(SegmentFrame& frame) const {
    const std::size_t loss = setup_.model.outputs.front().index();
    const at::Tensor& value = frame.values[loss];
    frame.grads[loss] = at::ones_like(value, at::TensorOptions().requires_grad(false));
  }

  const CalibrationSetup& setup_;
  const OperatorInterpreter& interpreter_;
  Stopwatch& watch_;
  std::int32_t operators_;
  ModelSamples samples_;
};

const std::vector<std::int64_t>* kept_in(const CalibrationJournal* journal, const std::string& name) {
  return journal == nullptr ? nullptr : journal->find(name);
}

std::string round_name(int round) { return fmt::format("round {}", round); }

std::vector<CollectiveCurve> time_collectives(Communicator& group, Stopwatch& watch, c10::Device device, Bytes largest,
                                              int repeats, const CalibrationJournal* journal) {
  std::vector<CollectiveCurve> curves;
  for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"}) {
    CollectiveCurve curve{kind, group.size(), {}, {}};
    const std::string name = fmt::format("{} of {}", kind, group.size());
    if (const auto* kept = kept_in(journal, name); kept != nullptr && kept->size() % 2 == 0 && !kept->empty()) {
      const auto middle = kept->begin() + static_cast<std::ptrdiff_t>(kept->size() / 2);
      curve.bytes.assign(kept->begin(), middle);
      curve.ns.assign(middle, kept->end());
      curves.push_back(std::move(curve));
      continue;
    }
    for (Bytes bytes = kSmallest; bytes <= largest; bytes *= 4) {
      const CollectiveCall call(kind, group.size(), bytes, device);
      Samples samples;
      for (int r = -kWarmUp; r < repeats; ++r) {
        group.barrier();
        watch.start();
        call.run(group);
        watch.stop();
        const std::vector<std::int64_t> laps = watch.take();
        if (r >= 0) samples.push_back(laps.front());
      }
      curve.bytes.push_back(call.bytes());
      curve.ns.push_back(median(samples));
    }
    if (group.rank() == 0 && journal != nullptr) {
      std::vector<std::int64_t> numbers(curve.bytes.begin(), curve.bytes.end());
      numbers.insert(numbers.end(), curve.ns.begin(), curve.ns.end());
      journal->keep(name, numbers);
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

double per_ns(double amount, std::int64_t ns) { return amount / static_cast<double>(std::max<std::int64_t>(ns, 1)); }

double product_tflops(Stopwatch& watch, at::TensorOptions options, std::int64_t size, int rounds) {
  // Random: on an H200 a product of ones runs 13 % faster, its wires switch less.
  const at::Tensor a = at::randn({size, size}, options), b = at::randn({size, size}, options);
  const auto n = static_cast<double>(size);
  return per_ns(2.0 * n * n * n, median_of(watch, rounds, [&] { at::mm(a, b); })) / 1e3;
}

/// Copies and products by one rank while the others do the same; the largest copy lies beyond the caches.
void time_memory_and_products(Calibration& into, Stopwatch& watch, c10::Device device, int repeats) {
  at::NoGradGuard no_grad;
  const bool cuda = device.is_cuda();
  const int rounds = repeats + kWarmUp;
  const at::TensorOptions there(device);
  const auto copy_ns = [&](Bytes bytes) {
    const at::Tensor from = at::ones({bytes / 4}, there), to = at::empty({bytes / 4}, there);
    return median_of(watch, rounds, [&] { to.copy_(from); });
  };
  const Bytes large = cuda ? 256 * kMiB : 4 * kMiB;
  into.smallest_copy_ns = copy_ns(256);
  into.copy_gb_per_s = per_ns(2.0 * static_cast<double>(large), copy_ns(large));
  into.gemm_tflops = product_tflops(watch, there, cuda ? 4096 : 512, rounds);
  if (!cuda) return;
  into.half_gemm_tflops = product_tflops(watch, there.dtype(at::kBFloat16), 8192, rounds);
  constexpr Bytes kHostCopy = 64 * kMiB;
  const at::Tensor pageable = at::ones({kHostCopy / 4}), to = at::empty({kHostCopy / 4}, there);
  const at::Tensor pinned = pageable.pin_memory();
  const auto amount = static_cast<double>(kHostCopy);
  into.to_device_gb_per_s = per_ns(amount, median_of(watch, rounds, [&] { to.copy_(pinned, /*non_blocking=*/true); }));
  into.pageable_gb_per_s = per_ns(amount, median_of(watch, rounds, [&] { to.copy_(pageable); }));
}

/// The same setup with its tensors on one rank's device.
CalibrationSetup on_device(const CalibrationSetup& setup, c10::Device device) {
  CalibrationSetup moved = setup;
  if (device.is_cpu()) return moved;
  for (at::Tensor& input : moved.inputs) input = input.to(device);
  for (at::Tensor& buffer : moved.buffers) buffer = buffer.to(device);
  auto params = std::make_shared<std::vector<at::Tensor>>(setup.model.params.size());
  for (std::size_t p = 0; p < params->size(); ++p) {
    const at::Tensor host = setup.params(ParamId(p));
    if (host.defined()) (*params)[p] = host.detach().to(device).set_requires_grad(host.requires_grad());
  }
  moved.params = [params](ParamId id) { return (*params)[id.index()]; };
  return moved;
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

/// A rank's part of the parameters.
Bytes shard_bytes(const Model& model, std::size_t ranks) {
  Bytes bytes = 0;
  for (std::size_t p = 0; p < model.params.size(); ++p) {
    const ParamInfo& param = model.params[p];
    if (!param.shares.valid()) bytes += numel_of(param.shape) * itemsize(param.dtype);
  }
  return bytes / static_cast<Bytes>(ranks);
}

Error cannot_measure(const std::string& why) {
  Error error;
  error.code = ErrorCode::Unsupported;
  error.place = "model.source";
  error.message = "the model cannot be measured: " + why;
  error.expected = "a model with an operator program that this machine can run";
  return error;
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
  into.segment_forward_ns = less_forward;
  into.segment_backward_ns = less_backward;
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

CollectiveCall::CollectiveCall(const std::string& kind, int ranks, Bytes bytes, c10::Device device)
    : kind_(kind),
      ranks_(ranks),
      share_(bytes / 4 / ranks),
      whole_(at::zeros({share_ * ranks}, at::TensorOptions(device))),
      part_(at::zeros({share_}, at::TensorOptions(device))) {}

void CollectiveCall::run(Communicator& group) const {
  if (kind_ == "all_gather") group.all_gather(whole_.data_ptr(), part_.data_ptr(), share_, DType::Float32);
  if (kind_ == "reduce_scatter") {
    group.reduce_scatter(part_.data_ptr(), whole_.data_ptr(), share_, DType::Float32, ReduceOp::Avg);
  }
  if (kind_ == "all_reduce") group.all_reduce(whole_.data_ptr(), share_ * ranks_, DType::Float32, ReduceOp::Sum);
}

// One long function on purpose: what is measured, in the order in which all ranks measure it.
Result<Calibration> calibrate(const CalibrationSetup& setup) {
  const std::unique_ptr<CalibrationDevice> host = setup.device == nullptr ? host_calibration_device() : nullptr;
  CalibrationDevice& device = host != nullptr ? *host : *setup.device;
  std::optional<Result<OperatorInterpreter>> interpreter;
  const std::size_t ranks = std::max<std::size_t>(setup.communicators.size(), 1);
  Calibration result;
  HostCosts costs;
  ModelSamples samples;
  std::string failure;
  try {
    const auto kind = device.enter(0).type();
    interpreter = OperatorInterpreter::create(setup.model, kind);
    if (!*interpreter) return fail(interpreter->error());
    costs = device.host_costs();
  } catch (const std::exception& error) {
    return fail(cannot_measure(first_line(error.what())));
  }
  std::mutex mutex;
  std::barrier<> together(static_cast<std::ptrdiff_t>(ranks));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        if (setup.intra_op_threads > 0) at::set_num_threads(setup.intra_op_threads);
        const c10::Device here = device.enter(static_cast<int>(rank));
        const std::unique_ptr<Stopwatch> watch = device.stopwatch();
        const CalibrationSetup own_setup = on_device(setup, here);
        ModelTimer timer(own_setup, **interpreter, *watch);
        timer.whole_model(false);  // what fails, fails here, on all ranks
        int done = 0;              // rounds that an interrupted calibration has kept: the same for all ranks
        while (const auto* kept = kept_in(setup.journal, round_name(done))) {
          if (done == setup.repeats || !timer.recall(*kept)) break;
          ++done;
        }
        for (int r = done < setup.repeats ? done - kWarmUp : done; r < setup.repeats; ++r) {
          together.arrive_and_wait();
          timer.operators_alone(r >= done);
          together.arrive_and_wait();
          timer.whole_model(r >= done);
          together.arrive_and_wait();
          timer.issue(r >= done);
          if (rank == 0 && r >= done && setup.journal != nullptr) {
            setup.journal->keep(round_name(r), timer.last_round());
          }
        }
        Calibration own;
        together.arrive_and_wait();
        time_memory_and_products(own, *watch, here, setup.repeats);
        if (!setup.communicators.empty()) {
          own.collectives = time_collectives(*setup.communicators[rank], *watch, here, device.largest_collective(),
                                             setup.repeats, setup.journal);
        }
        if (here.is_cpu()) {
          together.arrive_and_wait();
          own.work =
              time_work(setup.optimizer, static_cast<int>(ranks), shard_bytes(setup.model, ranks), setup.repeats);
          together.arrive_and_wait();
          own.handover_ns = time_handover(setup.repeats);
          together.arrive_and_wait();
          ComputeLoad load(own_setup, **interpreter);
          if (!setup.communicators.empty()) {
            load_collectives(own.collectives, *setup.communicators[rank], load, setup.repeats);
          }
        }
        if (rank != 0) return;
        std::lock_guard lock(mutex);
        samples = timer.take();
        result = std::move(own);
      } catch (const std::exception& error) {
        {
          std::lock_guard lock(mutex);
          if (failure.empty()) failure = error.what();  // what the others say follows from it
        }
        for (const auto& group : setup.communicators) group->abort(error.what());
        together.arrive_and_drop();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!failure.empty()) return fail(cannot_measure(failure));
  result.issue_ns = costs.issue;
  result.event_ns = costs.event;
  result.allocation_ns = costs.allocation;
  tell_operators(result, setup.model, samples);
  if (setup.device != nullptr) {
    result.issue_forward_ns = median(samples.issue_forward);
    result.issue_backward_ns = median(samples.issue_backward);
  }
  return result;
}

Result<Calibration> calibrate_job(const Model& model, const Job& job, const JobCalibration& setup) {
  const auto weights = starting_weights(model, job);
  if (!weights) return fail(weights.error());
  const auto data = open_batch_source(model, job);
  if (!data) return fail(data.error());
  auto inputs = (*data)->batch(0);
  if (!inputs) return fail(inputs.error());
  return calibrate({model, std::move(*inputs), computing_params(model, job, weights->params), weights->buffers,
                    setup.intra_op_threads, setup.repeats, setup.communicators, setup.device, job.train.optimizer,
                    setup.journal});
}

}  // namespace foreshard::exec
