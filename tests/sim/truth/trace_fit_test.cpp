#include "sim/truth/trace_fit.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/device/kernel_cost.h"

namespace foreshard {
namespace {

Kernel product(std::int64_t m, std::int64_t n, std::int64_t k) {
  Kernel kernel;
  kernel.kind = KernelClass::Gemm;
  kernel.dtype = DType::BFloat16;
  kernel.m = m, kernel.n = n, kernel.k = k, kernel.batch = 1;
  kernel.flops = 2 * m * n * k;
  kernel.read = 2 * (m * k + k * n);
  kernel.written = 2 * m * n;
  return kernel;
}

Kernel attention() {
  Kernel kernel;
  kernel.kind = KernelClass::Attention;
  kernel.dtype = DType::BFloat16;
  kernel.flops = 400'000'000'000;
  kernel.read = kernel.written = 64 << 20;
  return kernel;
}

Kernel pointwise(Bytes bytes) {
  Kernel kernel;
  kernel.dtype = DType::BFloat16;
  kernel.read = bytes, kernel.written = bytes / 2;
  return kernel;
}

struct Case {
  std::vector<Kernel> owned{product(8192, 14336, 4096), product(8192, 4096, 4096), product(16, 16, 4096), attention(),
                            pointwise(256 << 20),       pointwise(1 << 10)};
  std::vector<const Kernel*> kernels;
  HardwareProfile profile;

  Case() {
    for (const Kernel& kernel : owned) kernels.push_back(&kernel);
    profile = *load_profile("h100-sxm-80");
  }

  RecordedWork on(const HardwareProfile& machine) const {
    const KernelCost cost(machine);
    RecordedWork work;
    for (const Kernel& kernel : owned) {
      SimDuration& sum = kernel.kind == KernelClass::Gemm        ? work.gemm
                         : kernel.kind == KernelClass::Attention ? work.attention
                                                                 : work.memory_bound;
      sum += cost.device(kernel);
      ++work.kernels;
    }
    return work;
  }
};

TEST(TraceFit, FindsTheRatesOfTheMachineThatWasRecorded) {
  const Case c;
  HardwareProfile machine = c.profile;
  machine.gemm_tflops[DType::BFloat16] = 431;
  machine.attention_share = 0.31;
  machine.hbm_share = 0.83;
  HardwareProfile fitted = c.profile;
  const auto rates = fit_rates(fitted, c.kernels, c.on(machine));
  ASSERT_EQ(rates.size(), 3u);
  EXPECT_NEAR(fitted.gemm_tflops[DType::BFloat16], 431, 0.5);
  EXPECT_NEAR(fitted.attention_share, 0.31, 0.001);
  EXPECT_NEAR(fitted.hbm_share, 0.83, 0.002);
  for (const FittedRate& rate : rates) EXPECT_NEAR(rate.residual, 0, 2e-4) << rate.key;
  EXPECT_EQ(fitted.gemm_tflops[DType::Float32], c.profile.gemm_tflops.at(DType::Float32)) << "nothing ran in it";
}

TEST(TraceFit, ConvolutionsInFloat32AreFittedToTheTensorCores) {
  Case c;
  for (Kernel& kernel : c.owned) {
    if (kernel.kind != KernelClass::Gemm) continue;
    kernel.dtype = DType::Float32;
    kernel.convolution = true;
  }
  HardwareProfile machine = c.profile;
  machine.extra[kTf32Reached] = 217;
  HardwareProfile fitted = c.profile;
  const auto rates = fit_rates(fitted, c.kernels, c.on(machine));
  EXPECT_EQ(rates[1].key, "extra.tf32_gemm_tflops");
  EXPECT_NEAR(fitted.extra.at(kTf32Reached), 217, 0.5);
  EXPECT_EQ(fitted.gemm_tflops, c.profile.gemm_tflops) << "products of matrices do not run so";
}

TEST(TraceFit, NoRatePassesThePeakAndTheResidualSaysSo) {
  const Case c;
  RecordedWork work = c.on(c.profile);
  work.gemm /= 10;
  HardwareProfile fitted = c.profile;
  const auto rates = fit_rates(fitted, c.kernels, work);
  EXPECT_EQ(fitted.gemm_tflops[DType::BFloat16], c.profile.peak_tflops.at(DType::BFloat16));
  const auto gemm = std::find_if(rates.begin(), rates.end(), [](const auto& r) { return r.key.starts_with("gemm"); });
  ASSERT_NE(gemm, rates.end());
  EXPECT_GT(gemm->residual, 1) << "the recording is faster than the card can be";
}

TEST(TraceFit, ClassesWithoutRecordedWorkStayAsTheyWere) {
  const Case c;
  RecordedWork work = c.on(c.profile);
  work.attention = 0;
  HardwareProfile fitted = c.profile;
  fit_rates(fitted, c.kernels, work);
  EXPECT_EQ(fitted.attention_share, c.profile.attention_share);
}

TEST(TraceFit, KernelNamesOfLibrariesAndOfAtenGiveTheClass) {
  for (const char* name : {"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "nvjet_tst_128x256_64x4", "aten.mm", "mm",
                           "addmm", "void cutlass::Kernel2<cutlass_80_wmma>"})
    EXPECT_EQ(work_class_of(name), WorkClass::Gemm) << name;
  for (const char* name :
       {"void flash::flash_fwd_kernel<Flash_fwd>", "fmha_cutlassB_bf16", "_scaled_dot_product_flash_attention"})
    EXPECT_EQ(work_class_of(name), WorkClass::Attention) << name;
  EXPECT_EQ(work_class_of("void at::native::vectorized_elementwise_kernel<4>"), WorkClass::MemoryBound);
  for (const char* name : {"void at::native::(anonymous namespace)::multi_tensor_apply_kernel",
                           "ncclDevKernel_AllGather", "void at::native::split_with_sizes_copy_out_contiguous"})
    EXPECT_EQ(work_class_of(name), std::nullopt) << name;
}

Timeline recording() {
  Timeline t;
  t.lanes = {{0, "host"}, {0, "D"}, {0, "A"}, {1, "D"}};
  t.names = {"mm", "add", "ncclDevKernel_AllGather", "cudaLaunchKernel", "Memcpy HtoD (Pinned -> Device)"};
  const auto add = [&t](int lane, SpanKind kind, SimTime start, SimDuration duration, int name, Bytes bytes) {
    Span& span = t.spans.emplace_back();
    span.lane = LaneId(lane), span.kind = kind, span.start = start, span.duration = duration, span.bytes = bytes;
    span.name = NameId(name);
  };
  add(0, SpanKind::HostIssue, 0, 5'000, 3, 0);
  add(0, SpanKind::HostIssue, 10'000, 7'000, 3, 0);
  add(0, SpanKind::HostIssue, 20'000, 90'000, 3, 0);
  add(1, SpanKind::Compute, 100, 40, 0, 0);
  add(1, SpanKind::Compute, 150, 7, 1, 0);
  add(1, SpanKind::Compute, 1'000, 500, 0, 0);  // after the step
  for (const SimDuration duration : {900, 300, 310, 305}) add(2, SpanKind::AllGather, 0, duration, 2, 1 << 20);
  add(2, SpanKind::AllGather, 0, 50, 2, 1 << 10);
  add(2, SpanKind::Copy, 0, 1'000'000, 4, 55'000'000);
  add(3, SpanKind::Compute, 100, 999, 0, 0);  // another rank
  return t;
}

TEST(TraceFit, OnlyTheRanksOwnStepCounts) {
  EXPECT_EQ(recorded_work(recording(), 0, 100, 1'000), (RecordedWork{40, 0, 7, 2}));
}

TEST(TraceFit, CollectivesTakeTheFastQuarterOfEachSize) {
  const auto curves = recorded_collectives(recording(), 0, 8);
  ASSERT_EQ(curves.size(), 1u);
  EXPECT_EQ(curves[0].kind, "all_gather");
  EXPECT_EQ(curves[0].ranks, 8);
  EXPECT_EQ(curves[0].bytes, (std::vector<Bytes>{1 << 10, 1 << 20}));
  EXPECT_EQ(curves[0].ns, (std::vector<SimDuration>{50, 305}));
}

TEST(TraceFit, HostCostsAreRead) {
  EXPECT_EQ(recorded_launch(recording(), 0), 7'000) << "the median";
  EXPECT_EQ(recorded_launch(recording(), 1), 0);
  EXPECT_DOUBLE_EQ(recorded_host_link(recording(), 0), 55.0);
}

TEST(TraceFit, AnOperatorCostsTheHostWhatLiesBetweenLaunches) {
  Timeline t = recording();
  EXPECT_EQ(recorded_dispatch(t, 0), 4'000) << "(5 and 3 us) / 2";
  const auto add = [&t](SpanKind kind, SimTime start, SimDuration duration) {
    Span& span = t.spans.emplace_back();
    span.lane = LaneId(0), span.kind = kind, span.start = start, span.duration = duration;
    span.name = NameId(kind == SpanKind::HostWait ? 5 : 3);
  };
  t.names.push_back("cudaEventSynchronize");
  add(SpanKind::HostWait, 111'000, 50'000);
  add(SpanKind::HostIssue, 164'000, 1'000);    // 4 us of its own after a wait of 50
  add(SpanKind::HostIssue, 9'000'000, 1'000);  // the next batch was read
  EXPECT_EQ(recorded_dispatch(t, 0), 4'000);
  EXPECT_EQ(recorded_dispatch(t, 1), 0);
}

}  // namespace
}  // namespace foreshard
