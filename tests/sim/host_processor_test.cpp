#include "sim/machine/host_processor.h"

#include <gtest/gtest.h>

#include "sim/machine/profile.h"

namespace foreshard {
namespace {

constexpr const char* kOld = "fpu sse4_2 avx avx2 fma";
constexpr const char* kWide = "fpu avx2 fma avx512f avx512dq avx512bw avx512vl avx512_vnni";
constexpr const char* kBf16 = "fpu avx2 fma avx512f avx512dq avx512bw avx512vl avx512_vnni avx512_bf16";
constexpr const char* kTiles =
    "fpu avx2 fma avx512f avx512dq avx512bw avx512vl avx512_bf16 avx512_vnni amx_bf16 avx512_fp16 amx_tile amx_int8";

TEST(HostProcessor, HasTheInstructionsThatTheKernelLists) {
  EXPECT_EQ(processor_of("", "", "").isa, CpuIsa::Avx2);
  EXPECT_EQ(processor_of(kOld, "", "").isa, CpuIsa::Avx2);
  EXPECT_EQ(processor_of(kWide, "", "").isa, CpuIsa::Avx512);
  EXPECT_EQ(processor_of(kBf16, "", "").isa, CpuIsa::Avx512Bf16);
  EXPECT_EQ(processor_of(kTiles, "", "").isa, CpuIsa::Amx);
  EXPECT_EQ(processor_of("avx2 fma avx512f_not avx512_bf16", "", "").isa, CpuIsa::Avx2);
}

TEST(HostProcessor, IsHeldBackByTheLibrariesVariables) {
  EXPECT_EQ(processor_of(kTiles, "AVX512_CORE_FP16", "").isa, CpuIsa::Avx512Bf16);
  EXPECT_EQ(processor_of(kTiles, "avx512_core", "").isa, CpuIsa::Avx512);
  EXPECT_EQ(processor_of(kTiles, "AVX2_VNNI", "").isa, CpuIsa::Avx2);
  EXPECT_EQ(processor_of(kTiles, "ALL", "").isa, CpuIsa::Amx);
  EXPECT_EQ(processor_of(kOld, "AVX512_CORE_AMX", "").isa, CpuIsa::Avx2);  // no variable adds instructions
  EXPECT_EQ(processor_of(kTiles, "", "").vectors, "avx512");
  EXPECT_EQ(processor_of(kTiles, "", "avx2").vectors, "avx2");
  EXPECT_EQ(processor_of(kOld, "", "avx512").vectors, "avx2");
  EXPECT_EQ(processor_of(kOld, "", "default").vectors, "default");
}

TEST(HostProcessor, StandsInTheProfileOfAHost) {
  HardwareProfile host = *load_profile("cpu-host");
  EXPECT_EQ(host.host_isa, CpuIsa::Avx512);
  host.host_isa = CpuIsa::Amx;
  host.host_l2_bytes = 1280 * kKiB;
  const auto again = parse_profile(profile_text(host), "again");
  ASSERT_TRUE(again) << to_text(again.error());
  EXPECT_EQ(*again, host);

  std::string wrong = profile_text(host);
  wrong.replace(wrong.find("'amx'"), 5, "'sse'");
  const auto refused = parse_profile(wrong, "wrong");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().place, "host.isa");
}

TEST(HostProcessor, IsNothingThatAGpusProfileSays) {
  std::string card = profile_text(*load_profile("h100-sxm-80"));
  EXPECT_EQ(card.find("l2_bytes"), std::string::npos);
  card.insert(card.find("[host]") + 6, "\nisa = 'amx'");
  const auto refused = parse_profile(card, "card");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::UnknownKey);
}

}  // namespace
}  // namespace foreshard
