#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/model/families/config_model.h"
#include "exec/operators/operator_interpreter.h"
#include "exec/run/init_params.h"
#include "tests/exec/tiny_llama.h"

namespace foreshard::exec {
namespace {

/// What one forward and backward leaves: everything that a second way of running must repeat to the bit.
struct Outcome {
  double loss = 0;
  std::vector<at::Tensor> grads;
};

/// Runs a program whole, or cut and checkpointed: the ranges of `regions` are run again in backward, cut at `cuts`.
class Trial {
 public:
  Trial(Model model, std::vector<at::Tensor> params, std::vector<at::Tensor> inputs, std::vector<at::Tensor> buffers)
      : model_(std::move(model)),
        params_(std::move(params)),
        inputs_(std::move(inputs)),
        buffers_(std::move(buffers)),
        interpreter_(OperatorInterpreter::create(model_).value()) {
    at::set_num_threads(1);
    for (at::Tensor& param : params_) param = param.clone().set_requires_grad(true);
  }

  struct Segment {
    OpRange ops;
    OpRange region;  // empty: not checkpointed
  };

  Outcome run(const std::vector<Segment>& segments, std::uint64_t seed = 0) const {
    SegmentFrame frame = interpreter_.begin(inputs_, seed);
    const auto param = [this](ParamId id) { return params_[model_.storage_of(id).index()]; };
    std::vector<SegmentGraph> graphs(segments.size());
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const auto [ops, region] = segments[s];
      if (region.end > region.begin) {
        interpreter_.forward_checkpointed(ops.begin, ops.end, frame, param, buffers_, region);
      } else {
        graphs[s] = interpreter_.forward(ops.begin, ops.end, frame, param, buffers_);
      }
    }
    Outcome outcome{frame.values[model_.outputs[0].index()].item<double>(), {}};
    outcome.grads.resize(params_.size());
    frame.grads[model_.outputs[0].index()] = at::ones({});
    const auto sink = [&](ParamId id, at::Tensor gradient) {
      at::Tensor& sum = outcome.grads[id.index()];
      sum = sum.defined() ? sum + gradient : std::move(gradient);
    };
    for (std::size_t s = segments.size(); s-- > 0;) {
      const OpRange region = segments[s].region;
      const bool first_of_region = region.end > region.begin && !graphs[s].valid();
      if (first_of_region) {  // every segment of the region runs again, in its order, before the first backward
        for (std::size_t k = 0; k <= s; ++k) {
          if (segments[k].region.begin != region.begin || segments[k].region.end != region.end) continue;
          graphs[k] =
              interpreter_.recompute(segments[k].ops.begin, segments[k].ops.end, frame, param, buffers_, region);
        }
      }
      interpreter_.backward(std::exchange(graphs[s], {}), frame, sink);
    }
    for (const at::Tensor& value : frame.values) left_ += value.defined() && !value.sizes().empty() ? 1 : 0;
    kept_ += static_cast<int>(frame.kept.size());
    return outcome;
  }

  std::int32_t ops() const { return static_cast<std::int32_t>(model_.ops.size()); }
  int left() const { return left_; }  // values that a run left in its frame, and inputs that it still kept
  int kept() const { return kept_; }

  /// Ranges of operators by the module's fqn prefix: those of one block.
  OpRange ops_of(const std::string& prefix) const {
    OpRange range{-1, -1};
    for (std::int32_t i = 0; i < ops(); ++i) {
      const std::string& fqn = model_.modules[model_.ops[static_cast<std::size_t>(i)].module.index()].fqn;
      if (!fqn.starts_with(prefix)) continue;
      if (range.begin < 0) range.begin = i;
      range.end = i + 1;
    }
    return range;
  }

 private:
  Model model_;
  std::vector<at::Tensor> params_, inputs_, buffers_;
  OperatorInterpreter interpreter_;
  mutable int left_ = 0, kept_ = 0;
};

Trial llama() {
  const Model model = tiny_llama(tiny_llama_job(1));
  const NamedTensors weights = tiny_llama_weights();
  std::vector<at::Tensor> params;
  for (const ParamInfo& param : model.params) params.push_back(weights.at(param.fqn));
  return {model, params, tiny_llama_inputs(tiny_llama_data(), 0, 0, 1), tiny_llama_buffers(model)};
}

Trial gpt2_with_dropout() {
  const nlohmann::json config = {{"model_type", "gpt2"}, {"n_embd", 32},      {"n_head", 2},
                                 {"n_layer", 2},         {"n_positions", 16}, {"vocab_size", 50},
                                 {"resid_pdrop", 0.2},   {"attn_pdrop", 0.2}, {"embd_pdrop", 0.2}};
  ModelOptions options;
  options.batch = 2;
  options.seq = 8;
  options.seq_given = true;
  ProgramOptions program;
  program.device = ProgramDevice::Cpu;
  Model model = model_from_config_json(config, "gpt2", options, program).value();
  model.architecture.clear();  // no config.json in a file: torch.nn's own starting values will do
  const ParamInitializer initializer = ParamInitializer::create(model, "", 7).value();
  std::vector<at::Tensor> params;
  for (std::size_t p = 0; p < model.params.size(); ++p) params.push_back(initializer.whole(ParamId(p)));
  const at::Tensor tokens = at::arange(16).reshape({2, 8}).to(at::kLong);
  return {std::move(model), std::move(params), {tokens, tokens.clone()}, {}};
}

void expect_equal(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.loss, b.loss);
  for (std::size_t i = 0; i < a.grads.size(); ++i) {
    ASSERT_EQ(a.grads[i].defined(), b.grads[i].defined()) << i;
    if (!a.grads[i].defined()) continue;
    EXPECT_TRUE(a.grads[i].equal(b.grads[i])) << i;
  }
}

/// The whole program as segments, the blocks named by `prefixes` as checkpointed regions.
std::vector<Trial::Segment> with_regions(const Trial& trial, const std::vector<std::string>& prefixes, bool again) {
  std::vector<Trial::Segment> segments;
  std::int32_t begin = 0;
  for (const std::string& prefix : prefixes) {
    const OpRange block = trial.ops_of(prefix);
    segments.push_back({{begin, block.begin}, {}});
    segments.push_back({block, again ? block : OpRange{}});
    begin = block.end;
  }
  segments.push_back({{begin, trial.ops()}, {}});
  return segments;
}

TEST(Recompute, CheckpointedBlocksGiveTheSameBits) {
  const Trial trial = llama();
  const std::vector<std::string> blocks{"model.layers.0", "model.layers.1"};
  expect_equal(trial.run(with_regions(trial, blocks, false)), trial.run(with_regions(trial, blocks, true)));
  EXPECT_EQ(trial.kept(), 0) << "a second run takes what the first one kept";
}

TEST(Recompute, ARegionOfSeveralSegmentsIsMadeAgainInItsOrder) {
  const Trial trial = llama();
  const std::vector<std::string> blocks{"model.layers.0"};
  std::vector<Trial::Segment> plain = with_regions(trial, blocks, false), cut = with_regions(trial, blocks, true);
  const OpRange block = trial.ops_of("model.layers.0");
  const std::int32_t middle = (block.begin + block.end) / 2;
  for (auto* segments : {&plain, &cut}) {
    const OpRange region = (*segments)[1].region;
    (*segments)[1] = {{block.begin, middle}, region};
    segments->insert(segments->begin() + 2, Trial::Segment{{middle, block.end}, region});
  }
  expect_equal(trial.run(plain), trial.run(cut));
  EXPECT_EQ(trial.kept(), 0);
}

TEST(Recompute, DropoutDrawsTheSameNumbersAgain) {
  const Trial trial = gpt2_with_dropout();
  const std::vector<std::string> blocks{"transformer.h.0", "transformer.h.1"};
  const Outcome plain = trial.run(with_regions(trial, blocks, false), 5);
  at::rand({1000});  // whatever else draws in between
  expect_equal(plain, trial.run(with_regions(trial, blocks, true), 5));
  EXPECT_NE(plain.loss, trial.run(with_regions(trial, blocks, false), 6).loss);
}

TEST(Recompute, WhatWasNotCheckpointedCannotRunAgain) {
  const Model model = tiny_llama(tiny_llama_job(1));
  const OperatorInterpreter interpreter = OperatorInterpreter::create(model).value();
  SegmentFrame frame = interpreter.begin(tiny_llama_inputs(tiny_llama_data(), 0, 0, 1));
  EXPECT_THROW(interpreter.recompute(0, 1, frame, {}, {}), std::runtime_error);
}

}  // namespace
}  // namespace foreshard::exec
