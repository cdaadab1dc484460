#include "core/model/inspect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/model/families/config_model.h"

namespace foreshard {
namespace {

const std::string kModels = std::string(FORESHARD_TEST_DATA) + "/models/";

Model build(const std::string& name, ProgramDevice device, DType dtype, std::int64_t batch, std::int64_t seq) {
  ModelOptions options;
  options.batch = batch;
  options.seq = seq;
  options.seq_given = true;
  return model_from_config(kModels + name + "/config.json", options,
                           {.compute_dtype = dtype, .device = device, .recorded = true})
      .value();
}

TEST(Inspect, FlopsAreThoseOfPyTorchsCounter) {
  // summary.json of the recorded model, meta_math
  const InspectReport small = inspect_model(build("qwen2.5-0.5b", ProgramDevice::Meta, DType::BFloat16, 2, 128));
  EXPECT_EQ(small.total.flops.forward, 255'726'714'880);
  EXPECT_EQ(small.total.flops.backward, 511'453'429'760);
  const InspectReport large = inspect_model(build("qwen2.5-0.5b", ProgramDevice::Meta, DType::BFloat16, 2, 4096));
  EXPECT_EQ(large.total.flops.forward, 10'979'278'585'856);
  ASSERT_EQ(large.forward_by_op.size(), 3u);
  EXPECT_EQ(large.forward_by_op[0], (std::pair<std::string, Flops>{"aten.addmm.default", 405'874'409'472}));
}

TEST(Inspect, FlashCountsAsItsProductsAndItsBackwardTwoAndAHalfTimes) {
  const InspectReport math = inspect_model(build("gpt2", ProgramDevice::Meta, DType::BFloat16, 2, 128));
  const InspectReport flash = inspect_model(build("gpt2", ProgramDevice::Cuda, DType::BFloat16, 2, 128));
  EXPECT_EQ(flash.total.flops.forward, math.total.flops.forward);
  const Flops attention = flash.forward_by_op[1].second;
  EXPECT_EQ(flash.total.flops.backward - math.total.flops.backward, attention / 2);
}

TEST(Inspect, ExpertsCountTheRowsTheyAreGiven) {
  const InspectReport report = inspect_model(build("mixtral-tiny", ProgramDevice::Cuda, DType::BFloat16, 2, 32));
  std::ifstream file(kModels + "mixtral-tiny/config.json");
  const nlohmann::json config = nlohmann::json::parse(file);
  const auto number = [&](const char* key) { return config.at(key).get<Flops>(); };
  const Flops rows = 2 * 32 * number("num_experts_per_tok"), h = number("hidden_size"), f = number("intermediate_size");
  const auto row = std::find_if(report.forward_by_op.begin(), report.forward_by_op.end(),
                                [](const auto& each) { return each.first == "aten._grouped_mm.default"; });
  ASSERT_NE(row, report.forward_by_op.end());
  EXPECT_EQ(row->second, number("num_hidden_layers") * 2 * rows * h * (2 * f + f));  // gate and up, down
}

TEST(Inspect, FrozenParametersTakeTheirPartOfBackwardAway) {
  Model model = build("gpt2", ProgramDevice::Cuda, DType::BFloat16, 1, 64);
  for (ParamInfo& param : model.params) param.requires_grad = false;
  EXPECT_EQ(inspect_model(model).total.flops.backward, 0);
  EXPECT_EQ(inspect_model(model).trainable_params, 0);
}

TEST(Inspect, ParametersAreCountedOnceAndByName) {
  const Model model = build("llama-3.2-1b", ProgramDevice::Cuda, DType::BFloat16, 1, 64);
  const InspectReport report = inspect_model(model);
  EXPECT_EQ(report.total.params, 1'235'814'400);
  EXPECT_EQ(report.total.params_all_names, 1'498'482'688);
  EXPECT_EQ(report.param_tensors, 146);
  EXPECT_EQ(report.total.param_bytes, 4 * report.total.params);  // created in float32
  const auto block = std::find_if(report.classes.begin(), report.classes.end(),
                                  [](const ClassNumbers& c) { return c.class_name == "LlamaDecoderLayer"; });
  ASSERT_NE(block, report.classes.end());
  EXPECT_EQ(block->modules, 16);
}

TEST(Inspect, TreeFoldsRepeatedBlocks) {
  const Model model = build("llama-3.2-1b", ProgramDevice::Cuda, DType::BFloat16, 1, 64);
  const InspectReport report = inspect_model(model);
  const std::string tree = write_module_tree(model, report);
  EXPECT_NE(tree.find("0-15: LlamaDecoderLayer x 16"), std::string::npos) << tree;
  EXPECT_EQ(tree.find("15: "), tree.find("15: LlamaDecoderLayer")) << tree;
  const std::string top = write_module_tree(model, report, 1);
  EXPECT_EQ(std::count(top.begin(), top.end(), '\n'), 3) << top;
}

TEST(Inspect, JsonHoldsTheNumbers) {
  const Model model = build("gpt2", ProgramDevice::Cuda, DType::BFloat16, 1, 64);
  InspectReport report = inspect_model(model);
  report.activation_bytes = 7;
  const auto json = nlohmann::json::parse(write_inspect_json(model, report));
  EXPECT_EQ(json["schema"], "foreshard.inspect/1");
  EXPECT_EQ(json["params"]["distinct"], 124'439'808);
  EXPECT_EQ(json["activation_bytes"], 7);
  EXPECT_EQ(json["modules"].size(), model.modules.size());
}

}  // namespace
}  // namespace foreshard
