// Bytes that autograd keeps, per block and outside, with and without checkpointing: every family's recording.
#include <gtest/gtest.h>

#include <string>

#include "tests/oracle/models/model_truth.h"

namespace foreshard {
namespace {

class FamilyMemory : public testing::TestWithParam<const char*> {};

TEST_P(FamilyMemory, EqualsTheRecording) {
  const auto row = oracle::compare_memory(std::string(FORESHARD_TEST_DATA) + "/models/" + GetParam());
  EXPECT_EQ(row.verdict, oracle::Verdict::Pass)
      << row.place << ": expected " << row.expected << ", got " << row.got << row.detail;
}

INSTANTIATE_TEST_SUITE_P(Recorded, FamilyMemory,
                         testing::Values("bert-tiny", "gemma2-tiny", "gpt_neox-tiny", "mixtral-tiny", "opt-tiny",
                                         "phi3-tiny", "qwen2_moe-tiny", "qwen3-tiny", "qwen3_moe-tiny", "t5-tiny",
                                         "vit-tiny"),
                         [](const auto& made) {
                           std::string name = made.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace foreshard
