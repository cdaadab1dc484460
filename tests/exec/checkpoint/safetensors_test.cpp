#include "exec/checkpoint/safetensors.h"
#include "tests/support/temporary_path.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace foreshard::exec {
namespace {

class Safetensors : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  Result<NamedTensors> read(const std::string& header, std::size_t data_bytes, std::uint64_t header_bytes) {
    std::ofstream file(path_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
    file << header;
    for (std::size_t i = 0; i < data_bytes; ++i) file.put(static_cast<char>(i));
    file.close();
    return read_safetensors(path_);
  }
  Result<NamedTensors> read(const std::string& header, std::size_t data_bytes) {
    return read(header, data_bytes, header.size());
  }

 private:
  std::string path_ = testing::temporary_path("x.safetensors");
};

TEST_F(Safetensors, TensorsArePlacesInTheFile) {
  const auto tensors =
      read(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[2,2],"data_offsets":[1,5]}})", 8);
  ASSERT_TRUE(tensors) << to_text(tensors.error());
  ASSERT_EQ(tensors->size(), 1u);
  EXPECT_TRUE(tensors->at("a").equal(at::tensor({1, 2, 3, 4}, at::kByte).view({2, 2})));
}

TEST_F(Safetensors, TensorsOutliveTheReader) {
  at::Tensor kept;
  {
    auto tensors = read(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[7,8]}})", 8);
    kept = tensors->at("a");
  }
  EXPECT_EQ(kept.item<int>(), 7);
}

TEST_F(Safetensors, BadFilesAreErrorsThatNameTheTensor) {
  EXPECT_EQ(read_safetensors("/nowhere/x.safetensors").error().code, ErrorCode::NotFound);
  EXPECT_EQ(read("{}", 8, 1ULL << 60).error().place, "header");
  EXPECT_FALSE(read("{\"a\":", 8));
  for (const char* entry :
       {R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", R"({"dtype":"F32","shape":[2]})",
        R"({"dtype":"F99","shape":[1],"data_offsets":[0,4]})", R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})",
        R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})",
        R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})"}) {
    const auto tensors = read(std::string("{\"the.weight\":") + entry + "}", 8);
    ASSERT_FALSE(tensors) << entry;
    EXPECT_EQ(tensors.error().place, "the.weight") << entry;
  }
}

}  // namespace
}  // namespace foreshard::exec
