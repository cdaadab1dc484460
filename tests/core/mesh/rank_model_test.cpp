// What core/mesh makes of a whole model, and what planning and lowering make of that.
#include "core/mesh/rank_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/lowering/lowering.h"
#include "core/mesh/cut.h"
#include "core/model/families/config_model.h"
#include "core/plan/build_plan.h"

namespace foreshard {
namespace {

constexpr std::int64_t kLayers = 2, kTensor = 2;

Job job_of(bool sequence, bool loss) {
  Job job;
  job.model.batch = 2;
  job.model.seq = 24;
  job.model.seq_given = true;
  job.model.loss = "cross_entropy_fp32";
  job.mesh.tensor = kTensor;
  job.mesh.sequence_parallel = sequence;
  job.mesh.loss_parallel = loss;
  job.cluster.world_size = 6;
  job.cluster.rank = 3;  // second of its pair, second of three
  job.train.clip_grad_norm = sequence ? 1.0 : 0.0;
  return job;
}

Model whole_model(const Job& job, const std::string& changed = "{}") {
  auto config = nlohmann::json::parse(R"({"model_type": "titan_llama", "dim": 48, "n_layers": 2, "n_heads": 6,
    "n_kv_heads": 2, "ffn": 56, "vocab_size": 101, "max_seq": 64})");
  config.update(nlohmann::json::parse(changed));
  ProgramOptions program;
  program.compute_dtype = DType::BFloat16;
  return model_from_config_json(config, "titan", job.model, program).value();
}

std::map<std::string, std::int64_t> collectives_of(const Model& model) {
  std::map<std::string, std::int64_t> count;
  for (const Op& op : model.ops)
    if (op.name.starts_with("mesh.")) ++count[op.name];
  return count;
}

const ParamInfo& param(const Model& model, const char* name) { return model.params[model.find_param(name).index()]; }

const Trap* trap(const Plan& plan, std::int32_t number) {
  const auto at = std::find_if(plan.traps.begin(), plan.traps.end(), [&](const Trap& t) { return t.number == number; });
  return at == plan.traps.end() ? nullptr : &*at;
}

struct Meetings {
  std::int64_t forward = 0, backward = 0;
};
Meetings meetings_of(const Model& model, KernelCollective kind) {
  const std::vector<bool> trainable(model.params.size(), true);
  const auto end = static_cast<std::int32_t>(model.ops.size());
  const LoweredProgram lowered = lower(model, {{0, end, false, -1}}, trainable).value();
  Meetings met;
  const SegmentTemplate& only = lowered.templates.front();
  for (const Kernel& kernel : only.forward.kernels) met.forward += kernel.collective == kind ? 1 : 0;
  for (const Kernel& kernel : only.backward.kernels) met.backward += kernel.collective == kind ? 1 : 0;
  return met;
}

TEST(RankModel, CutsParametersAndSaysWhichPart) {
  const Job job = job_of(true, true);
  const Model model = rank_model(whole_model(job), job).value();
  EXPECT_EQ(param(model, "layers.1.attention.wq.weight").shape, (Shape{24, 48}));
  EXPECT_EQ(param(model, "layers.1.attention.wo.weight").shape, (Shape{48, 24}));
  EXPECT_EQ(param(model, "layers.1.attention.wo.weight").part.begin, 24);
  const ParamInfo& table = param(model, "tok_embeddings.weight");  // 101 rows: 51 and 50
  EXPECT_EQ(table.shape, (Shape{50, 48}));
  EXPECT_EQ(table.part.begin, 51);
  EXPECT_EQ(table.part.whole, 101);
  EXPECT_EQ(table.part.gradient, MeshPart::Gradient::Whole);
  EXPECT_EQ(param(model, "norm.weight").part.gradient, MeshPart::Gradient::Term);
  ASSERT_EQ(model.mesh.size(), 1U);
  EXPECT_EQ(model.mesh.front().ranks, (std::vector<std::int32_t>{2, 3}));
}

TEST(RankModel, SequenceParallelGathersAndScatters2LPlus1) {
  const Job job = job_of(true, true);
  const Model model = rank_model(whole_model(job), job).value();
  auto count = collectives_of(model);
  EXPECT_EQ(count["mesh.all_gather"], 2 * kLayers + 1);
  EXPECT_EQ(count["mesh.reduce_scatter"], 2 * kLayers + 1);
  EXPECT_EQ(count["mesh.log_softmax"], 1);
  const Meetings scattered = meetings_of(model, KernelCollective::ReduceScatter);
  EXPECT_EQ(scattered.forward, 2 * kLayers + 1);
  EXPECT_EQ(scattered.backward, 2 * kLayers + 1);
  const Meetings summed = meetings_of(model, KernelCollective::AllReduce);  // of the loss: max, sum, sum
  EXPECT_EQ(summed.forward, 3);
  EXPECT_EQ(summed.backward, 0);
}

TEST(RankModel, PlainTensorParallelismSumsOncePerColumnwiseLayerInBackward) {
  const Job job = job_of(false, false);
  const Model model = rank_model(whole_model(job), job).value();
  const Meetings summed = meetings_of(model, KernelCollective::AllReduce);
  EXPECT_EQ(summed.forward, 2 * kLayers + 1);
  EXPECT_EQ(summed.backward, 5 * kLayers + 1);
  EXPECT_EQ(param(model, "norm.weight").part.dimension, -1);
}

TEST(RankModel, PlansByPatternsReplaceTheArchitectures) {
  Job job = job_of(true, true);
  for (const ParallelStyle& style : whole_model(job).parallel)
    if (style.style != "gather") job.mesh.plan[style.modules] = style.style;
  const Model model = rank_model(whole_model(job), job).value();
  EXPECT_EQ(collectives_of(model)["mesh.all_gather"], 5 * kLayers + 1);  // each projection for itself
}

TEST(RankModel, RepeatedHeadsOfOneAreAView) {
  const Job job = job_of(true, true);  // one key head a rank
  const Model whole = whole_model(job), model = rank_model(whole, job).value();
  const auto clones = [](const Model& m) {
    return std::count_if(m.ops.begin(), m.ops.end(), [](const Op& op) { return op.name == "aten.clone.default"; });
  };
  EXPECT_EQ(clones(whole), 2 * kLayers);
  EXPECT_EQ(clones(model), 0);
}

TEST(RankModel, SaysWhatDoesNotDivide) {
  Job job = job_of(true, true);
  job.mesh.tensor = 4;
  auto made = rank_model(whole_model(job), job);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().place, "mesh.tensor");
  job = job_of(true, true);
  made = rank_model(whole_model(job, R"({"n_heads": 3, "n_kv_heads": 3})"), job);  // 3 heads over 2 ranks
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().got, "3");
  EXPECT_EQ(made.error().place, "layers.0.attention");
  made = rank_model(whole_model(job, R"({"n_kv_heads": 1})"), job);  // its width divides, the one head does not
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().got, "1");
  EXPECT_NE(made.error().message.find("RuntimeError: shape is invalid for input"), std::string::npos);
  made = rank_model(whole_model(job, R"({"ffn": 57})"), job);
  ASSERT_FALSE(made.has_value());
  EXPECT_NE(made.error().message.find("RuntimeError"), std::string::npos);
  job.model.seq = 23;
  made = rank_model(whole_model(job), job);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().place, "mesh.sequence_parallel");
  job = job_of(true, true);
  job.mesh.plan = {{"layers.*.nothing", "colwise"}};
  EXPECT_EQ(rank_model(whole_model(job), job).error().place, "mesh.plan");
  job.mesh.plan = {{"layers.*.attention.wq", "colwise"}};  // its heads meet whole ones
  EXPECT_EQ(rank_model(whole_model(job), job).error().code, ErrorCode::Inconsistent);
}

/// PrepareModuleInput's result is the argument of the call, saved for backward or not.
TEST(RankModel, AGatheredInputIsNamedUntilItsModuleReturns) {
  const Job job = job_of(true, true);
  const Model model = rank_model(whole_model(job), job).value();
  std::int64_t named = 0;
  for (const Op& op : model.ops) {
    if (op.name != "mesh.all_gather") continue;
    const Hold& held = model.values[op.out.front().index()].held;
    EXPECT_EQ(held.until, Hold::Until::Call);
    named += held.by == op.module ? 1 : 0;
  }
  EXPECT_EQ(named, 2 * kLayers + 1);
}

/// The second block of three segments is checkpointed.
struct CheckpointedBlock {
  explicit CheckpointedBlock(const Model& model, const LoweringOptions& options = {}) {
    const auto inside = [&](const Op& op) {
      return op.module.valid() && model.modules[op.module.index()].fqn.starts_with("layers.1.");
    };
    const auto first = std::find_if(model.ops.begin(), model.ops.end(), inside);
    const auto last = std::find_if(model.ops.rbegin(), model.ops.rend(), inside).base() + 1;  // and the residual sum
    const auto begin = static_cast<std::int32_t>(first - model.ops.begin());
    const auto end = static_cast<std::int32_t>(last - model.ops.begin());
    const auto all = static_cast<std::int32_t>(model.ops.size());
    const std::vector<bool> trainable(model.params.size(), true);
    lowered =
        lower(model, {{0, begin, false, -1}, {begin, end, true, 0}, {end, all, false, -1}}, trainable, options).value();
    block = lowered.templates[static_cast<std::size_t>(lowered.instances[1].lowered)];
  }
  std::int64_t count(const std::vector<Kernel>& kernels, std::string_view name) const {
    return std::count_if(kernels.begin(), kernels.end(), [&](const Kernel& kernel) {
      return lowered.op_names[static_cast<std::size_t>(kernel.op)] == name;
    });
  }
  LoweredProgram lowered;
  SegmentTemplate block;
};

// Recorded lifetimes are those of the whole model: arguments of calls live on until the collectives that came in are
// done.
TEST(RankModel, RecordedArgumentsOutliveTheCollectivesOfTheirCalls) {
  const Job job = job_of(true, true);
  Model whole = whole_model(job);
  whole.lifetimes = Lifetimes::Recorded;
  for (ValueInfo& value : whole.values) value.held = {};
  for (std::size_t i = 0; i + 1 < whole.ops.size(); ++i) {  // as recorded: until the layer's last operator has run
    if (whole.ops[i].name != "aten.mm.default" || whole.ops[i + 1].name != "aten._unsafe_view.default") continue;
    const ValueId read = std::get<ValueRef>(whole.ops[i].args.front().value).id;
    whole.values[read.index()].held = {Hold::Until::Op, static_cast<std::int32_t>(i + 1), {}};
  }
  const CheckpointedBlock checkpointed(rank_model(std::move(whole), job).value());
  const KernelList& forward = checkpointed.block.forward;
  const auto last = [&](std::string_view name) -> const Kernel& {
    const auto at = std::find_if(forward.kernels.rbegin(), forward.kernels.rend(), [&](const Kernel& kernel) {
      return checkpointed.lowered.op_names[static_cast<std::size_t>(kernel.op)] == name;
    });
    EXPECT_NE(at, forward.kernels.rend()) << name;
    return *at;
  };
  const auto let_go = [&](const Kernel& maker) {  // place of the event
    const auto made =
        std::find_if(forward.events.begin() + maker.before_begin, forward.events.begin() + maker.before_end,
                     [](const MemoryEvent& event) { return event.alloc; });
    const auto gone = std::find_if(made, forward.events.end(), [&](const MemoryEvent& event) {
      return event.slot == made->slot && !event.alloc && !event.noted;
    });
    return gone - forward.events.begin();
  };
  const std::ptrdiff_t scattered = last("_c10d_functional.reduce_scatter_tensor").before_end;
  EXPECT_GE(let_go(last("aten.mul.Tensor")), scattered) << "what the rowwise layer reads";
  EXPECT_GE(let_go(last("aten._fused_rms_norm.default")), scattered) << "what the feed-forward was called with";
}

TEST(RankModel, NamesOfAForwardGoBeforeTheCollectivesBehindIt) {  // which its hooks run
  Job job = job_of(true, true);
  const char* moe = R"({"moe": {"experts": 4, "top_k": 2, "ffn": 40}})";
  for (const ParallelStyle& style : whole_model(job, moe).parallel)
    if (style.modules.find("moe") == style.modules.npos && style.modules.find("feed_forward") == style.modules.npos)
      job.mesh.plan[style.modules] = style.style;
  job.mesh.plan.insert(
      {{"layers.*.moe", "summed"}, {"layers.*.moe.gate", "replicate"}, {"layers.*.moe.experts", "expert_tensor"}});
  Model whole = whole_model(job, moe);
  whole.lifetimes = Lifetimes::Recorded;
  for (ValueInfo& value : whole.values) value.held = {};
  const ModuleId inner = whole.find_module("layers.0.moe");
  std::int32_t named = -1, last = -1;
  for (std::size_t i = 0; i < whole.ops.size(); ++i) {
    if (whole.ops[i].module != inner) continue;
    last = static_cast<std::int32_t>(i);
    if (whole.ops[i].name == "aten.mul.Tensor") named = whole.ops[i].out.front().value;
  }
  ASSERT_GE(named, 0);
  whole.values[static_cast<std::size_t>(named)].held = {Hold::Until::Op, last, {}};
  Model model = rank_model(std::move(whole), job).value();
  const auto end = static_cast<std::int32_t>(model.ops.size());
  std::vector<bool> frozen(model.params.size(), false);
  const LoweredProgram lowered = lower(model, {{0, end, false, -1}}, frozen).value();
  const KernelList& forward = lowered.templates.front().forward;
  const auto next = [&](std::size_t from, std::string_view name) {
    while (from < forward.kernels.size() &&
           lowered.op_names[static_cast<std::size_t>(forward.kernels[from].op)] != name)
      ++from;
    EXPECT_LT(from, forward.kernels.size()) << name;
    return from;
  };
  std::size_t product = next(0, "aten.silu.default");
  for (int k = 0; k < 2; ++k) product = next(product + 1, "aten.bmm.default");  // w3, w2
  product = next(product, "aten.mul.Tensor");                                   // by the scores
  const std::size_t scatter = next(product, "_c10d_functional.reduce_scatter_tensor");
  const auto made = forward.events.begin() + forward.kernels[product].before_begin;
  ASSERT_TRUE(made->alloc);
  const auto gone = std::find_if(made, forward.events.end(),
                                 [&](const MemoryEvent& event) { return event.slot == made->slot && !event.alloc; });
  EXPECT_LE(gone - forward.events.begin(), forward.kernels[scatter].before_begin);
}

TEST(RankModel, AKeptReduceScatterIsLaidOutAgain) {
  const Job job = job_of(true, true);
  const Model model = rank_model(whole_model(job), job).value();
  const CheckpointedBlock again(model);
  LoweringOptions keeping;
  keeping.saved.names = {"mesh.reduce_scatter"};
  const CheckpointedBlock kept(model, keeping);
  const auto of = [](const CheckpointedBlock& one, std::string_view name) {
    return one.count(one.block.recompute.kernels, name);
  };
  EXPECT_EQ(of(again, "_c10d_functional.reduce_scatter_tensor"), 1);
  EXPECT_EQ(of(kept, "_c10d_functional.reduce_scatter_tensor"), 0);
  EXPECT_EQ(of(kept, "aten.cat.default"), of(again, "aten.cat.default"));
}

/// What queries, keys and values share has two sums, what gate and up share one: these are of DTensors.
TEST(RankModel, GradientsOfDTensorsAreSummedOutOfPlace) {
  const Job job = job_of(true, true);
  const Model model = rank_model(whole_model(job), job).value();
  LoweringOptions host;
  host.cpu_threads = 1;  // whose executor sums in place
  const CheckpointedBlock device(model), executed(model, host);
  const auto of = [](const CheckpointedBlock& one, std::string_view name) {
    return one.count(one.block.backward.kernels, name);
  };
  EXPECT_EQ(of(device, "aten.add.Tensor"), 3);
  EXPECT_LT(of(executed, "aten.add.Tensor"), 3);
  EXPECT_EQ(of(device, "aten.add.Tensor") + of(device, "aten.add_.Tensor"),
            of(executed, "aten.add.Tensor") + of(executed, "aten.add_.Tensor"));
}

/// The gradient of what was scattered is gathered before anything that was not saved is asked for.
TEST(RankModel, BackwardGathersBeforeItComputesTheBlockAgain) {
  for (const bool sequence : {true, false}) {
    const Job job = job_of(sequence, true);
    const Model model = rank_model(whole_model(job), job).value();
    const SegmentTemplate block = CheckpointedBlock(model).block;
    ASSERT_FALSE(block.recompute.kernels.empty());
    EXPECT_EQ(block.early_backward > 0, sequence);
    std::int64_t gathers = 0;
    for (std::int32_t k = 0; k < block.early_backward; ++k)
      gathers += block.backward.kernels[static_cast<std::size_t>(k)].collective == KernelCollective::AllGather ? 1 : 0;
    EXPECT_EQ(gathers, sequence ? 1 : 0);
  }
}

TEST(RankModel, ALayerOutsideOfThePlanCannotReadWhatASequenceModuleHandsOn) {  // recorded: y33
  Job job = job_of(true, false);
  Model model = whole_model(job);
  for (const ParallelStyle& style : model.parallel)
    if (style.style != "head") job.mesh.plan[style.modules] = style.style;
  const auto made = rank_model(std::move(model), job);
  ASSERT_FALSE(made.has_value());
  EXPECT_NE(made.error().message.find("mixed torch.Tensor and DTensor"), std::string::npos) << to_text(made.error());
}

TEST(RankModel, PlansGroupsGradientsAndNorm) {
  const Job job = job_of(true, true);
  const Model model = rank_model(whole_model(job), job).value();
  const Plan plan = build_plan(model, job).value();
  EXPECT_EQ(plan.groups.shard, (std::vector<std::int32_t>{1, 3, 5}));
  ASSERT_EQ(plan.communicators.size(), 2U);
  EXPECT_EQ(plan.communicators[1].kind, "tensor");
  std::int64_t placed = 0, norms = 0;
  for (const Instruction& i : plan.iterations.back().instructions) {
    placed += i.kind == InstructionKind::AllReduce && i.stream == Stream::M ? 1 : 0;
    norms += i.kind == InstructionKind::AllReduce && i.phase == Phase::Clip ? 1 : 0;
  }
  EXPECT_EQ(placed, 2 * kLayers + 1);  // the norms' weights
  EXPECT_EQ(norms, 2);                 // over data, then over tensor
}

TEST(RankModel, NamesTrapsAndRefusals) {
  Job job = job_of(false, true);
  job.train.clip_grad_norm = 1.0;
  const auto mixed = build_plan(rank_model(whole_model(job), job).value(), job);
  ASSERT_FALSE(mixed.has_value());
  EXPECT_NE(mixed.error().message.find("same mesh"), std::string::npos);
  job.fsdp.allow_traps = {45};
  const Plan apart = build_plan(rank_model(whole_model(job), job).value(), job).value();
  std::vector<Numel> norms;  // of tensors' parameters over data and tensor, of the others over data
  for (const Instruction& i : apart.iterations.back().instructions)
    if (i.kind == InstructionKind::AllReduce && i.phase == Phase::Clip) norms.push_back(i.numel);
  EXPECT_EQ(norms, (std::vector<Numel>{16, 16, 5}));
  EXPECT_NE(trap(apart, 45), nullptr);
  job.fsdp.runtime = Runtime::Fsdp1;
  const auto clipped = build_plan(rank_model(whole_model(job), job).value(), job);
  ASSERT_FALSE(clipped.has_value());
  EXPECT_NE(clipped.error().message.find("trap 27"), std::string::npos);
  job.fsdp.allow_traps = {27};
  EXPECT_TRUE(build_plan(rank_model(whole_model(job), job).value(), job).has_value());
}

TEST(RankModel, WhatNothingReadsIsOnNoMeshThatIsClipped) {
  Job job = job_of(true, true);
  job.train.clip_grad_norm = 1.0;
  Model whole = whole_model(job);
  whole.params.push_back({"unused", {64, 64}, DType::Float32, true, ModuleId(0)});
  whole.modules.front().params.emplace_back(whole.params.size() - 1);
  const auto plan = build_plan(rank_model(std::move(whole), job).value(), job);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_EQ(trap(*plan, 45), nullptr);
}

TEST(RankModel, ShardsKeptAmongFewRanksAreRefusedAsPyTorchDoes) {  // to_sharded_post_forward
  Job job = job_of(true, true);
  job.fsdp.reshard_after_forward = {ReshardAfterForward::Kind::GroupSize, 2};
  job.cluster.world_size = 8;  // shard groups of four
  const auto kept = build_plan(rank_model(whole_model(job), job).value(), job);
  ASSERT_FALSE(kept.has_value());
  EXPECT_EQ(kept.error().code, ErrorCode::Refused);
  EXPECT_NE(kept.error().message.find("NotImplementedError"), std::string::npos);
  job.fsdp.reshard_after_forward = {ReshardAfterForward::Kind::False, 0};
  EXPECT_TRUE(build_plan(rank_model(whole_model(job), job).value(), job).has_value());
}

TEST(RankModel, OriginalParametersThatAreDTensorsFailWherePyTorchDoes) {  // recorded on the virtual device
  Job job = job_of(false, true);
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.use_orig_params = true;
  const auto error_of = [&] {
    const auto plan = build_plan(rank_model(whole_model(job), job).value(), job);
    return plan ? std::string() : plan.error().message;
  };
  EXPECT_EQ(error_of(), "");
  job.fsdp.strategy = Strategy::NoShard;
  EXPECT_NE(error_of().find("Cannot writeback"), std::string::npos);
  job.fsdp.use_orig_params = false;
  EXPECT_EQ(error_of(), "");
  job.fsdp.strategy = Strategy::FullShard;
  job.fsdp.use_orig_params = true;
  job.train.micro_batches = 2;
  EXPECT_EQ(error_of(), "");
  job.train.no_sync = true;
  EXPECT_NE(error_of().find("invalid python storage"), std::string::npos);
  job.fsdp.use_orig_params = false;
  EXPECT_EQ(error_of(), "");
}

TEST(RankModel, FsdpOnePlacesGradientsBehindAllOperatorsOfTheirUnit) {
  Job job = job_of(true, true);
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.wrap.policy = WrapPolicyKind::ModuleClass;
  job.fsdp.wrap.classes = {"TransformerBlock"};
  job.train.clip_grad_norm = 0;
  const Model model = rank_model(whole_model(job), job).value();
  std::vector<std::string> copied;  // views become DTensors when their unit is gathered, before its first operator
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    const Op& op = model.ops[i];
    if (op.name != "mesh.copy") continue;
    const ParamInfo& read = model.params[std::get<ParamRef>(op.args.front().value).id.index()];
    copied.push_back(read.fqn);
    EXPECT_EQ(op.args.size() > 2, read.fqn == "tok_embeddings.weight");  // of all rows, its own are taken
    const bool first = i == 0 || model.ops[i - 1].module != op.module || model.ops[i - 1].name == "mesh.copy";
    EXPECT_TRUE(first) << read.fqn;
  }
  EXPECT_EQ(copied, (std::vector<std::string>{"tok_embeddings.weight", "norm.weight", "layers.0.attention_norm.weight",
                                              "layers.0.ffn_norm.weight", "layers.1.attention_norm.weight",
                                              "layers.1.ffn_norm.weight"}));
  EXPECT_TRUE(build_plan(model, job).has_value());
}

mesh::Cut cut_along(std::int32_t dim, std::int64_t whole, std::int64_t after = 1) {
  mesh::Cut cut;
  cut.dim = dim;
  cut.whole = whole;
  cut.after = after;
  return cut;
}

/// The only result's cut over two ranks.
mesh::Cut carried(Op& op, const std::vector<mesh::CutTensor>& args, const Shape& result) {
  return mesh::carry_on(op, args, {result}, {2, 0}, "here").value().front();
}

Arg arg_of(std::int64_t value) { return Arg{value}; }

TEST(RankModel, PartsOfAFusedProjectionAreEqualSharesOfARanksRows) {
  const Arg value{ValueRef{ValueId(0)}};
  const mesh::CutTensor fused{{2, 16, 96}, cut_along(2, 96)};
  Op even{.name = "aten.split.Tensor", .module = {}, .args = {value, arg_of(32), arg_of(-1)}, .kwargs = {}, .out = {}};
  const auto thirds = mesh::carry_on(even, {fused}, {{2, 16, 32}, {2, 16, 32}, {2, 16, 32}}, {2, 0}, "here").value();
  for (const mesh::Cut& cut : thirds) EXPECT_TRUE(cut.apart && cut.dim == 2 && cut.whole == 32);
  EXPECT_EQ(std::get<std::int64_t>(even.args[1].value), 16);
  Op uneven{.name = "aten.split_with_sizes.default",
            .module = {},
            .args = {value, Arg{ArgList{arg_of(64), arg_of(16), arg_of(16)}}, arg_of(2)},
            .kwargs = {},
            .out = {}};
  const auto grouped = mesh::carry_on(uneven, {fused}, {{2, 16, 64}, {2, 16, 16}, {2, 16, 16}}, {2, 0}, "here").value();
  EXPECT_EQ(grouped.back().whole, 16);
  EXPECT_EQ(std::get<std::int64_t>(std::get<ArgList>(uneven.args[1].value)[1].value), 8);
  Op torn{.name = "aten.split.Tensor", .module = {}, .args = {value, arg_of(3), arg_of(-1)}, .kwargs = {}, .out = {}};
  const mesh::CutTensor narrow{{2, 16, 6}, cut_along(2, 6)};
  EXPECT_FALSE(mesh::carry_on(torn, {narrow}, {{2, 16, 3}, {2, 16, 3}}, {2, 0}, "here").has_value());
}

TEST(RankModel, FusedProjectionsAreRefusedUnlessAllowed) {
  Job job = job_of(true, true);
  Model model = rank_model(whole_model(job), job).value();
  model.parallel.push_back({"layers.0.attention", "fused"});
  const auto refused = build_plan(model, job);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("trap 53"), std::string::npos);
  job.fsdp.allow_traps = {53};
  EXPECT_EQ(trap(build_plan(model, job).value(), 53)->units, (std::vector<std::string>{"layers.0.attention"}));
}

TEST(RankModel, WholeParametersThatReadWhatIsCutAreNamed) {
  Job job = job_of(false, false);
  job.model.source = "qwen3";
  const auto config = nlohmann::json::parse(R"({"model_type": "qwen3", "hidden_size": 48, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 101,
    "max_position_embeddings": 64})");
  const Model whole = model_from_config_json(config, "qwen3", job.model, {}).value();
  const auto refused = build_plan(rank_model(whole, job).value(), job);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("trap 54"), std::string::npos);
  job.fsdp.allow_traps = {54};
  const Plan plan = build_plan(rank_model(whole, job).value(), job).value();
  EXPECT_EQ(trap(plan, 54)->units, (std::vector<std::string>{"model.layers.0.self_attn.q_norm.weight",
                                                             "model.layers.0.self_attn.k_norm.weight"}));
  job.mesh.sequence_parallel = true;  // style sequence: their gradients are summed
  EXPECT_EQ(trap(build_plan(rank_model(whole, job).value(), job).value(), 54), nullptr);
}

TEST(RankModel, CarriesCutsThroughWhatExportedProgramsHave) {
  const Arg value{ValueRef{ValueId(0)}};
  Op flat{.name = "aten.flatten.using_ints", .module = {}, .args = {value, arg_of(2)}, .kwargs = {}, .out = {}};
  const mesh::CutTensor heads{{2, 16, 4, 8}, cut_along(2, 4)};
  EXPECT_EQ(carried(flat, {heads}, {2, 16, 32}), cut_along(2, 4, 8));
  Op apart{.name = "aten.unflatten.int",
           .module = {},
           .args = {value, arg_of(-1), Arg{ArgList{arg_of(4), arg_of(8)}}},
           .kwargs = {},
           .out = {}};
  EXPECT_EQ(carried(apart, {{{2, 16, 32}, cut_along(2, 32)}}, {2, 16, 4, 8}).dim, 2);
  EXPECT_EQ(std::get<std::int64_t>(std::get<ArgList>(apart.args[2].value)[0].value), 2);  // of four heads
  EXPECT_EQ(std::get<std::int64_t>(std::get<ArgList>(apart.args[2].value)[1].value), 8);
  Op scores{.name = "aten.matmul.default", .module = {}, .args = {value, value}, .kwargs = {}, .out = {}};
  const mesh::CutTensor query{{2, 4, 16, 8}, cut_along(1, 4)}, keys{{2, 4, 8, 16}, cut_along(1, 4)};
  EXPECT_EQ(carried(scores, {query, keys}, {2, 4, 16, 16}), cut_along(1, 4));
  EXPECT_TRUE(carried(scores, {{{2, 16, 8}, cut_along(2, 8)}, {{8, 4}, cut_along(0, 8)}}, {2, 16, 4}).term);
  EXPECT_FALSE(mesh::carry_on(scores, {query, {{2, 4, 8, 16}, {}}}, {{2, 4, 16, 16}}, {2, 0}, "here").has_value());
  Op again{.name = "aten.repeat_interleave.self_int",
           .module = {},
           .args = {value, arg_of(2), arg_of(1)},
           .kwargs = {},
           .out = {}};
  const mesh::Cut repeated = carried(again, {{{2, 2, 16, 8}, cut_along(1, 2)}}, {2, 4, 16, 8});
  EXPECT_EQ(mesh::local_shape({2, 4, 16, 8}, repeated, {2, 0}), (Shape{2, 2, 16, 8}));
}

TEST(RankModel, SaysWhereOneInputIsSummedOrGatheredAgainAndAgain) {
  Job job = job_of(false, true);
  const Plan plain = build_plan(rank_model(whole_model(job), job).value(), job).value();
  ASSERT_NE(trap(plain, 48), nullptr);  // 5 L + 1 sums, of 2 L + 1 inputs
  EXPECT_NE(trap(plain, 48)->text.find("11 all-reduces"), std::string::npos);
  EXPECT_NE(trap(plain, 48)->text.find("5 inputs"), std::string::npos);
  EXPECT_EQ(trap(plain, 49), nullptr);
  job = job_of(true, true);
  const Model whole = whole_model(job);
  const Plan shared = build_plan(rank_model(whole, job).value(), job).value();
  EXPECT_EQ(trap(shared, 48), nullptr);
  EXPECT_EQ(trap(shared, 49), nullptr);
  for (const ParallelStyle& style : whole.parallel)
    if (style.style != "gather") job.mesh.plan[style.modules] = style.style;
  const Plan anew = build_plan(rank_model(whole, job).value(), job).value();
  ASSERT_NE(trap(anew, 49), nullptr);
  EXPECT_NE(trap(anew, 49)->text.find("11 gathers"), std::string::npos);
}

TEST(RankModel, ARankWithoutRowsOfATableIsPlanned) {
  Job job = job_of(true, true);
  const Model whole = whole_model(job, R"({"vocab_size": 1})");  // one row for two ranks
  const Model model = rank_model(whole, job).value();
  EXPECT_EQ(param(model, "tok_embeddings.weight").shape, (Shape{0, 48}));
  const auto plan = build_plan(model, job);
  EXPECT_TRUE(plan.has_value()) << plan.error().message;  // the gradient is of all rows: no division by none
}

TEST(RankModel, UnderFsdp1TheProgramItselfPlacesGradients) {
  Job job = job_of(true, true);
  job.fsdp.runtime = Runtime::Fsdp1;
  const Model model = rank_model(whole_model(job), job).value();
  EXPECT_EQ(collectives_of(model)["mesh.copy"], 2 * kLayers + 2);  // of the norms' weights and the table
  EXPECT_EQ(meetings_of(model, KernelCollective::AllReduce).backward, 2 * kLayers + 1);
  EXPECT_EQ(param(model, "norm.weight").part.gradient, MeshPart::Gradient::Part);
  EXPECT_EQ(param(model, "tok_embeddings.weight").part.gradient, MeshPart::Gradient::Part);
}

TEST(TitanExperts, EachTakesTheSameNumberOfTokens) {
  Job job = job_of(true, true);
  const Model model = whole_model(job, R"({"moe": {"experts": 4, "top_k": 2, "ffn": 40, "every": 2}})");
  EXPECT_EQ(param(model, "layers.0.moe.experts.w2").shape, (Shape{4, 40, 48}));
  EXPECT_TRUE(model.find_param("layers.1.feed_forward.w1.weight").valid());
  EXPECT_FALSE(model.find_param("layers.0.feed_forward.w1.weight").valid());
  const auto chosen =
      std::find_if(model.ops.begin(), model.ops.end(), [](const Op& op) { return op.name == "aten.topk.default"; });
  ASSERT_NE(chosen, model.ops.end());
  EXPECT_EQ(model.values[chosen->out[0].index()].shape, (Shape{4, 24}));  // 48 tokens x 2 / 4
  job.mesh.tensor = 1;
  EXPECT_TRUE(build_plan(model, job).has_value());
}

TEST(RankModel, ScriptsThatNobodyHasCutAreRefusedWithAPlanToo) {
  Job job = job_of(false, true);
  job.mesh.plan = {{"layers.*.attention.wq", "colwise"}};
  job.mesh.context = 2;
  job.cluster.world_size = 8;
  for (const char* loss : {"fused_linear_cross_entropy", "per_token"}) {
    job.model.loss = loss;
    const auto checked = check_mesh(job);
    ASSERT_FALSE(checked.has_value()) << loss;
    EXPECT_EQ(checked.error().place, "model.loss");
    EXPECT_EQ(checked.error().got, loss);
  }
  job.model.loss = "cross_entropy";
  EXPECT_TRUE(check_mesh(job).has_value());
  job.model.attention_mask = true;
  EXPECT_FALSE(check_mesh(job).has_value());
}

}  // namespace
}  // namespace foreshard
