// Experts on ranks of their own: the rank's model, its plan, and what is said of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/job/not_built.h"
#include "core/mesh/rank_model.h"
#include "core/model/families/config_model.h"
#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"

namespace foreshard {
namespace {

constexpr std::int64_t kWorld = 8, kExpertRanks = 2, kExperts = 4, kLayers = 2;

Job job_of() {
  Job job;
  job.model.batch = 2;
  job.model.seq = 24;
  job.model.seq_given = true;
  job.model.loss = "cross_entropy_fp32";
  job.mesh.expert = kExpertRanks;
  job.cluster.world_size = kWorld;
  job.cluster.ranks_per_node = kWorld;
  job.cluster.rank = 3;  // second of its pair
  job.train.clip_grad_norm = 0.0;
  return job;
}

Model built(const ModelOptions& options, std::int64_t experts = kExperts) {
  auto config = nlohmann::json::parse(R"({"model_type": "titan_llama", "dim": 48, "n_layers": 2, "n_heads": 6,
    "n_kv_heads": 2, "ffn": 56, "vocab_size": 101, "max_seq": 64})");
  config["moe"] = {{"experts", experts}, {"top_k", 2}, {"ffn", 40}};
  ProgramOptions program;
  program.compute_dtype = DType::BFloat16;
  return model_from_config_json(config, "titan", options, program).value();
}

Model whole_model(const Job& job, std::int64_t experts = kExperts) { return built(job.model, experts); }

Plan plan_of(const Job& job) { return build_plan(rank_model(whole_model(job), job).value(), job).value(); }

const PlanUnit& unit_of(const Plan& plan, const std::string& name) {
  return *std::find_if(plan.units.begin(), plan.units.end(), [&](const PlanUnit& unit) { return unit.name == name; });
}

TEST(ExpertModel, EachRankHasItsExpertsAndAllRanksRows) {
  const Job job = job_of();
  const Model model = rank_model(whole_model(job), job).value();
  const ParamInfo& w2 = model.params[model.find_param("layers.1.moe.experts.w2").index()];
  EXPECT_EQ(w2.shape, (Shape{kExperts / kExpertRanks, 40, 48}));
  EXPECT_EQ(w2.part.begin, 2);
  EXPECT_EQ(w2.part.whole, kExperts);
  ASSERT_EQ(model.mesh.size(), 1U);
  EXPECT_EQ(model.mesh.front().ranks, (std::vector<std::int32_t>{2, 3}));
  std::int64_t exchanges = 0, products = 0;
  for (const Op& op : model.ops) {
    exchanges += op.name == "mesh.all_to_all" ? 1 : 0;
    if (op.name != "aten.bmm.default") continue;
    ++products;  // 48 tokens x 2 choices / 4 experts = 24 rows of each rank
    EXPECT_EQ(model.values[op.out.front().index()].shape[0], kExperts / kExpertRanks);
    EXPECT_EQ(model.values[op.out.front().index()].shape[1], 24 * kExpertRanks);
  }
  EXPECT_EQ(exchanges, 2 * kLayers);
  EXPECT_EQ(products, 3 * kLayers);
}

TEST(ExpertModel, FsdpShardsExpertsOverTheOtherRanks) {
  Job job = job_of();
  const Plan plan = plan_of(job);
  const PlanUnit& experts = unit_of(plan, "layers.0.moe.experts");
  EXPECT_EQ(experts.shard_size, kWorld / kExpertRanks);
  EXPECT_EQ(unit_of(plan, "layers.0").shard_size, kWorld);
  EXPECT_EQ(experts.sharded.front().shard_dim, 1);  // more ranks than experts
  EXPECT_EQ(experts.sharded.front().local_shape, (Shape{2, 12, 40}));
  bool gathers = false, reduces = false;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (!i.communicator.valid() || plan.communicators[i.communicator.index()].name != "expert_shard") continue;
    EXPECT_EQ(plan.communicators[i.communicator.index()].ranks, (std::vector<std::int32_t>{1, 3, 5, 7}));
    gathers = gathers || i.kind == InstructionKind::AllGather;
    if (i.kind != InstructionKind::ReduceScatter) continue;
    reduces = true;
    EXPECT_EQ(i.reduce_op, ReduceOp::PremulSum);
    EXPECT_DOUBLE_EQ(i.factor, 1.0 / kWorld);
  }
  EXPECT_TRUE(gathers && reduces);
}

TEST(ExpertModel, ExpertsAreShardedInsideAReplica) {
  Job job = job_of();
  job.fsdp.strategy = Strategy::HybridShard;
  job.cluster.shard_group = 4;
  job.cluster.rank = 6;  // of the second replica: the first of its pair
  const Plan plan = plan_of(job);
  const PlanUnit& experts = unit_of(plan, "layers.0.moe.experts");
  EXPECT_EQ(experts.shard_size, 2);
  EXPECT_EQ(unit_of(plan, "layers.0").shard_size, 4);
  EXPECT_EQ(experts.sharded.front().shard_dim, 0);  // as many ranks in a replica as there are experts
  EXPECT_EQ(experts.sharded.front().local_shape, (Shape{1, 48, 40}));
  bool gathers = false, sums = false;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (!i.communicator.valid() || i.unit.value < 0 || plan.units[i.unit.index()].name != experts.name) continue;
    const std::vector<std::int32_t>& ranks = plan.communicators[i.communicator.index()].ranks;
    if (i.kind == InstructionKind::AllReduce) {
      sums = true;
      EXPECT_EQ(ranks, (std::vector<std::int32_t>{2, 6}));
      continue;
    }
    gathers = true;
    EXPECT_EQ(ranks, (std::vector<std::int32_t>{4, 6}));
    if (i.kind == InstructionKind::ReduceScatter) {
      EXPECT_DOUBLE_EQ(i.factor, 1.0 / kWorld);
    }
  }
  EXPECT_TRUE(gathers && sums);
  job.cluster.shard_group = 1;
  const auto apart = build_plan(rank_model(whole_model(job), job).value(), job);
  ASSERT_FALSE(apart.has_value());
  EXPECT_EQ(apart.error().place, "mesh.expert");
}

TEST(ExpertModel, ASequenceIsSharedBesideExperts) {
  Job job = job_of();
  job.mesh.context = 2;
  job.mesh.expert = 4;
  job.model.attention = "sdpa_flash";
  ModelOptions part = rank_model_options(job);
  Job own = job;
  own.model = part;
  auto cut = rank_model(whole_model(own), job);
  ASSERT_TRUE(cut.has_value()) << to_text(cut.error());
  const Model& model = *cut;
  ASSERT_EQ(model.mesh.size(), 2U);
  EXPECT_EQ(model.mesh[0].ranks, (std::vector<std::int32_t>{0, 1, 2, 3}));  // experts
  EXPECT_EQ(model.mesh[1].ranks, (std::vector<std::int32_t>{2, 3}));        // the sequence
  const Plan plan = build_plan(model, job).value();
  EXPECT_EQ(unit_of(plan, "layers.0.moe.experts").shard_size, 2);
  std::vector<std::string> met;  // numbered as the first forward meets: attention stands before the experts
  for (const PlanCommunicator& one : plan.communicators) met.push_back(one.name);
  EXPECT_EQ(met, (std::vector<std::string>{"world", "context", "expert", "expert_shard"}));
}

/// 4 data ranks of 2 tensor ranks; the experts lie on 4 ranks, 2 of each dimension.
Job beside_tensor() {
  Job job = job_of();
  job.mesh.tensor = 2;
  job.mesh.expert = 4;
  return job;
}

Result<Model> cut_beside_tensor(const Job& job) {
  return rank_model(whole_model(job), job, [](const ModelOptions& part) { return Result<Model>(built(part)); });
}

TEST(ExpertModel, TensorRanksSendTheirOwnPartOfTheSequence) {
  const Job job = beside_tensor();
  const Model model = cut_beside_tensor(job).value();
  ASSERT_EQ(model.mesh.size(), 2U);
  EXPECT_EQ(model.mesh[0].ranks, (std::vector<std::int32_t>{0, 1, 2, 3}));  // experts
  EXPECT_EQ(model.mesh[1].ranks, (std::vector<std::int32_t>{2, 3}));
  std::int64_t products = 0, gathers = 0, scatters = 0;
  for (const Op& op : model.ops) {
    gathers += op.name == "mesh.all_gather" ? 1 : 0;
    scatters += op.name == "mesh.reduce_scatter" ? 1 : 0;
    if (op.name != "aten.bmm.default") continue;
    ++products;  // 24 tokens x 2 choices / 4 experts = 12 rows of each rank
    EXPECT_EQ(model.values[op.out.front().index()].shape[0], 1);
    EXPECT_EQ(model.values[op.out.front().index()].shape[1], 12 * 4);
  }
  EXPECT_EQ(products, 3 * kLayers);
  EXPECT_EQ(gathers, kLayers + 1);   // attention's inputs, the head's: none around experts
  EXPECT_EQ(scatters, kLayers + 1);  // attention's results, the embedding's
  const ParamInfo& gate = model.params[model.find_param("layers.0.moe.gate.weight").index()];
  EXPECT_EQ(gate.shape, (Shape{kExperts, 48}));
  EXPECT_EQ(gate.part.dimension, 1);
  EXPECT_EQ(gate.part.gradient, MeshPart::Gradient::Term);
  EXPECT_EQ(model.params[model.find_param("layers.0.moe.experts.w1").index()].part.dimension, 0);
}

TEST(ExpertModel, FsdpShardsExpertsOverTensorRanksToo) {
  Job job = beside_tensor();
  job.train.clip_grad_norm = 1.0;
  job.mesh.expert = 2;  // as many shards of experts as of the rest, on other ranks
  const auto refused = build_plan(cut_beside_tensor(job).value(), job);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("trap 45"), std::string::npos);
  job.fsdp.allow_traps = {45};
  const Plan plan = build_plan(cut_beside_tensor(job).value(), job).value();
  EXPECT_EQ(unit_of(plan, "layers.0.moe.experts").shard_size, 4);
  EXPECT_EQ(unit_of(plan, "layers.0").shard_size, 4);
  std::vector<std::string> met;
  std::vector<Numel> norms;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (!i.communicator.valid()) continue;
    const PlanCommunicator& group = plan.communicators[i.communicator.index()];
    const bool experts = i.unit.valid() && plan.units[i.unit.index()].name.ends_with("experts");
    if (experts) EXPECT_EQ(group.ranks, (std::vector<std::int32_t>{1, 3, 5, 7}));
    if (experts) EXPECT_EQ(group.name, "expert_shard");
    if (i.kind != InstructionKind::AllReduce || i.phase != Phase::Clip) continue;
    met.push_back(group.name);
    norms.push_back(i.numel);
  }
  // Recorded: et6 in tests/data/meshes.
  EXPECT_EQ(met, (std::vector<std::string>{"shard", "tensor", "expert_shard", "expert"}));
  const Numel rest = 3 + 7 * kLayers, experts = 3 * kLayers;
  EXPECT_EQ(norms, (std::vector<Numel>{rest, rest, experts, experts}));
}

TEST(ExpertModel, BesideTensorRanksAModelIsBuiltForItsPart) {
  Job job = beside_tensor();
  const auto fixed = rank_model(whole_model(job), job);
  ASSERT_FALSE(fixed.has_value());
  EXPECT_EQ(fixed.error().place, "mesh.expert");
  const auto same =
      rank_model(whole_model(job), job, [&](const ModelOptions&) { return Result<Model>(built(job.model)); });
  ASSERT_FALSE(same.has_value());  // a capture has one length
  EXPECT_NE(same.error().message.find("no part of the sequence"), std::string::npos);
  job.mesh.sequence_parallel = false;
  const auto whole = check_built(job);
  ASSERT_FALSE(whole.has_value());
  EXPECT_EQ(whole.error().place, "mesh.sequence_parallel");
}

TEST(ExpertModel, TrapsAreNamedBeforeTheRun) {
  Job job = job_of();
  job.mesh.expert_divide_factor = -1;
  auto refused = build_plan(rank_model(whole_model(job), job).value(), job);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("trap 46"), std::string::npos);
  EXPECT_NE(refused.error().message.find("2 times too large"), std::string::npos);
  job.fsdp.allow_traps = {46};
  UnitOverride first;
  first.units = {"layers.*.moe.experts"};
  first.shard_dim["*"] = 0;
  job.fsdp.overrides.push_back(first);
  const Plan plan = plan_of(job);
  EXPECT_EQ(std::count_if(plan.traps.begin(), plan.traps.end(), [](const Trap& trap) { return trap.number == 47; }), 1);
  job.train.clip_grad_norm = 1.0;
  refused = build_plan(rank_model(whole_model(job), job).value(), job);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("trap 45"), std::string::npos);
}

TEST(ExpertModel, ANormOfEachMeshIsCompletedOverTheWorld) {
  Job job = job_of();
  job.train.clip_grad_norm = 1.0;
  job.fsdp.allow_traps = {45};
  const Plan plan = plan_of(job);
  std::vector<Numel> norms;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.kind != InstructionKind::AllReduce || i.phase != Phase::Clip) continue;
    norms.push_back(i.numel);
    EXPECT_EQ(plan.group_size(i), kWorld);
  }
  EXPECT_EQ(norms, (std::vector<Numel>{3 + 7 * kLayers, 3 * kLayers}));
}

Model mixtral(const Job& job) {
  const auto config = nlohmann::json::parse(R"({"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 101,
    "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64})");
  ProgramOptions program;
  program.compute_dtype = DType::BFloat16;
  return model_from_config_json(config, "mixtral", job.model, program).value();
}

const Op& only(const Model& model, const std::string& name, std::size_t which) {
  std::vector<const Op*> found;
  for (const Op& op : model.ops)
    if (op.name == name) found.push_back(&op);
  return *found.at(which);
}

TEST(ExpertModel, ChosenTokensGoToTheirExpertsAndComeBack) {
  Job job = job_of();
  job.mesh.expert_imbalance = 1.5;
  const Model model = rank_model(mixtral(job), job).value();
  EXPECT_TRUE(sends_chosen_tokens(model));
  const auto shape = [&](const Op& op) { return model.values[op.out.front().index()].shape; };
  const std::int64_t pairs = 2 * 48;  // tokens, two choices each
  const std::int64_t received = pairs * 3 / 2, padded = received + 2 * 8;
  EXPECT_EQ(shape(only(model, "mesh.all_to_all", 0)), (Shape{kExperts}));  // loads
  EXPECT_EQ(shape(only(model, "mesh.all_to_all", 1)), (Shape{received, 64}));
  EXPECT_EQ(shape(only(model, "mesh.all_to_all", 2)), (Shape{pairs, 64}));
  EXPECT_EQ(shape(only(model, "aten._grouped_mm.default", 0)), (Shape{padded, 2 * 96}));
  EXPECT_EQ(shape(only(model, "aten._grouped_mm.default", 1)), (Shape{padded, 64}));
  const auto* ends = std::get_if<ValueRef>(&only(model, "aten._grouped_mm.default", 1).args[2].value);
  ASSERT_NE(ends, nullptr);
  EXPECT_EQ(model.values[ends->id.index()].shape, (Shape{kExperts / kExpertRanks}));
  // What a rank's own tokens are weighted by is as long as what comes back.
  EXPECT_EQ(shape(only(model, "aten.sum.dim_IntList", 2)), (Shape{48, 64}));
  EXPECT_FALSE(sends_chosen_tokens(rank_model(whole_model(job), job).value()));
}

/// The same with a bias of each expert, picked for each of its rows (GPT-OSS).
Model with_biases(Model model) {
  const auto product = std::find_if(model.ops.begin(), model.ops.end(),
                                    [](const Op& op) { return op.name == "aten._grouped_mm.default"; });
  const ValueId rows = product->out.front(), ends = std::get<ValueRef>(product->args[2].value).id;
  const auto sum =
      std::find_if(model.ops.begin(), model.ops.end(), [&](const Op& op) { return op.out == std::vector{ends}; });
  const ParamId bias(model.params.size());
  ParamInfo param;
  param.fqn = model.modules[product->module.index()].fqn + ".bias";
  param.shape = {kExperts, 2 * 96};
  param.owner = product->module;
  model.params.push_back(param);
  model.modules[product->module.index()].params.push_back(bias);
  const auto value = [&](const std::string& name, const Shape& shape, DType dtype) {
    model.values.push_back({name, shape, dtype});
    return ValueId(model.values.size() - 1);
  };
  const std::int64_t pairs = model.values[rows.index()].shape.front();
  const auto op = [&](const char* name, ArgList args, ValueId out) {
    Op one = *product;
    one.name = name;
    one.args = std::move(args);
    one.kwargs.clear();
    one.out = {out};
    return one;
  };
  const ValueId places = value("places", {pairs}, DType::Int64);
  const ValueId picked = value("picked", {pairs, 2 * 96}, DType::BFloat16);
  const ValueId biased = value("biased", {pairs, 2 * 96}, DType::BFloat16);
  const std::vector<Op> more{
      op("aten.repeat_interleave.Tensor", {sum->args.front()}, places),
      op("aten.index_select.default", {Arg{ParamRef{bias}}, Arg{std::int64_t{0}}, Arg{ValueRef{places}}}, picked),
      op("aten.add.Tensor", {Arg{ValueRef{rows}}, Arg{ValueRef{picked}}}, biased)};
  const auto at = product - model.ops.begin() + 1;
  for (ValueInfo& each : model.values)
    if (each.held.op >= at) each.held.op += 3;
  if (model.loss_begin >= at) model.loss_begin += 3;
  EXPECT_EQ(model.ops[static_cast<std::size_t>(at)].name, "aten.split.Tensor");
  model.ops[static_cast<std::size_t>(at)].args.front() = Arg{ValueRef{biased}};
  model.ops.insert(model.ops.begin() + at, more.begin(), more.end());
  return model;
}

TEST(ExpertModel, BiasesOfExpertsArePickedForTheRowsThatCome) {
  const Job job = job_of();
  const Model model = rank_model(with_biases(mixtral(job)), job).value();
  const auto shape = [&](const Op& op) { return model.values[op.out.front().index()].shape; };
  const std::int64_t received = 2 * 48, padded = received + 2 * 8;
  const auto* sizes = std::get_if<ValueRef>(&only(model, "aten.repeat_interleave.Tensor", 0).args.front().value);
  ASSERT_NE(sizes, nullptr);
  EXPECT_EQ(model.values[sizes->id.index()].shape, (Shape{kExperts / kExpertRanks}));
  EXPECT_EQ(shape(only(model, "aten.index_select.default", 0)), (Shape{received, 2 * 96}));
  EXPECT_EQ(model.params.back().shape, (Shape{kExperts / kExpertRanks, 2 * 96}));
  // Zeros stand behind what came, as long as the padded rows that it is added to.
  const auto makes = [&](const char* name, const Shape& made) {
    return std::any_of(model.ops.begin(), model.ops.end(),
                       [&](const Op& op) { return op.name == name && shape(op) == made; });
  };
  EXPECT_TRUE(makes("aten.new_zeros.default", {padded - received, 2 * 96}));
  EXPECT_TRUE(makes("aten.cat.default", {padded, 2 * 96}));
  EXPECT_GE(told_how_many_rows(model), 0);  // as many as the plan takes to be missing: not run
  EXPECT_TRUE(build_plan(model, job).has_value());
}

TEST(ExpertModel, ProgramsThatAreToldHowManyRowsComeCannotBeRun) {
  const Job job = job_of();
  const Model model = rank_model(mixtral(job), job).value();
  EXPECT_EQ(told_how_many_rows(model), -1);
  const auto product = std::find_if(model.ops.begin(), model.ops.end(),
                                    [](const Op& op) { return op.name == "aten._grouped_mm.default"; });
  const std::int64_t rows = model.values[product->out.front().index()].shape.front();
  Model told = model;
  Op& op = told.ops[static_cast<std::size_t>(product - model.ops.begin()) + 1];
  ASSERT_EQ(op.name, "aten.split.Tensor");
  op.name = "aten.view.default";
  op.args[1] = Arg{ArgList{Arg{rows}, Arg{std::int64_t{2 * 96}}}};
  EXPECT_EQ(told_how_many_rows(told), product - model.ops.begin() + 1);
  std::get<ArgList>(op.args[1].value).front() = Arg{std::int64_t{-1}};
  EXPECT_EQ(told_how_many_rows(told), -1);
  op.name = "aten.slice.Tensor";
  op.args = {op.args.front(), Arg{std::int64_t{0}}, Arg{std::int64_t{0}}, Arg{rows}};
  EXPECT_EQ(told_how_many_rows(told), product - model.ops.begin() + 1);
}

TEST(ExpertModel, RanksThatShareASequenceSendTheirOwnPartsChoices) {
  Job job = job_of();
  job.mesh.context = 2;
  job.mesh.expert = kExpertRanks;
  job.model.attention = "sdpa_flash";
  ModelOptions part = rank_model_options(job);
  Job own = job;
  own.model = part;
  const Model model = rank_model(mixtral(own), job).value();
  EXPECT_TRUE(sends_chosen_tokens(model));
  const std::int64_t pairs = 2 * 48 / 2;  // of half of the tokens, two choices each
  const Op& sent = only(model, "mesh.all_to_all", 1);
  EXPECT_EQ(model.values[sent.out.front().index()].shape.front(), pairs);
  const Plan plan = build_plan(model, job).value();
  const auto holds = [&](const std::string& name) {
    return std::any_of(plan.communicators.begin(), plan.communicators.end(),
                       [&](const PlanCommunicator& group) { return group.kind == name; });
  };
  EXPECT_TRUE(holds("context"));
  EXPECT_TRUE(holds("expert"));
}

TEST(ExpertModel, ChosenTokensTakeMoreTheMoreUnevenTheyAre) {
  const auto peak = [](double imbalance) {
    Job job = job_of();
    job.mesh.expert_imbalance = imbalance;
    const Model model = rank_model(mixtral(job), job).value();
    EXPECT_TRUE(build_plan(model, job).has_value());
    std::int64_t rows = 0;
    for (const ValueInfo& value : model.values) rows = std::max(rows, value.shape.empty() ? 0 : value.shape.front());
    return rows;
  };
  EXPECT_EQ(peak(2.0) - peak(1.0), 96);
}

TEST(ExpertModel, ProductsByGroupsNameExperts) {
  Job job = job_of();
  job.model.source = FORESHARD_TEST_DATA "/models/deepseek_v3-tiny/config.json";
  const Model model = rank_model(load_model(job.model, {}).value(), job).value();
  EXPECT_TRUE(sends_chosen_tokens(model));
  EXPECT_TRUE(build_plan(model, job).has_value());
}

TEST(ExpertModel, NobodyKnowsHowToCutAModelWithoutAPlan) {
  Job job = job_of();
  job.model.source = FORESHARD_TEST_DATA "/models/gpt2/config.json";
  job.mesh.tensor = 2;
  job.mesh.expert = 1;
  const auto untold = rank_model(load_model(job.model, {}).value(), job);
  ASSERT_FALSE(untold.has_value());
  EXPECT_EQ(untold.error().place, "mesh.plan");
}

TEST(ExpertModel, SaysWhichLayersStayWholeBesideExperts) {
  Job job = job_of();
  job.model.source = FORESHARD_TEST_DATA "/models/qwen2_moe-tiny/config.json";
  job.mesh.tensor = 2;
  const auto build = [&](const ModelOptions& part) { return load_model(part, {}); };
  const auto warned = [&](const Plan& plan) {
    return std::any_of(plan.warnings.begin(), plan.warnings.end(), [](const std::string& text) {
      return text.find("layers beside the experts stay whole on every tensor rank (model.layers.0.mlp.shared_expert") !=
             std::string::npos;
    });
  };
  EXPECT_TRUE(warned(build_plan(rank_model(load_model(job.model, {}).value(), job, build).value(), job).value()));
  EXPECT_FALSE(
      warned(build_plan(cut_beside_tensor(beside_tensor()).value(), beside_tensor()).value()));  // a router alone
}

TEST(ExpertModel, RefusesDegreesThatDoNotDivideTheExperts) {
  Job job = job_of();
  job.mesh.expert = 3;
  const auto uneven = rank_model(whole_model(job), job);
  ASSERT_FALSE(uneven.has_value());
  EXPECT_EQ(uneven.error().place, "mesh.expert");
  job.mesh.expert = 5;
  EXPECT_FALSE(check_mesh(job).has_value());
}

}  // namespace
}  // namespace foreshard
