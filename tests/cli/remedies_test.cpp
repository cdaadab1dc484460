#include "cli/reports/remedies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/job/job_file.h"

namespace foreshard::cli {
namespace {

using testing::ElementsAre;

std::vector<std::string> texts(const Job& job) {
  std::vector<std::string> out;
  for (const Change& change : changes_to_try(job)) out.push_back(change.text);
  return out;
}

TEST(Remedies, TheNearestChangesComeFirst) {
  Job job;
  job.model.batch = 2;
  job.cluster.world_size = 512;
  job.fsdp.reshard_after_forward.kind = ReshardAfterForward::Kind::False;
  const std::string both = "reshard after forward, checkpoint every block", all = both + ", units found by search";
  EXPECT_THAT(texts(job),
              ElementsAre("reshard after forward", "checkpoint every block", both, "units found by search", all,
                          "batch 1 instead of 2", all + ", batch 1 instead of 2", all + ", 1024 ranks instead of 512",
                          all + ", parameters and optimizer on the host"));
}

TEST(Remedies, WhatTheJobAlreadyDoesIsNotProposed) {
  Job job;
  job.checkpointing.policy = CheckpointPolicy::Block;
  job.fsdp.cpu_offload = true;
  job.fsdp.wrap.policy = WrapPolicyKind::Auto;
  job.cluster.world_size = 1024;
  EXPECT_TRUE(texts(job).empty());
}

TEST(Remedies, Fsdp1ShardsItsParameters) {
  Job job;
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.strategy = Strategy::ShardGradOp;
  EXPECT_EQ(changes_to_try(job).front().set, (std::vector<std::string>{"fsdp.strategy=FULL_SHARD"}));
}

TEST(Remedies, TheKeysOfAChangeMakeTheSameJobAsTheChange) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2, Runtime::None}) {
    Job job;
    job.model.source = "model.json";
    job.model.batch = 4;
    job.fsdp.runtime = runtime;
    job.fsdp.reshard_after_forward.kind = ReshardAfterForward::Kind::False;
    const std::string file = job_to_toml(job);
    for (const Change& change : changes_to_try(job)) {
      const auto loaded = parse_job(file, "", change.set);
      ASSERT_TRUE(loaded.has_value()) << to_text(loaded.error());
      EXPECT_EQ(loaded->job, change.job) << change.text;
    }
  }
}

}  // namespace
}  // namespace foreshard::cli
