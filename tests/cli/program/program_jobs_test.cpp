// inspect, plan and simulate on the shipped examples, as users run them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "core/plan/form/plan_text.h"
#include "tests/cli/program/run_program.h"
#include "traces/formats/fst.h"

namespace foreshard {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;

const std::string kExamples = std::string(FORESHARD_SOURCE_DIR) + "/examples/";
const std::string kLlama = kExamples + "llama-3-8b-64xh100.toml";
const std::string kGpt2 = kExamples + "gpt2-8xa100.toml";
const std::string kToy = kExamples + "toy.toml";

TEST(ProgramJobs, EveryExampleIsPlannedSimulatedAndInspected) {
  for (const std::string& job : {kLlama, kGpt2, kToy}) {
    for (const char* verb : {"simulate", "plan", "inspect"}) {
      const ProgramRun run = run_program({verb, job});
      EXPECT_EQ(run.exit_code, 0) << verb << ' ' << job << '\n' << run.err;
      EXPECT_GT(run.out.size(), 200u) << verb << ' ' << job;
    }
  }
}

TEST(ProgramJobs, TheReportSaysWhatAReaderWantsToKnow) {
  const std::string report = run_program({"simulate", kLlama}).out;
  for (const char* text :
       {"llama-3-8b, fsdp2 FULL_SHARD, 64 × h100-sxm-80", "fits           yes", "step  ", "tokens/s", "MFU",
        "exposed communication", "Memory at its peak", "activations", "reserved", "all_gather", "reduce_scatter",
        "33 units", "h100-sxm-80, level", "D compute", "A all-gather"}) {
    EXPECT_THAT(report, HasSubstr(text));
  }
}

// Else the host runs ahead, and the device finds its next step's first kernels issued.
TEST(ProgramJobs, ALoopThatWaitsEachStepPaysForItsBegin) {
  const auto step_ns = [](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"simulate", kGpt2, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return json::parse(run_program(arguments).out)["step_time_ns"]["value"].get<std::int64_t>();
  };
  EXPECT_GT(step_ns({"--wait-each-step"}), step_ns({}));
}

TEST(ProgramJobs, SimulateJsonIsOneDocumentAndTheSameEachTime) {
  const ProgramRun run = run_program({"simulate", kLlama, "--json"});
  EXPECT_EQ(run.exit_code, 0);
  const json p = json::parse(run.out);
  EXPECT_EQ(p["schema"], "foreshard.prediction/1");
  EXPECT_EQ(p["fits"], true);
  EXPECT_GT(p["step_time_ns"]["value"], p["step_time_ns"]["low"]);
  EXPECT_LE(p["memory"]["peak_allocated_bytes"], p["memory"]["peak_reserved_bytes"]);
  EXPECT_EQ(p["unknown_ops"], json::array()) << "every operator of Llama has a rule";
  std::int64_t sum = 0;
  for (const json& bytes : p["memory"]["at_peak"]["categories"]) sum += bytes.get<std::int64_t>();
  EXPECT_NEAR(static_cast<double>(sum), p["memory"]["peak_allocated_bytes"].get<double>(),
              0.01 * p["memory"]["peak_allocated_bytes"].get<double>());
  EXPECT_EQ(run_program({"simulate", kLlama, "--json"}).out, run.out);
}

TEST(ProgramJobs, ANetworkThatNobodyMeasuredIsSaidAndWidensTheStep) {
  const std::vector<std::string> narrow{"simulate", kLlama, "--set", "mesh.tensor=8"};
  const std::string text = run_program(narrow).out;
  EXPECT_THAT(text, HasSubstr("between nodes"));
  EXPECT_THAT(text, ContainsRegex("base =[ \n]+\"h100-sxm-80\""));
  std::vector<std::string> as_json = narrow;
  as_json.emplace_back("--json");
  const json over = json::parse(run_program(as_json).out);
  const double step = over["step_time_ns"]["value"], high = over["step_time_ns"]["high"];
  const double half = over["between_nodes"]["step_at_half_ns"];
  EXPECT_GT(half, step);
  EXPECT_GT(high, 1.21 * step) << "wider than the profile's 20 %";
  const std::vector<std::string> inside{"simulate", kGpt2, "--json"};
  EXPECT_FALSE(json::parse(run_program(inside).out).contains("between_nodes"));
}

TEST(ProgramJobs, NodesOfFourCardsAreBoardsWithoutASwitch) {
  const auto told = [](const std::string& profile, const std::string& ranks) {
    return run_program(
               {"simulate", kLlama, "--set", "cluster.ranks_per_node=" + ranks, "--set", "cluster.profile=" + profile})
        .out;
  };
  EXPECT_THAT(told("h100-sxm-80", "4"), HasSubstr("cluster.profile = \"h100-sxm-80-x4\""));
  EXPECT_THAT(told("h100-sxm-80", "8"), testing::Not(HasSubstr("-x4")));
  EXPECT_THAT(told("l40s", "4"), testing::Not(HasSubstr("-x4\"")));
}

TEST(ProgramJobs, TracesAreWrittenAndNotesGoToStderr) {
  const std::string trace = temporary_file("trace.json", ""), timeline = temporary_file("timeline.fst", "");
  const ProgramRun run = run_program({"simulate", kGpt2, "--json", "--trace", trace, "--timeline", timeline});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_TRUE(json::accept(run.out)) << "stdout carries the result only";
  EXPECT_THAT(run.err, HasSubstr(trace));
  EXPECT_EQ(run_program({"simulate", kGpt2, "--quiet", "--json", "--trace", trace}).err, "");

  std::ifstream file(trace);
  const json events = json::parse(std::string(std::istreambuf_iterator<char>(file), {}))["traceEvents"];
  std::map<std::string, int> phases;
  for (const json& event : events) ++phases[event["ph"]];
  EXPECT_GT(phases["X"], 1000);
  EXPECT_EQ(phases["s"], phases["f"]);
  EXPECT_GT(phases["s"], 100) << "flows lead from issue to kernel";
  EXPECT_GT(phases["C"], 100) << "memory counters";
  const auto back = read_fst(timeline);
  ASSERT_TRUE(back.has_value()) << to_text(back.error());
  EXPECT_EQ(static_cast<int>(back->spans.size()), phases["X"]);
  EXPECT_EQ(back->provenance.plan_digest.size(), 16u);
  EXPECT_THAT(back->provenance.software, testing::StartsWith("foreshard "));
  std::remove(trace.c_str());
  std::remove(timeline.c_str());

  const ProgramRun nowhere = run_program({"simulate", kGpt2, "--trace", "/nowhere/at/all.json"});
  EXPECT_EQ(nowhere.exit_code, 3);
  EXPECT_THAT(nowhere.err, HasSubstr("/nowhere/at/all.json"));
}

TEST(ProgramJobs, AModelThatDoesNotFitIsExit4WithAChangeThatReallyFits) {
  const std::vector<std::string> tight{
      "simulate", kLlama, "--json", "--set", "cluster.memory=40GiB", "--set", "checkpointing.policy=none"};
  const ProgramRun run = run_program(tight);
  EXPECT_EQ(run.exit_code, 4);
  const json p = json::parse(run.out);
  EXPECT_EQ(p["fits"], false);
  EXPECT_GT(p["oom"]["requested_bytes"], 0);
  EXPECT_EQ(p["oom"]["phase"], "forward");
  ASSERT_FALSE(p["remedy"].is_null());
  std::vector<std::string> mended = tight;
  for (const json& set : p["remedy"]["set"]) mended.insert(mended.end(), {"--set", set.get<std::string>()});
  EXPECT_EQ(run_program(mended).exit_code, 0) << p["remedy"];

  const ProgramRun text =
      run_program({"simulate", kLlama, "--set", "cluster.memory=40GiB", "--set", "checkpointing.policy=none"});
  EXPECT_EQ(text.exit_code, 4);
  EXPECT_THAT(text.out, ContainsRegex("fits +no"));
  EXPECT_THAT(text.out, HasSubstr("--set "));
}

TEST(ProgramJobs, AModelWithoutOperatorsIsAPartialResult) {
  const std::string model = std::string(FORESHARD_TEST_DATA) + "/cli/calls_only.json";
  const std::vector<std::string> wrap{"--set", "fsdp.wrap.policy=always"};
  EXPECT_EQ(run_program({"plan", model, wrap[0], wrap[1]}).exit_code, 0);
  const ProgramRun run = run_program({"simulate", model, wrap[0], wrap[1]});
  EXPECT_EQ(run.exit_code, 5);
  EXPECT_THAT(run.err, HasSubstr("no operator program"));
}

TEST(ProgramJobs, PlanJsonHasItsFields) {
  const json p = json::parse(run_program({"plan", kGpt2, "--json"}).out);
  EXPECT_EQ(p["schema"], "foreshard.plan/1");
  for (const char* field : {"units", "order", "groups", "divide", "iterations", "checks", "traps", "counts"})
    EXPECT_TRUE(p.contains(field)) << field;
  EXPECT_EQ(p["units"].size(), 13u);
  EXPECT_EQ(p["counts"]["all_gather"], 25);
  EXPECT_FALSE(p["units"][0].contains("params_layout"));
  EXPECT_GT(p["iterations"].size(), 1u);
  EXPECT_EQ(json::parse(run_program({"plan", kGpt2, "--json", "--iterations", "1"}).out)["iterations"].size(), 1u);
  EXPECT_EQ(run_program({"plan", kGpt2, "--format", "json"}).out, run_program({"plan", kGpt2, "--json"}).out);
  EXPECT_TRUE(
      json::parse(run_program({"plan", kGpt2, "--json", "--layout"}).out)["units"][0].contains("params_layout"));
  EXPECT_TRUE(json::parse(run_program({"plan", kToy, "--json", "--layout"}).out)["units"][1].contains("fsdp2_layout"));
}

TEST(ProgramJobs, PlanTextIsASummaryAndThenThePlansOwnForm) {
  const std::string text = run_program({"plan", kToy}).out;
  EXPECT_THAT(text, HasSubstr("# fsdp2, 2 ranks, rank 0: 3 units"));
  std::string form;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t next = text.find('\n', at) + 1;
    if (text[at] != '#') form += text.substr(at, next - at);
    at = next;
  }
  const auto plan = plan_from_text(form, "stdout");
  ASSERT_TRUE(plan.has_value()) << to_text(plan.error());
  EXPECT_EQ(plan->units.size(), 3u);
  EXPECT_THAT(run_program({"plan", kToy, "--format", "dot"}).out, testing::StartsWith("digraph"));
}

TEST(ProgramJobs, InspectJsonIsModelJsonAndReadsBackAsEqualBytes) {
  for (const std::string& job : {kGpt2, kToy}) {
    const ProgramRun run = run_program({"inspect", job, "--json"});
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_EQ(json::parse(run.out)["schema"], "foreshard.model/2");
    const std::string path = temporary_file("model.json", run.out);
    EXPECT_EQ(run_program({"inspect", path, "--json"}).out, run.out);
    std::remove(path.c_str());
  }
  const json report = json::parse(run_program({"inspect", kGpt2, "--json", "--report"}).out);
  EXPECT_EQ(report["schema"], "foreshard.inspect/1");
}

TEST(ProgramJobs, BrokenModelsAreBadInputWithTheirPlace) {
  std::ifstream file(kExamples + "toy/model.json");
  const std::string good((std::istreambuf_iterator<char>(file)), {});
  for (std::size_t size = 0; size + 3 < good.size(); size += 197) {
    const std::string path = temporary_file("cut.json", good.substr(0, size));
    for (const char* verb : {"plan", "simulate"}) {
      const ProgramRun run = run_program({verb, path});
      EXPECT_EQ(run.exit_code, 3) << verb << " of " << size << " bytes";
      EXPECT_THAT(run.err, HasSubstr("cut.json"));
    }
    std::remove(path.c_str());
  }
}

}  // namespace
}  // namespace foreshard
