// State dicts over a mesh of data and tensor ranks beside PyTorch 2.11's own on the virtual device: model.state_dict()
// under FSDP.state_dict_type, get_model_state_dict and load_state_dict of the recorder's TitanLlama, collectives with
// whom they meet and their bytes.
#include "core/plan/actions/mesh_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/mesh/rank_model.h"
#include "core/model/families/config_model.h"
#include "core/plan/checks/checks.h"
#include "tests/core/actions/fixture.h"

namespace foreshard::actions_test {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

struct Ranks {
  std::int64_t world = 4, rank = 0;
};

Subject meshed(Runtime runtime, Ranks ranks, const char* changed = "{}", bool sequence = true) {
  Subject subject;
  Job& job = subject.job;
  job.model.batch = 1;
  job.model.seq = 24;
  job.model.seq_given = true;
  job.model.loss = "cross_entropy_fp32";
  job.fsdp.runtime = runtime;
  job.fsdp.use_orig_params = true;
  job.fsdp.mixed_precision = MixedPrecision::none();
  job.mesh.tensor = 2;
  job.mesh.sequence_parallel = sequence;
  job.cluster.world_size = ranks.world;
  job.cluster.rank = ranks.rank;
  auto config = nlohmann::json::parse(R"({"model_type": "titan_llama", "dim": 48, "n_layers": 1, "n_heads": 4,
    "n_kv_heads": 2, "ffn": 66, "vocab_size": 50, "max_seq": 64})");
  config.update(nlohmann::json::parse(changed));
  subject.model = rank_model(model_from_config_json(config, "titan", job.model, ProgramOptions()).value(), job).value();
  return subject;
}

/// "d 192": an all-gather over the data ranks; "t ...": over the tensor ranks.
std::vector<std::string> gathers_of(const Plan& plan) {
  std::vector<std::string> gathers;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.kind != InstructionKind::AllGather) continue;
    const bool tensor = plan.communicators[i.communicator.index()].kind == "tensor";
    gathers.push_back((tensor ? "t " : "d ") + std::to_string(i.bytes));
  }
  return gathers;
}

const StateEntry& entry(const std::vector<StateEntry>& entries, std::string_view key) {
  return *std::find_if(entries.begin(), entries.end(), [&](const StateEntry& one) { return one.key == key; });
}

std::vector<StateEntry> entries_of(const Subject& subject, StateKind kind) {
  static UnitTable table;
  table = units_of(subject);
  ActionRequest request;
  request.kind = kind;
  request.kind_given = true;
  return model_state({subject.model, subject.job, table}, request);
}

TEST(MeshState, Fsdp2GathersStridedShardsOverDataFirstAndOthersOverTheTensorRanks) {
  // 3 x 2 ranks, the fourth: 101 rows of the vocabulary, 16 of keys and values.
  const Subject subject = meshed(Runtime::Fsdp2, {6, 3}, R"({"n_heads": 6, "vocab_size": 101})");
  EXPECT_THAT(gathers_of(plan_of(subject, "save:full")),
              ElementsAre("d 9792", "t 19584",                                            // embedding
                          "d 192", "d 192",                                               // norms
                          "d 4608", "t 9216", "d 1728", "t 3072", "d 1728", "t 3072",     // wq, wk, wv
                          "t 3072", "d 9216",                                             // wo
                          "d 6336", "t 12672", "t 4224", "d 12672", "d 6336", "t 12672",  // w1, w2, w3
                          "d 192", "d 9792", "t 19584"));
  EXPECT_THAT(gathers_of(plan_of(subject, "save:sharded")), testing::IsEmpty());
  const auto whole = entries_of(subject, StateKind::Full);
  EXPECT_EQ(entry(whole, "tok_embeddings.weight").shape, (Shape{101, 48}));
  EXPECT_FALSE(entry(whole, "tok_embeddings.weight").sharded);
  const auto shards = entries_of(subject, StateKind::Sharded);
  const StateEntry& table = entry(shards, "tok_embeddings.weight");  // rows 51 to 101 are the second tensor rank's
  EXPECT_EQ(table.shape, (Shape{101, 48}));
  EXPECT_EQ(table.local, (Shape{17, 48}));
  EXPECT_EQ(table.offset, (Shape{51 + 17, 0}));
  EXPECT_EQ(entry(shards, "layers.0.attention.wo.weight").offset, (Shape{16, 24}));
}

TEST(MeshState, Fsdp2HoldsOneDTensorOnItsWayBesideWhatIsThere) {
  // Recorded: 104,448 bytes stay, 20,480 more at the last parameter: what data gathered, and filled up to 51 rows.
  const Subject subject = meshed(Runtime::Fsdp2, {6, 3}, R"({"n_heads": 6, "vocab_size": 101})");
  const ActionMemory memory = action_memory(plan_of(subject, "save:full").iterations.back());
  const Bytes gathered = 51 * 48 * 4;
  EXPECT_EQ(memory.device_peak - memory.device_end, 2 * gathered);
}

TEST(MeshState, Fsdp1CutsTheUnshardedPartsAnew) {
  const Subject subject = meshed(Runtime::Fsdp1, {});
  const std::vector<std::string> block{"t 9216", "t 4608", "t 4608", "t 12672", "t 12672"};
  std::vector<std::string> saved{"d 9792", "d 33216"};  // the root's unit, the block's
  saved.insert(saved.end(), block.begin(), block.end());
  saved.insert(saved.end(), {"t 9600", "t 9600"});
  EXPECT_THAT(gathers_of(plan_of(subject, "save:sharded")), ElementsAreArray(saved));
  const auto shards = entries_of(subject, StateKind::Sharded);
  EXPECT_EQ(entry(shards, "tok_embeddings.weight").local, (Shape{13, 48}));  // 50 over data, then over tensor
  EXPECT_EQ(entry(shards, "layers.0.feed_forward.w2.weight").local, (Shape{24, 33}));
  EXPECT_EQ(entry(shards, "norm.weight").local, (Shape{24}));
  EXPECT_THAT(gathers_of(plan_of(subject, "load:sharded")),
              ElementsAre("t 4992", "d 9600", "d 192", "t 4992", "d 9600", "d 9792",  // the root's
                          "d 192", "d 192", "t 4608", "d 9216", "t 2304", "d 4608", "t 2304", "d 4608", "d 4608",
                          "t 6528", "d 12672", "d 6336", "t 6528", "d 12672", "d 33216"));
}

TEST(MeshState, UnevenChunksOfOtherRanks) {  // 3 x 2 ranks, the fourth, norms outside the mesh
  const Subject subject = meshed(Runtime::Fsdp1, {6, 3}, "{}", false);
  EXPECT_THAT(gathers_of(plan_of(subject, "load:sharded")),
              ElementsAre("t 3456", "d 9792", "d 192", "t 3456", "d 9792", "d 9792",  //
                          "d 192", "d 192", "t 3072", "d 9216", "t 1536", "d 4608", "t 1536", "d 4608", "d 4608",
                          "t 4224", "d 12672", "d 6336", "t 4224", "d 12672", "d 33216"));
  const auto shards = entries_of(subject, StateKind::Sharded);
  EXPECT_EQ(entry(shards, "output.weight").local, (Shape{8, 48}));
  EXPECT_EQ(entry(shards, "output.weight").offset, (Shape{17 + 9, 0}));
}

TEST(MeshState, FullUnderFsdp1IsThisRanksPartAndStaysOnTheDevice) {
  const Subject subject = meshed(Runtime::Fsdp1, {});
  const Plan plan = plan_of(subject, "save:full:offload:rank0_only");
  EXPECT_THAT(gathers_of(plan), ElementsAre("d 9792", "d 33216"));
  const auto parts_of = entries_of(subject, StateKind::Full);
  const StateEntry& table = entry(parts_of, "tok_embeddings.weight");
  EXPECT_EQ(table.local, (Shape{25, 48}));
  EXPECT_EQ(table.shape, (Shape{50, 48}));
  Bytes parts = 0;
  for (const ParamInfo& param : subject.model.params) parts += numel_of(param.shape) * 4;
  EXPECT_EQ(action_memory(plan.iterations.back()).device_end, parts);
  EXPECT_THAT(plan.warnings, testing::Contains(HasSubstr("is not full")));
  EXPECT_THAT(plan.warnings, testing::Contains(HasSubstr("stay on the device")));
}

TEST(MeshState, RefusesWhatPyTorchRefuses) {
  const Subject flat = meshed(Runtime::Fsdp1, {});
  EXPECT_THAT(error_of(flat, "save:local"), HasSubstr("DeviceMesh is not compatible with LOCAL_STATE_DICT"));
  EXPECT_THAT(error_of(flat, "save:full:optimizer"), HasSubstr("not planned"));
  EXPECT_THAT(error_of(meshed(Runtime::Fsdp2, {}), "load:full"), HasSubstr("AssertionError"));  // 50 rows over 2 x 2
  const Subject even = meshed(Runtime::Fsdp2, {}, R"({"vocab_size": 52, "ffn": 64})");
  EXPECT_EQ(error_of(even, "load:full"), "");
}

TEST(MeshState, PlansHold) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2}) {
    const Subject subject = meshed(runtime, {6, 3});
    for (const char* actions :
         {"save:full", "save:sharded", "save:sharded:offload", "load:sharded", "init,save,load"}) {
      for (const PlanCheck& check : run_checks(plan_of(subject, actions)))
        EXPECT_NE(check.status, CheckStatus::Fail) << actions << ": " << check.name << " " << check.text;
    }
  }
}

}  // namespace
}  // namespace foreshard::actions_test
