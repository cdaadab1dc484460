// fsdp1-numerics: losses, norms, parameters and gradients of rows that FSDP1 2.11 trained over gloo, against the
// executor with ranks as threads; state dicts and bytes of wrapping against plans.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <thread>

#include "core/plan/build_plan.h"
#include "core/plan/units/groups.h"
#include "exec/host/host_backend.h"
#include "exec/run/plan_runner.h"
#include "exec/step/in_process_groups.h"
#include "tests/oracle/fsdp1/fsdp1_program.h"
#include "tests/oracle/fsdp1/fsdp1_row.h"
#include "tests/oracle/fsdp1/fsdp1_state.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {
namespace {

using exec::PlanRunner;

constexpr int kIterations = 3;
/// What a change of summation order does to sums of a few dozen terms; bf16 rounds the terms.
struct Tolerance {
  double relative, absolute;
};
constexpr Tolerance kFp32 = {1e-5, 1e-6};
constexpr Tolerance kBf16 = {2e-2, 1e-3};

template <class T>
T need(Result<T> result) {
  if (!result) throw std::runtime_error(to_text(result.error()));
  return std::move(*result);
}
template <class T>
T need(exec::Outcome<T> outcome) {
  if (!outcome) {
    throw std::runtime_error(fmt::format("instruction {} on stream {}: {}", outcome.error().instruction.value,
                                         outcome.error().stream, outcome.error().text));
  }
  return std::move(*outcome);
}

bool clips(const Json& row) { return row.contains("clip") && !row.at("clip").is_null(); }

std::vector<std::vector<std::string>> script_of_row(const Json& row) {
  const std::string kind = row.at("case");
  std::vector<std::string> actions = {"zero"};
  const int micro = kind == "train" ? row.value("micro", 1) : 1;
  for (int m = 0; m < micro; ++m) {
    const bool held = row.value("no_sync", false) && m + 1 < micro;
    if (held) actions.push_back("no_sync{");
    actions.insert(actions.end(), {"fwd", "bwd"});
    if (held) actions.push_back("}");
  }
  if (kind != "train" && kind != "state") return {actions};
  if (clips(row)) actions.push_back("clip");
  actions.push_back("step");
  return std::vector<std::vector<std::string>>(kind == "train" ? kIterations : 1, actions);
}

Job job_of(const Json& row) {
  Json with_script = row;
  with_script["iterations"] = script_of_row(row);
  Job job = job_of_row(with_script);
  job.train.clip_grad_norm = clips(row) ? row.at("clip").at(0).get<double>() : 0.0;
  OptimizerOptions& optimizer = job.train.optimizer;
  optimizer.impl = OptimizerImpl::ForLoop;
  optimizer.lr = row.value("lr", 0.1);
  optimizer.weight_decay = 0.0;
  optimizer.name = row.value("optim", std::string("sgd")) == "adam" ? OptimizerKind::AdamW : OptimizerKind::Sgd;
  if (row.at("case") == "state") optimizer.name = OptimizerKind::AdamW;
  optimizer.beta2 = 0.999;
  return job;
}

/// `infinity`: clipping is by the largest element.
Plan plan_of(const RowProgram& program, const Job& job, bool infinity, std::vector<bool>& trainable) {
  const UnitTable table = need(build_units(program.model, job));
  trainable = table.trainable;
  Script script = need(script_of(job));
  for (IterationScript& actions : script.iterations) {
    for (Action& action : actions) {
      if (action.kind == Action::Kind::Clip && infinity) action.infinity = true;
    }
  }
  std::vector<bool> boundary(program.model.modules.size(), false);
  for (std::size_t m = 0; m < boundary.size(); ++m) {
    boundary[m] = table.unit_of_module[m].valid() || program.checkpointed[m] != CheckpointKind::None;
  }
  const ModuleGraph graph = need(build_module_graph(program.model, boundary, program.checkpointed, false));
  return need(build_fsdp1_plan({program.model, job, table, graph, script}));
}

/// "Parameters start as sin(1 + j + 0.37 k) / 4" for element k of the j-th.
std::map<std::string, at::Tensor> starting_values(const Model& model) {
  std::map<std::string, at::Tensor> values;
  int j = 0;
  for (const ParamInfo& info : model.params) {
    if (info.shares.valid()) continue;
    const at::Tensor k = at::arange(numel_of(info.shape), at::dtype(at::kDouble));
    values[info.fqn] = (at::sin(1.0 + j++ + 0.37 * k) / 4).reshape(info.shape).to(at::kFloat);
  }
  return values;
}

/// "The input of rank r, iteration i, micro-batch b is cos(0.5 k + r + 2 i + 3 b)."
exec::MicroBatch inputs_of(const Model& model, int rank, int iteration, int micro_batch) {
  const Shape& shape = model.values[model.inputs.at(0).index()].shape;
  const at::Tensor k = at::arange(numel_of(shape), at::dtype(at::kDouble));
  return {at::cos(0.5 * k + rank + 2 * iteration + 3 * micro_batch).reshape(shape).to(at::kFloat)};
}

struct RankResult {
  std::vector<exec::StepResult> steps;
  exec::TrainState parameters, gradients, gradients_after;
  std::vector<at::Tensor> clips;
  std::string failure;
};

/// All ranks of a row.
class RowRanks {
 public:
  RowRanks(const Json& row, Job job)
      : row_(row),
        job_(std::move(job)),
        program_(program_of_row(model_of_row(row.at("model")), compute_dtype())),
        interpreter_(need(exec::OperatorInterpreter::create(program_.model))),
        values_(starting_values(program_.model)) {}

  std::vector<RankResult> run() {
    const auto world = static_cast<std::size_t>(job_.cluster.world_size);
    plans_.resize(world);
    for (std::size_t rank = 0; rank < world; ++rank) {
      Job job = job_;
      job.cluster.rank = static_cast<std::int64_t>(rank);
      plans_[rank] = plan_of(program_, job, clips(row_) && row_.at("clip").at(1) == "inf", trainable_);
    }
    std::vector<RankResult> results(world);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          run_rank(static_cast<int>(rank), results[rank]);
        } catch (const std::exception& error) {
          results[rank].failure = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const RankResult& result : results) {
      if (!result.failure.empty()) throw std::runtime_error(result.failure);
    }
    return results;
  }

  const Plan& plan(std::size_t rank) const { return plans_[rank]; }
  const Model& model() const { return program_.model; }

 private:
  DType compute_dtype() const { return job_.fsdp.mixed_precision.param.value_or(DType::Float32); }

  void run_rank(int rank, RankResult& result) {
    const Plan& plan = plans_[static_cast<std::size_t>(rank)];
    const auto backend = exec::make_host_backend({.rank = rank, .intra_op_threads = 1});
    exec::PlanRunnerSetup setup{program_.model,       plan, interpreter_, *backend, groups_.of(plan),
                                job_.train.optimizer, {},   trainable_};
    setup.loss_factor = 1.0;
    const auto runner =
        need(PlanRunner::create(setup, [&](ParamId id) { return values_.at(program_.model.params[id.index()].fqn); }));
    for (std::size_t i = 0; i < job_.train.script.size(); ++i) {
      const auto& actions = job_.train.script[i];
      std::vector<exec::MicroBatch> micro_batches;
      for (int m = 0; m < std::count(actions.begin(), actions.end(), "fwd"); ++m) {
        micro_batches.push_back(inputs_of(program_.model, rank, static_cast<int>(i), m));
      }
      result.steps.push_back(need(runner->step(micro_batches, job_.train.optimizer.lr)));
    }
    result.gradients = copy_of(runner->gradients());
    for (const Json& clip : row_.value("clips", Json::array())) {
      const double p = clip.at(1) == "inf" ? std::numeric_limits<double>::infinity() : clip.at(1).get<double>();
      result.clips.push_back(need(runner->clip_grad_norm(clip.at(0), p)));
    }
    result.gradients_after = copy_of(runner->gradients());
    result.parameters = copy_of(need(runner->state()));
  }

  static exec::TrainState copy_of(exec::TrainState state) {
    for (exec::StateTensor& tensor : state.tensors) tensor.local = tensor.local.clone();
    return state;
  }

  const Json& row_;
  Job job_;
  RowProgram program_;
  exec::OperatorInterpreter interpreter_;
  std::map<std::string, at::Tensor> values_;
  std::vector<Plan> plans_;
  std::vector<bool> trainable_;
  exec::InProcessGroups groups_{std::chrono::seconds(30)};
};

class Comparison {
 public:
  explicit Comparison(Tolerance tolerance) : tolerance_(tolerance) {}

  void number(const std::string& place, double expected, double got) {
    const double allowed = tolerance_.absolute + tolerance_.relative * std::abs(expected);
    if (std::abs(expected - got) <= allowed && !std::isnan(got)) return;
    differ(place, fmt::format("{:.9g}", expected), fmt::format("{:.9g}", got));
  }
  void text(const std::string& place, const std::string& expected, const std::string& got) {
    if (expected != got) differ(place, expected, got);
  }
  void numbers(const std::string& place, const Json& expected, const at::Tensor& got) {
    const at::Tensor flat = got.reshape({-1}).to(at::kDouble);
    if (static_cast<std::int64_t>(expected.size()) != flat.numel()) {
      return differ(place + " (elements)", fmt::format("{}", expected.size()), fmt::format("{}", flat.numel()));
    }
    for (std::int64_t k = 0; k < flat.numel(); ++k) {
      number(fmt::format("{}[{}]", place, k), expected[static_cast<std::size_t>(k)], flat[k].item<double>());
    }
  }
  RowResult result() const { return result_; }

 private:
  void differ(const std::string& place, const std::string& expected, const std::string& got) {
    result_.detail += fmt::format("  {}: expected {}, got {}\n", place, expected, got);
    if (result_.verdict == Verdict::Fail) return;
    result_.verdict = Verdict::Fail;
    result_.place = place;
    result_.expected = expected;
    result_.got = got;
  }
  Tolerance tolerance_;
  RowResult result_;
};

const exec::StateTensor& tensor_of(const exec::TrainState& state, const std::string& fqn, const std::string& slot) {
  for (const exec::StateTensor& tensor : state.tensors) {
    if (tensor.fqn == fqn && tensor.slot == slot) return tensor;
  }
  throw std::runtime_error("no " + slot + " of " + fqn);
}

/// A whole tensor from all ranks' pieces; undefined if nobody holds any.
at::Tensor whole(const std::vector<RankResult>& ranks, exec::TrainState RankResult::*state, const std::string& fqn,
                 const std::string& slot) {
  at::Tensor flat;
  for (const RankResult& rank : ranks) {
    const exec::StateTensor& tensor = tensor_of(rank.*state, fqn, slot);
    for (const exec::StatePiece& piece : tensor.pieces) {
      if (!flat.defined()) flat = at::zeros({numel_of(tensor.shape)}, tensor.local.options());
      flat.narrow(0, piece.global_offset, piece.numel)
          .copy_(tensor.local.reshape({-1}).narrow(0, piece.local_offset, piece.numel));
    }
  }
  return flat;
}

void compare_train(const Json& row, const std::vector<RankResult>& ranks, Comparison& comparison) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Json& expected = row.at("result").at(r);
    std::vector<double> losses, norms;
    for (const exec::StepResult& step : ranks[r].steps) {
      losses.insert(losses.end(), step.losses.begin(), step.losses.end());
      if (step.grad_norm) norms.push_back(*step.grad_norm);
    }
    comparison.text(fmt::format("[{}].losses (count)", r), fmt::format("{}", expected.at("losses").size()),
                    fmt::format("{}", losses.size()));
    comparison.text(fmt::format("[{}].norms (count)", r), fmt::format("{}", expected.at("norms").size()),
                    fmt::format("{}", norms.size()));
    for (std::size_t i = 0; i < std::min(losses.size(), expected.at("losses").size()); ++i) {
      comparison.number(fmt::format("[{}].losses[{}]", r, i), expected.at("losses")[i], losses[i]);
    }
    for (std::size_t i = 0; i < std::min(norms.size(), expected.at("norms").size()); ++i) {
      comparison.number(fmt::format("[{}].norms[{}]", r, i), expected.at("norms")[i].at(0), norms[i]);
    }
    if (!expected.at("params").is_object()) continue;
    for (const auto& [fqn, values] : expected.at("params").items()) {
      comparison.numbers("params." + fqn, values, whole(ranks, &RankResult::parameters, fqn, "param"));
    }
  }
}

/// The flat gradient of one unit as a rank holds it; undefined without one.
at::Tensor flat_gradient(const RowRanks& row, std::size_t rank, const PlanUnit& unit, const exec::TrainState& state) {
  const bool sharded = unit.strategy != Strategy::NoShard;
  const auto& group = row.plan(rank).groups.shard;
  const auto position = std::find(group.begin(), group.end(), static_cast<std::int32_t>(rank)) - group.begin();
  const Numel begin = sharded ? position * unit.shard_numel : 0;
  at::Tensor flat;
  for (const FlatEntry& entry : unit.flat) {
    if (!entry.param.valid()) continue;
    const exec::StateTensor& tensor = tensor_of(state, row.model().params[entry.param.index()].fqn, "grad");
    for (const exec::StatePiece& piece : tensor.pieces) {
      if (!flat.defined()) {
        flat = at::zeros({sharded ? unit.shard_numel : unit.flat_numel}, tensor.local.options());
      }
      flat.narrow(0, entry.offset + piece.global_offset - begin, piece.numel)
          .copy_(tensor.local.reshape({-1}).narrow(0, piece.local_offset, piece.numel));
    }
  }
  return flat;
}

std::string_view dtype_text(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? "bf16" : tensor.scalar_type() == at::kHalf ? "fp16" : "fp32";
}

void compare_gradient(const std::string& place, const Json& expected, const at::Tensor& got, Comparison& comparison) {
  if (expected.is_null() || !got.defined()) {
    return comparison.text(place, expected.is_null() ? "none" : "a gradient", got.defined() ? "a gradient" : "none");
  }
  const bool typed = expected.size() == 2 && expected[1].is_string();
  if (typed) comparison.text(place + " (type)", expected[1], std::string(dtype_text(got)));
  comparison.numbers(place, typed ? expected[0] : expected, got);
}

void compare_gradients(const Json& row, const RowRanks& of, const std::vector<RankResult>& ranks,
                       Comparison& comparison) {
  const bool original = row.at("options").value("use_orig_params", false);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Json& expected = row.at("result").at(r);
    const std::string at = fmt::format("[{}]", r);
    for (const auto& [name, values] : expected.at("grads").items()) {
      if (!original) continue;
      const exec::StateTensor& tensor = tensor_of(ranks[r].gradients, name, "grad");
      compare_gradient(at + ".grads." + name, values, tensor.pieces.empty() ? at::Tensor() : tensor.local, comparison);
    }
    for (const PlanUnit& unit : of.plan(r).units) {
      const std::string name = unit.name.empty() ? "R" : unit.name;
      for (const char* key : {"grads", "grads_after"}) {
        if (original || !expected.at(key).is_object() || !expected.at(key).contains(name)) continue;
        const exec::TrainState& state = *key == 'g' && key[5] == '\0' ? ranks[r].gradients : ranks[r].gradients_after;
        compare_gradient(fmt::format("{}.{}.{}", at, key, name), expected.at(key).at(name),
                         flat_gradient(of, r, unit, state), comparison);
      }
    }
    for (std::size_t c = 0; c < expected.at("clips").size(); ++c) {
      const std::string place = fmt::format("{}.clips[{}]", at, c);
      comparison.number(place, expected.at("clips")[c].at(2), ranks[r].clips[c].item<double>());
      comparison.text(place + " (type)", expected.at("clips")[c].at(3), std::string(dtype_text(ranks[r].clips[c])));
    }
  }
}

void compare_whole_gradients(const Json& row, std::vector<RankResult> ranks, Comparison& comparison) {
  if (row.contains("none_rank")) {  // a rank without gradients takes part with zeros (G8)
    for (exec::StateTensor& tensor : ranks.at(row.at("none_rank")).gradients.tensors) tensor.local.zero_();
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const auto& [name, values] : row.at("result").at(r).items()) {
      compare_gradient(fmt::format("[{}].{}", r, name), values, whole(ranks, &RankResult::gradients, name, "grad"),
                       comparison);
    }
  }
}

RowResult compare_divide(const Json& row) {
  Comparison comparison(kFp32);
  for (const auto& [world, factors] : row.at("result").items()) {
    const DivideFactors got = divide_factors(std::stoll(world));
    comparison.number(world + ".pre", factors.at(0), got.pre);
    comparison.number(world + ".post", factors.at(1), got.post);
  }
  return comparison.result();
}

RowResult skipped(const std::string& reason) {
  RowResult result;
  result.verdict = Verdict::Skip;
  result.detail = reason;
  return result;
}

RowResult compare(const Json& row) {
  const std::string kind = row.at("case");
  if (kind == "divide") return compare_divide(row);
  if (kind == "memory") return compare_bytes(row);
  if (kind == "order") return skipped("the order check of DETAIL debug level is not run");
  if (kind == "state") return compare_state_dicts(row);
  const bool low = row.at("options").at("mixed_precision").is_object();
  Comparison comparison(low ? kBf16 : kFp32);
  RowRanks ranks(row, job_of(row));
  const std::vector<RankResult> results = ranks.run();
  if (kind == "train") {
    compare_train(row, results, comparison);
  } else if (kind == "grads") {
    compare_gradients(row, ranks, results, comparison);
  } else if (kind == "with_grads") {
    compare_whole_gradients(row, results, comparison);
  } else {
    throw std::runtime_error("an unknown case: " + kind);
  }
  return comparison.result();
}

Report run(const std::vector<std::string>& files, const Options& options) {
  return for_each_row(files, options, compare);
}

ORACLE_KIND("fsdp1-numerics", run);

}  // namespace
}  // namespace foreshard::oracle
