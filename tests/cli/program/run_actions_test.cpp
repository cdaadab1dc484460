// `foreshard run --action`: init, summon, save and load on two ranks, measured beside their prediction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/cli/program/running_program.h"
#include "tests/support/temporary_path.h"
#include "traces/formats/fst.h"

namespace foreshard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kJob = std::string(FORESHARD_SOURCE_DIR) + "/examples/tiny-llama-2ranks.toml";
// Beside its weights: model.safetensors.
const std::string kWeights = std::string(FORESHARD_TEST_DATA) + "/exec/llama_tiny";

ProgramEnd foreshard(const std::vector<std::string>& arguments) {
  return RunningProgram(FORESHARD_PROGRAM, arguments).wait();
}

ProgramEnd act(const std::string& actions, std::vector<std::string> more = {}, const std::string& job = kJob) {
  more.insert(more.begin(), {"run", job, "--action", actions});
  const auto given = [&more](const char* flag) { return std::find(more.begin(), more.end(), flag) != more.end(); };
  if (!given("--emulate-world") && !given("--nproc")) {
    more.insert(more.end(), {"--nproc", "2"});
  }
  return foreshard(more);
}

std::vector<std::string> with_sets(const std::vector<std::string>& sets, std::vector<std::string> more = {"--json"}) {
  for (const std::string& set : sets) more.insert(more.end(), {"--set", set});
  return more;
}

json answer(const std::string& actions, const std::vector<std::string>& sets, std::vector<std::string> more = {}) {
  more.push_back("--json");
  const ProgramEnd end = act(actions, with_sets(sets, more));
  EXPECT_EQ(end.exit_code, 0) << actions << '\n' << end.out << end.err;
  return end.exit_code == 0 ? json::parse(end.out) : json();
}

struct Shown {
  double norm = 0;
  std::vector<double> first;
};
std::map<std::string, Shown> shown_in(const json& action) {
  std::map<std::string, Shown> tensors;
  for (const json& tensor : action["tensors"]) {
    tensors[tensor["name"]] = {tensor["norm"], tensor["first"].get<std::vector<double>>()};
  }
  return tensors;
}

/// Little-endian float32 of a safetensors file.
std::map<std::string, Shown> tensors_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::map<std::string, Shown> tensors;
  const json entries = json::parse(bytes.substr(sizeof header, header));
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    EXPECT_EQ(entry["dtype"], "F32");
    const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    std::vector<float> values((end - begin) / sizeof(float));
    std::memcpy(values.data(), bytes.data() + sizeof header + header + begin, end - begin);
    Shown& tensor = tensors[name];
    for (const float value : values) tensor.norm += double(value) * value;
    tensor.norm = std::sqrt(tensor.norm);
    for (std::size_t i = 0; i < 3 && i < values.size(); ++i) tensor.first.push_back(values[i]);
  }
  return tensors;
}

void expect_equal(const std::map<std::string, Shown>& got, const std::map<std::string, Shown>& expected,
                  const std::string& what) {
  ASSERT_GT(expected.size(), 10u) << what;
  for (const auto& [name, tensor] : expected) {
    const auto found = got.find(name);
    ASSERT_NE(found, got.end()) << what << ": " << name;
    EXPECT_NEAR(found->second.norm, tensor.norm, 1e-6 * tensor.norm) << what << ": " << name;
    EXPECT_EQ(found->second.first, tensor.first) << what << ": " << name;
  }
}

/// Byte for byte: the allocator of the prediction is asked for what the host's is asked for.
void expect_predicted(const json& answer, const std::string& what, std::size_t ranks = 2) {
  for (const json& action : answer["actions"]) {
    ASSERT_EQ(action["ranks"].size(), ranks);
    for (const json& rank : action["ranks"]) {
      const std::string where = what + ", " + action["action"].get<std::string>() + " of rank " + rank["rank"].dump();
      EXPECT_EQ(rank["peak_bytes"], rank["predicted"]["peak_bytes"]) << where;
      EXPECT_EQ(rank["end_bytes"], rank["predicted"]["end_bytes"]) << where;
      EXPECT_GE(rank["predicted"]["peak_allocated_bytes"], rank["peak_bytes"]) << where;
      EXPECT_GE(rank["peak_bytes"], rank["before_bytes"]) << where;
      EXPECT_GE(rank["time_ns"].get<std::int64_t>(), 0) << where;
    }
  }
}

TEST(RunActions, SummonShowsTheWholeWeightsThatTheRanksHoldInParts) {
  const auto weights = tensors_of(kWeights + "/model.safetensors");
  for (const std::string options : {"", ":rank0_only:offload:no_writeback", ":no_recurse"}) {
    const ProgramEnd end = act("summon" + options,
                               with_sets({"fsdp.runtime=fsdp1", "model.seq=16", "cluster.world_size=2",
                                          "cluster.ranks_per_node=2", "fsdp.mixed_precision.param=none"}),
                               kWeights);
    ASSERT_EQ(end.exit_code, 0) << options << end.out << end.err;
    const json all = json::parse(end.out), summon = all["actions"][0];
    EXPECT_EQ(all["schema"], "foreshard.actions/1");
    expect_predicted(all, options);
    const auto shown = shown_in(summon);
    if (options == ":no_recurse") {  // the root unit's own
      EXPECT_LT(shown.size(), weights.size());
      EXPECT_TRUE(shown.contains("model.embed_tokens.weight"));
      continue;
    }
    expect_equal(shown, weights, options);
    for (const json& tensor : summon["tensors"]) {
      EXPECT_EQ(tensor["bytes"][1] == 0, options.find("rank0_only") != std::string::npos) << tensor;
    }
    EXPECT_THAT(summon["from"].get<std::string>(), HasSubstr(kWeights));
  }
}

TEST(RunActions, InitSaveAndLoadKeepTheValuesAndTakeThePredictedMemory) {
  const auto initial = shown_in(answer("summon", {"fsdp.runtime=fsdp1", "fsdp.strategy=NO_SHARD"})["actions"][0]);
  ASSERT_EQ(initial.size(), 39u);
  for (const std::vector<std::string>& sets :
       std::vector<std::vector<std::string>>{{"fsdp.runtime=fsdp1"},
                                             {"fsdp.runtime=fsdp1", "fsdp.use_orig_params=false"},
                                             {"fsdp.runtime=fsdp2"},
                                             {"fsdp.runtime=none"}}) {
    for (const std::string kind : {"full", "sharded"}) {
      if (sets[0] == "fsdp.runtime=none" && kind == "sharded") continue;
      const std::string what = sets.back() + " " + kind;
      const json saved = answer("init,save:" + kind, sets);
      expect_predicted(saved, what);
      expect_equal(shown_in(saved["actions"][0]), initial, what + " init");
      expect_equal(shown_in(saved["actions"][1]), initial, what + " save");
      const json loaded = answer("load:" + kind + ":optimizer", sets);
      expect_predicted(loaded, what);
      const auto state = shown_in(loaded["actions"][0]);
      EXPECT_EQ(state.size(), 3 * initial.size()) << "and both moments";
      expect_equal(state, initial, what + " load");
    }
  }
}

TEST(RunActions, LoadReadsTheCheckpointOrWhatSaveReturned) {
  const std::string dir = testing::temporary_path("actions_checkpoint"), out = testing::temporary_path("actions_out");
  const ProgramEnd trained = foreshard(
      {"run", kJob, "--nproc", "2", "--json", "--set", "train.steps=2", "--set", "train.checkpoint.dir=" + dir});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  ASSERT_EQ(foreshard({"checkpoint", "export", dir, "--out", out}).exit_code, 0);
  const auto weights = tensors_of(out + "/model.safetensors");
  const auto fresh = shown_in(answer("init", {})["actions"][0]);
  EXPECT_NE(fresh.at("lm_head.weight").first, weights.at("lm_head.weight").first) << "training changed something";
  for (const std::string runtime : {"fsdp1", "fsdp2"}) {
    for (const std::string kind : {"full", "sharded"}) {
      const std::string what = runtime + " " + kind;
      const json loaded = answer("init,load:" + kind + ":optimizer",
                                 {"fsdp.runtime=" + runtime, "train.checkpoint.dir=" + dir}, {"--resume"});
      expect_equal(shown_in(loaded["actions"][0]), fresh, what + " init");
      const auto state = shown_in(loaded["actions"][1]);
      expect_equal(state, weights, what + " load");
      EXPECT_GT(state.at("lm_head.weight.exp_avg_sq").norm, 0) << "the moments of the run";
      EXPECT_THAT(loaded["actions"][1]["from"].get<std::string>(), HasSubstr(dir));
    }
    const json again =
        answer("save:full,load:full", {"fsdp.runtime=" + runtime, "train.checkpoint.dir=" + dir}, {"--resume"});
    EXPECT_EQ(again["actions"][1]["from"], "save:full");
    expect_equal(shown_in(again["actions"][0]), weights, runtime + " saved");
    expect_equal(shown_in(again["actions"][1]), weights, runtime + " loaded again");
    expect_predicted(again, runtime);
  }
  std::filesystem::remove_all(dir);
  std::filesystem::remove_all(out);
}

json on_mesh(const std::string& actions, std::vector<std::string> sets, std::vector<std::string> more = {}) {
  sets.insert(sets.end(), {"cluster.world_size=4", "cluster.ranks_per_node=4"});
  more.insert(more.end(), {"--nproc", "4"});
  return answer(actions, sets, more);
}

TEST(RunActions, StateDictsOfAMeshAreThoseOfTheWholeModel) {
  const std::string source = testing::temporary_path("moe.json");
  std::ofstream(source) << R"({"model_type": "titan_llama", "dim": 64, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2,
    "ffn": 128, "vocab_size": 96, "max_seq": 64, "moe": {"experts": 4, "top_k": 2, "ffn": 96, "capacity": 1.0}})";
  const std::vector<std::string> titan{"model.source=" + source, "model.loss=cross_entropy_flat"};
  struct Case {
    std::vector<std::string> model, mesh;
    std::string save, load;
  };
  for (const Case& c : std::vector<Case>{{{}, {"mesh.tensor=2"}, "full", "full"},
                                         {{}, {"mesh.tensor=2", "fsdp.runtime=fsdp1"}, "sharded", "sharded"},
                                         {titan, {"mesh.context=2", "fsdp.runtime=fsdp1"}, "full", "sharded"},
                                         {titan, {"mesh.expert=4", "mesh.tensor=2"}, "full", "sharded"}}) {
    const std::string what = c.mesh.front() + " " + c.mesh.back();
    const auto initial = shown_in(answer("init", c.model)["actions"][0]);
    std::vector<std::string> sets = c.model;
    sets.insert(sets.end(), c.mesh.begin(), c.mesh.end());
    const json done = on_mesh("init,save:" + c.save + ",load:" + c.load, sets);
    expect_predicted(done, what, 4);
    for (const json& action : done["actions"]) {
      expect_equal(shown_in(action), initial, what + " " + action["action"].get<std::string>());
    }
    const bool saved = done["actions"][2]["from"] == "save:" + c.save;
    EXPECT_EQ(saved, c.save == c.load) << what;
  }
  std::filesystem::remove(source);
}

TEST(RunActions, ACheckpointIsLoadedOverAMesh) {
  const std::string dir = testing::temporary_path("mesh_actions_checkpoint");
  const std::string out = testing::temporary_path("mesh_actions_out");
  const ProgramEnd trained = foreshard(
      {"run", kJob, "--nproc", "2", "--json", "--set", "train.steps=2", "--set", "train.checkpoint.dir=" + dir});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  ASSERT_EQ(foreshard({"checkpoint", "export", dir, "--out", out}).exit_code, 0);
  const auto weights = tensors_of(out + "/model.safetensors");
  const std::vector<std::string> sets{"mesh.tensor=2", "train.checkpoint.dir=" + dir};
  const json saved = on_mesh("save:full:optimizer", sets, {"--resume"});
  const auto whole = shown_in(saved["actions"][0]);
  expect_equal(whole, weights, "saved");
  for (const std::string kind : {"full", "sharded"}) {
    const json loaded = on_mesh("init,load:" + kind + ":optimizer", sets, {"--resume"});
    const auto state = shown_in(loaded["actions"][1]);
    EXPECT_EQ(state.size(), 3 * weights.size());
    EXPECT_GT(state.at("lm_head.weight.exp_avg_sq").norm, 0);
    expect_equal(state, whole, kind);
    EXPECT_THAT(loaded["actions"][1]["from"].get<std::string>(), HasSubstr(dir));
  }
  std::filesystem::remove_all(dir);
  std::filesystem::remove_all(out);
}

TEST(RunActions, TheTableSaysMemoryTimeAndTensors) {
  const ProgramEnd end = act("summon", with_sets({"fsdp.runtime=fsdp1"}, {}));
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(
      end.out,
      HasSubstr(
          "summon: 54 instructions, 5 all_gather, from fresh values, as their modules initialise themselves, seed 0"));
  EXPECT_THAT(end.out, HasSubstr("(+0.00 %)"));
  EXPECT_THAT(end.out, HasSubstr("39 tensors, 838 KiB a rank"));
  EXPECT_THAT(end.out, HasSubstr("model.norm.weight"));
  EXPECT_THAT(end.out, HasSubstr("first 1 1 1"));
}

TEST(RunActions, TheTimelineHasTheInstructionsOfAllActions) {
  const std::string path = testing::temporary_path("actions.fst");
  const ProgramEnd end = act("init,save:full", {"--timeline", path});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const auto timeline = read_fst(path);
  ASSERT_TRUE(timeline) << to_text(timeline.error());
  std::vector<int> gathers(2, 0);
  for (const Span& span : timeline->spans) {
    if (span.kind != SpanKind::AllGather) continue;
    ++gathers.at(static_cast<std::size_t>(timeline->lanes[span.lane.index()].rank));
    EXPECT_GE(span.instruction.value, 82) << "save's come behind init's 82";
  }
  EXPECT_EQ(gathers, (std::vector<int>{39, 39}));
  std::filesystem::remove(path);
}

TEST(RunActions, WhatCannotBeRunSaysWhereAndWhatToDo) {
  struct Case {
    std::string actions;
    std::vector<std::string> more;
    int code;
    std::string place, says;
  };
  const std::string fsdp1 = "fsdp.runtime=fsdp1";
  for (const Case& c : std::vector<Case>{
           {"frob", {}, 2, "--action", "no such action"},
           {"eval", {}, 2, "--action", "train.eval.every"},
           {"save:sync", {}, 2, "--action", "no such option of save"},
           {"summon", {}, 3, "--action", "belongs to fsdp1"},
           {"summon:with_grads:no_writeback", {"--set", fsdp1}, 3, "summon", "gradients are not shown yet"},
           {"save:full", {"--set", fsdp1, "--set", "fsdp.cpu_offload=true"}, 3, "save:full", "CPU offload"},
           {"save:sharded:optimizer", {"--set", fsdp1, "--set", "mesh.tensor=2"}, 3, "--action", "is not planned"},
           {"save:full",
            {"--set", "mesh.tensor=2", "--set", "fsdp.ignored=[\"lm_head\"]"},
            3,
            "save:full",
            "no unit manages is not gathered"},
           {"save:full", {"--emulate-world", "4"}, 2, "--emulate-world", "simulate --action save:full"},
           {"save:full", {"--backend", "cuda"}, 2, "--backend", "actions run on the host"},
           {"save:full,init", {}, 2, "--action", "put init first"},
           {"init,save:full:optimizer", {}, 2, "--action", "nothing has made the optimizer's state"},
           {"save:full", {"--resume"}, 2, "train.checkpoint.dir", "--resume needs a folder"},
           {"init",
            {"--resume", "--set", "train.checkpoint.dir=/nowhere"},
            2,
            "--action",
            "nothing reads the checkpoint"},
           {"save:full", {"--resume", "--set", "train.checkpoint.dir=/nowhere"}, 3, "", "there is no checkpoint"}}) {
    std::vector<std::string> more = c.more;
    more.push_back("--json");
    const ProgramEnd end = act(c.actions, more);
    EXPECT_EQ(end.exit_code, c.code) << c.actions << '\n' << end.out << end.err;
    const json error = json::parse(end.out, nullptr, false)["error"];
    EXPECT_EQ(error["place"], c.place) << c.actions;
    EXPECT_THAT(end.out, HasSubstr(c.says)) << c.actions;
  }
}

}  // namespace
}  // namespace foreshard
