#include "core/model/sources/model_code.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "core/code_name.h"
#include "core/model/sources/load_model.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

/// A captured model whose input is [batch, seq]. From `mask_from` tokens on, its attention is handed a mask.
std::string captured(std::int64_t batch, std::int64_t seq, std::int64_t mask_from = 1 << 20) {
  const std::string mask = seq < mask_from
                               ? ""
                               : fmt::format(R"({{"op": "aten.ones_like.default", "module": "", "args": ["%x"],
                                         "out": [{{"name": "m", "shape": [{}, {}], "dtype": "float32"}}]}},)",
                                             batch, seq);
  return fmt::format(
      R"({{"schema": "foreshard.model/2", "name": "net", "lifetimes": "recorded", "has_loss": true, "tokens_per_batch": {3},
 "inputs": [{{"name": "x", "shape": [{0}, {1}], "dtype": "float32"}}],
 "modules": [{{"fqn": "", "class": "Net"}}],
 "params": [{{"fqn": "w", "shape": [4], "dtype": "float32"}}],
 "ops": [{2} {{"op": "aten.mul.Tensor", "module": "", "args": ["%x", "@w"], "out": [{{"name": "h", "shape": [{0}, {1}], "dtype": "float32"}}]}},
         {{"op": "aten.sum.default", "module": "", "args": ["%h"], "out": [{{"name": "loss", "shape": [], "dtype": "float32"}}]}}],
 "outputs": ["loss"]}})",
      batch, seq, mask, batch * seq);
}

class ModelCodeTest : public ::testing::Test {
 protected:
  ModelCodeTest() {
    std::string pattern = (fs::temp_directory_path() / "foreshard-code-test-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~ModelCodeTest() override {
    set_code_runner({});
    fs::remove_all(folder_);
  }

  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  std::string config(const std::string& type) const {
    return file("config.json", fmt::format(R"({{"model_type": "{}"}})", type));
  }
  void run_code(std::int64_t mask_from = 1 << 20) {
    set_code_runner([this, mask_from](const ModelCode& code) -> Result<std::string> {
      asked_.push_back(code);
      return captured(code.batch, code.seq > 0 ? code.seq : 8, mask_from);
    });
  }

  std::string folder_;
  std::vector<ModelCode> asked_;
};

TEST(CodeName, IsAFunctionOfAFileOrATimmModel) {
  for (const char* name : {"net.py:build", "a/b.py:make_2", "timm:resnet50"}) EXPECT_TRUE(is_code_name(name)) << name;
  for (const char* name : {"net.py", "net.py:", "net.py:2x", ".py:f", "timm:", "config.json", "a.py:b/c", ""})
    EXPECT_FALSE(is_code_name(name)) << name;
  EXPECT_EQ(file_of_code("a/b.py:make"), "a/b.py");
  EXPECT_EQ(file_of_code("timm:resnet50"), "");
}

TEST_F(ModelCodeTest, AFamilyThatIsNotBuiltIsAskedOfItsCode) {
  run_code();
  ModelOptions options;
  options.source = config("nobody_builds_this");
  options.batch = 3;
  options.seq = 16;
  options.seq_given = true;
  options.attention = "eager";
  ProgramOptions program;
  program.buffer_dtype = DType::BFloat16;
  const auto model = load_model(options, program);
  ASSERT_TRUE(model.has_value()) << to_text(model.error());
  EXPECT_EQ(model->lifetimes, Lifetimes::Recorded);
  ModelCode code;
  code.source = options.source;
  code.batch = 3;
  code.seq = 16;
  code.dtype = DType::Float32;
  code.buffer_dtype = DType::BFloat16;
  code.eager_attention = true;
  EXPECT_EQ(asked_, std::vector{code});
}

TEST_F(ModelCodeTest, AFunctionOfAFileIsAskedOfItsCode) {
  run_code();
  ModelOptions options;
  options.source = "net.py:build";
  ASSERT_TRUE(load_model(options).has_value());
  ASSERT_EQ(asked_.size(), 1U);
  EXPECT_EQ(asked_[0].source, "net.py:build");
  EXPECT_EQ(asked_[0].seq, 0) << "nobody has said a length: the model's own";
}

TEST_F(ModelCodeTest, WithoutARunnerTheBuildersWordStands) {
  ModelOptions options;
  options.source = config("nobody_builds_this");
  const auto model = load_model(options);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().place, "model_type");
  options.source = "net.py:build";
  const auto code = load_model(options);
  ASSERT_FALSE(code.has_value());
  EXPECT_NE(code.error().hint.find("from_code"), std::string::npos);
}

TEST_F(ModelCodeTest, WhyTheCodeCouldNotRunIsToldBesideWhyItWasAsked) {
  set_code_runner([](const ModelCode&) -> Result<std::string> {
    return fail({ErrorCode::Unsupported, "no such library", "x", "python3", {}, {}, "pip install it"});
  });
  ModelOptions options;
  options.source = config("nobody_builds_this");
  const auto model = load_model(options);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().file, options.source);
  EXPECT_NE(model.error().message.find("this model_type is not built"), std::string::npos);
  EXPECT_NE(model.error().message.find("no such library"), std::string::npos);
  EXPECT_EQ(model.error().hint, "pip install it");
}

TEST_F(ModelCodeTest, WhatOnlyAScriptCanSayIsNotAskedOfTheModelsCode) {
  run_code();
  ModelOptions options;
  options.source = config("nobody_builds_this");
  options.loss = "chunked_cross_entropy";
  EXPECT_FALSE(load_model(options).has_value());
  options.loss = "auto";
  options.attention_mask = true;
  EXPECT_FALSE(load_model(options).has_value());
  EXPECT_TRUE(asked_.empty());
}

TEST_F(ModelCodeTest, APartOfASequenceRunsWhatTheWholeWouldRun) {
  run_code(/*mask_from=*/64);
  ModelOptions options;
  options.source = config("nobody_builds_this");
  options.seq = 16;  // of one of the ranks
  options.seq_given = true;
  ProgramOptions program;
  program.sequence_parts = 2;
  EXPECT_TRUE(load_model(options, program).has_value());
  program.sequence_parts = 4;
  const auto masked = load_model(options, program);
  ASSERT_FALSE(masked.has_value());
  EXPECT_NE(to_text(masked.error()).find("mesh.context"), std::string::npos);
}

TEST_F(ModelCodeTest, ACapturedProgramHasItsOwnSizesAndNoOthers) {
  ModelOptions options;
  options.source = file("model.json", captured(2, 16));
  EXPECT_TRUE(load_model(options).has_value()) << "a batch of one is what every job has by itself";
  options.batch = 2;
  EXPECT_TRUE(load_model(options).has_value());
  options.batch = 4;
  auto other = load_model(options);
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().place, "model.batch");
  EXPECT_NE(other.error().expected.find("x [2, 16]"), std::string::npos);
  options.batch = 2;
  options.seq = 32;
  EXPECT_TRUE(load_model(options).has_value()) << "a length that nobody has given";
  options.seq_given = true;
  other = load_model(options);
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().place, "model.seq");
  std::string text = captured(2, 16);
  text.replace(text.find("\"tokens_per_batch\": 32,"), 23, "");
  options.source = file("rows.json", text);
  EXPECT_TRUE(load_model(options).has_value()) << "what has no tokens has no length";
}

}  // namespace
}  // namespace foreshard
