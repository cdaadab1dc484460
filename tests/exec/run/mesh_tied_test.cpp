// Tied parameters that a tensor-parallel plan unties: saved, exported, and loaded where they are tied and where not.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/checkpoint_export.h"
#include "exec/communicators/in_process_communicator.h"
#include "tests/exec/tiny_llama.h"
#include "tests/exec/tiny_ranks.h"
#include "tests/support/temporary_path.h"

namespace foreshard::exec {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 3;
const std::string kTable = "model.embed_tokens.weight", kHead = "lm_head.weight";
const std::vector<double> kRates(kTinySteps, 2e-3);

nlohmann::json read_json(const fs::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

class MeshTied : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    const fs::path source = fs::path(tiny_llama_job(1).model.source).parent_path();
    for (const bool tied : {true, false}) {
      fs::create_directories(fs::path(config_of(tied)).parent_path());
      nlohmann::json config = read_json(source / "config.json");
      config["tie_word_embeddings"] = tied;
      std::ofstream(config_of(tied)) << config.dump();
      fs::copy_file(source / "model.safetensors", fs::path(config_of(tied)).parent_path() / "model.safetensors");
    }
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string config_of(bool tied) const { return folder_ + (tied ? "/tied" : "/apart") + "/config.json"; }

  Job job(bool tied, int data, int tensor, Runtime runtime = Runtime::Fsdp2) const {
    Job job = tiny_llama_job(data * tensor);
    job.model.source = config_of(tied);
    job.model.batch = kTinyRows / data;
    job.fsdp.runtime = runtime;
    job.mesh.tensor = tensor;
    job.fsdp.allow_traps = {26};
    return job;
  }

  /// Trains and saves; the whole parameters by all their names.
  std::map<std::string, at::Tensor> save(const Job& job, const std::string& name) const {
    TinyRanks ranks(job), apart(this->job(job.mesh.tensor > 1 ? false : job.model.source == config_of(false), 1, 1));
    const auto world = in_process_communicators(static_cast<int>(job.cluster.world_size), std::chrono::seconds(60));
    const auto traces = ranks.train(kSteps, kRates, [&](int rank, PlanRunner& runner) {
      const Model model = ranks.own_model(rank);
      TrainProgress progress;
      progress.step = kSteps;
      const CheckpointContents contents{model, progress, {}, {{"config.json", read_json(job.model.source).dump()}}};
      const auto saved = save_checkpoint(folder_ + name, runner.state().value(), contents,
                                         world[static_cast<std::size_t>(rank)].get());
      if (!saved) throw std::runtime_error(to_text(saved.error()));
    });
    for (const RankTrace& trace : traces) EXPECT_EQ(trace.failure, "");
    return whole_parameters(job.mesh.tensor > 1 ? apart.model() : ranks.model(), traces);
  }

  /// Loads on every rank and trains no step; the first failure is in the traces.
  std::vector<RankTrace> load(const Job& job, const std::string& name, TinyRanks& ranks) const {
    const auto world = in_process_communicators(static_cast<int>(job.cluster.world_size), std::chrono::seconds(60));
    TinyRanks::Run run{0, 0, kRates, {}, {}};
    run.before = [&, world](int rank, PlanRunner& runner) {
      TrainState state = runner.state().value();
      const auto loaded =
          resume_checkpoint(folder_ + name, ranks.own_model(rank), state, world[static_cast<std::size_t>(rank)].get());
      if (!loaded) throw std::runtime_error(to_text(loaded.error()));
    };
    return ranks.train(run);
  }

  std::string folder_ = foreshard::testing::temporary_path("mesh_tied");
};

TEST_F(MeshTied, ExportsBothTensorsAndSaysThatTheyAreTwo) {
  for (const Runtime runtime : {Runtime::Fsdp2, Runtime::Fsdp1}) {
    const std::string name = runtime == Runtime::Fsdp1 ? "/flat" : "/each";
    const auto whole = save(job(true, 2, 2, runtime), name);
    EXPECT_FALSE(whole.at(kTable).equal(whole.at(kHead)));
    const auto exported = export_checkpoint(folder_ + name, folder_ + name + "_out");
    ASSERT_TRUE(exported.has_value()) << to_text(exported.error());
    const NamedTensors written = read_weights(folder_ + name + "_out").value();
    EXPECT_EQ(written.size(), whole.size());
    for (const auto& [fqn, tensor] : whole) EXPECT_TRUE(written.at(fqn).equal(tensor)) << fqn;
    // Who reads the folder would else tie them again.
    EXPECT_EQ(read_json(folder_ + name + "_out/config.json")["tie_word_embeddings"], false);
  }
}

TEST_F(MeshTied, ResumesWhereTheyAreTwo) {
  const auto whole = save(job(true, 2, 2), "/two");
  for (const Job& other : {job(false, 2, 1), job(false, 1, 2), job(true, 1, 2), job(true, 2, 2)}) {
    TinyRanks ranks(other), apart(job(false, 1, 1));
    const auto traces = load(other, "/two", ranks);
    for (const RankTrace& trace : traces) ASSERT_EQ(trace.failure, "");
    for (const auto& [fqn, tensor] : whole_parameters(apart.model(), traces))
      EXPECT_TRUE(tensor.equal(whole.at(fqn))) << fqn;
  }
}

TEST_F(MeshTied, NeverLosesOneOfTwo) {
  save(job(true, 2, 2), "/two");
  TinyRanks ranks(job(true, 2, 1));
  for (const RankTrace& trace : load(job(true, 2, 1), "/two", ranks)) {
    EXPECT_NE(trace.failure.find(kHead), std::string::npos) << trace.failure;
    EXPECT_NE(trace.failure.find("untied this parameter"), std::string::npos) << trace.failure;
    EXPECT_NE(trace.failure.find("tie_word_embeddings = false"), std::string::npos) << trace.failure;
  }
}

TEST_F(MeshTied, OneTensorBecomesTwoThatAreTheSame) {
  const auto whole = save(job(true, 2, 1), "/one");
  EXPECT_FALSE(whole.contains(kHead));
  ASSERT_TRUE(export_checkpoint(folder_ + "/one", folder_ + "/one_out").has_value());
  EXPECT_EQ(read_json(folder_ + "/one_out/config.json")["tie_word_embeddings"], true);
  TinyRanks ranks(job(true, 2, 2)), apart(job(false, 1, 1));
  const auto traces = load(job(true, 2, 2), "/one", ranks);
  for (const RankTrace& trace : traces) ASSERT_EQ(trace.failure, "");
  for (const auto& [fqn, tensor] : whole_parameters(apart.model(), traces))
    EXPECT_TRUE(tensor.equal(whole.at(fqn == kHead ? kTable : fqn))) << fqn;
}

TEST_F(MeshTied, StayTiedWhereThePlanLeavesThemOut) {
  Job whole_outside = job(true, 2, 2);
  whole_outside.mesh.sequence_parallel = whole_outside.mesh.loss_parallel = false;
  for (const ParallelStyle& style : tiny_llama(whole_outside).parallel)
    if (style.modules.find("proj") != style.modules.npos) whole_outside.mesh.plan[style.modules] = style.style;
  TinyRanks ranks(whole_outside);
  const auto world = in_process_communicators(4, std::chrono::seconds(60));
  const auto traces = ranks.train(kSteps, kRates, [&](int rank, PlanRunner& runner) {
    const Model model = ranks.own_model(rank);
    TrainProgress progress;
    const auto saved = save_checkpoint(folder_ + "/left_out", runner.state().value(), {model, progress, {}, {}},
                                       world[static_cast<std::size_t>(rank)].get());
    if (!saved) throw std::runtime_error(to_text(saved.error()));
  });
  for (const RankTrace& trace : traces) ASSERT_EQ(trace.failure, "");
  ASSERT_TRUE(export_checkpoint(folder_ + "/left_out", folder_ + "/left_out_weights").has_value());
  const NamedTensors written = read_weights(folder_ + "/left_out_weights").value();
  EXPECT_FALSE(written.contains(kHead));
  for (const auto& [fqn, tensor] : whole_parameters(ranks.model(), traces))
    EXPECT_TRUE(written.at(fqn).equal(tensor)) << fqn;
}

}  // namespace
}  // namespace foreshard::exec
