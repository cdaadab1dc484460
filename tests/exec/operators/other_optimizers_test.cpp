// torch.optim's other elementwise optimizers against PyTorch's own numbers (other_optimizers.py).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "core/job/optimizer_facts.h"
#include "exec/step/optimizer.h"
#include "tests/exec/operators/other_optimizers.h"

namespace foreshard::exec {
namespace {

constexpr int kSteps = 7;

OptimizerOptions options_of(const std::string& kind, bool foreach) {
  static const std::map<std::string, OptimizerKind> kNames = {{"adagrad", OptimizerKind::Adagrad},
                                                              {"rmsprop", OptimizerKind::RMSprop},
                                                              {"nadam", OptimizerKind::NAdam},
                                                              {"radam", OptimizerKind::RAdam},
                                                              {"adamax", OptimizerKind::Adamax}};
  OptimizerOptions options;
  options.name = kNames.at(kind.substr(0, kind.find('_')));
  options.impl = foreach ? OptimizerImpl::Foreach : OptimizerImpl::ForLoop;
  options.beta2 = 0.999;
  options.weight_decay = 0.1;
  options.decoupled_weight_decay = kind.ends_with("_decoupled");
  options.centered = kind.ends_with("_both");
  options.momentum = options.centered ? 0.9 : 0.0;
  return options;
}

/// The parameters after the recorded steps; the last `apart` of them in a shard of their own.
at::Tensor stepped(const OptimizerOptions& options, bool lists, std::int64_t apart) {
  const Optimizer optimizer(options);
  at::Tensor params = at::tensor({0.5F, -1.25F, 2.0F, 0.0625F, -0.75F});
  const at::Tensor gradient = at::tensor({0.3F, -0.7F, 0.011F, 1.9F, -0.0004F});
  const std::vector<std::int64_t> sizes{5 - apart, apart};
  std::vector<OptimizerMoments> moments(2);
  for (std::size_t k = 0; k < 2; ++k)
    for (std::size_t s = 0; s < optimizer.slots().size(); ++s) moments[k].tensors.push_back(at::zeros({sizes[k]}));
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor now = gradient * (1.0 - 0.25 * step);
    optimizer.step(
        std::vector<OptimizedShard>{{params.narrow(0, 0, sizes[0]), now.narrow(0, 0, sizes[0]), &moments[0]},
                                    {params.narrow(0, sizes[0], apart), now.narrow(0, sizes[0], apart), &moments[1]}},
        0.01, {.lists = lists});
  }
  return params;
}

TEST(OtherOptimizers, StepAsPyTorchDoes) {
  for (const SteppedByTorch& recorded : kSteppedByTorch) {
    const OptimizerOptions options = options_of(recorded.kind, recorded.foreach);
    for (const std::int64_t apart : {0, 2}) {
      for (const bool lists : {false, true}) {
        const at::Tensor params = stepped(options, lists, apart);
        for (std::int64_t k = 0; k < 5; ++k)
          EXPECT_FLOAT_EQ(params[k].item<float>(), recorded.params[k]) << recorded.kind << " " << recorded.foreach << k;
      }
    }
  }
}

TEST(OtherOptimizers, FusedAdagradStepsAsTheLoop) {
  OptimizerOptions options = options_of("adagrad", false);
  const at::Tensor loop = stepped(options, false, 2);
  options.impl = OptimizerImpl::Fused;
  EXPECT_TRUE(at::allclose(stepped(options, false, 2), loop, 1e-6, 0));
}

/// Its product of momenta is made from the count: a checkpoint holds none.
TEST(OtherOptimizers, NAdamGoesOnFromACount) {
  const Optimizer optimizer(options_of("nadam", false));
  const at::Tensor gradient = at::tensor({0.3F, -0.7F});
  at::Tensor through = at::tensor({0.5F, -1.25F}), resumed = through.clone();
  OptimizerMoments kept, again;
  for (OptimizerMoments* moments : {&kept, &again}) moments->tensors = {at::zeros({2}), at::zeros({2})};
  for (int step = 0; step < 6; ++step) {
    if (step == 3) {
      resumed.copy_(through);
      for (std::size_t s = 0; s < 2; ++s) again.tensors[s].copy_(kept.tensors[s]);
      again.steps = 3;
    }
    optimizer.step(std::vector<OptimizedShard>{{through, gradient, &kept}}, 0.01);
    if (step >= 3) optimizer.step(std::vector<OptimizedShard>{{resumed, gradient, &again}}, 0.01);
  }
  EXPECT_TRUE(at::equal(through, resumed));
}

}  // namespace
}  // namespace foreshard::exec
