// What a script puts around a model, over a tensor dimension: losses in pieces, masks, adapters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/adapters/adapted_model.h"
#include "core/lowering/lowering.h"
#include "core/mesh/rank_model.h"
#include "core/model/families/config_model.h"
#include "core/plan/build_plan.h"

namespace foreshard {
namespace {

using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr std::int64_t kPieces = 4, kSequence = 32;

Job job_of(bool sequence) {
  Job job;
  job.model.batch = 2;
  job.model.seq = kSequence;
  job.model.seq_given = true;
  job.mesh.tensor = 2;
  job.mesh.sequence_parallel = sequence;
  job.mesh.loss_parallel = true;
  job.cluster.world_size = 4;
  job.cluster.rank = 1;
  job.train.clip_grad_norm = 0;
  return job;
}

Model llama(const Job& job) {
  const auto config = nlohmann::json::parse(R"({"model_type": "llama", "hidden_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 56, "vocab_size": 100,
    "max_position_embeddings": 64})");
  return model_from_config_json(config, "llama", job.model, ProgramOptions()).value();
}

const std::string& model_name(const Model& model, const Op& op) { return model.modules[op.module.index()].fqn; }

Job in_pieces(Job job) {
  job.model.loss = "chunked_cross_entropy";
  job.model.loss_chunks = kPieces;
  return job;
}

Job adapted(Job job) {
  job.adapters.kind = "lora";
  job.adapters.rank = 8;
  job.adapters.targets = {"q_proj", "o_proj"};
  return job;
}

Model rank_of(const Job& job) { return rank_model(adapted_model(llama(job), job).value(), job).value(); }

const Op* reader_of(const Model& model, ValueId value, const std::string& name) {
  const auto at = std::find_if(model.ops.begin(), model.ops.end(), [&](const Op& op) {
    const auto* from = op.args.empty() ? nullptr : std::get_if<ValueRef>(&op.args.front().value);
    return op.name == name && from != nullptr && from->id == value;
  });
  return at == model.ops.end() ? nullptr : &*at;
}

TEST(MeshScripts, PiecesAreOfHiddenStatesThatAreGatheredOnce) {
  const Model model = rank_of(in_pieces(job_of(true)));
  const Op* split = nullptr;
  for (const Op& op : model.ops)
    if (op.name == "aten.split.Tensor" && model.values[op.out.front().index()].shape.size() == 3) split = &op;
  ASSERT_NE(split, nullptr);
  EXPECT_EQ(split->out.size(), std::size_t{kPieces});
  EXPECT_EQ(model.values[split->out.front().index()].shape, (Shape{2, kSequence / kPieces, 48}));
  const ValueId whole = std::get<ValueRef>(split->args.front().value).id;
  const auto gather = std::find_if(model.ops.begin(), model.ops.end(),
                                   [&](const Op& op) { return !op.out.empty() && op.out.front() == whole; });
  ASSERT_NE(gather, model.ops.end());
  EXPECT_EQ(gather->name, "mesh.all_gather");
  EXPECT_EQ(std::get<std::string>(gather->args.back().value), "reduce_scatter");  // of its gradient
  for (const ValueId piece : split->out)
    EXPECT_EQ(reader_of(model, piece, "mesh.copy"), nullptr) << "its gradient is summed with the others', scattered";
}

TEST(MeshScripts, WhatTheHeadNeedsIsRecomputedWithItsPiece) {
  const Model model = rank_of(in_pieces(job_of(false)));
  std::set<std::int32_t> regions;
  for (const Op& op : model.ops)
    if (op.name == "mesh.copy" && op.module.valid() && model.modules[op.module.index()].fqn == "model.lm_head")
      regions.insert(op.region);
  EXPECT_EQ(regions, (std::set<std::int32_t>{0, 1, 2, 3}));
  const auto cut = model.find_param("model.lm_head.weight");
  EXPECT_EQ(model.params[cut.index()].shape, (Shape{50, 48})) << "the plan's names are those below the wrapper";
}

// A captured policy was asked about collectives while the model was whole: they come in when it is cut.
TEST(MeshScripts, ARegionKeepsTheCollectivesThatItsPolicyNames) {
  const auto scattered_again = [](std::vector<std::string> kept) {
    Model whole = llama(job_of(true));
    whole.regions = {{Region::Kind::Operators, ModuleId(std::int32_t{0}), 0, {}, {}, std::move(kept)}};
    for (Op& op : whole.ops)
      if (op.module.valid() && model_name(whole, op).starts_with("model.layers.")) op.region = 0;
    const Model model = rank_model(std::move(whole), job_of(true)).value();
    std::vector<SegmentRange> ranges;  // alternately outside and inside of the region
    for (std::int32_t op = 0; op < static_cast<std::int32_t>(model.ops.size()); ++op) {
      const bool inside = model.ops[static_cast<std::size_t>(op)].region == 0;
      if (ranges.empty() || ranges.back().checkpointed != inside) ranges.push_back({op, op, inside, inside ? 0 : -1});
      ranges.back().op_end = op + 1;
    }
    const LoweredProgram lowered = lower(model, ranges, std::vector<bool>(model.params.size(), true)).value();
    std::int64_t count = 0;
    for (const SegmentTemplate& segment : lowered.templates)
      for (const Kernel& kernel : segment.recompute.kernels)
        count += kernel.collective == KernelCollective::ReduceScatter ? 1 : 0;
    return count;
  };
  EXPECT_GT(scattered_again({}), 0);
  EXPECT_GT(scattered_again({"_c10d_functional.all_reduce"}), 0);
  EXPECT_EQ(scattered_again({"_c10d_functional.reduce_scatter_tensor"}), 0);
}

TEST(MeshScripts, AMaskIsMadeForTheEmbeddingsThatComeOut) {
  for (const bool eager : {false, true}) {
    Job job = job_of(true);
    job.model.attention_mask = !eager;
    if (eager) job.model.attention = "eager";
    const auto refused = rank_model(llama(job), job);
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().message,
                HasSubstr(eager ? "tensor a (32) must match the size of tensor b (16) at non-singleton dimension 3"
                                : "expanded size of the tensor (32) must match the existing size (16)"));
    job.mesh.sequence_parallel = false;
    EXPECT_TRUE(build_plan(rank_model(llama(job), job).value(), job).has_value());
  }
}

TEST(MeshScripts, AHeadInsideItsLossIsNotCut) {
  Job job = job_of(false);
  job.model.loss = "fused_linear_cross_entropy";
  EXPECT_EQ(rank_model(llama(job), job).error().place, "model.loss");
}

TEST(MeshScripts, Float8LayersAreCutAsLinearOnesAre) {
  Job job = job_of(true);
  const auto collectives = [&] {
    std::int64_t count = 0;
    for (const Op& op : rank_of(job).ops) count += op.name.starts_with("mesh.") ? 1 : 0;
    return count;
  };
  const std::int64_t plain = collectives();
  for (const char* float8 : {"tensorwise", "rowwise"}) {
    job.model.float8 = float8;
    EXPECT_EQ(collectives(), plain);
  }
}

TEST(MeshScripts,
     ScalesOfWhatRanksHavePartsOfAreTheLargestOfTheirs) {  // as recorded of torchtitan: 28 a block of seven
  Job job = job_of(true);
  job.mesh.loss_parallel = false;
  using Meetings = std::map<Bytes, int>;  // all-reduces of largest numbers, by bytes
  const auto met = [&](const char* recipe) {
    job.model.float8 = recipe;
    const Model model = rank_of(job);
    const std::vector<bool> trainable(model.params.size(), true);
    const auto end = static_cast<std::int32_t>(model.ops.size());
    const LoweredProgram lowered = lower(model, {{0, end, false, -1}}, trainable).value();
    std::array<Meetings, 2> count;
    for (const Kernel& kernel : lowered.templates.front().forward.kernels)
      if (kernel.maximum) ++count[0][kernel.vector_bytes];
    for (const Kernel& kernel : lowered.templates.front().backward.kernels)
      if (kernel.maximum) ++count[1][kernel.vector_bytes];
    return count;
  };
  const std::array<Meetings, 2> none{};
  EXPECT_EQ(met("none"), none);
  // Queries, keys and values are cut along their rows, outputs along their columns; the others are no multiples of 16.
  constexpr int kLayers = 2;
  constexpr Bytes kNumber = 8, kRows = 2 * kSequence * kNumber, kWidth = 48 * kNumber;
  const std::array<Meetings, 2> by_row{Meetings{{kRows, kLayers}, {kWidth, kLayers}},
                                       Meetings{{kRows, 3 * kLayers}, {kWidth, 3 * kLayers}}};
  EXPECT_EQ(met("rowwise"), by_row);
  const std::array<Meetings, 2> whole{Meetings{{kNumber, (1 + 4) * kLayers}},
                                      Meetings{{kNumber, (2 * 3 + 4 + 1) * kLayers}}};
  EXPECT_EQ(met("tensorwise"), whole);
}

TEST(MeshScripts, FusedProjectionsThatAreSlicedAreGathered) {  // Phi-3, as Transformers cuts it
  const Job job = job_of(true);
  const auto config = nlohmann::json::parse(R"({"model_type": "phi3", "hidden_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 56, "vocab_size": 100, "pad_token_id": 0,
    "max_position_embeddings": 64})");
  const Model model =
      rank_model(model_from_config_json(config, "phi3", job.model, ProgramOptions()).value(), job).value();
  std::map<std::string, int> count;
  for (const Op& op : model.ops) ++count[op.name];
  constexpr int kLayers = 2;
  EXPECT_EQ(count["mesh.all_gather"], 4 * kLayers + 1);  // inputs, projections; the head's input
  EXPECT_EQ(count["mesh.part"], 2 * kLayers);            // of what is whole behind them
  EXPECT_EQ(count["mesh.log_softmax"], 1);               // logits stay cut for the loss all the same
  EXPECT_EQ(model.params[model.find_param("model.layers.1.self_attn.qkv_proj.weight").index()].shape, (Shape{40, 48}));
}

TEST(MeshScripts, AdaptersAreCutWithTheirLayers) {
  const Model model = rank_of(adapted(job_of(true)));
  const auto param = [&](const std::string& name) -> const ParamInfo& {
    return model.params[model.find_param("base_model.model.model.layers.1.self_attn." + name).index()];
  };
  EXPECT_EQ(param("q_proj.base_layer.weight").shape, (Shape{24, 48}));
  EXPECT_EQ(param("q_proj.lora_A.default.weight").shape, (Shape{8, 48}));
  EXPECT_EQ(param("q_proj.lora_B.default.weight").shape, (Shape{24, 8}));
  EXPECT_EQ(param("o_proj.base_layer.weight").shape, (Shape{48, 24}));
  EXPECT_EQ(param("o_proj.lora_A.default.weight").shape, (Shape{8, 24}));
  EXPECT_EQ(param("o_proj.lora_B.default.weight").shape, (Shape{48, 8}));
  for (const char* whole : {"q_proj.lora_A.default.weight", "o_proj.lora_B.default.weight"})
    EXPECT_EQ(param(whole).part.gradient, MeshPart::Gradient::Term) << whole;
}

TEST(MeshScripts, APlanNamesThePlainModelsLayers) {
  Job job = adapted(job_of(false));
  job.mesh.plan = {{"model.layers.*.self_attn.q_proj", "colwise"},
                   {"model.layers.*.self_attn.k_proj", "colwise"},
                   {"model.layers.*.self_attn.v_proj", "colwise"},
                   {"model.layers.*.self_attn.o_proj", "rowwise"}};
  const Model model = rank_of(job);
  const std::string layer = "base_model.model.model.layers.0.self_attn.o_proj";
  EXPECT_EQ(model.params[model.find_param(layer + ".lora_A.default.weight").index()].shape, (Shape{8, 24}));
  const ParamInfo& up = model.params[model.find_param(layer + ".lora_B.default.weight").index()];
  EXPECT_EQ(up.part.gradient, MeshPart::Gradient::Part) << "every rank has the whole gradient";
  job.mesh.plan = {{"model.layers.*.self_attn.q_prj", "colwise"}};
  EXPECT_THAT(adapted_model(llama(job), job).error().hint, HasSubstr("q_proj"));
}

TEST(MeshScripts, PackedMatricesStayWhole) {
  Job job = adapted(job_of(false));
  job.adapters.base = "nf4";
  EXPECT_EQ(adapted_model(llama(job), job).error().place, "adapters.base");
}

const Trap* trap(const Plan& plan, std::int32_t number) {
  const auto at = std::find_if(plan.traps.begin(), plan.traps.end(), [&](const Trap& t) { return t.number == number; });
  return at == plan.traps.end() ? nullptr : &*at;
}

TEST(MeshScripts, FrozenNormsAreTrainedAlongTheSequence) {
  Job job = adapted(job_of(true));
  const Model model = rank_of(job);
  const auto trains = [&](const char* name) { return model.params[model.find_param(name).index()].requires_grad; };
  EXPECT_TRUE(trains("base_model.model.model.norm.weight"));
  EXPECT_FALSE(trains("base_model.model.model.layers.0.mlp.gate_proj.weight"));
  const Plan plan = build_plan(model, job).value();
  const Trap* found = trap(plan, 56);
  ASSERT_NE(found, nullptr);
  EXPECT_FALSE(found->refused);
  EXPECT_THAT(found->units, Each(EndsWith("norm.weight")));
  job.mesh.sequence_parallel = false;
  EXPECT_EQ(trap(build_plan(rank_of(job), job).value(), 56), nullptr);
}

TEST(MeshScripts, FlatParametersTrainAllThatIsCut) {
  Job job = adapted(job_of(false));
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.use_orig_params = true;
  const Model model = rank_of(job);
  EXPECT_TRUE(
      model.params[model.find_param("base_model.model.model.layers.0.mlp.gate_proj.weight").index()].requires_grad);
  EXPECT_FALSE(model.params[model.find_param("base_model.model.model.norm.weight").index()].requires_grad);
  EXPECT_THAT(to_text(build_plan(model, job).error()), HasSubstr("trap 56"));
}

}  // namespace
}  // namespace foreshard
