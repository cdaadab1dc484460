// Writers that die, disks that are full, files that are damaged: the last complete checkpoint is loaded, or the error
// says what is wrong.
#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/checkpoint_export.h"
#include "exec/checkpoint/checkpoint_manifest.h"
#include "exec/communicators/in_process_communicator.h"
#include "tests/exec/checkpoint/checkpoint_layouts.h"
#include "tests/support/temporary_path.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <span>
#include <thread>

namespace foreshard::exec {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class CheckpointFaults : public ::testing::Test {
 protected:
  CheckpointFaults() {
    std::mt19937 random(1);
    parts_ = laid_out(whole_, LayoutKind::Flat, 2, random);
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::vector<Result<std::string>> save(std::int64_t step, std::int64_t keep = 0) {
    std::vector<Result<std::string>> saved(2);
    auto world = in_process_communicators(2, std::chrono::seconds(60));
    std::thread peer([&] { saved[1] = save_checkpoint(dir_, parts_[1], contents(step), world[1].get(), keep); });
    saved[0] = save_checkpoint(dir_, parts_[0], contents(step), world[0].get(), keep);
    peer.join();
    return saved;
  }

  Result<LoadedCheckpoint> resume() {
    for (TrainState& part : parts_) part = emptied(part);
    return resume_checkpoint(dir_, model_, parts_[0], nullptr);
  }

  CheckpointContents contents(std::int64_t step) const {
    return {model_, {step, 0, 0, "tokens.bin"}, std::vector<std::uint8_t>(16, 7), {{"job.toml", "steps = 2"}}};
  }
  std::string file(std::int64_t step, const std::string& name) const {
    return dir_ + "/" + checkpoint_folder_name(step) + "/" + name;
  }

  Model model_ = odd_model();
  TrainState whole_ = whole_state(model_, 1);
  std::vector<TrainState> parts_;
  std::string dir_ = testing::temporary_path("faults");
};

TEST_F(CheckpointFaults, AWriterKilledAtAnyMomentLeavesTheLastOne) {
  // Large enough that the writer is met while it writes.
  Model model;
  model.params.resize(1);
  model.params[0].fqn = "w";
  model.params[0].shape = {4 * kMiB};
  TrainState state{{{"w", "param", {4 * kMiB}, at::full({4 * kMiB}, 1.0F), {{0, 0, 4 * kMiB}}}}, 1};
  const auto save_step = [&](std::int64_t step) {
    return save_checkpoint(dir_, state, {model, {step, 0, 0, ""}, {}, {}}, nullptr);
  };
  ASSERT_TRUE(save_step(1));
  int killed_in_the_middle = 0;
  for (int attempt = 0; attempt < 8; ++attempt) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (std::int64_t step = 2;; ++step) (void)save_step(step);
    }
    // The child is killed once its writing of some step has begun: seen by its folder, whatever the machine's speed.
    while (true) {
      bool writing = false;
      std::error_code code;
      for (const auto& entry : fs::directory_iterator(dir_, code)) writing |= entry.path().extension() == ".partial";
      if (writing) break;
      usleep(200);
    }
    usleep(static_cast<useconds_t>(attempt) * 1500);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    for (const auto& entry : fs::directory_iterator(dir_))
      killed_in_the_middle += entry.path().extension() == ".partial";
    state.tensors[0].local.zero_();
    const auto resumed = resume_checkpoint(dir_, model, state, nullptr);
    ASSERT_TRUE(resumed) << to_text(resumed.error());
    EXPECT_TRUE(state.tensors[0].local.eq(1).all().item<bool>()) << resumed->folder;
    ASSERT_TRUE(save_step(1000 + attempt));  // and the next writer is not in its way
  }
  EXPECT_GT(killed_in_the_middle, 0);
}

TEST_F(CheckpointFaults, AFullDiskIsAnErrorOnAllRanksAndKeepsTheLastOne) {
  ASSERT_TRUE(save(1)[0]);
  std::signal(SIGXFSZ, SIG_IGN);  // the write fails instead, as it does on a full disk
  rlimit before{}, tiny{};
  getrlimit(RLIMIT_FSIZE, &before);
  tiny = before;
  tiny.rlim_cur = 1500;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tiny), 0);
  const auto saved = save(2);
  setrlimit(RLIMIT_FSIZE, &before);
  for (const auto& rank : saved) {
    ASSERT_FALSE(rank);
    EXPECT_THAT(to_text(rank.error()), AnyOf(HasSubstr("File too large"), HasSubstr("No space left")));
    EXPECT_THAT(rank.error().hint, HasSubstr("the last complete checkpoint is untouched"));
  }
  EXPECT_FALSE(fs::exists(dir_ + "/step-0000000002.partial"));
  const auto resumed = resume();
  ASSERT_TRUE(resumed) << to_text(resumed.error());
  EXPECT_EQ(resumed->progress.step, 1);
}

TEST_F(CheckpointFaults, AFolderThatCannotBeWrittenIsAnError) {
  std::ofstream(dir_) << "a file";
  for (const auto& rank : save(1)) {
    ASSERT_FALSE(rank);
    EXPECT_THAT(rank.error().file, HasSubstr("step-0000000001.partial"));
  }
}

/// Each kind of damage to the newest of two: skipped with a note that names the file.
struct Damage {
  const char* name;
  void (*make)(const std::string& folder);
  const char* note;
};

class CheckpointDamage : public CheckpointFaults, public ::testing::WithParamInterface<Damage> {};

TEST_P(CheckpointDamage, IsSkippedWithANoteAndRefusedByName) {
  ASSERT_TRUE(save(1)[0]);
  ASSERT_TRUE(save(2)[0]);
  GetParam().make(dir_ + "/step-0000000002");
  const auto direct = load_checkpoint(dir_ + "/step-0000000002", model_, parts_[0], 0, 2);
  ASSERT_FALSE(direct);
  EXPECT_THAT(to_text(direct.error()), HasSubstr(GetParam().note));
  const auto resumed = resume();
  ASSERT_TRUE(resumed) << to_text(resumed.error());
  EXPECT_EQ(resumed->progress.step, 1);
  ASSERT_FALSE(resumed->notes.empty());
  EXPECT_THAT(resumed->notes[0], HasSubstr(GetParam().note));
  EXPECT_THAT(resumed->notes[0], HasSubstr("step-0000000002"));
  EXPECT_FALSE(describe_checkpoint(dir_ + "/step-0000000002", true, false));
}

void overwrite(const std::string& path, std::int64_t from_end, char byte) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-from_end, std::ios::end);
  file.put(byte);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, CheckpointDamage,
    ::testing::Values(
        Damage{"NoManifest", [](const std::string& f) { fs::remove(f + "/checkpoint.json"); }, "incomplete"},
        Damage{"EmptyManifest", [](const std::string& f) { std::ofstream(f + "/checkpoint.json").flush(); },
               "checkpoint.json"},
        Damage{"CutManifest", [](const std::string& f) { fs::resize_file(f + "/checkpoint.json", 200); },
               "checkpoint.json"},
        Damage{"ChangedManifest", [](const std::string& f) { overwrite(f + "/checkpoint.json", 300, '~'); },
               "checkpoint.json"},
        Damage{"NoRankFile", [](const std::string& f) { fs::remove(f + "/rank-00001-of-00002.safetensors"); },
               "rank-00001-of-00002.safetensors"},
        Damage{"CutRankFile",
               [](const std::string& f) { fs::resize_file(f + "/rank-00000-of-00002.safetensors", 900); },
               "rank-00000-of-00002.safetensors"},
        Damage{"ChangedRankFile",
               [](const std::string& f) { overwrite(f + "/rank-00000-of-00002.safetensors", 40, 'x'); }, "checksum"}),
    [](const auto& kind) { return kind.param.name; });

/// A manifest that somebody has changed and sealed again with its own checksum: refused, with the place.
struct Resealed {
  const char* name;
  void (*change)(CheckpointManifest& manifest);
  const char* note;
};

class ResealedManifest : public CheckpointFaults, public ::testing::WithParamInterface<Resealed> {};

CheckpointTensor& tensor_with_parts(CheckpointManifest& m, const char* slot, std::size_t parts) {
  return *std::ranges::find_if(m.tensors,
                               [&](const CheckpointTensor& t) { return t.slot == slot && t.parts.size() >= parts; });
}

TEST_P(ResealedManifest, IsRefusedWithThePlace) {
  ASSERT_TRUE(save(2)[0]);
  const std::string folder = dir_ + "/step-0000000002";
  auto manifest = read_manifest(folder);
  ASSERT_TRUE(manifest) << to_text(manifest.error());
  GetParam().change(*manifest);
  std::ofstream(folder + "/checkpoint.json", std::ios::binary) << manifest_text(*manifest);
  const auto loaded = load_checkpoint(folder, model_, parts_[0], 0, 2);
  ASSERT_FALSE(loaded);
  EXPECT_THAT(to_text(loaded.error()), HasSubstr(GetParam().note));
  EXPECT_FALSE(describe_checkpoint(folder, true, false));
  EXPECT_FALSE(export_checkpoint(folder, dir_ + "/out", {}));
  EXPECT_THAT(loaded.error().file, HasSubstr("checkpoint.json"));
  EXPECT_FALSE(loaded.error().place.empty());
  EXPECT_FALSE(loaded.error().expected.empty());
  EXPECT_FALSE(resume());
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, ResealedManifest,
    ::testing::Values(
        Resealed{"AnotherStep", [](CheckpointManifest& m) { m.progress.step = 3; }, "another step"},
        Resealed{"OtherOptimizerSteps", [](CheckpointManifest& m) { m.optimizer_steps += 1; }, "optimizer_steps"},
        Resealed{"AnotherPositionInTheData", [](CheckpointManifest& m) { m.progress.samples += 8; }, "samples"},
        Resealed{"AnotherSeed", [](CheckpointManifest& m) { m.progress.seed += 1; }, "seed"},
        Resealed{"UnknownParameter", [](CheckpointManifest& m) { m.tensors[0].fqn += "x"; }, "damaged"},
        Resealed{"UnknownMoment", [](CheckpointManifest& m) { tensor_with_parts(m, "exp_avg", 1).fqn = "nobody"; },
                 "exp_avg/nobody"},
        Resealed{"AnotherSlot", [](CheckpointManifest& m) { tensor_with_parts(m, "exp_avg", 1).slot = "exp_avq"; },
                 "exp_avq/"},
        Resealed{"TheSameTensorTwice", [](CheckpointManifest& m) { m.tensors.push_back(m.tensors[0]); },
                 "each tensor once"},
        Resealed{"APartLost", [](CheckpointManifest& m) { tensor_with_parts(m, "param", 2).parts.pop_back(); },
                 "elements"},
        Resealed{"PartsOverlap",
                 [](CheckpointManifest& m) {
                   auto& parts = tensor_with_parts(m, "param", 2).parts;
                   parts[1].runs[0].offset -= 1;
                 },
                 "each element once"},
        Resealed{"PartsSwapped",
                 [](CheckpointManifest& m) {
                   auto& parts = tensor_with_parts(m, "param", 2).parts;
                   std::swap(parts[0].file, parts[1].file);
                 },
                 "manifest"},
        Resealed{"AnotherType", [](CheckpointManifest& m) { tensor_with_parts(m, "param", 1).dtype = DType::Int32; },
                 "does not fit"},
        Resealed{"BytesOfAnother",
                 [](CheckpointManifest& m) {
                   tensor_with_parts(m, "exp_avg", 1).parts[0].begin = tensor_with_parts(m, "param", 1).parts[0].begin;
                 },
                 "bytes behind those of"},
        Resealed{"FilesSwapped", [](CheckpointManifest& m) { std::swap(m.files[0], m.files[1]); }, "damaged"},
        Resealed{"AnotherModelsName", [](CheckpointManifest& m) { m.model = "somebody else's"; }, "somebody else's"},
        Resealed{"AnotherArchitecture", [](CheckpointManifest& m) { m.architecture = "gpt2"; }, "architecture"},
        Resealed{"OtherData", [](CheckpointManifest& m) { m.progress.data = "another.bin"; }, "another.bin"},
        Resealed{"AScalerThatWasNone",
                 [](CheckpointManifest& m) {
                   m.scaler = ScalerState{2.0, 1};
                 },
                 "grad_scaler"},
        Resealed{"AnotherShape",
                 [](CheckpointManifest& m) {
                   for (CheckpointTensor& each : m.tensors) each.shape.push_back(1);
                 },
                 "[11, 6, 1]"},
        Resealed{"APersistentBuffer",
                 [](CheckpointManifest& m) { tensor_with_parts(m, "buffer", 1).persistent ^= true; }, "not_persistent"},
        Resealed{"ASharedNameLost", [](CheckpointManifest& m) { m.shared.clear(); }, "shared.head.weight"},
        Resealed{"AMomentLost",
                 [](CheckpointManifest& m) {
                   std::erase_if(m.tensors, [](const CheckpointTensor& each) { return each.slot == "exp_avg"; });
                 },
                 "exp_avg/"},
        Resealed{"GeneratorStateLost",
                 [](CheckpointManifest& m) {
                   for (CheckpointFile& file : m.files) file.rng = {};
                 },
                 "rng"},
        Resealed{"ADocumentForgotten", [](CheckpointManifest& m) { m.documents.clear(); }, "documents.job.toml"},
        Resealed{"ANameThatSharesNothing", [](CheckpointManifest& m) { m.shared["x"] = "nobody"; }, "shared.x"}),
    [](const auto& kind) { return kind.param.name; });

TEST_F(CheckpointFaults, AKeyThatNobodyWritesIsRefused) {
  ASSERT_TRUE(save(2)[0]);
  std::ifstream file(dir_ + "/step-0000000002/checkpoint.json", std::ios::binary);
  auto document = nlohmann::json::parse(file);
  document["tensors"][0]["notes"] = "mine";
  document.erase("checksum");
  const std::string plain = document.dump();
  document["checksum"] = fmt::format("{:08x}", crc32_of(std::as_bytes(std::span(plain))));
  const auto manifest = parse_manifest(document.dump(), "checkpoint.json");
  ASSERT_FALSE(manifest);
  EXPECT_EQ(manifest.error().place, "tensors/0/notes");
}

/// Families whose parameters have the same names and shapes compute otherwise.
TEST_F(CheckpointFaults, AnotherArchitecturesCheckpointIsRefusedNotSkipped) {
  model_.architecture = "llama";
  ASSERT_TRUE(save(1)[0]);
  model_.architecture = "mistral";
  const auto other = resume();
  ASSERT_FALSE(other);
  EXPECT_THAT(to_text(other.error()), HasSubstr("another model's"));
  EXPECT_EQ(other.error().place, "architecture");
  EXPECT_EQ(other.error().expected, "mistral");
  EXPECT_EQ(other.error().got, "llama");
  model_.architecture.clear();  // an archive does not know
  EXPECT_TRUE(resume());
}

TEST_F(CheckpointFaults, AnotherModelsCheckpointIsRefusedNotSkipped) {
  ASSERT_TRUE(save(1)[0]);
  model_.params[1].shape = {7, 6};
  TrainState other = whole_state(model_, 1);
  const auto shape = resume_checkpoint(dir_, model_, other, nullptr);
  ASSERT_FALSE(shape);
  EXPECT_THAT(to_text(shape.error()), HasSubstr("layers.0.up.weight"));
  EXPECT_THAT(to_text(shape.error()), HasSubstr("another model's"));
  model_ = odd_model();
  model_.params[1].fqn = "layers.0.gate.weight";
  TrainState renamed = whole_state(model_, 1);
  const auto name = resume_checkpoint(dir_, model_, renamed, nullptr);
  ASSERT_FALSE(name);
  EXPECT_THAT(to_text(name.error()), HasSubstr("layers.0.up.weight"));
}

TEST_F(CheckpointFaults, NothingWholeIsAnErrorThatListsWhatWasTried) {
  ASSERT_TRUE(save(1)[0]);
  ASSERT_TRUE(save(2)[0]);
  fs::remove(file(1, "checkpoint.json"));
  fs::remove(file(2, "rank-00000-of-00002.safetensors"));
  const auto resumed = resume();
  ASSERT_FALSE(resumed);
  EXPECT_EQ(resumed.error().code, ErrorCode::NotFound);
  EXPECT_THAT(resumed.error().got, HasSubstr("step-0000000001"));
  EXPECT_THAT(resumed.error().got, HasSubstr("rank-00000-of-00002.safetensors"));
}

TEST_F(CheckpointFaults, ADamagedOneDoesNotCountAgainstKeep) {
  ASSERT_TRUE(save(1)[0]);
  ASSERT_TRUE(save(2)[0]);
  fs::remove(file(2, "checkpoint.json"));
  ASSERT_TRUE(save(3, 2)[0]);
  EXPECT_TRUE(read_manifest(dir_ + "/step-0000000001"));
}

TEST_F(CheckpointFaults, AFolderThatIsNotThereIsNamedAsSuch) {
  const auto manifest = read_manifest(::testing::TempDir() + "foreshard_no_such_folder");
  ASSERT_FALSE(manifest);
  EXPECT_EQ(manifest.error().code, ErrorCode::NotFound);
  EXPECT_EQ(manifest.error().message, "there is no such folder");
}

TEST_F(CheckpointFaults, AManifestThatLeavesItsFolderIsRefused) {
  CheckpointManifest manifest;
  manifest.files = {{"../escape", {0, {}}, {}}};
  EXPECT_FALSE(parse_manifest(manifest_text(manifest), "x"));
}

}  // namespace
}  // namespace foreshard::exec
