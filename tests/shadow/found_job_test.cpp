#include "shadow/found_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/job/job_file.h"
#include "tests/support/temporary_path.h"

namespace foreshard::shadow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

FoundUnit unit(const std::string& name, std::int64_t reshard = 1) {
  FoundUnit made;
  made.modules = {name};
  made.strategy = "FULL_SHARD";
  made.reshard_after_forward = reshard;
  made.param = "bfloat16";
  made.reduce = "float32";
  made.shard_group = 8;
  return made;
}

WatchedRun run_of(std::vector<FoundUnit> units, const std::string& runtime = "fsdp2") {
  WatchedRun run;
  run.world_size = 16;
  run.rank = 5;
  run.steps.resize(3);
  run.setting = FoundSetting{};
  run.setting->runtime = runtime;
  run.setting->units = std::move(units);
  run.setting->optimizer = {"AdamW", "torch", "fused", 1e-4, 1e-8, 0.1, 0, {0.9, 0.95}};
  run.setting->batch = 2;
  run.setting->seq = 512;
  run.setting->model_file = "model.json";
  return run;
}

TEST(FoundJob, UnitsAreNamedAndTheRootKeepsPyTorchsDefault) {
  const FoundJob found = found_job(run_of({unit("", 0), unit("h.0"), unit("h.1")}), {"h100-sxm-80", 8}, "model.json");
  EXPECT_TRUE(found.beyond.empty());
  EXPECT_THAT(found.job.fsdp.wrap.units, ElementsAre(ElementsAre("h.0"), ElementsAre("h.1")));
  EXPECT_TRUE(found.job.fsdp.overrides.empty());
  EXPECT_EQ(found.job.train.optimizer.impl, OptimizerImpl::Fused);
  EXPECT_EQ(found.job.cluster.rank, 5);
  EXPECT_EQ(found.job.model.seq, 512);
}

TEST(FoundJob, ItsReleaseIsTheScripts) {
  WatchedRun run = run_of({unit("h.0")});
  for (const char* version : {"", "2.6.0", "2.11.0+cu130"}) {
    run.torch = version;
    EXPECT_EQ(found_job(run, {"h100-sxm-80", 8}, "model.json").job.fsdp.quirks, "torch-2.11") << version;
  }
  for (const char* version : {"2.12.0a0+git1", "2.12.1+cu130", "2.14.1"}) {
    run.torch = version;
    EXPECT_EQ(found_job(run, {"h100-sxm-80", 8}, "model.json").job.fsdp.quirks, "torch-2.12") << version;
  }
  for (const char* version : {"2.15.0+cu132", "3.0"}) {
    run.torch = version;
    EXPECT_EQ(found_job(run, {"h100-sxm-80", 8}, "model.json").job.fsdp.quirks, "torch-2.15") << version;
  }
  run.keeps_workspaces = true;
  EXPECT_EQ(found_job(run, {"h100-sxm-80", 8}, "model.json").job.fsdp.quirks, "torch-2.12");
}

TEST(FoundJob, WhatDiffersByUnitBecomesAnOverride) {
  FoundUnit wide = unit("h.1", 0);
  wide.reduce = "bfloat16";
  const FoundJob found =
      found_job(run_of({unit("", 1), unit("h.0"), wide, unit("h.2")}), {"h100-sxm-80", 8}, "model.json");
  ASSERT_EQ(found.job.fsdp.overrides.size(), 2u);
  EXPECT_THAT(found.job.fsdp.overrides[0].units,
              ElementsAre(""));  // told to reshard, which the root does not by itself
  EXPECT_EQ(found.job.fsdp.overrides[1].mixed_precision->reduce, DType::BFloat16);
  EXPECT_EQ(found.job.fsdp.overrides[1].reshard_after_forward->kind, ReshardAfterForward::Kind::False);
}

TEST(FoundJob, TwoAdafactorsAreToldApart) {
  WatchedRun run = run_of({unit("h.0")}, "fsdp1");
  run.setting->optimizer = {"Adafactor", "torch", "for_loop", 1e-2, 0, 0, 0, {}};
  EXPECT_EQ(found_job(run, {"h100-sxm-80", 8}, "model.json").job.train.optimizer.library, OptimizerLibrary::Torch);
  run.setting->optimizer.library = "transformers";
  EXPECT_EQ(found_job(run, {"h100-sxm-80", 8}, "model.json").job.train.optimizer.library,
            OptimizerLibrary::Transformers);
}

TEST(FoundJob, TorchsElementwiseOptimizersAreFoundByTheirClasses) {
  WatchedRun run = run_of({unit("", 0), unit("h.0")});
  run.setting->optimizer = {"RMSprop", "torch", "for_loop", 1e-2, 1e-8, 0, 0.9, {}, 3, 0.95, true};
  FoundJob found = found_job(run, {"h100-sxm-80", 8}, "model.json");
  EXPECT_EQ(found.job.train.optimizer.name, OptimizerKind::RMSprop);
  EXPECT_EQ(found.job.train.optimizer.alpha, 0.95);
  EXPECT_TRUE(found.job.train.optimizer.centered);
  EXPECT_TRUE(found.beyond.empty());
  run.setting->optimizer = {"Adamax", "torch", "foreach", 1e-2, 1e-8, 0, 0, {0.9, 0.99}, 2};
  found = found_job(run, {"h100-sxm-80", 8}, "model.json");
  EXPECT_EQ(found.job.train.optimizer.name, OptimizerKind::Adamax);
  EXPECT_EQ(found.job.train.optimizer.beta2, 0.99);
}

TEST(FoundJob, AnOptimizerThatNoJobNamesIsTheOneThatWasSeenWhateverItsClassIsCalled) {
  WatchedRun run = run_of({unit("", 0), unit("h.0")});
  run.setting->optimizer = {"Muon", "__main__", "foreach", 1e-2, 0, 0, 0.9, {}};
  run.setting->optimizer.watched = "Muon-2";
  run.setting->beside = 3 * kMiB;
  run.setting->beside_later = 2 * kMiB;
  const FoundJob found = found_job(run, {"h100-sxm-80", 8}, "model.json");
  EXPECT_EQ(found.job.train.optimizer.name, OptimizerKind::Watched);
  EXPECT_EQ(found.job.train.optimizer.class_name, "Muon-2");
  EXPECT_EQ(found.job.train.beside_later, 2 * kMiB);
  ASSERT_EQ(found.beyond.size(), 1u);
  EXPECT_EQ(found.beyond[0].where, "train.optimizer");
}

// Of a norm in a unit of its own, as FSDP1 makes one of every batch norm.
TEST(FoundJob, TheJobsPrecisionIsThatOfMostParameters) {
  FoundUnit norm = unit("h.0.norm"), again = unit("h.1.norm"), block = unit("h.0");
  block.param = "bfloat16", block.numel = 9;
  norm.param = again.param = "none", norm.numel = again.numel = 2;
  const Job job = found_job(run_of({unit("", 0), norm, again, block}, "fsdp1"), {"h100-sxm-80", 8}, "model.json").job;
  EXPECT_EQ(job.fsdp.mixed_precision.param, DType::BFloat16);
}

TEST(FoundJob, SeveralOptimizersOfAStepAreParts) {
  WatchedRun run = run_of({unit("", 0), unit("h.0")});
  run.setting->optimizer.amsgrad = true;
  FoundOptimizer other = {"SGD", "torch", "foreach", 1e-2, 0, 0, 0.9, {}};
  other.params = {"table.*"};
  run.setting->others = {other};
  run.setting->waiting = {"judge.*"};
  const Job job = found_job(run, {"h100-sxm-80", 8}, "model-2.json").job;
  EXPECT_TRUE(job.train.optimizer.amsgrad);
  ASSERT_EQ(job.train.optimizer_parts.size(), 2u);
  EXPECT_EQ(job.train.optimizer_parts[0].options.name, OptimizerKind::Sgd);
  EXPECT_EQ(job.train.optimizer_parts[0].options.momentum, 0.9);
  EXPECT_FALSE(job.train.optimizer_parts[1].steps);
  EXPECT_THAT(job.train.optimizer_parts[1].params, ElementsAre("judge.*"));
}

TEST(FoundJob, AUnitThatIsWrappedTwiceFreesThoughItIsARoot) {
  FoundUnit twice = unit("h.0");
  twice.wrapped_twice = true;
  WatchedRun run = run_of({twice, unit("h.1")}, "fsdp1");
  run.setting->roots = 2;
  const Job job = found_job(run, {"h100-sxm-80", 8}, "model.json").job;
  ASSERT_EQ(job.fsdp.overrides.size(), 1u);
  EXPECT_EQ(job.fsdp.overrides[0].reshard_after_forward, ReshardAfterForward{});
  run.setting->units[1].modules = {"h"};  // around it
  EXPECT_TRUE(found_job(run, {"h100-sxm-80", 8}, "model.json").job.fsdp.overrides.empty());
}

TEST(FoundJob, ATurnHasItsOwnSteps) {
  WatchedRun run = run_of({unit("", 0), unit("h.0")});
  run.turns = {*run.setting};
  run.turns[0].optimizer.amsgrad = true;
  run.steps[1].turn = 1;
  const Job first = found_job(run, {"h100-sxm-80", 8}, "model.json").job;
  const Job second = found_job(run, {"h100-sxm-80", 8}, "model-2.json", 1).job;
  EXPECT_EQ(first.train.steps, 2);
  EXPECT_EQ(second.train.steps, 1);
  EXPECT_FALSE(first.train.optimizer.amsgrad);
  EXPECT_TRUE(second.train.optimizer.amsgrad);
}

TEST(FoundJob, MuonWithAdamWBesideItIsTheJobsMuon) {
  WatchedRun run = run_of({unit("", 0), unit("h.0")});
  FoundOptimizer muon = {"Muon", "torch", "foreach", 1e-2, 0, 0, 0.95, {}};
  muon.params = {"h.*"};
  run.setting->others = {muon};
  FoundJob found = found_job(run, {"h100-sxm-80", 8}, "model.json");
  EXPECT_EQ(found.job.train.optimizer.name, OptimizerKind::Muon);
  EXPECT_TRUE(found.job.train.optimizer_parts.empty());
  EXPECT_TRUE(found.beyond.empty());
  run.setting->waiting = {"judge.*"};
  found = found_job(run, {"h100-sxm-80", 8}, "model.json");
  ASSERT_EQ(found.beyond.size(), 1u);
  EXPECT_EQ(found.beyond[0].where, "train.optimizer.parts");
}

TEST(FoundJob, OffloadOfSomeUnitsIsTold) {
  FoundUnit teacher = unit("teacher");
  teacher.cpu_offload = true;
  const FoundJob found = found_job(run_of({unit("", 0), teacher}), {"h100-sxm-80", 8}, "model.json");
  ASSERT_EQ(found.beyond.size(), 1u);
  EXPECT_EQ(found.beyond[0].where, "fsdp.cpu_offload");
}

TEST(FoundJob, WhatNoKeySaysIsTold) {
  WatchedRun run = run_of({unit("h.0")});
  run.setting->optimizer.name = "Lion";
  const FoundJob found = found_job(run, {"h100-sxm-80", 8}, "model.json");
  ASSERT_EQ(found.beyond.size(), 2u);
  EXPECT_THAT(found.beyond[0].text, HasSubstr("Lion"));
  EXPECT_EQ(found.beyond[1].where, "(root)");
}

TEST(FoundJob, AnOptimizerThatKeepsAsMuchStandsForOneWithoutAName) {
  WatchedRun run = run_of({unit("", 0), unit("h.0")});
  run.setting->optimizer = {"Lion", "lion", "for_loop", 1e-4, 0, 0.1, 0, {0.9, 0.99}, 1};
  FoundJob found = found_job(run, {"h100-sxm-80", 8}, "model.json");
  EXPECT_EQ(found.job.train.optimizer.name, OptimizerKind::Sgd);
  EXPECT_GT(found.job.train.optimizer.momentum, 0.0);
  EXPECT_THAT(found.beyond[0].text, HasSubstr("sgd with momentum, which keeps as much"));
  run.setting->optimizer.states = 0;
  EXPECT_EQ(found_job(run, {"h100-sxm-80", 8}, "model.json").job.train.optimizer.momentum, 0.0);
  run.setting->optimizer.states = 2;
  EXPECT_EQ(found_job(run, {"h100-sxm-80", 8}, "model.json").job.train.optimizer.name, OptimizerKind::AdamW);
}

TEST(FoundJob, GradientsGoWhereTheScriptLetsGoOfThem) {
  WatchedRun run = run_of({unit("", 0), unit("h.0")});
  run.setting->micro_batches = 2;
  run.setting->no_sync = true;
  run.setting->zero_grad = "after_forward";
  run.setting->beside = 3 * kMiB;
  const Job job = found_job(run, {"h100-sxm-80", 8}, "model.json").job;
  EXPECT_TRUE(job.train.no_sync);
  EXPECT_EQ(job.train.beside, 3 * kMiB);
  ASSERT_EQ(job.train.script.size(), 3u);
  EXPECT_THAT(job.train.script[0], ElementsAre("no_sync{", "fwd", "zero", "bwd", "}", "fwd", "bwd", "step"));
  run.setting->zero_grad = "zero";
  EXPECT_EQ(found_job(run, {"h100-sxm-80", 8}, "model.json").job.train.zero_grad, "zero");
}

TEST(FoundJob, ARootWithoutParametersDoesNotSayWhereTheyLie) {
  FoundUnit block = unit("h.0");
  block.cpu_offload = true;
  EXPECT_TRUE(found_job(run_of({unit("", 0), block}), {"h100-sxm-80", 8}, "model.json").job.fsdp.cpu_offload);
}

TEST(FoundJob, ExpertsOnRanksAreNoTensorDimension) {
  FoundUnit experts = unit("h.0.experts");
  experts.expert_parallel = 4;
  WatchedRun run = run_of({unit("", 0), unit("h.0"), experts});
  run.setting->tensor_plan = {{"h.*.experts", "experts"}};
  run.setting->clip = 1;
  const Job job = found_job(run, {"h100-sxm-80", 8}, "model.json").job;
  EXPECT_EQ(job.mesh.expert, 4);
  EXPECT_EQ(job.mesh.tensor, 1);
  EXPECT_EQ(job.mesh.plan.at("h.*.experts"), "experts");
  EXPECT_THAT(job.fsdp.allow_traps, ElementsAre(45)) << "the script has clipped";
}

TEST(FoundJob, ExpertsGradientsAreDividedAsTheScriptSays) {
  FoundUnit experts = unit("h.0.experts");
  experts.expert_parallel = 4;
  WatchedRun run = run_of({unit("", 0), unit("h.0"), experts});
  const auto factor = [&] { return found_job(run, {"h100-sxm-80", 8}, "model.json").job.mesh.expert_divide_factor; };
  EXPECT_EQ(factor(), 0) << "a report that does not say it";
  run.setting->backwards.resize(1);
  EXPECT_EQ(factor(), -1) << "by the ranks that shard them";
  run.setting->backwards[0].units["h.0.experts"].divide = 16;
  EXPECT_EQ(factor(), 0) << "by the data ranks";
  run.setting->backwards[0].units["h.0.experts"].divide = 64;
  EXPECT_EQ(factor(), 64);
  EXPECT_TRUE(found_job(run, {"h100-sxm-80", 8}, "model.json").job.train.script.empty());
  run.setting->backwards[0].units["h.0.experts"].divide = 2.5;
  const Job job = found_job(run, {"h100-sxm-80", 8}, "model.json").job;
  EXPECT_THAT(job.train.script.at(0), ::testing::Contains("call:h.0.experts:set_gradient_divide_factor:2.5"));
}

TEST(FoundJob, ASequenceThatRanksShareIsTheWholeOne) {
  WatchedRun run = run_of({unit("", 0), unit("h.0")});
  run.setting->sequence_ranks = 4;
  run.setting->sequence_rotate = "alltoall";
  run.setting->sequence_buffers = "whole";
  FoundJob found = found_job(run, {"h100-sxm-80", 8}, "model.json");
  EXPECT_TRUE(found.beyond.empty());
  EXPECT_EQ(found.job.mesh.context, 4);
  EXPECT_EQ(found.job.mesh.context_rotate, "alltoall");
  EXPECT_EQ(found.job.mesh.context_buffers, "whole");
  EXPECT_EQ(found.job.model.seq, 2048);
  run.setting->sequence_balanced = false;
  found = found_job(run, {"h100-sxm-80", 8}, "model.json");
  ASSERT_EQ(found.beyond.size(), 1U);
  EXPECT_THAT(found.beyond[0].text, HasSubstr("the plan balances causal attention"));
}

TEST(FoundJob, HybridShardingHasItsGroup) {
  std::vector<FoundUnit> units = {unit("", 0), unit("h.0")};
  for (FoundUnit& each : units) each.strategy = "HYBRID_SHARD";
  const FoundJob found = found_job(run_of(units), {"h100-sxm-80", 8}, "model.json");
  EXPECT_EQ(found.job.fsdp.strategy, Strategy::HybridShard);
  EXPECT_EQ(found.job.cluster.shard_group, 8);
}

TEST(FoundJob, ItsTextIsAJobFile) {
  FoundUnit ahead = unit("h.0");
  ahead.forward = {"h.1"};
  const FoundJob found = found_job(run_of({unit("", 0), ahead, unit("h.1")}), {"h100-sxm-80", 8}, "model.json");
  const auto read = parse_job(short_job_text(found.job), "", std::vector<std::string>{});
  ASSERT_TRUE(read) << to_text(read.error());
  EXPECT_EQ(read->job, found.job);
}

TEST(FoundJob, SettingsThatPartAreNamedByKey) {
  const Job script = found_job(run_of({unit("", 0), unit("h.0")}), {"h100-sxm-80", 8}, "model.json").job;
  Job meant = script;
  EXPECT_TRUE(setting_differences(script, meant).empty());
  meant.fsdp.prefetch.forward_depth = 2;
  meant.train.steps = 1000;  // the script's own affair
  const auto found = setting_differences(script, meant);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].where, "fsdp.prefetch.forward_depth");
}

TEST(WatchedRun, ReadsWhatPythonWrites) {
  const std::string path = testing::temporary_path("report.json");
  std::ofstream(path)
      << R"({"rank": 1, "world_size": 2, "torch": "2.11.0", "host_peak_bytes": 5, "failure": null, "notes": ["a"],
    "steps": [{"allocated_bytes": 1, "active_bytes": 2, "reserved_bytes": 3, "retries": 0, "ooms": 0, "virtual_ns": 4}],
    "setting": {"runtime": "fsdp2", "ddp": false, "model_class": "GPT", "frozen": [], "autocast": "", "init": "host",
      "units": [{"modules": [""], "class": "GPT", "strategy": "FULL_SHARD", "reshard_after_forward": false, "forward": [],
                 "backward": [], "shard_dim": {}}],
      "optimizer": {"name": "SGD", "impl": "foreach", "lr": 0.1, "eps": null, "betas": null, "momentum": 0.9, "weight_decay": 0},
      "batch": {"batch": 8}, "micro_batches": 2,
      "backwards": [{"last": false, "units": {"": {"unshard_in_backward": false, "reduce_grads": false,
                     "gradient_divide_factor": 4.0}}}, {"last": true, "units": {"": {"reshard_after_forward": true}}}],
      "clip": 1.0, "scaler": false,
      "checkpointed": {"Block": {"calls": 4, "reentrant": false, "selective": true}},
      "float8": {"params": ["h.0.weight"], "precomputed": true},
      "sequence": {"ranks": 2, "rotate": "allgather", "buffers": "whole", "balanced": false},
      "loss": {"kind": "own"}, "model": null}})";
  const auto run = read_watched_run(path);
  ASSERT_TRUE(run) << to_text(run.error());
  EXPECT_EQ(run->steps[0].virtual_time, 4);
  ASSERT_TRUE(run->setting);
  EXPECT_EQ(run->setting->units[0].reshard_after_forward, 0);
  EXPECT_EQ(run->setting->checkpointed[0].what, "Block");
  EXPECT_EQ(run->setting->batch, 8);
  ASSERT_EQ(run->setting->backwards.size(), 2U);
  EXPECT_FALSE(run->setting->backwards[0].last);
  FoundSwitches first;
  first.unshard = first.reduce = first.all_reduce = first.reshard_after_forward =
      false;  // the last one as the unit's own
  first.divide = 4;
  EXPECT_EQ(run->setting->backwards[0].units.at(""), first);
  EXPECT_EQ(run->setting->backwards[1].units.at(""), FoundSwitches{});
  EXPECT_EQ(run->setting->float8_all_gather, "precomputed");
  EXPECT_EQ(run->setting->sequence_ranks, 2);
  EXPECT_EQ(run->setting->sequence_buffers, "whole");
  EXPECT_FALSE(run->setting->sequence_balanced);
  EXPECT_EQ(run->setting->model_file, "");
  std::ofstream(path) << "{}";
  EXPECT_EQ(read_watched_run(path).error().code, ErrorCode::BadSyntax);
}

}  // namespace
}  // namespace foreshard::shadow
