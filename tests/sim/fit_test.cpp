#include "sim/fit/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "core/job/job_file.h"
#include "core/model/model_json.h"
#include "core/model/sources/load_model.h"
#include "sim/fit/every_job.h"
#include "sim/fit/gpus.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Uneven on purpose; large enough that recomputation and layout decide what fits.
constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 1536, "intermediate_size": 4160,
  "num_hidden_layers": 5, "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 16003,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 4096})";

class FitTest : public ::testing::Test {
 protected:
  FitTest() : path_(testing::temporary_path("fit_config.json")) {
    std::ofstream(path_) << kConfig;
    request.job.model.source = path_;
    request.job.model.seq = 1024;
    request.job.model.seq_given = true;
    request.job.cluster.world_size = request.job.cluster.ranks_per_node = 4;
    request.job.cluster.memory = 8 * kGiB;
  }
  ~FitTest() override { std::remove(path_.c_str()); }

  FitMethod run() const {
    const auto answer = fit(request);
    EXPECT_TRUE(answer) << to_text(answer.error());
    return answer ? answer->methods.front() : FitMethod{};
  }

  double time_of_first(const FitMethod& method) const {
    const FitChoice& first = method.choices.at(0);
    return 1e9 / first.prediction.tokens_per_s.value;
  }

  FitRequest request;

 private:
  std::string path_;
};

TEST_F(FitTest, TheFirstChoiceIsNearTheBestOfAllJobs) {
  for (const auto& [memory, tokens] : {std::pair{8 * kGiB, 0}, {5 * kGiB, 0}, {8 * kGiB, 65536}}) {
    request.job.cluster.memory = memory;
    request.tokens_per_step = tokens;
    const FitMethod found = run();
    const auto all = try_every_job(request);
    ASSERT_TRUE(all) << to_text(all.error());
    ASSERT_TRUE(all->best);
    ASSERT_THAT(found.choices, Not(IsEmpty()));
    EXPECT_LE(time_of_first(found), 1.02 * all->best->ns_per_token) << memory << " " << tokens;
    EXPECT_LT(found.simulated, all->simulated);
  }
}

TEST_F(FitTest, ChoicesAreTheJobsThatTheirSettingsMake) {
  const FitMethod found = run();
  ASSERT_EQ(found.choices.size(), 3U);
  double before = 0;
  for (const FitChoice& choice : found.choices) {
    const auto job = fit_axes::with_settings(request.job, choice.set);
    ASSERT_TRUE(job) << to_text(job.error());
    EXPECT_EQ(*job, choice.job);
    EXPECT_TRUE(choice.prediction.fits);
    EXPECT_LE(choice.prediction.memory.reserved, request.job.cluster.memory);
    EXPECT_GE(choice.prediction.step_time_ns.high, choice.prediction.step_time_ns.value);
    EXPECT_GE(1e9 / choice.prediction.tokens_per_s.value, before);
    before = 1e9 / choice.prediction.tokens_per_s.value * 0.999999;
    EXPECT_THAT(choice.why, Not(IsEmpty()));
  }
}

TEST_F(FitTest, OneThreadSaysTheSame) {
  request.threads = 1;
  const FitMethod one = run();
  request.threads = 3;
  const FitMethod three = run();
  ASSERT_EQ(one.choices.size(), three.choices.size());
  EXPECT_EQ(one.simulated, three.simulated);
  EXPECT_EQ(one.cut, three.cut);
  for (std::size_t c = 0; c < one.choices.size(); ++c) EXPECT_EQ(one.choices[c].set, three.choices[c].set);
}

TEST_F(FitTest, TheLongestContextFitsAndTheNextStepDoesNot) {
  request.job.cluster.memory = 4 * kGiB;
  const FitMethod found = run();
  ASSERT_TRUE(found.longest);
  SharedParts shared;
  Workbench bench(shared);
  const auto fits = [&](std::int64_t tokens) {
    auto job = fit_axes::with_settings(request.job, found.longest_set);
    EXPECT_TRUE(job);
    job->model.seq = tokens;
    const auto prediction = bench.predict(*job);
    return prediction && prediction->fits;
  };
  EXPECT_TRUE(fits(found.longest->tokens));
  if (found.longest->model_ends) {
    EXPECT_EQ(found.longest->tokens, 4096);
  } else {
    EXPECT_FALSE(fits(found.longest->too_long));
  }
}

TEST_F(FitTest, WhatCannotBeSaidIsNoChoice) {
  request.sayable = [](const Job& job, const std::vector<std::string>&) {
    return job.fsdp.runtime == Runtime::Fsdp1 && job.checkpointing.policy != CheckpointPolicy::EveryK;
  };
  const FitMethod found = run();
  ASSERT_THAT(found.choices, Not(IsEmpty()));
  for (const FitChoice& choice : found.choices) EXPECT_EQ(choice.job.fsdp.runtime, Runtime::Fsdp1);
  request.sayable = [](const Job&, const std::vector<std::string>&) { return false; };
  EXPECT_FALSE(fit(request));
}

TEST_F(FitTest, WhereNothingFitsThereIsNoChoiceButTheSmallestJob) {
  request.job.cluster.memory = kGiB;
  const FitMethod found = run();
  EXPECT_THAT(found.choices, IsEmpty());
  EXPECT_EQ(found.smallest.checkpointing.policy, CheckpointPolicy::Block);
}

TEST_F(FitTest, SequencesAreSharedWhereOneRankHasNoRoom) {
  request.job.model.seq = 4096;
  request.job.cluster.memory = 5 * kGiB;
  request.tokens_per_step = 4 * 4096;
  std::vector<std::int64_t> degrees;
  for (const FitLine& line : fit_lines(request.job, request))
    if (!line.refused && line.recomputation == "nothing is recomputed") degrees.push_back(line.job.mesh.context);
  EXPECT_THAT(degrees, Contains(2));
  EXPECT_THAT(degrees, Contains(4));
  const FitMethod found = run();
  const auto all = try_every_job(request);
  ASSERT_TRUE(all && all->best);
  ASSERT_THAT(found.choices, Not(IsEmpty()));
  EXPECT_LE(time_of_first(found), 1.02 * all->best->ns_per_token);
  // A node's ranks together hold a sequence that none of them holds alone.
  request.job.cluster.memory = 2 * kGiB;
  request.tokens_per_step = 0;
  request.job.model.seq = 1024;
  request.sayable = [](const Job& job, const std::vector<std::string>&) { return job.mesh.tensor == 1; };
  const FitMethod narrow = run();
  ASSERT_TRUE(narrow.longest);
  EXPECT_THAT(narrow.longest_set, Contains(HasSubstr("mesh.context="))) << narrow.longest->tokens;
}

TEST(FitExperts, AreSpreadWhereTheModelHasThem) {
  const std::string path = testing::temporary_path("fit_experts.json");
  std::ofstream(path) << R"({"model_type": "mixtral", "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4001,
    "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 1024})";
  FitRequest request;
  request.job.model.source = path;
  request.job.model.seq = 512;
  request.job.model.seq_given = true;
  request.job.cluster.world_size = request.job.cluster.ranks_per_node = 4;
  request.job.train.clip_grad_norm = 1;
  request.job.fsdp.allow_traps = {46};
  std::vector<std::int64_t> degrees;
  SharedParts shared;
  Workbench bench(shared);
  for (const FitLine& line : fit_lines(request.job, request)) {
    if (line.refused || line.job.mesh.expert == 1 || line.recomputation != "nothing is recomputed") continue;
    degrees.push_back(line.job.mesh.expert);
    EXPECT_EQ(line.job.fsdp.allow_traps, (std::vector<std::int64_t>{46, 45}));
    const auto trial = try_job(bench, line.job, {2, 1});
    EXPECT_TRUE(trial && trial->fits);
  }
  EXPECT_EQ(degrees, (std::vector<std::int64_t>{2, 2, 4, 4}));
  std::remove(path.c_str());
}

TEST_F(FitTest, ErrorsNameThePlace) {
  request.tokens_per_step = 5000;
  const auto odd = fit(request);
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().place, "--tokens-per-step");
  EXPECT_THAT(odd.error().hint, HasSubstr("4096 is near"));
  request.tokens_per_step = 0;
  request.methods = {"half"};
  const auto unknown = fit(request);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().place, "--method");
}

TEST_F(FitTest, AProgramOfOneSizeIsFittedAtThatSize) {
  request.job.model.batch = 2;
  request.job.model.seq = 768;
  auto model = load_model(request.job.model, program_options(request.job));
  ASSERT_TRUE(model) << to_text(model.error());
  model->lifetimes = Lifetimes::Recorded;  // as captured
  const std::string path = testing::temporary_path("fit_model.json");
  std::ofstream(path) << write_model_json(*model);
  request.job.model = {};
  request.job.model.source = path;
  const FitMethod found = run();
  std::remove(path.c_str());
  ASSERT_FALSE(found.choices.empty());
  EXPECT_EQ(found.choices[0].sequence, 1536) << "two rows of 768, of which the job knows nothing";
  for (const FitChoice& choice : found.choices) EXPECT_EQ(choice.job.model.batch, 1);
  EXPECT_FALSE(found.longest);
  EXPECT_THAT(found.not_tried, Contains(HasSubstr("other lengths")));
}

TEST(Gpus, AreReadAsPeopleWriteThem) {
  const auto read = [](const char* text) { return parse_gpus(text).value_or(Gpus{}); };
  EXPECT_EQ(read("8xh200").profile, "h200-sxm-141") << "not the card on another board";
  EXPECT_EQ(read("8xh100-sxm").profile, "h100-sxm-80");
  EXPECT_EQ(read("2x4xh200-sxm-141-x4").profile, "h200-sxm-141-x4");
  EXPECT_EQ(read("8xh100-sxm-80"), (Gpus{8, 8, "h100-sxm-80"}));
  EXPECT_EQ(read("2x4xh100-sxm-80"), (Gpus{8, 4, "h100-sxm-80"}));
  EXPECT_EQ(read("64xh100-sxm-80"), (Gpus{64, 8, "h100-sxm-80"}));
  EXPECT_EQ(read("8x4090"), (Gpus{8, 8, "rtx-4090"}));
  EXPECT_EQ(read("2x./mine.toml"), (Gpus{2, 2, "./mine.toml"}));
  for (const auto& [text, says] : {std::pair{"8xa100", "several profiles"},
                                   {"8xh10", "several profiles"},
                                   {"8xh1000-sxm-80", "no profile"},
                                   {"h100-sxm-80", "number of them"},
                                   {"12xh100-sxm-80", "do not fill"}}) {
    const auto gpus = parse_gpus(text);
    ASSERT_FALSE(gpus) << text;
    EXPECT_THAT(gpus.error().message, HasSubstr(says));
    EXPECT_EQ(gpus.error().place, "--gpus");
  }
  EXPECT_THAT(parse_gpus("8xh1000-sxm-80").error().hint, HasSubstr("h100-sxm-80"));
}

}  // namespace
}  // namespace foreshard
