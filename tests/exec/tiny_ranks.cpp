#include "tests/exec/tiny_ranks.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <thread>

#include "core/mesh/rank_model.h"
#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"
#include "core/plan/units/units.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/communicators/in_process_communicator.h"
#include "exec/host/host_backend.h"
#include "exec/run/buffers.h"
#include "exec/run/sequence_share.h"
#include "exec/run/weight_source.h"
#include "tests/support/temporary_path.h"

namespace foreshard::exec {
namespace {

Plan plan_of(const Model& model, Job job, int rank) {
  job.cluster.rank = rank;
  auto plan = build_plan(model, job);
  if (!plan) throw std::runtime_error(to_text(plan.error()));
  return *plan;
}

/// What the Llama's are is worked out apart from the code under test.
std::vector<at::Tensor> buffers_of(const Model& model, const std::string& source) {
  if (model.architecture == "llama") return tiny_llama_buffers(model);
  auto buffers = initial_buffers(model, source, nullptr);
  if (!buffers) throw std::runtime_error(to_text(buffers.error()));
  return *buffers;
}

/// The recorded ones, or, of a model that nobody recorded, numbers that its names and shapes decide.
NamedTensors weights_of(const Job& job, const Model& model) {
  if (std::filesystem::exists(std::filesystem::path(job.model.source).parent_path() / "model.safetensors"))
    return tiny_weights(job);
  NamedTensors weights;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(20261128);
  for (const ParamInfo& info : model.params) {
    if (info.shares.valid()) continue;
    const at::Tensor drawn = at::randn(info.shape, generator);
    weights[info.fqn] = info.shape.size() > 1 ? drawn * 0.2 : drawn * 0.1 + 1;
  }
  return weights;
}

}  // namespace

TinyRanks::TinyRanks(Job job)
    : job_(std::move(job)),
      world_(static_cast<int>(job_.cluster.world_size)),
      model_(tiny_llama(job_)),
      interpreter_(OperatorInterpreter::create(model_).value()),
      weights_(weights_of(job_, model_)),
      data_(tiny_llama_data()) {}

Plan TinyRanks::plan(Job job, int rank) const { return plan_of(model_, std::move(job), rank); }

Model TinyRanks::own_model(int rank) const {
  Job job = job_;
  job.cluster.rank = rank;
  ProgramOptions program = program_options(job, ProgramDevice::Cpu);
  program.sequence_parts = job.mesh.context;
  auto part = load_model(rank_model_options(job), program);
  if (!part) throw std::runtime_error(to_text(part.error()));
  auto model = rank_model(std::move(*part), job, [&](const ModelOptions& own) {
    program.sequence_parts = job.mesh.context * job.mesh.tensor;
    return load_model(own, program);
  });
  if (!model) throw std::runtime_error(to_text(model.error()));
  return *model;
}

std::vector<MicroBatch> TinyRanks::inputs(int step, int rank) const {
  std::vector<MicroBatch> micro_batches;
  for (int m = 0; m < job_.train.micro_batches; ++m) {
    const int side_by_side = static_cast<int>(job_.mesh.tensor * job_.mesh.context);  // they share their batches
    micro_batches.push_back(tiny_llama_inputs(data_, step, rank / side_by_side, world_ / side_by_side, m));
  }
  return micro_batches;
}

std::vector<RankTrace> TinyRanks::train(const Run& what) {
  std::vector<RankTrace> traces(static_cast<std::size_t>(world_));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_; ++rank) {
    ranks.emplace_back([&, rank] {
      RankTrace& trace = traces[static_cast<std::size_t>(rank)];
      try {
        run(rank, what, trace);
      } catch (const std::exception& error) {
        trace.failure = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return traces;
}

void TinyRanks::run(int rank, const Run& what, RankTrace& trace) {
  const bool cut = is_cut(job_.mesh);
  Model own = cut ? own_model(rank) : Model();
  const auto sequence = SequenceShare::of(own, model_.inputs.size(), job_.model.seq);
  if (!sequence) throw std::runtime_error(to_text(sequence.error()));
  const Model& model = cut ? own : model_;
  std::optional<OperatorInterpreter> interpreter;
  if (cut) interpreter.emplace(OperatorInterpreter::create(own).value());
  const Plan plan = plan_of(model, job_, rank);
  const auto backend = make_host_backend({.rank = rank, .intra_op_threads = 1, .arena = arena_places(plan, job_)});
  PlanRunnerSetup setup{model,
                        plan,
                        cut ? *interpreter : interpreter_,
                        *backend,
                        groups_.of(plan),
                        job_.train.optimizer,
                        sequence->cut_tables(model, buffers_of(model_, job_.model.source))};
  setup.trainable = build_units(model, job_).value().trainable;
  setup.comm_hook = what.hook;
  const auto whole = [&](ParamId id) { return weights_.at(model_.params[id.index()].fqn); };
  auto runner = PlanRunner::create(setup, own_parts(model, whole));
  if (!runner) throw std::runtime_error(to_text(runner.error()));
  if (what.before) what.before(rank, **runner);
  for (int step = what.first; step < what.first + what.steps; ++step) {
    std::vector<MicroBatch> batches = inputs(step, rank);
    for (MicroBatch& batch : batches) {
      batch.resize(model.inputs.size());  // not every loss takes labels
      for (at::Tensor& input : batch) input = sequence->cut(input);
    }
    const auto result = (*runner)->step(batches, what.lr[static_cast<std::size_t>(step)]);
    if (!result) {
      throw std::runtime_error(fmt::format("instruction {} on {}: {}", result.error().instruction.value,
                                           result.error().stream, result.error().text));
    }
    trace.steps.push_back(*result);
  }
  trace.memory = backend->memory();
  if (what.done) what.done(rank, **runner);
  const TrainState state = (*runner)->state().value();
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.slot != "param") continue;
    trace.shards[tensor.fqn] = tensor.local.clone();
    trace.pieces[tensor.fqn] = tensor.pieces;
  }
}

void expect_run(const Job& job, const std::string& run, const Tolerance& tolerance) {
  expect_run(job, recorded_run(run), tolerance);
}

void expect_run(const Job& job, const RecordedRun& recorded, const Tolerance& tolerance) {
  const int world = static_cast<int>(job.cluster.world_size);
  TinyRanks ranks(job);
  const auto traces = ranks.train(kTinySteps, recorded.lr);
  for (const RankTrace& trace : traces) ASSERT_EQ(trace.failure, "");
  const auto near = [](double got, double expected, double relative, const std::string& what) {
    EXPECT_NEAR(got, expected, relative * std::abs(expected)) << what;
  };
  int moved = 0;
  for (std::size_t step = 0; step < recorded.loss.size(); ++step) {
    double loss = 0;
    for (const RankTrace& trace : traces) loss += trace.steps[step].loss / world;
    const double off = std::abs(loss - recorded.loss[step]) / std::abs(recorded.loss[step]);
    if (off > tolerance.loss && moved < tolerance.moved_steps) {
      ++moved;
      EXPECT_LT(off, tolerance.moved_loss) << "loss of step " << step << ", in which a token may have moved";
      continue;
    }
    near(loss, recorded.loss[step], tolerance.loss, "loss of step " + std::to_string(step));
    if (job.train.clip_grad_norm == 0.0) continue;
    for (const RankTrace& trace : traces) {
      near(trace.steps[step].grad_norm.value(), recorded.grad_norm[step], tolerance.norm, "norm");
    }
  }
  const auto parameters = whole_parameters(ranks.model(), traces);
  for (const auto& [fqn, sum] : recorded.final_abs_sum) {
    near(parameters.at(fqn).to(at::kDouble).abs().sum().item<double>(), sum, tolerance.parameter, fqn);
  }
}

void expect_resumed(const Job& first, const Job& second, const RecordedRun& recorded) {
  const std::filesystem::path folder = foreshard::testing::temporary_path("mesh_checkpoints");
  std::filesystem::remove_all(folder);
  constexpr int kHalf = kTinySteps / 2;
  const auto of_world = [](const Job& job) {
    return in_process_communicators(static_cast<int>(job.cluster.world_size), std::chrono::seconds(60));
  };
  const auto saving = of_world(first), loading = of_world(second);
  TinyRanks before(first), after(second);
  const auto save = [&](int rank, PlanRunner& runner) {
    const TrainState state = runner.state().value();
    const Model model = before.own_model(rank);
    TrainProgress progress;
    progress.step = kHalf;
    auto* world = saving[static_cast<std::size_t>(rank)].get();
    const auto saved = save_checkpoint(folder, state, {model, progress, {}, {}}, world);
    if (!saved) throw std::runtime_error(to_text(saved.error()));
  };
  const auto load = [&](int rank, PlanRunner& runner) {
    TrainState state = runner.state().value();
    const Model model = after.own_model(rank);
    const auto loaded = resume_checkpoint(folder, model, state, loading[static_cast<std::size_t>(rank)].get());
    if (!loaded) throw std::runtime_error(to_text(loaded.error()));
    runner.set_optimizer_steps(state.optimizer_steps);
  };
  for (const RankTrace& trace : before.train({0, kHalf, recorded.lr, {}, save})) ASSERT_EQ(trace.failure, "");
  const auto traces = after.train({kHalf, kHalf, recorded.lr, load, {}});
  for (const RankTrace& trace : traces) ASSERT_EQ(trace.failure, "");
  for (int step = 0; step < kHalf; ++step) {
    double loss = 0;
    for (const RankTrace& trace : traces)
      loss += trace.steps[static_cast<std::size_t>(step)].loss / static_cast<double>(traces.size());
    const double expected = recorded.loss[static_cast<std::size_t>(kHalf + step)];
    EXPECT_NEAR(loss, expected, 1e-5 * expected) << "step " << kHalf + step;
  }
  for (const auto& [fqn, sum] : recorded.final_abs_sum) {
    const auto whole = whole_parameters(after.model(), traces).at(fqn);
    EXPECT_NEAR(whole.to(at::kDouble).abs().sum().item<double>(), sum, 1e-5 * sum) << fqn;
  }
}

RecordedRun run_of(const Job& job) {
  TinyRanks ranks(job);
  RecordedRun run;
  run.lr.assign(kTinySteps, job.train.optimizer.lr);
  const auto traces = ranks.train(kTinySteps, run.lr);
  for (const RankTrace& trace : traces) {
    if (!trace.failure.empty()) throw std::runtime_error(trace.failure);
  }
  for (std::size_t step = 0; step < run.lr.size(); ++step) {
    run.loss.push_back(0);
    for (const RankTrace& trace : traces)
      run.loss.back() += trace.steps[step].loss / static_cast<double>(traces.size());
    run.grad_norm.push_back(traces.front().steps[step].grad_norm.value_or(0));
  }
  for (const auto& [fqn, whole] : whole_parameters(ranks.model(), traces))
    run.final_abs_sum[fqn] = whole.to(at::kDouble).abs().sum().item<double>();
  return run;
}

std::map<std::string, at::Tensor> whole_parameters(const Model& model, const std::vector<RankTrace>& traces) {
  std::map<std::string, at::Tensor> whole;
  for (const ParamInfo& info : model.params) {
    if (info.shares.valid()) continue;
    at::Tensor flat = at::full({numel_of(info.shape)}, std::nan(""));
    for (const RankTrace& trace : traces) {
      const auto found = trace.shards.find(info.fqn);
      if (found == trace.shards.end()) continue;
      const at::Tensor local = found->second.reshape({-1});
      for (const StatePiece& piece : trace.pieces.at(info.fqn)) {
        const at::Tensor part = flat.narrow(0, piece.global_offset, piece.numel);
        const at::Tensor mine = local.narrow(0, piece.local_offset, piece.numel);
        const bool known = !part.isnan().all().item<bool>();
        EXPECT_TRUE(!known || part.equal(mine)) << info.fqn << ": replicas differ";
        part.copy_(mine);
      }
    }
    EXPECT_FALSE(flat.isnan().any().item<bool>()) << info.fqn << " is not whole";
    whole[info.fqn] = flat.view(info.shape);
  }
  return whole;
}

}  // namespace foreshard::exec
