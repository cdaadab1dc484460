// trace analyse, trace convert and compare with foreign recordings, as users run them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/cli/program/run_program.h"
#include "tests/support/temporary_path.h"
#include "traces/formats/open_trace.h"

namespace foreshard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kFsdp2 = FORESHARD_TEST_DATA "/traces/fsdp2_step.json";
const std::string kShared = FORESHARD_SHARED "/traces/";

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ProgramTrace, AnalysisHasTheFieldsOfItsSchema) {
  const ProgramRun run = run_program({"trace", "analyse", kFsdp2, "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json answer = json::parse(run.out);
  EXPECT_EQ(answer["schema"], "foreshard.analysis/1");
  EXPECT_EQ(answer["format"], "kineto");
  ASSERT_EQ(answer["ranks"].size(), 1u);
  const json& rank = answer["ranks"][0];
  EXPECT_EQ(rank["rank"], 3);
  EXPECT_EQ(rank["length_ns"], 730'000);
  EXPECT_EQ(rank["busy_ns"].get<int>() + rank["idle_ns"].get<int>(), 730'000);
  EXPECT_EQ(rank["comm_ns"], 340'000);
  EXPECT_EQ(rank["exposed_comm_ns"].get<int>() + rank["overlap_ns"].get<int>(), 340'000);
  EXPECT_EQ(
      rank["idle"]["host_ns"].get<int>() + rank["idle"]["kernel_ns"].get<int>() + rank["idle"]["other_ns"].get<int>(),
      rank["idle_ns"]);
  EXPECT_EQ(rank["streams"].size(), 4u);
  EXPECT_EQ(rank["critical_path"].back()["kind"], "optimizer");
}

TEST(ProgramTrace, AHostMakesTheBatchBeforeTheStepACardInIt) {
  const auto batches = [](const std::string& profile) {
    const std::string path = testing::temporary_path("batch.json");
    const ProgramRun run = run_program({"simulate", FORESHARD_SOURCE_DIR "/examples/tiny-llama-2ranks.toml", "--set",
                                        "cluster.profile=" + profile, "--trace", path});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    const json trace = json::parse(text_of(path));
    int found = 0;
    for (const json& event : trace["traceEvents"]) {
      if (event.value("cat", "") == "other") ++found;
    }
    return found;
  };
  EXPECT_EQ(batches("cpu-host"), 0) << "run records none, so compare would miss it";
  EXPECT_GT(batches("h100-sxm-80"), 0);
}

TEST(ProgramTrace, AWindowAndARankCanBeChosenAndWrongOnesAreTold) {
  const ProgramRun run =
      run_program({"trace", "analyse", kFsdp2, "--json", "--rank", "3", "--from", "90us", "--to", "0.4ms"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(json::parse(run.out)["ranks"][0]["compute_ns"], 350'000);
  EXPECT_EQ(run_program({"trace", "analyse", kFsdp2, "--rank", "0"}).exit_code, 3);
  EXPECT_EQ(run_program({"trace", "analyse", kFsdp2, "--from", "soon"}).exit_code, 2);
  EXPECT_EQ(run_program({"trace", "analyse", "/nowhere/at.all"}).exit_code, 3);
  EXPECT_EQ(run_program({"trace", "convert", kFsdp2}).exit_code, 2);
}

TEST(ProgramTrace, ConvertedFilesSayTheSame) {
  const std::string first = run_program({"trace", "analyse", kFsdp2}).out;
  const auto numbers = [](const std::string& report) { return report.substr(report.find("\nRank")); };
  for (const char* name : {"a.fst", "a.json", "a.json.gz"}) {
    const std::string path = testing::temporary_path(name);
    ASSERT_EQ(run_program({"trace", "convert", kFsdp2, path}).exit_code, 0);
    const std::string again = run_program({"trace", "analyse", path}).out;
    EXPECT_THAT(again, HasSubstr("all_gather")) << name;
    if (path.ends_with(".fst")) {
      EXPECT_EQ(numbers(again), numbers(first)) << name;
    }
    std::remove(path.c_str());
  }
  const std::string table = testing::temporary_path("a.csv");
  ASSERT_EQ(run_program({"trace", "convert", kFsdp2, table}).exit_code, 0);
  EXPECT_THAT(text_of(table),
              HasSubstr("\n3,A,stream 24,all_gather,ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage"
                        "<4096ul>),120000,100000,layers.0,pre_forward,,8000\n"));
  std::remove(table.c_str());
  EXPECT_EQ(run_program({"trace", "convert", kFsdp2, "/tmp/out.unknown"}).exit_code, 2);
  EXPECT_EQ(run_program({"trace", "convert", kFsdp2, table, "--from", "5ms", "--to", "2ms"}).exit_code, 2);
  EXPECT_EQ(run_program({"trace", "convert", kFsdp2, table, "--from", "5000s"}).exit_code, 2) << "nothing runs then";
}

TEST(ProgramTrace, WarningsGoToStderr) {
  const std::string path = temporary_file("cut.json", R"({"traceEvents": [{"ph":"X","cat":"kernel","name":"k","pid":0,)"
                                                      R"("tid":7,"ts":1,"dur":2},{"ph":"X","cat":"ker)");
  const ProgramRun run = run_program({"trace", "analyse", path});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.err, HasSubstr("breaks off"));
  EXPECT_EQ(run_program({"trace", "analyse", path, "--quiet"}).err, "");
  std::remove(path.c_str());
}

TEST(ProgramTrace, EverySharedFileIsAnalysedConvertedAndCompared) {
  if (!std::filesystem::is_directory(kShared)) GTEST_SKIP() << "no shared traces beside the checkout";
  const std::string out = testing::temporary_path("shared.fst");
  std::string before;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kShared)) {
    const std::string path = entry.path().string();
    if (!path.ends_with(".gz")) continue;
    ++files;
    const ProgramRun run = run_program({"trace", "analyse", path, "--json"});
    ASSERT_EQ(run.exit_code, 0) << path << run.err;
    for (const json& rank : json::parse(run.out)["ranks"]) {
      EXPECT_GT(rank["busy_ns"], 0) << path;
      EXPECT_EQ(rank["busy_ns"].get<std::int64_t>() + rank["idle_ns"].get<std::int64_t>(), rank["length_ns"]) << path;
    }
    ASSERT_EQ(run_program({"trace", "convert", path, out}).exit_code, 0) << path;
    const ProgramRun same = run_program({"compare", out, path, "--json"});
    ASSERT_EQ(same.exit_code, 0) << path << same.err << same.out;
    const json compared = json::parse(same.out);
    EXPECT_EQ(compared["only_a"], 0) << path;
    EXPECT_GT(compared["joined"], 0) << path;
    if (!before.empty()) {
      EXPECT_GE(run_program({"compare", before, path}).exit_code, 0) << before << " " << path;
    }
    before = path;
  }
  EXPECT_EQ(files, 5);
  std::remove(out.c_str());
}

TEST(ProgramTrace, APredictionIsComparedWithAForeignRecording) {
  const std::string toy = std::string(FORESHARD_SOURCE_DIR) + "/examples/toy.toml";
  const ProgramRun run = run_program({"compare", toy, kFsdp2, "--json", "--set", "cluster.rank=3", "--set",
                                      "cluster.world_size=8", "--set", "cluster.ranks_per_node=8"});
  ASSERT_EQ(run.exit_code, 0) << run.err << run.out;
  EXPECT_GT(json::parse(run.out)["joined"], 0);
}

}  // namespace
}  // namespace foreshard
