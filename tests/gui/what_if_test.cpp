#include "gui/models/what_if.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/job/job_file.h"
#include "gui/models/headline.h"

namespace foreshard::gui {
namespace {

Job gpt2() {
  const auto loaded =
      load_job(std::string(FORESHARD_SOURCE_DIR) + "/examples/gpt2-8xa100.toml", std::vector<std::string>{});
  EXPECT_TRUE(loaded.has_value());
  return loaded->job;
}

WhatIf started() {
  auto what_if = WhatIf::start(gpt2(), "gpt2");
  EXPECT_TRUE(what_if.has_value());
  return std::move(*what_if);
}

TEST(WhatIf, CheckpointingTakesTimeAndGivesMemory) {
  WhatIf what_if = started();
  const double step = what_if.now().step_ns;
  const Bytes peak = what_if.now().peak_allocated;
  ASSERT_TRUE(what_if.set("checkpointing.policy", "block").has_value());
  EXPECT_GT(what_if.now().step_ns, step);
  EXPECT_LT(what_if.now().peak_allocated, peak);
  EXPECT_EQ(what_if.value_of("checkpointing.policy"), "block");
}

TEST(WhatIf, ChangesAreUndoneAndRedone) {
  WhatIf what_if = started();
  const Job before = what_if.now().job;
  ASSERT_TRUE(what_if.set("model.batch", "2").has_value());
  ASSERT_TRUE(what_if.set("fsdp.strategy", "SHARD_GRAD_OP").has_value());
  const double step = what_if.now().step_ns;
  ASSERT_TRUE(what_if.undo());
  ASSERT_TRUE(what_if.undo());
  EXPECT_FALSE(what_if.undo());
  EXPECT_EQ(what_if.now().job, before);
  ASSERT_TRUE(what_if.redo());
  ASSERT_TRUE(what_if.redo());
  EXPECT_FALSE(what_if.redo());
  EXPECT_EQ(what_if.now().step_ns, step);
}

TEST(WhatIf, WhatCannotBeLeavesTheJobAsItWas) {
  WhatIf what_if = started();
  const Job before = what_if.now().job;
  EXPECT_FALSE(what_if.set("fsdp.strategy", "NO_SUCH").has_value());
  EXPECT_FALSE(what_if.set("model.batch", "-3").has_value());
  EXPECT_FALSE(what_if.set("no.such.key", "1").has_value());
  EXPECT_FALSE(what_if.set("cluster.profile", "/no/such/profile.toml").has_value());
  EXPECT_EQ(what_if.now().job, before);
  EXPECT_FALSE(what_if.can_undo());
}

TEST(WhatIf, TooMuchIsAnAnswer) {
  WhatIf what_if = started();
  ASSERT_TRUE(what_if.set("model.batch", "512").has_value());
  EXPECT_FALSE(what_if.now().fits);
  EXPECT_FALSE(what_if.now().misfit.empty());
}

TEST(WhatIf, TheJobFileReadsBackAsTheJob) {
  WhatIf what_if = started();
  ASSERT_TRUE(what_if.set("cluster.world_size", "4").has_value());
  const auto back = parse_job(what_if.job_file(), "", std::vector<std::string>{});
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->job, what_if.now().job);
}

TEST(WhatIf, TheNumbersOfTheStepAreThoseOfThePicture) {
  // FSDP1 divides gradients on the stream that reduces them: that is no compute which hides communication.
  const WhatIf what_if = started();
  const Outcome& now = what_if.now();
  const RangeNumbers numbers = range_numbers(*now.timeline, 0, steady_range(*now.timeline));
  EXPECT_GT(now.exposed_ns, 0);
  EXPECT_NEAR(static_cast<double>(numbers.exposed), now.exposed_ns, 0.001 * now.exposed_ns);
  EXPECT_NEAR(static_cast<double>(numbers.length), now.step_ns, 0.001 * now.step_ns);
}

TEST(WhatIf, APinStaysWhileTheJobChanges) {
  WhatIf what_if = started();
  what_if.toggle_pin();
  const double step = what_if.now().step_ns;
  ASSERT_TRUE(what_if.set("model.batch", "4").has_value());
  ASSERT_NE(what_if.pinned(), nullptr);
  EXPECT_EQ(what_if.pinned()->step_ns, step);
  what_if.toggle_pin();
  EXPECT_EQ(what_if.pinned(), nullptr);
}

TEST(WhatIf, ControlsWithoutMeaningSayThatOfTheJob) {
  WhatIf what_if = started();
  const auto meaning = [&](const std::string& key) {
    for (const Choice& choice : what_if.choices())
      if (choice.key == key) return choice.has_meaning;
    return false;
  };
  EXPECT_TRUE(meaning("fsdp.limit_all_gathers"));
  ASSERT_TRUE(what_if.set("fsdp.runtime", "fsdp2").has_value());
  EXPECT_FALSE(meaning("fsdp.limit_all_gathers"));
}

TEST(WhatIf, EveryWordOfEveryControlIsPlannedOrRefusedByName) {
  WhatIf what_if = started();
  const Job opened = what_if.now().job;
  std::size_t planned = 0, controls = 0;
  for (const Choice& choice : what_if.choices()) {
    ++controls;
    for (const std::string& word : choice.values) {
      const auto set = what_if.set(choice.key, word);
      if (set) {
        planned += what_if.now().job != opened;
        while (what_if.can_undo()) what_if.undo();
        continue;
      }
      EXPECT_FALSE(set.error().message.empty());
      EXPECT_FALSE(set.error().place.empty() && set.error().hint.empty()) << choice.key << " " << to_text(set.error());
    }
  }
  EXPECT_GT(controls, 25u);
  EXPECT_GT(planned, 35u);
}

TEST(WhatIf, AnOptimizerOfAScriptIsOfferedWhereThereIsOne) {
  const WhatIf what_if = started();
  for (const Choice& choice : what_if.choices()) {
    if (choice.key != "train.optimizer.name") continue;
    EXPECT_EQ(std::count(choice.values.begin(), choice.values.end(), "adamw"), 1);
    EXPECT_EQ(std::count(choice.values.begin(), choice.values.end(), "watched"), 0);
  }
}

TEST(WhatIf, ABudgetIsAskedOfThePlannedRuntime) {
  WhatIf what_if = started();
  ASSERT_TRUE(what_if.set("fsdp.runtime", "planned").has_value());
  for (const Choice& choice : what_if.choices()) {
    if (choice.key != "schedule.budget") continue;
    EXPECT_TRUE(choice.has_meaning);
    ASSERT_GE(choice.values.size(), 6u);
    ASSERT_TRUE(what_if.set(choice.key, choice.values[0]).has_value());
  }
  EXPECT_EQ(what_if.now().job.schedule.budget, Bytes{15} << 30) << "40 % of 39 GiB";
  EXPECT_LE(what_if.now().peak_reserved, what_if.now().job.schedule.budget);
}

TEST(WhatIf, DegreesOfAMeshAreThoseThatDivideTheRanks) {
  WhatIf what_if = started();
  ASSERT_TRUE(what_if.set("cluster.world_size", "4").has_value());
  std::vector<std::string> values;
  for (const Choice& choice : what_if.choices())
    if (choice.key == "mesh.tensor") values = choice.values;
  EXPECT_EQ(values, (std::vector<std::string>{"1", "2", "4"}));
  const auto odd = what_if.set("mesh.tensor", "3");
  ASSERT_FALSE(odd.has_value());
  EXPECT_EQ(odd.error().place, "mesh.tensor");
}

}  // namespace
}  // namespace foreshard::gui
