#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "core/model/sources/load_model.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

constexpr const char* kLlama =
    R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "rms_norm_eps": 1e-05})";

std::size_t count(const Model& model, const char* name) {
  return static_cast<std::size_t>(
      std::count_if(model.ops.begin(), model.ops.end(), [&](const Op& op) { return op.name == name; }));
}

class FlexAttention : public ::testing::Test {
 protected:
  FlexAttention() : path_(testing::temporary_path("flex_config.json")) {
    std::ofstream(path_) << kLlama;
    options.source = path_;
    options.seq = 256;
    program.compute_dtype = DType::BFloat16;
  }
  ~FlexAttention() override { std::remove(path_.c_str()); }

  ModelOptions options;
  ProgramOptions program;

 private:
  std::string path_;
};

TEST_F(FlexAttention, CompiledIsOneKernelAndUnfusedHoldsEveryScore) {
  options.attention = "flex_attention";
  const auto compiled = load_model(options, program);
  ASSERT_TRUE(compiled) << to_text(compiled.error());
  EXPECT_EQ(count(*compiled, "aten._scaled_dot_product_flash_attention.default"), 2U);
  EXPECT_EQ(count(*compiled, "higher_order.flex_attention"), 0U);
  options.attention = "flex_attention_unfused";
  const auto unfused = load_model(options, program);
  ASSERT_TRUE(unfused) << to_text(unfused.error());
  EXPECT_EQ(count(*unfused, "higher_order.flex_attention"), 2U);
  EXPECT_GT(unfused->ops.size(), compiled->ops.size()) << "its block mask";
}

TEST_F(FlexAttention, MasksOfItsOwnAreRefused) {
  options.attention = "flex_attention";
  options.attention_mask = true;
  const auto padded = load_model(options, program);
  ASSERT_FALSE(padded);
  EXPECT_NE(to_text(padded.error()).find("mask_mod"), std::string::npos);
  options.attention_mask = false;
  program.compute_dtype = std::nullopt;  // float32: no flash attention
  EXPECT_FALSE(load_model(options, program));
}

}  // namespace
}  // namespace foreshard
