// Composite operators of archives are written as eager PyTorch runs them, and each has a rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/lowering/op_rules.h"
#include "core/model/pt2/model.h"

namespace foreshard {
namespace {

const std::string kArchives = std::string(FORESHARD_TEST_DATA) + "/pt2/";

Model read(const std::string& name, ProgramDevice device, const std::string& loss = "auto") {
  ModelOptions options;
  options.loss = loss;
  ProgramOptions program;
  program.device = device;
  auto model = model_from_pt2(kArchives + name, options, program);
  EXPECT_TRUE(model) << to_text(model.error());
  return model ? std::move(*model) : Model{};
}

std::map<std::string, int> counted(const Model& model) {
  std::map<std::string, int> counts;
  for (const Op& op : model.ops) ++counts[op.name];
  return counts;
}

std::set<std::string> without_rule(const Model& model) {
  std::set<std::string> names;
  for (const Op& op : model.ops)
    if (find_op_rule(op.name) == nullptr) names.insert(op.name);
  return names;
}

TEST(Pt2Composites, ResNetRunsOnCudnnOnAGpu) {
  const Model model = read("resnet50_meta.pt2", ProgramDevice::Cuda);
  auto counts = counted(model);
  EXPECT_EQ(counts["aten.convolution.default"], 53);
  EXPECT_EQ(counts["aten.cudnn_batch_norm.default"], 53);
  EXPECT_EQ(counts["aten.max_pool2d_with_indices.default"], 1);
  EXPECT_EQ(counts["aten.mean.dim"], 1);  // adaptive pooling to one element
  EXPECT_EQ(without_rule(model), std::set<std::string>{});
}

TEST(Pt2Composites, OffTheGpuBatchNormIsTheNativeKernel) {
  auto counts = counted(read("resnet50_meta.pt2", ProgramDevice::Cpu));
  EXPECT_EQ(counts["aten.native_batch_norm.default"], 53);
  EXPECT_EQ(counts["aten.cudnn_batch_norm.default"], 0);
}

TEST(Pt2Composites, PoolingOfRowsIsThatOfAPictureOfOneLine) {
  const Model model = read("pooled_rows.pt2", ProgramDevice::Cpu);
  auto counts = counted(model);
  EXPECT_EQ(counts["aten._adaptive_avg_pool2d.default"], 1);
  EXPECT_EQ(counts["aten.mean.dim"], 1);  // to one element
  EXPECT_EQ(counts["aten.squeeze.dim"], 2);
  EXPECT_EQ(without_rule(model), std::set<std::string>{});
}

/// nn.Dropout2d, nn.Dropout and nn.AlphaDropout with inplace=True behind a convolution each: what a capture of them has
/// (the last does not hand the word on).
TEST(Pt2Composites, DropoutsInPlaceWriteIntoTheirInput) {
  const Model model = read("dropouts_in_place.pt2", ProgramDevice::Cuda);
  std::vector<std::string> names;
  for (const Op& op : model.ops)
    if (op.name.find("convolution") == std::string::npos) names.push_back(op.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "aten.empty.memory_format", "aten.bernoulli_.float", "aten.div_.Scalar", "aten.mul_.Tensor",
                "aten.empty_like.default", "aten.bernoulli_.float", "aten.div_.Scalar", "aten.mul_.Tensor",
                "aten.empty_like.default", "aten.bernoulli_.float", "aten.add.Scalar", "aten.mul_.Scalar",
                "aten.add_.Scalar", "aten.mul_.Scalar", "aten.mul.Tensor", "aten.add_.Tensor", "aten.sum.default"}));
  EXPECT_EQ(without_rule(model), std::set<std::string>{});
}

TEST(Pt2Composites, EveryOperatorOfTheLanguageModelsHasARule) {
  for (const char* name : {"llama_1b_meta.pt2", "llama_tiny.pt2", "user_mlp_shared.pt2"})
    EXPECT_EQ(without_rule(read(name, ProgramDevice::Cuda)), std::set<std::string>{}) << name;
}

TEST(Pt2Composites, BothBranchesOfCondRunAndThePredicatePicks) {
  const Model model = read("control_flow_cond.pt2", ProgramDevice::Cpu, "none");
  std::vector<std::string> names;
  for (const Op& op : model.ops) names.push_back(op.name);
  EXPECT_EQ(names, (std::vector<std::string>{"aten.t.default", "aten.addmm.default", "aten.t.default",
                                             "aten.addmm.default", "aten.relu.default", "aten.where.self"}));
  EXPECT_EQ(std::get<ValueRef>(model.ops.back().args.at(0).value).id, model.inputs.at(1));
  EXPECT_EQ(model.outputs, model.ops.back().out);
  EXPECT_EQ(without_rule(model), std::set<std::string>{});
}

TEST(Pt2Composites, ActivationsInPlaceHoldWhatTheyOverwrite) {
  const Model model = read("silu_in_place.pt2", ProgramDevice::Cpu, "none");
  const auto silu =
      std::find_if(model.ops.begin(), model.ops.end(), [](const Op& op) { return op.name == "aten.silu.default"; });
  ASSERT_NE(silu, model.ops.end());
  EXPECT_NE(find_op_rule(silu->name), nullptr);
  const auto product =
      std::find_if(silu, model.ops.end(), [](const Op& op) { return op.name == "aten.addmm.default"; });
  ASSERT_NE(product, model.ops.end());
  EXPECT_EQ(std::get<ValueRef>(product->args.at(1).value).id, silu->out.at(0));
}

TEST(Pt2Composites, FunctionalProgramsPutBackWhatTheirBuffersBecome) {
  const Model model = read("batch_norm_train_inference_ir.pt2", ProgramDevice::Cpu, "none");
  std::vector<std::string> updated;
  for (const Op& op : model.ops) {
    if (op.name != "aten.copy_.default") continue;
    updated.push_back(model.buffers[static_cast<std::size_t>(std::get<BufferRef>(op.args.at(0).value).index)].fqn);
  }
  EXPECT_EQ(updated, (std::vector<std::string>{"steps", "bn.num_batches_tracked"}));
  EXPECT_EQ(counted(model)["aten.native_batch_norm.default"], 1);  // which moves the others itself
}

TEST(Pt2Composites, AttentionWithAMaskIsTheMemoryEfficientKernel) {
  auto counts = counted(read("llama_1b_meta.pt2", ProgramDevice::Cuda, "none"));
  EXPECT_EQ(counts["aten._scaled_dot_product_efficient_attention.default"], 16);
  EXPECT_EQ(counts["aten.where.self"], 16);  // the mask of truth values, made additive
  EXPECT_EQ(counts["aten.scaled_dot_product_attention.default"], 0);
}

/// Complex rotary embeddings, einsum, repeated heads and a transposed convolution, as users' models write them.
TEST(Pt2Composites, EinsumIsTheProductThatAtenMakesOfIt) {
  const Model model = read("rope_and_einsum.pt2", ProgramDevice::Cuda);
  EXPECT_EQ(without_rule(model), std::set<std::string>{});
  auto counts = counted(model);
  EXPECT_EQ(counts["aten.einsum.default"], 0);
  EXPECT_EQ(counts["aten.convolution.default"], 1);
  std::vector<std::string> product;  // around the only batched product
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    if (model.ops[i].name != "aten.bmm.default") continue;
    ASSERT_GE(i, 10u);
    for (std::size_t at = i - 10; at < i + 4 && at < model.ops.size(); ++at) product.push_back(model.ops[at].name);
  }
  EXPECT_EQ(product,
            (std::vector<std::string>{"aten.unsqueeze.default", "aten.permute.default", "aten.unsqueeze.default",
                                      "aten.permute.default", "aten.permute.default", "aten.clone.default",
                                      "aten._unsafe_view.default", "aten.permute.default", "aten.clone.default",
                                      "aten._unsafe_view.default", "aten.bmm.default", "aten.view.default",
                                      "aten.permute.default", "aten.view.default"}));  // recorded under a dispatch mode
}

}  // namespace
}  // namespace foreshard
