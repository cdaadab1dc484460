// The same runtime over a model with operators: every way to shard, checkpoint and accumulate a small Llama gives a
// plan whose memory balances and which becomes steady.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/model/families/config_model.h"
#include "tests/core/fsdp1/fixture.h"

namespace foreshard::fsdp1_test {
namespace {

Model small_llama(const std::string& loss = "auto") {
  const nlohmann::json config = {{"model_type", "llama"},    {"architectures", {"LlamaForCausalLM"}},
                                 {"hidden_size", 64},        {"intermediate_size", 128},
                                 {"num_hidden_layers", 4},   {"num_attention_heads", 4},
                                 {"num_key_value_heads", 2}, {"vocab_size", 256},
                                 {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 128},
                                 {"hidden_act", "silu"},     {"tie_word_embeddings", false},
                                 {"rope_theta", 10000.0}};
  ModelOptions options;
  options.batch = 2;
  options.seq = 16;
  options.loss = loss;
  Result<Model> model = model_from_config_json(config, "config.json", options);
  if (!model) throw std::runtime_error(to_text(model.error()));
  return std::move(*model);
}

Job job_of(Strategy strategy, bool offload, bool original) {
  Job job;
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.strategy = strategy;
  job.fsdp.cpu_offload = offload;
  job.fsdp.use_orig_params = original;
  job.fsdp.wrap.classes = {"LlamaDecoderLayer"};
  job.cluster.world_size = 4;
  job.cluster.ranks_per_node = 2;
  return job;
}

Plan operator_plan(const Model& model, const Job& job, CheckpointKind kind, bool inside) {
  const auto need = [](auto result) {
    if (!result) throw std::runtime_error(to_text(result.error()));
    return std::move(*result);
  };
  const UnitTable table = need(build_units(model, job));
  std::vector<bool> boundary(model.modules.size(), false);
  std::vector<CheckpointKind> checkpoint(model.modules.size(), CheckpointKind::None);
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    boundary[m] = table.unit_of_module[m].valid();
    if (boundary[m] && m > 0) checkpoint[m] = kind;
  }
  const ModuleGraph graph = need(build_module_graph(model, boundary, checkpoint, inside));
  const Script script = need(script_of(job));
  return need(build_fsdp1_plan({model, job, table, graph, script}));
}

/// Allocated once, freed once, per buffer; empty if that is so.
std::string unbalanced(const Plan& plan) {
  std::set<std::string> alive;
  for (const PlanIteration& it : plan.iterations) {
    for (const Instruction& i : it.instructions) {
      if (i.buffer.what == BufferWhat::GradPiece && i.buffer.param.valid()) continue;
      const std::string name = buffer_name(plan, i.buffer);
      if (i.kind == InstructionKind::Alloc && !alive.insert(name).second) return name + " twice";
      if (i.kind == InstructionKind::Free && alive.erase(name) == 0) return name + " freed but not there";
    }
  }
  return {};
}

TEST(Fsdp1Operators, EveryCombinationIsSteadyAndBalanced) {
  const Model model = small_llama();
  for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard, Strategy::HybridShard,
                                  Strategy::HybridShardZero2}) {
    for (const CheckpointKind kind : {CheckpointKind::None, CheckpointKind::NonReentrant, CheckpointKind::Reentrant}) {
      for (const int bits : {0, 1, 2, 3, 4, 5, 6, 7}) {
        const bool inside = (bits & 1) != 0, offload = (bits & 2) != 0, accumulate = (bits & 4) != 0;
        Job job = job_of(strategy, offload, inside);
        if (accumulate) {
          job.train.micro_batches = 2;
          job.train.no_sync = true;
        }
        SCOPED_TRACE(std::string(strategy_name(strategy)) + " " + std::to_string(static_cast<int>(kind)) + " " +
                     std::to_string(bits));
        const Plan plan = operator_plan(model, job, kind, inside);
        EXPECT_FALSE(plan.failure) << plan.failure->text;
        EXPECT_TRUE(plan.steady);
        EXPECT_EQ(unbalanced(plan), "");
        const PlanIteration& last = plan.iterations.back();
        const int units = static_cast<int>(plan.units.size());
        EXPECT_EQ(
            count(last, strategy == Strategy::NoShard ? InstructionKind::AllReduce : InstructionKind::ReduceScatter),
            units);
        EXPECT_EQ(count(last, InstructionKind::Recompute) > 0, kind != CheckpointKind::None);
        EXPECT_EQ(count(last, InstructionKind::Concat), units * (accumulate ? 2 : 1));
      }
    }
  }
}

TEST(Fsdp1Operators, TheTrainingScriptsLossRunsOutsideTheRootsHooks) {  // R11
  const auto phases = [](const std::string& loss) {
    const Plan plan =
        operator_plan(small_llama(loss), job_of(Strategy::FullShard, false, true), CheckpointKind::None, true);
    std::string out = " ";
    const auto note = [&](const std::string& word) {
      if (!out.ends_with(' ' + word + ' ')) out += word + ' ';
    };
    for (const Instruction& i : plan.iterations.back().instructions) {
      if (i.unit.value != 0) continue;
      if (i.phase == Phase::PostForward || i.phase == Phase::PreBackward) note(std::string(phase_name(i.phase)));
      if (i.segment.valid() && (i.kind == InstructionKind::Forward || i.kind == InstructionKind::Backward)) {
        const bool last = i.segment.index() + 1 == plan.segments.size();
        note(std::string(i.kind == InstructionKind::Forward ? "forward" : "backward") + (last ? ":last" : ""));
      }
    }
    return out;
  };
  EXPECT_EQ(phases("auto"), " forward forward:last post_forward pre_backward backward:last backward ");
  EXPECT_EQ(phases("cross_entropy"), " forward post_forward forward:last backward:last pre_backward backward ");
}

TEST(Fsdp1Operators, CheckpointInsideTheUnitGathersTwiceOutsideReentrantThrice) {  // P9
  const Model model = small_llama();
  const Job job = job_of(Strategy::FullShard, false, true);
  const auto gathers = [&](CheckpointKind kind, bool inside) {
    return count(operator_plan(model, job, kind, inside).iterations.back(), InstructionKind::AllGather);
  };
  EXPECT_EQ(gathers(CheckpointKind::NonReentrant, true), 5 + 4);
  EXPECT_EQ(gathers(CheckpointKind::NonReentrant, false), 5 + 4);
  EXPECT_EQ(gathers(CheckpointKind::Reentrant, true), 5 + 4);
  EXPECT_EQ(gathers(CheckpointKind::Reentrant, false), 5 + 4 + 4);
}

}  // namespace
}  // namespace foreshard::fsdp1_test
