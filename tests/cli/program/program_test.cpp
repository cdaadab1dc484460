// The frame of the program: verbs, flags, errors, exit codes, and what goes to which stream.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/cli/program/run_program.h"

namespace foreshard {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kToy = std::string(FORESHARD_TEST_DATA) + "/cli/toy.json";

TEST(Program, WithoutAVerbItSaysHowToFindThem) {
  const ProgramRun run = run_program({});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(run.err, HasSubstr("foreshard help"));
}

TEST(Program, HelpIsAResultAndNamesEveryVerbAndTheExitCodes) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"help"}, {"--help"}, {"-h"}}) {
    const ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_EQ(run.err, "");
    for (const char* word : {"inspect", "plan", "simulate", "config", "doctor", "completion", "4 does not fit"}) {
      EXPECT_THAT(run.out, HasSubstr(word));
    }
  }
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"help", "plan"}, {"plan", "--help"}}) {
    const ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_THAT(run.out, HasSubstr("--iterations N"));
  }
}

TEST(Program, AnUnknownVerbIsAUsageErrorThatNamesTheNearest) {
  const ProgramRun run = run_program({"simulat", kToy});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(run.err, HasSubstr("did you mean simulate?"));
}

TEST(Program, AnUnknownFlagIsAUsageErrorThatNamesTheNearest) {
  const ProgramRun run = run_program({"plan", kToy, "--layuot"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("--layuot"));
  EXPECT_THAT(run.err, HasSubstr("did you mean --layout?"));
}

TEST(Program, WrongAndMissingArgumentsAreUsageErrors) {
  EXPECT_THAT(run_program({"schedule", kToy, "--seconds", "0"}).err, HasSubstr("not in range 0.001"));
  EXPECT_EQ(run_program({"plan"}).exit_code, 2);
  EXPECT_EQ(run_program({"plan", kToy, "--format", "xml"}).exit_code, 2);
  EXPECT_EQ(run_program({"plan", kToy, "--iterations", "-1"}).exit_code, 2);
  EXPECT_EQ(run_program({"plan", kToy, "another"}).exit_code, 2);
  EXPECT_EQ(run_program({"config", "shwo", kToy}).exit_code, 2);
  EXPECT_EQ(run_program({"completion", "tcsh"}).exit_code, 2);
}

TEST(Program, PlansOfOtherActionsStandInOnePlan) {
  const ProgramRun run =
      run_program({"plan", kToy, "--set", "fsdp.wrap.policy=none", "--action", "init,save:full", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json plan = json::parse(run.out);
  EXPECT_EQ(plan["schema"], "foreshard.plan/1");
  ASSERT_EQ(plan["iterations"].size(), 2U);
  EXPECT_EQ(plan["iterations"][0]["actions"], json({"init"}));
  EXPECT_EQ(plan["iterations"][1]["actions"], json({"save:full"}));
  EXPECT_THAT(run_program({"plan", kToy, "--set", "fsdp.wrap.policy=none", "--action", "save:full"}).out,
              HasSubstr("at the peak"));
}

TEST(Program, AnUnknownActionOrOptionIsAUsageError) {
  for (const char* action : {"sav", "", "init:rank0_only", "save,save", "init,", "train,init"}) {
    const ProgramRun run = run_program({"plan", kToy, "--action", action});
    EXPECT_EQ(run.exit_code, 2) << action;
    EXPECT_EQ(run.out, "") << action;
    EXPECT_THAT(run.err, HasSubstr("--action")) << action;
  }
}

TEST(Program, ErrorsWithJsonStandOnStdoutWithAllTheirFields) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"sweep", "--json"},
                                                    {"--json", "plan", "/nowhere/job.toml"},
                                                    {"plan", kToy, "--json", "--set", "fsdp.runtme=fsdp1"}}) {
    const ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.err, "");
    const json error = json::parse(run.out)["error"];
    for (const char* field : {"code", "message", "file", "place", "expected", "got", "hint"}) {
      EXPECT_TRUE(error.contains(field)) << field;
    }
    EXPECT_EQ(run.exit_code, error["code"] == "usage" ? 2 : 3);
  }
}

TEST(Program, AnUnknownKeyInSetNamesTheNearestKnownOne) {
  const ProgramRun run = run_program({"config", "show", kToy, "--set", "fsdp.wrap.polcy=size"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(run.err, HasSubstr("fsdp.wrap.policy"));
}

TEST(Program, AFileThatIsNotThereOrIsNoJobIsBadInput) {
  const ProgramRun missing = run_program({"plan", "/nowhere/at/all.toml"});
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_THAT(missing.err, HasSubstr("/nowhere/at/all.toml"));
  for (const char* content : {"", "[model", "{", "[model]\nsource = 3\n", "\xff\xfe\x01", "[model]\nsorce = \"x\"\n"}) {
    const std::string path = temporary_file("bad.toml", content);
    const ProgramRun run = run_program({"plan", path});
    std::remove(path.c_str());
    EXPECT_EQ(run.exit_code, 3) << content;
    EXPECT_EQ(run.out, "") << content;
    EXPECT_THAT(run.err, StartsWith("error: ")) << content;
  }
}

TEST(Program, ConfigShowsEveryValueAndItsOrigin) {
  const ProgramRun plain = run_program({"config", "show", kToy, "--set", "model.batch=3"});
  EXPECT_EQ(plain.exit_code, 0);
  const std::string path = temporary_file("again.toml", plain.out);
  EXPECT_EQ(run_program({"config", "show", path}).out, plain.out) << "what it prints is a job file that says the same";
  std::remove(path.c_str());

  const ProgramRun origin =
      run_program({"config", "show", "--origin", kToy, "--set", "model.batch=3"}, {"FORESHARD_SET=train.seed=7"});
  EXPECT_THAT(origin.out, testing::ContainsRegex("model.batch = 3 +# --set"));
  EXPECT_THAT(origin.out, testing::ContainsRegex("train.seed = 7 +# environment"));
  EXPECT_THAT(origin.out, testing::ContainsRegex("train.steps = 100 +# default"));

  const json values = json::parse(run_program({"config", "show", kToy, "--json"}).out);
  EXPECT_EQ(values["schema"], "foreshard.config/1");
  EXPECT_GT(values["values"].size(), 50u);
}

TEST(Program, DoctorAndVersionNeverFail) {
  const ProgramRun doctor =
      run_program({"doctor", "--json"}, {"PATH=/usr/bin", "CUDA_HOME=/nowhere", "VIRTUAL_ENV=/nowhere"});
  EXPECT_EQ(doctor.exit_code, 0);
  const json found = json::parse(doctor.out);
  EXPECT_EQ(found["schema"], "foreshard.doctor/1");
  for (const json& finding : found["found"]) {
    EXPECT_FALSE(finding["gives"].get<std::string>().empty());
    EXPECT_TRUE(finding["found"] == true || !finding["remedy"].get<std::string>().empty()) << finding;
  }
  EXPECT_THAT(run_program({"doctor"}).out, HasSubstr("NCCL"));
  EXPECT_THAT(run_program({"version"}).out, StartsWith("foreshard "));
  EXPECT_EQ(run_program({"--version"}).out, run_program({"version"}).out);
  EXPECT_TRUE(json::parse(run_program({"version", "--json"}).out).contains("schemas"));
}

TEST(Program, CompletionIsAScriptThatItsShellAccepts) {
  const ProgramRun bash = run_program({"completion", "bash"});
  EXPECT_EQ(bash.exit_code, 0);
  EXPECT_THAT(bash.out, HasSubstr("fsdp.wrap.policy="));
  EXPECT_THAT(bash.out, HasSubstr("simulate"));
  const std::string script = temporary_file(
      "completion.bash",
      bash.out +
          "\nCOMP_WORDS=(foreshard plan --for); COMP_CWORD=2; _foreshard; echo \"${COMPREPLY[@]}\""
          "\nCOMP_WORDS=(foreshard plan --format d); COMP_CWORD=3; _foreshard; echo \"${COMPREPLY[@]}\"\n");
  FILE* pipe = popen(("bash " + script).c_str(), "r");
  std::string answer(1000, '\0');
  answer.resize(fread(answer.data(), 1, answer.size(), pipe));
  EXPECT_EQ(pclose(pipe), 0);
  std::remove(script.c_str());
  EXPECT_EQ(answer, "--format\ndot\n");
  for (const char* shell : {"zsh", "fish"}) {
    const ProgramRun run = run_program({"completion", shell});
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_THAT(run.out, HasSubstr("per-unit"));
  }
}

TEST(Program, NoColorAndLocalesWithoutUnicodeGivePlainAscii) {
  const auto is_ascii = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  };
  EXPECT_FALSE(is_ascii(run_program({"doctor"}).out));
  EXPECT_TRUE(is_ascii(run_program({"doctor"}, {"LC_ALL=C"}).out));
  EXPECT_TRUE(is_ascii(run_program({"doctor"}, {"NO_COLOR=1"}).out));
  EXPECT_TRUE(is_ascii(run_program({"doctor", "--no-color"}).out));
}

TEST(Program, AResultThatCannotBeWrittenIsAFailedRun) {
  const std::string command = std::string(FORESHARD_PROGRAM) + " version >/dev/full 2>/dev/null";
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace foreshard
