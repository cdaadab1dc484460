// Weights out of checkpoints and into them again; Transformers, where it is installed, reads what is written.
#include "exec/checkpoint/checkpoint_export.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/checkpoint_manifest.h"
#include "exec/checkpoint/safetensors.h"
#include "exec/checkpoint/safetensors_writer.h"
#include "tests/exec/checkpoint/checkpoint_layouts.h"
#include "tests/exec/tiny_llama.h"
#include "tests/support/temporary_path.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace foreshard::exec {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckpointExport : public ::testing::Test {
 protected:
  void TearDown() override {
    fs::remove_all(dir_);
    fs::remove_all(out_);
  }

  void save(const TrainState& state) {
    CheckpointContents contents{model_, {5, 0, 0, ""}, {}, {}};
    contents.documents["config.json"] = "{\"model_type\": \"odd\"}";
    const auto saved = save_checkpoint(dir_, state, contents, nullptr);
    ASSERT_TRUE(saved) << to_text(saved.error());
  }

  Model model_ = odd_model();
  TrainState whole_ = whole_state(model_, 1);
  std::string dir_ = testing::temporary_path("export_from");
  std::string out_ = testing::temporary_path("export_to");
};

TEST_F(CheckpointExport, OneFileWithTheModelsNamesAndItsConfig) {
  save(whole_);
  const auto exported = export_checkpoint(dir_, out_);
  ASSERT_TRUE(exported) << to_text(exported.error());
  EXPECT_THAT(exported->files, ElementsAre("model.safetensors"));
  const auto weights = read_weights(out_);
  ASSERT_TRUE(weights) << to_text(weights.error());
  EXPECT_EQ(weights->size(), 7u);  // six distinct parameters and the persistent buffer
  for (const StateTensor& tensor : whole_.tensors) {
    if (tensor.slot != "param" && tensor.fqn != "running") continue;
    ASSERT_TRUE(weights->contains(tensor.fqn)) << tensor.fqn;
    EXPECT_TRUE(weights->at(tensor.fqn).equal(tensor.local)) << tensor.fqn;
  }
  EXPECT_FALSE(weights->contains("head.weight"));  // tied: Transformers leaves it out too
  EXPECT_TRUE(fs::exists(out_ + "/config.json"));
}

TEST_F(CheckpointExport, AboveTheShardSizeThereIsAnIndex) {
  save(whole_);
  const auto exported = export_checkpoint(dir_, out_, {400, std::nullopt, true});
  ASSERT_TRUE(exported) << to_text(exported.error());
  EXPECT_THAT(exported->files,
              ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors", "model.safetensors.index.json", "optimizer.safetensors"));
  std::ifstream file(out_ + "/model.safetensors.index.json");
  const auto index = nlohmann::json::parse(file);
  EXPECT_EQ(index["weight_map"]["layers.0.norm.weight"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["metadata"]["total_size"], 264 + 140 + 4 + 8 + 12 + 240 + 40);
  TrainState loaded = emptied(whole_);
  const auto notes = import_weights(out_, model_, loaded);
  ASSERT_TRUE(notes) << to_text(notes.error());
  EXPECT_THAT(*notes, IsEmpty());
  for (std::size_t t = 0; t < loaded.tensors.size(); ++t) {
    const bool weight = loaded.tensors[t].slot == "param" || loaded.tensors[t].fqn == "running";
    EXPECT_EQ(loaded.tensors[t].local.equal(whole_.tensors[t].local), weight) << loaded.tensors[t].fqn;
  }
  const auto moments = read_safetensors(out_ + "/optimizer.safetensors");
  ASSERT_TRUE(moments);
  EXPECT_TRUE(moments->at("layers.0.scale.exp_avg").equal(whole_.tensors[7].local));
  // One file beside the index of another export: a reader would take the wrong one.
  const auto stale = export_checkpoint(dir_, out_);
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code, ErrorCode::Refused);
}

TEST_F(CheckpointExport, ElementTypesAreConvertedOnRequest) {
  save(whole_);
  ASSERT_TRUE(export_checkpoint(dir_, out_, {5'000'000'000, DType::BFloat16, false}));
  const auto weights = read_weights(out_);
  ASSERT_TRUE(weights);
  EXPECT_TRUE(weights->at("embed.weight").equal(whole_.tensors[0].local.to(at::kBFloat16)));
  EXPECT_EQ(weights->at("running").scalar_type(), at::kDouble);  // a buffer stays
}

TEST_F(CheckpointExport, EachRankImportsItsOwnPieces) {
  save(whole_);
  ASSERT_TRUE(export_checkpoint(dir_, out_));
  std::mt19937 random(3);
  for (TrainState& part : laid_out(whole_, LayoutKind::Flat, 3, random)) {
    TrainState mine = emptied(part);
    ASSERT_TRUE(import_weights(out_, model_, mine));
    for (std::size_t t = 0; t < mine.tensors.size(); ++t) {
      if (mine.tensors[t].slot == "param") {
        EXPECT_TRUE(mine.tensors[t].local.equal(part.tensors[t].local));
      }
    }
  }
}

TEST_F(CheckpointExport, WeightsBecomeACheckpointToStartFrom) {
  save(whole_);
  ASSERT_TRUE(export_checkpoint(dir_, out_));
  fs::remove_all(dir_);
  const auto folder = import_checkpoint(out_, model_, dir_);
  ASSERT_TRUE(folder) << to_text(folder.error());
  EXPECT_TRUE(fs::exists(*folder + "/config.json"));
  TrainState state = whole_;
  for (StateTensor& tensor : state.tensors) tensor.local = at::ones_like(tensor.local);
  const auto loaded = resume_checkpoint(dir_, model_, state, nullptr);
  ASSERT_TRUE(loaded) << to_text(loaded.error());
  EXPECT_EQ(loaded->progress.step, 0);
  EXPECT_EQ(state.optimizer_steps, 0);
  for (std::size_t t = 0; t < state.tensors.size(); ++t) {
    const StateTensor& tensor = state.tensors[t];
    if (tensor.slot == "param") {
      EXPECT_TRUE(tensor.local.equal(whole_.tensors[t].local)) << tensor.fqn;
    }
    if (tensor.slot == "exp_avg") {
      EXPECT_TRUE(tensor.local.eq(0).all().item<bool>()) << tensor.fqn;
    }
  }
}

TEST_F(CheckpointExport, NamesMayBeTheTiedOnesOrWithoutTheBaseModelsPrefix) {
  const std::string path = testing::temporary_path("weights.safetensors");
  Model model;
  for (const char* name : {"transformer.wte.weight", "transformer.h.0.w", "lm_head.weight"}) {
    model.params.emplace_back();
    model.params.back().fqn = name;
    model.params.back().shape = {2};
  }
  model.params[2].shares = ParamId(0);
  TrainState state;
  for (const char* name : {"transformer.wte.weight", "transformer.h.0.w"}) {
    state.tensors.push_back({name, "param", {2}, at::zeros({2}), {{0, 0, 2}}});
  }
  const auto write = [&](const std::vector<std::string>& names) {
    std::vector<SafetensorsEntry> entries;
    for (const std::string& name : names) entries.push_back({name, DType::Float32, {2}});
    auto file = SafetensorsWriter::create(path, std::move(entries), {});
    const std::array<float, 2> values{3, 4};
    for (std::size_t i = 0; i < names.size(); ++i) ASSERT_TRUE(file->write(std::as_bytes(std::span(values))));
    ASSERT_TRUE(file->close());
  };
  for (const auto& names : {std::vector<std::string>{"wte.weight", "h.0.w"},
                            std::vector<std::string>{"lm_head.weight", "transformer.h.0.w"},
                            std::vector<std::string>{"model.transformer.wte.weight", "model.transformer.h.0.w"}}) {
    write(names);
    for (StateTensor& tensor : state.tensors) tensor.local.zero_();
    const auto notes = import_weights(path, model, state);
    ASSERT_TRUE(notes) << names[0] << ": " << to_text(notes.error());
    for (const StateTensor& tensor : state.tensors) EXPECT_EQ(tensor.local[1].item<float>(), 4) << names[0];
  }
  write({"lm_head.weight", "other"});
  const auto missing = import_weights(path, model, state);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::MissingKey);
  EXPECT_THAT(missing.error().expected, HasSubstr("transformer.h.0.w"));
  fs::remove(path);
}

TEST_F(CheckpointExport, AnIndexMustFitItsFiles) {
  fs::create_directories(out_);
  const std::string index = out_ + "/model.safetensors.index.json";
  for (const char* text :
       {"[]", "{}", R"({"weight_map": 3})", R"({"weight_map": {"a": 1}})",
        R"({"weight_map": {"a": "../b.safetensors"}})", R"({"weight_map": {"a": "b.safetensors"}})"}) {
    std::ofstream(index) << text;
    EXPECT_FALSE(read_weights(out_)) << text;
  }
  fs::remove(index);
  EXPECT_EQ(read_weights(out_).error().code, ErrorCode::NotFound);
}

TEST_F(CheckpointExport, ShowsWhatACheckpointHolds) {
  save(whole_);
  const auto text = describe_checkpoint(dir_, true, false);
  ASSERT_TRUE(text) << to_text(text.error());
  EXPECT_THAT(*text, HasSubstr("step       5"));
  EXPECT_THAT(*text, HasSubstr("embed.weight fp32 [11, 6] in 1 file"));
  EXPECT_THAT(*text, HasSubstr("head.weight is embed.weight"));
  const auto json = describe_checkpoint(dir_, false, true);
  ASSERT_TRUE(json);
  EXPECT_EQ(nlohmann::json::parse(*json)["world_size"], 1);
}

/// Runs Python with Transformers; the last line that it prints.
std::string python(const std::string& program, const std::string& code) {
  const std::string command = program + " -c '" + code + "' 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string text, line;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) text += static_cast<char>(c);
  pclose(pipe);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

TEST_F(CheckpointExport, TransformersComputesTheSameLogits) {
  const char* given = std::getenv("FORESHARD_TRANSFORMERS_PYTHON");
  const std::string program =
      given != nullptr ? given : std::string(FORESHARD_SOURCE_DIR) + "/build/torch-venv/bin/python";
  if (python(program, "import torch, transformers, safetensors; print(\"there\")") != "there") {
    GTEST_SKIP() << "no Python with transformers (FORESHARD_TRANSFORMERS_PYTHON names one)";
  }
  // The recorded weights through a checkpoint and out again, in several files.
  const std::string source = std::string(FORESHARD_TEST_DATA) + "/exec/llama_tiny";
  const Model model = tiny_llama(tiny_llama_job(1));
  ASSERT_TRUE(import_checkpoint(source, model, dir_));
  const auto exported = export_checkpoint(dir_, out_, {100'000, std::nullopt, false});
  ASSERT_TRUE(exported) << to_text(exported.error());
  EXPECT_GT(exported->files.size(), 2u);
  const std::string code =
      "import torch\nfrom transformers import AutoModelForCausalLM\n"
      "models = [AutoModelForCausalLM.from_pretrained(p, dtype=torch.float32) for p in (\"" +
      source + "\", \"" + out_ +
      "\")]\nids = torch.arange(32).view(2, 16)\nlogits = [m(ids).logits for m in models]\n"
      "print(torch.equal(*logits), tuple(logits[1].shape), float(logits[1].abs().sum()) > 0)";
  EXPECT_EQ(python(program, code), "True (2, 16, 96) True");
}

}  // namespace
}  // namespace foreshard::exec
