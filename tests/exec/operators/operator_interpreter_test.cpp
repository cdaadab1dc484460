#include "exec/operators/operator_interpreter.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

#include "exec/step/optimizer.h"
#include "tests/exec/tiny_llama.h"

namespace foreshard::exec {
namespace {

/// Plain training on one rank: the whole program, or cut into segments that hand gradients on explicitly.
class TinyTraining {
 public:
  explicit TinyTraining(std::vector<std::int32_t> cuts) : cuts_(std::move(cuts)) {
    at::set_num_threads(1);  // as recorded
    const NamedTensors weights = tiny_llama_weights();
    for (const ParamInfo& param : model_.params) {
      params_.push_back(weights.at(param.fqn).clone().set_requires_grad(true));
    }
  }

  /// The loss; gradients are left in grads().
  double forward_backward(int step) {
    grads_.assign(params_.size(), at::Tensor());
    SegmentFrame frame = interpreter_.begin(tiny_llama_inputs(data_, step, 0, 1));
    std::vector<SegmentGraph> graphs;
    for (std::size_t s = 0; s + 1 < cuts_.size(); ++s) {
      graphs.push_back(interpreter_.forward(
          cuts_[s], cuts_[s + 1], frame, [&](ParamId id) { return params_[id.index()]; }, buffers_));
    }
    const ValueId loss = model_.outputs[0];
    const double value = frame.values[loss.index()].item<double>();
    frame.grads[loss.index()] = at::ones({});
    for (; !graphs.empty(); graphs.pop_back()) {
      interpreter_.backward(std::move(graphs.back()), frame, [&](ParamId id, at::Tensor gradient) {
        at::Tensor& sum = grads_[id.index()];
        sum = sum.defined() ? sum + gradient : std::move(gradient);
      });
    }
    return value;
  }

  double grad_norm() const {
    double sum = 0;
    for (const at::Tensor& grad : grads_) sum += grad.to(at::kDouble).square().sum().item<double>();
    return std::sqrt(sum);
  }

  void step(Optimizer& optimizer, double lr, const StepWish& wish = {}) {
    std::vector<OptimizedShard> shards;
    moments_.resize(params_.size());
    for (std::size_t i = 0; i < params_.size(); ++i) {
      while (moments_[i].tensors.size() < optimizer.slots().size()) {
        moments_[i].tensors.push_back(at::zeros_like(params_[i].detach()));
      }
      shards.push_back({params_[i].detach(), grads_[i], &moments_[i]});
    }
    optimizer.step(shards, lr, wish);
  }

  double abs_sum(const std::string& fqn) const {
    return params_[model_.find_param(fqn).index()].detach().to(at::kDouble).abs().sum().item<double>();
  }
  const std::vector<at::Tensor>& grads() const { return grads_; }
  std::int32_t op_count() const { return static_cast<std::int32_t>(model_.ops.size()); }
  void cut_at(std::vector<std::int32_t> cuts) { cuts_ = std::move(cuts); }

 private:
  Model model_ = tiny_llama(tiny_llama_job(1));
  OperatorInterpreter interpreter_ = OperatorInterpreter::create(model_).value();
  NamedTensors data_ = tiny_llama_data();
  std::vector<at::Tensor> buffers_ = tiny_llama_buffers(model_);
  std::vector<std::int32_t> cuts_;
  std::vector<at::Tensor> params_, grads_;
  std::vector<OptimizerMoments> moments_;
};

void expect_near_relative(double got, double expected, double tolerance, const std::string& what) {
  EXPECT_NEAR(got, expected, tolerance * std::abs(expected)) << what;
}

/// Trains as the recorded run did and compares every loss, norm and final sum.
void expect_recorded(const std::string& id, const OptimizerOptions& options) {
  const RecordedRun recorded = recorded_run(id);
  TinyTraining training({});
  training.cut_at({0, training.op_count()});
  Optimizer optimizer(options);
  for (int step = 0; step < kTinySteps; ++step) {
    const auto at = static_cast<std::size_t>(step);
    const std::string what = id + " step " + std::to_string(step);
    expect_near_relative(training.forward_backward(step), recorded.loss[at], 1e-5, what + " loss");
    expect_near_relative(training.grad_norm(), recorded.grad_norm[at], 1e-5, what + " norm");
    training.step(optimizer, recorded.lr[at]);
  }
  for (const auto& [fqn, sum] : recorded.final_abs_sum) expect_near_relative(training.abs_sum(fqn), sum, 1e-5, fqn);
}

TEST(OperatorInterpreter, TwentyStepsOfAdamWGiveTheRecordedLosses) {
  OptimizerOptions options;
  options.beta1 = 0.9;
  options.beta2 = 0.95;
  options.eps = 1e-8;
  options.weight_decay = 0.1;
  expect_recorded("fp32-adamw/single-w1", options);
}

TEST(OperatorInterpreter, TwentyStepsOfSgdWithMomentumGiveTheRecordedLosses) {
  OptimizerOptions options;
  options.name = OptimizerKind::Sgd;
  options.momentum = 0.9;
  options.weight_decay = 0.0;
  expect_recorded("fp32-sgd-momentum/single-w1", options);
}

TEST(Optimizer, ListsOfTensorsStepAsOneTensorAfterTheOther) {
  OptimizerOptions adamw;
  adamw.weight_decay = 0.1;
  OptimizerOptions sgd;
  sgd.name = OptimizerKind::Sgd;
  sgd.momentum = 0.9;
  sgd.weight_decay = 0.1;
  for (OptimizerOptions options : {adamw, sgd}) {
    options.impl = OptimizerImpl::Foreach;
    Optimizer optimizer(options);
    TinyTraining single({}), lists({});
    for (TinyTraining* training : {&single, &lists}) {
      training->cut_at({0, training->op_count()});
      for (int step = 0; step < 3; ++step) {
        training->forward_backward(step);
        training->step(optimizer, 1e-3, {.lists = training == &lists});
      }
    }
    const std::string name = "model.layers.1.mlp.down_proj.weight";
    EXPECT_EQ(single.abs_sum(name), lists.abs_sum(name)) << static_cast<int>(options.name);
    EXPECT_EQ(single.forward_backward(3), lists.forward_backward(3)) << "every parameter counts";
  }
}

TEST(OperatorInterpreter, SegmentsGiveTheGradientsOfTheWholeProgram) {
  TinyTraining whole({});
  whole.cut_at({0, whole.op_count()});
  TinyTraining cut({});
  std::vector<std::int32_t> cuts;  // every third operator: values cross in the middle of attention and of norms
  for (std::int32_t op = 0; op < cut.op_count(); op += 3) cuts.push_back(op);
  cuts.push_back(cut.op_count());
  cut.cut_at(cuts);
  EXPECT_EQ(whole.forward_backward(0), cut.forward_backward(0));
  for (std::size_t i = 0; i < whole.grads().size(); ++i) {
    EXPECT_TRUE(at::allclose(whole.grads()[i], cut.grads()[i], 1e-4, 1e-7)) << i;
  }
}

Model one_operator(const std::string& name, ArgList args) {
  Model model;
  model.modules.push_back({});
  model.values = {{"x", {2}, DType::Float32, false}, {"y", {2}, DType::Float32, false}};
  model.inputs = {ValueId(0)};
  model.ops.push_back({name, ModuleId(0), 0, std::move(args), {}, {ValueId(1)}});
  model.outputs = {ValueId(1)};
  return model;
}

TEST(OperatorInterpreter, AnOperatorThatLibTorchDoesNotHaveIsAnErrorWithItsPlace) {
  const Model model = one_operator("aten.frobnicate.default", {});
  const auto interpreter = OperatorInterpreter::create(model);
  ASSERT_FALSE(interpreter);
  EXPECT_EQ(interpreter.error().place, "ops[0] aten.frobnicate.default");
}

TEST(OperatorInterpreter, ArgumentsThatDoNotFitTheSchemaAreErrors) {
  const Model model = one_operator("aten.mul.Tensor", {Arg{ValueRef{ValueId(0)}}, Arg{std::string("two")}});
  const auto interpreter = OperatorInterpreter::create(model);
  ASSERT_FALSE(interpreter);
  EXPECT_EQ(interpreter.error().message, "argument other is no Tensor");
}

TEST(OperatorInterpreter, NumbersInPlaceOfTensorsDoNotPromote) {
  const Model model = one_operator("aten.mul.Tensor", {Arg{ValueRef{ValueId(0)}}, Arg{2.5}});
  const auto interpreter = OperatorInterpreter::create(model);
  ASSERT_TRUE(interpreter);
  SegmentFrame frame = interpreter->begin({at::ones({2}, at::kBFloat16)});
  interpreter->forward(0, 1, frame, {}, {});
  EXPECT_EQ(frame.values[1].scalar_type(), at::kBFloat16);
  EXPECT_EQ(frame.values[1][0].item<float>(), 2.5F);
  EXPECT_FALSE(frame.values[0].defined()) << "nobody uses x any more";
}

}  // namespace
}  // namespace foreshard::exec
