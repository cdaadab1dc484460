// `foreshard run` on a mesh of two dimensions: four processes as 2 x 2 train as one does, killed and gone on as four.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program/running_program.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kJob = std::string(FORESHARD_SOURCE_DIR) + "/examples/tiny-llama-2ranks.toml";

/// `ranks` processes, `tensor` of them side by side; 8 rows in all.
std::vector<std::string> on_mesh(int ranks, int tensor, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"run", kJob, "--json"};
  if (ranks > 1) arguments.insert(arguments.end(), {"--nproc", std::to_string(ranks)});
  for (const auto& [key, value] : {std::pair{"cluster.world_size", ranks},
                                   {"cluster.ranks_per_node", ranks},
                                   {"mesh.tensor", tensor},
                                   {"model.batch", 8 * tensor / ranks}})
    arguments.insert(arguments.end(), {"--set", std::string(key) + "=" + std::to_string(value)});
  for (const char* set : {"train.clip_grad_norm=1.0", "train.schedule.name=constant"})
    arguments.insert(arguments.end(), {"--set", set});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<json> steps_of(const ProgramEnd& end) {
  EXPECT_EQ(end.exit_code, 0) << end.err;
  std::vector<json> lines;
  std::istringstream stream(end.out);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  if (!lines.empty()) lines.pop_back();  // the summary
  return lines;
}

ProgramEnd run(const std::vector<std::string>& arguments) {
  return RunningProgram(FORESHARD_PROGRAM, arguments).wait();
}

void expect_same(const json& got, const json& expected) {
  for (const char* key : {"loss", "grad_norm"})
    EXPECT_NEAR(got[key].get<double>(), expected[key].get<double>(), 1e-5 * expected[key].get<double>()) << got["step"];
}

TEST(RunOnAMesh, TrainsAsOneProcessAndGoesOnWithoutTheMesh) {
  const auto one = steps_of(run(on_mesh(1, 1, {"--set", "train.steps=6"})));
  ASSERT_EQ(one.size(), 6u);
  const std::string dir = testing::temporary_path("mesh");
  const std::vector<std::string> saved = {"--set", "train.checkpoint.dir=" + dir, "--set", "train.checkpoint.every=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), saved.begin(), saved.end());
    return more;
  };
  const auto meshed = steps_of(run(on_mesh(4, 2, with({"--set", "train.steps=3"}))));
  ASSERT_EQ(meshed.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) expect_same(meshed[i], one[i]);
  const auto rest = steps_of(run(on_mesh(4, 1, with({"--set", "train.steps=5", "--resume"}))));
  ASSERT_EQ(rest.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) expect_same(rest[i], one[i + 3]);
  const auto back = steps_of(run(on_mesh(4, 2, with({"--set", "train.steps=6", "--resume"}))));
  ASSERT_EQ(back.size(), 1u);
  expect_same(back[0], one[5]);
  const std::string exported = testing::temporary_path("mesh_exported");
  const ProgramEnd written = run({"checkpoint", "export", dir, "--out", exported});
  EXPECT_EQ(written.exit_code, 0) << written.err;
  EXPECT_TRUE(std::filesystem::exists(exported + "/model.safetensors"));
  std::filesystem::remove_all(dir);
  std::filesystem::remove_all(exported);
}

TEST(RunOnAMesh, PiecesOfTheLossAndAdaptersTrainAsWithout) {
  const std::vector<std::string> pieces = {"--set", "model.loss=chunked_cross_entropy"};
  const std::vector<std::string> adapters = {"--set", "adapters.kind=lora",
                                             "--set", "mesh.sequence_parallel=false",
                                             "--set", R"(adapters.targets=["q_proj", "o_proj", "down_proj"])",
                                             "--set", "train.clip_grad_norm=0"};
  for (const auto& [script, keys] : {std::pair{&pieces, 2}, {&adapters, 1}}) {  // no norm without clipping
    std::vector<std::string> more = *script;
    more.insert(more.end(), {"--set", "train.steps=3"});
    const auto one = steps_of(run(on_mesh(2, 1, more))), meshed = steps_of(run(on_mesh(4, 2, more)));
    ASSERT_EQ(meshed.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(meshed[i]["loss"].get<double>(), one.at(i)["loss"].get<double>(), 1e-5);
      if (keys > 1) expect_same(meshed[i], one[i]);
    }
  }
}

TEST(RunOnAMesh, ChosenExpertsBesideASharedSequence) {
  const auto mixtral = [](std::vector<std::string> more) {
    more.insert(more.end(),
                {"--set", "model.source=" + std::string(FORESHARD_TEST_DATA) + "/exec/mixtral_tiny/config.json",
                 "--set", "model.loss=cross_entropy_flat", "--set", "fsdp.allow_traps=[45]", "--set", "train.steps=2"});
    return more;
  };
  const auto whole = steps_of(run(on_mesh(2, 1, mixtral({}))));
  const ProgramEnd end =
      run(on_mesh(4, 1, mixtral({"--set", "mesh.context=2", "--set", "mesh.expert=4", "--set", "model.batch=4"})));
  EXPECT_THAT(end.err, HasSubstr("positions are the whole sequence's"));
  const auto shared = steps_of(end);
  ASSERT_EQ(shared.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) expect_same(shared[i], whole.at(i));
}

TEST(RunOnAMesh, SaysWhatIsNotRun) {
  const ProgramEnd uneven = run(on_mesh(4, 3));
  EXPECT_EQ(uneven.exit_code, 3);
  EXPECT_THAT(uneven.out + uneven.err, HasSubstr("mesh.tensor"));
  const ProgramEnd mixed = run(on_mesh(4, 2, {"--set", "mesh.sequence_parallel=false"}));
  EXPECT_NE(mixed.exit_code, 0);
  EXPECT_THAT(mixed.out + mixed.err, HasSubstr("allow_traps"));
}

}  // namespace
}  // namespace foreshard
