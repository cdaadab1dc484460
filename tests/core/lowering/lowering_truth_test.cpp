// Recordings of PyTorch: bytes kept for backward, FLOPs, the order of backward kernels, and every allocation of a real
// step.
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/lowering/activations/activation.h"
#include "core/model/sources/load_model.h"
#include "tests/core/lowering/replay.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

using Json = nlohmann::json;
using testing::all_trainable;
using testing::replay;
using testing::segments_by_block;

const Json& truth() {
  static const Json json = [] {
    gzFile file = gzopen((std::string(FORESHARD_TEST_DATA) + "/lowering/truth.json.gz").c_str(), "rb");
    std::string text;
    char buffer[1 << 14];
    for (int n = 0; file != nullptr && (n = gzread(file, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
    if (file != nullptr) gzclose(file);
    return Json::parse(text);
  }();
  return json;
}

Result<Model> load_config(const Json& config, ModelOptions options, const ProgramOptions& program) {
  options.source = testing::temporary_path("config.json");
  std::ofstream(options.source) << config.dump();
  return load_model(options, program);
}

/// As the truths were recorded: on tensors without data.
Result<Model> recorded_model(const Json& config, std::int64_t batch, std::int64_t seq, DType dtype, bool loss) {
  ModelOptions options;
  options.batch = batch;
  options.seq = seq;
  options.seq_given = true;
  options.loss = loss ? "auto" : "none";
  ProgramOptions program;
  program.compute_dtype = dtype;
  program.recorded = true;
  return load_config(config, options, program);
}

/// "b2_s128_bf16_cuda_loss_ac"
struct Variant {
  std::int64_t batch = 0, seq = 0;
  bool bf16 = true, loss = false, checkpointed = false;
};
Variant variant_of(const std::string& name) {
  Variant out;
  std::sscanf(name.c_str(), "b%ld_s%ld_", &out.batch, &out.seq);
  out.bf16 = name.find("_bf16") != std::string::npos;
  out.loss = name.find("_loss") != std::string::npos;
  out.checkpointed = name.find("_ac") != std::string::npos;
  return out;
}

TEST(LoweringTruth, SavedBytesEqualTheRecordings) {
  for (const auto& [name, entry] : truth().items()) {
    for (const auto& [key, bytes] : entry["saved"].items()) {
      const Variant variant = variant_of(key);
      const auto model = recorded_model(entry["config"], variant.batch, variant.seq,
                                        variant.bf16 ? DType::BFloat16 : DType::Float32, variant.loss);
      ASSERT_TRUE(model) << to_text(model.error());
      const auto report = activation_report(*model, variant.checkpointed);
      ASSERT_TRUE(report) << to_text(report.error());
      EXPECT_EQ(report->saved, bytes.get<Bytes>()) << name << " " << key;
      EXPECT_TRUE(report->unknown_ops.empty()) << report->unknown_ops.front();
      if (entry["held"].contains(key)) {
        EXPECT_EQ(report->held_by_block_arguments, entry["held"][key].get<Bytes>()) << name << " " << key;
      }
    }
  }
}

TEST(LoweringTruth, FlopsEqualPyTorchsCounter) {
  for (const auto& [name, entry] : truth().items()) {
    for (const Json& row : entry["flops"]) {
      const auto model = recorded_model(entry["config"], row["batch"], row["seq"], DType::BFloat16, false);
      ASSERT_TRUE(model);
      const auto report = activation_report(*model, false);
      ASSERT_TRUE(report);
      EXPECT_EQ(report->forward_flops, row["forward"].get<Flops>()) << name;
      if (!row["backward"].is_null()) {
        EXPECT_EQ(report->backward_flops, row["backward"].get<Flops>()) << name;
      }
    }
  }
}

TEST(LoweringTruth, BackwardKernelsRunInTheRecordedOrder) {
  for (const auto& [name, entry] : truth().items()) {
    if (!entry.contains("backward")) continue;
    const Json& row = entry["backward"];
    const auto model = recorded_model(entry["config"], row["batch"], row["seq"], DType::BFloat16, false);
    ASSERT_TRUE(model);
    const auto segments = segments_by_block(*model, model->block_class);
    const auto lowered = lower(*model, segments, all_trainable(*model));
    ASSERT_TRUE(lowered);
    std::vector<std::string> kernels = replay(*lowered, segments).backward_kernels;
    ASSERT_EQ(kernels.at(0), "aten.ones_like.default");  // the first gradient: the recording was handed one
    kernels.erase(kernels.begin());
    for (std::string& kernel : kernels)
      if (kernel == "aten.add_.Tensor")
        kernel = "aten.add.Tensor";  // recorded under a mode that prevents sums in place
    EXPECT_EQ(kernels, row["kernels"].get<std::vector<std::string>>()) << name;
  }
}

TEST(LoweringTruth, EveryAllocationAndFreeOfARealStepIsMet) {
  // gpu_memory case m048: four Llama layers of 1024, batch 4 x 1024, bf16, FSDP2; its own buffers left out of the list.
  const Json config = {{"model_type", "llama"},        {"architectures", {"LlamaForCausalLM"}},
                       {"hidden_size", 1024},          {"intermediate_size", 2816},
                       {"num_hidden_layers", 4},       {"num_attention_heads", 16},
                       {"num_key_value_heads", 8},     {"vocab_size", 32000},
                       {"hidden_act", "silu"},         {"rms_norm_eps", 1e-05},
                       {"tie_word_embeddings", false}, {"max_position_embeddings", 8192}};
  ModelOptions options;
  options.batch = 4;
  options.seq = 1024;
  options.seq_given = true;
  ProgramOptions program;
  program.compute_dtype = DType::BFloat16;
  program.asks_for_packed_rows = false;  // as in the recording
  auto model = load_config(config, options, program);
  ASSERT_TRUE(model) << to_text(model.error());
  const auto segments = segments_by_block(*model, model->block_class);
  const auto lowered = lower(*model, segments, all_trainable(*model));
  ASSERT_TRUE(lowered);
  const auto made = replay(*lowered, segments);

  struct Recorded {
    Bytes bytes = 0;
    std::int64_t freed_after = -1;  // allocations made by then
  };
  std::vector<Recorded> recorded;
  std::ifstream file(std::string(FORESHARD_TEST_DATA) + "/lowering/llama_4x1024.alloc.txt");
  for (std::string line; std::getline(file, line);) {
    const std::int64_t number = std::stoll(line.substr(1));
    if (line[0] == '+')
      recorded.push_back({number, -1});
    else
      recorded.at(static_cast<std::size_t>(number)).freed_after = static_cast<std::int64_t>(recorded.size());
  }
  std::vector<Recorded> ours;
  for (const testing::ReplayEvent& event : made.events) {
    if (event.alloc)
      ours.push_back({event.bytes, -1});
    else
      ours.at(static_cast<std::size_t>(event.id)).freed_after = static_cast<std::int64_t>(ours.size());
  }
  ASSERT_EQ(ours.size(), recorded.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].bytes, recorded[i].bytes) << "allocation " << i;
    if (ours[i].freed_after >= 0) {  // the rest are gradients
      EXPECT_EQ(ours[i].freed_after, recorded[i].freed_after) << "allocation " << i;
    }
  }
}

}  // namespace
}  // namespace foreshard
