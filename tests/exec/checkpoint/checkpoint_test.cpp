#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/checkpoint_files.h"
#include "exec/checkpoint/checkpoint_manifest.h"
#include "exec/checkpoint/checkpoint_pieces.h"
#include "exec/checkpoint/checkpoint_reader.h"
#include "exec/communicators/in_process_communicator.h"
#include "tests/exec/checkpoint/checkpoint_layouts.h"
#include "tests/support/temporary_path.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <thread>

namespace foreshard::exec {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void on_ranks(int size, const std::function<void(int, Communicator&)>& work) {
  auto world = in_process_communicators(size, std::chrono::seconds(60));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&, rank] { work(rank, *world[std::size_t(rank)]); });
  for (std::thread& thread : threads) thread.join();
}

class Checkpoint : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(dir_); }

  void save(const std::vector<TrainState>& parts, std::int64_t step, std::int64_t keep = 0) {
    on_ranks(static_cast<int>(parts.size()), [&](int rank, Communicator& world) {
      CheckpointContents contents{model_, {step, step * 8, 3, "synthetic"}, {}, {}};
      contents.rng.assign(20, static_cast<std::uint8_t>(rank));
      if (rank == 0) contents.documents["job.toml"] = "[model]\n";
      const auto saved = save_checkpoint(dir_, parts[std::size_t(rank)], contents, &world, keep);
      EXPECT_TRUE(saved) << to_text(saved.error());
    });
  }

  void expect_loads(const std::vector<TrainState>& parts, const TrainState& whole, const std::string& what) {
    on_ranks(static_cast<int>(parts.size()), [&](int rank, Communicator& world) {
      TrainState mine = emptied(parts[std::size_t(rank)]);
      const auto loaded = resume_checkpoint(dir_, model_, mine, &world);
      ASSERT_TRUE(loaded) << what << ": " << to_text(loaded.error());
      EXPECT_TRUE(holds(mine, whole)) << what << ", rank " << rank;
    });
  }

  Model model_ = odd_model();
  std::string dir_ = testing::temporary_path("checkpoints");
};

TEST(CheckpointPieces, EvenPiecesAreOneRun) {
  const std::vector<Extent> columns{{2, 3}, {10, 3}, {18, 3}, {26, 1}};
  EXPECT_THAT(runs_of(columns), ElementsAre(PieceRun{2, 3, 3, 8}, PieceRun{26, 1, 1, 0}));
  EXPECT_EQ(extents_of(runs_of(columns)), columns);
  EXPECT_THAT(runs_of(std::vector<Extent>{{0, 4}, {4, 4}}), ElementsAre(PieceRun{0, 8, 1, 0}));
}

TEST(CheckpointPieces, EachElementIsWrittenOnceByTheRankWithLeastToDo) {
  const std::vector<std::vector<Extent>> held{{{0, 6}}, {{4, 6}}};
  std::vector<Numel> written{0, 0};
  const WriteShares shares = share_out(held, 10, written);
  EXPECT_THAT(shares.by_rank[0], ElementsAre(Extent{0, 4}));
  EXPECT_THAT(shares.by_rank[1], ElementsAre(Extent{4, 6}));  // 4 and 5 are rank 1's, who has written nothing yet
  EXPECT_THAT(written, ElementsAre(4, 6));
  EXPECT_EQ(share_out(held, 12, written).missing, (Extent{10, 2}));
}

TEST_F(Checkpoint, AnyLayoutLoadsUnderAnyOther) {
  std::mt19937 random(5);
  const LayoutKind kinds[] = {LayoutKind::Flat, LayoutKind::Rows, LayoutKind::Columns, LayoutKind::Replicated,
                              LayoutKind::Hybrid};
  int step = 0;
  for (const LayoutKind from : kinds) {
    for (const LayoutKind to : kinds) {
      const TrainState whole = whole_state(model_, static_cast<std::uint64_t>(step));
      const int before = std::uniform_int_distribution(1, 4)(random),
                after = std::uniform_int_distribution(1, 5)(random);
      save(laid_out(whole, from, before, random), ++step, 1);
      expect_loads(laid_out(whole, to, after, random), whole,
                   fmt::format("layout {} at {} to {} at {}", int(from), before, int(to), after));
    }
  }
}

TEST_F(Checkpoint, TwoRanksToOneThreeAndFour) {
  std::mt19937 random(6);
  const TrainState whole = whole_state(model_, 1);
  save(laid_out(whole, LayoutKind::Flat, 2, random), 50);
  for (const int world : {1, 2, 3, 4}) {
    expect_loads(laid_out(whole, LayoutKind::Flat, world, random), whole, fmt::format("{} ranks", world));
    expect_loads(laid_out(whole, LayoutKind::Replicated, world, random), whole, fmt::format("{} replicas", world));
  }
}

TEST_F(Checkpoint, ReplicasAreWrittenOnceAndSharedOut) {
  std::mt19937 random(7);
  const TrainState whole = whole_state(model_, 1);
  Bytes all = 0;
  for (const StateTensor& tensor : whole.tensors) all += static_cast<Bytes>(tensor.local.nbytes());
  save(laid_out(whole, LayoutKind::Replicated, 3, random), 1);
  const auto manifest = read_manifest(dir_ + "/step-0000000001");
  ASSERT_TRUE(manifest) << to_text(manifest.error());
  std::vector<Bytes> by_file(3, 0);
  for (const CheckpointTensor& tensor : manifest->tensors) {
    ASSERT_EQ(tensor.parts.size(), 1u) << tensor.fqn;  // whole, in one of the files
    by_file[std::size_t(tensor.parts[0].file)] += numel_of(tensor.shape) * itemsize(tensor.dtype);
  }
  EXPECT_EQ(by_file[0] + by_file[1] + by_file[2], all);
  for (const Bytes bytes : by_file) EXPECT_GT(bytes, all / 6);
}

TEST_F(Checkpoint, PositionStepsAndGeneratorComeBack) {
  std::mt19937 random(8);
  const TrainState whole = whole_state(model_, 2);
  const auto parts = laid_out(whole, LayoutKind::Rows, 2, random);
  save(parts, 40);
  for (int rank = 0; rank < 2; ++rank) {
    TrainState mine = emptied(parts[std::size_t(rank)]);
    const auto loaded = load_checkpoint(dir_ + "/step-0000000040", model_, mine, rank, 2);
    ASSERT_TRUE(loaded) << to_text(loaded.error());
    EXPECT_EQ(loaded->progress, (TrainProgress{40, 320, 3, "synthetic"}));
    EXPECT_EQ(loaded->rng, std::vector<std::uint8_t>(20, static_cast<std::uint8_t>(rank)));
    EXPECT_THAT(loaded->notes, ElementsAre());
  }
  TrainState one = emptied(whole);  // another number of ranks: no generator fits
  const auto loaded = load_checkpoint(dir_ + "/step-0000000040", model_, one, 0, 1);
  ASSERT_TRUE(loaded);
  EXPECT_TRUE(loaded->rng.empty());
  EXPECT_THAT(loaded->notes, ElementsAre("saved by 2 ranks, loaded by 1"));
}

TEST_F(Checkpoint, KeepsTheNewestAndRemovesWhatWritersLeft) {
  std::mt19937 random(9);
  const auto parts = laid_out(whole_state(model_, 3), LayoutKind::Rows, 2, random);
  fs::create_directories(dir_ + "/step-0000000003.partial");
  for (const int step : {1, 2, 3, 4}) save(parts, step, 2);
  EXPECT_THAT(checkpoint_folders(dir_), ElementsAre(dir_ + "/step-0000000004", dir_ + "/step-0000000003"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()), 2);
}

TEST_F(Checkpoint, TheSameStepAgainReplaces) {
  std::mt19937 random(10);
  save(laid_out(whole_state(model_, 1), LayoutKind::Rows, 2, random), 7);
  const TrainState newer = whole_state(model_, 2);
  const auto parts = laid_out(newer, LayoutKind::Flat, 3, random);
  save(parts, 7);
  expect_loads(parts, newer, "replaced");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()), 1);
}

TEST_F(Checkpoint, MissingMomentsAreZeroAndTypesAreConverted) {
  TrainState whole = whole_state(model_, 4), saved = whole;
  std::erase_if(saved.tensors, [](const StateTensor& tensor) { return tensor.slot == "exp_avg_sq"; });
  std::mt19937 random(11);
  save(laid_out(saved, LayoutKind::Replicated, 1, random), 1);
  for (StateTensor& tensor : whole.tensors) tensor.local = at::ones_like(tensor.local, at::kBFloat16);
  const auto loaded = load_checkpoint(dir_ + "/step-0000000001", model_, whole, 0, 1);
  ASSERT_TRUE(loaded) << to_text(loaded.error());
  EXPECT_THAT(loaded->notes,
              ElementsAre("exp_avg_sq starts at zero: not in the checkpoint", "element types were converted"));
  for (const StateTensor& tensor : whole.tensors) {
    if (tensor.slot == "exp_avg_sq") {
      EXPECT_TRUE(tensor.local.eq(0).all().item<bool>());
    }
  }
  EXPECT_TRUE(whole.tensors[0].local.equal(saved.tensors[0].local.to(at::kBFloat16)));
}

TEST_F(Checkpoint, OnlyTheNeededBlocksAreRead) {
  Model model;
  model.params.resize(1);
  model.params[0].fqn = "big";
  model.params[0].shape = {4 * kMiB};
  TrainState whole{{{"big", "param", {4 * kMiB}, at::arange(4 * kMiB, at::kFloat), {{0, 0, 4 * kMiB}}}}, 0};
  const auto saved = save_checkpoint(dir_, whole, {model, {}, {}, {}}, nullptr);
  ASSERT_TRUE(saved) << to_text(saved.error());
  const auto manifest = read_manifest(*saved);
  ASSERT_TRUE(manifest);
  EXPECT_EQ(manifest->files[0].written.sums.size(), 17u);  // 16 MiB and a header
  CheckpointReader reader(*manifest, *saved);
  StateTensor part{"big", "param", {4 * kMiB}, at::zeros({1000}), {{2 * kMiB, 0, 1000}}};
  ASSERT_TRUE(reader.read(manifest->tensors[0], part));
  EXPECT_EQ(part.local[999].item<float>(), 2 * kMiB + 999);
  EXPECT_EQ(reader.bytes_read(), 2 * kMiB);  // and the block of the header
}

TEST_F(Checkpoint, OneRankNeedsNoCommunicator) {
  const TrainState whole = whole_state(model_, 1);
  ASSERT_TRUE(save_checkpoint(dir_, whole, {model_, {1, 8, 0, ""}, {}, {}}, nullptr));
  EXPECT_TRUE(has_checkpoints(dir_));
  TrainState mine = emptied(whole);
  ASSERT_TRUE(resume_checkpoint(dir_, model_, mine, nullptr));
  EXPECT_TRUE(holds(mine, whole));
  EXPECT_FALSE(has_checkpoints(dir_ + "/nowhere"));
  const auto none = resume_checkpoint(dir_ + "/nowhere", model_, mine, nullptr);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::NotFound);
}

TEST_F(Checkpoint, ElementsThatNobodyHoldsAreAnErrorOnEveryRank) {
  std::mt19937 random(12);
  auto parts = laid_out(whole_state(model_, 1), LayoutKind::Rows, 2, random);
  parts[1].tensors[0].pieces.clear();
  on_ranks(2, [&](int rank, Communicator& world) {
    const auto saved = save_checkpoint(dir_, parts[std::size_t(rank)], {model_, {}, {}, {}}, &world);
    ASSERT_FALSE(saved);
    EXPECT_THAT(to_text(saved.error()), HasSubstr("param/embed.weight"));
    EXPECT_THAT(saved.error().got, HasSubstr("elements 36 to 65 missing"));
  });
  EXPECT_FALSE(has_checkpoints(dir_));
}

TEST_F(Checkpoint, RanksWithDifferentStatesAreRefused) {
  std::mt19937 random(13);
  auto parts = laid_out(whole_state(model_, 1), LayoutKind::Rows, 3, random);
  parts[2].tensors.clear();
  on_ranks(3, [&](int rank, Communicator& world) {
    const auto saved = save_checkpoint(dir_, parts[std::size_t(rank)], {model_, {}, {}, {}}, &world);
    ASSERT_FALSE(saved);
    EXPECT_THAT(saved.error().message, HasSubstr("different models"));
  });
}

TEST(CheckpointManifestText, ComesBackAsItWas) {
  CheckpointManifest manifest;
  manifest.model = "m";
  manifest.progress = {3, 24, -5, "tokens"};
  manifest.optimizer_steps = 3;
  manifest.files = {{"rank-00000-of-00001.safetensors", {400, {0xdeadbeef}}, {300, 20}}};
  manifest.tensors = {{"w", "param", DType::BFloat16, {3, 4}, true, {{0, 64, {{0, 2, 3, 4}, {2, 2, 3, 4}}}}},
                      {"b", "buffer", DType::Float32, {0}, false, {}}};
  manifest.shared = {{"head", "w"}};
  manifest.documents = {{"job.toml", {2, {1}}}};
  const auto read = parse_manifest(manifest_text(manifest), "x");
  ASSERT_TRUE(read) << to_text(read.error());
  EXPECT_EQ(*read, manifest);
}

TEST(CheckpointManifestText, EveryChangedByteIsNoticed) {
  CheckpointManifest manifest;
  manifest.files = {{"f", {400, {1}}, {}}};
  manifest.tensors = {{"w", "param", DType::Float32, {4}, true, {{0, 64, {{0, 4}}}}}};
  const std::string text = manifest_text(manifest);
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    std::string changed = text;
    changed[i] = changed[i] == '7' ? '8' : '7';
    EXPECT_FALSE(parse_manifest(changed, "x")) << i;
    EXPECT_FALSE(parse_manifest(text.substr(0, i), "x")) << i;
  }
}

}  // namespace
}  // namespace foreshard::exec
