// Functions of other libraries around a product: what they hold while they run, and what they keep. Bytes are those
// that PyTorch 2.11 asked its allocator for on the virtual GPU (torchao 0.18, bitsandbytes 0.50, Liger-Kernel 0.8).
#include <gtest/gtest.h>

#include <algorithm>

#include "core/lowering/lowering.h"
#include "tests/core/lowering/replay.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

using testing::all_trainable;
using testing::replay;
using testing::Replay;
using testing::segments_by_block;
using testing::ToyProgram;

constexpr Bytes kMiB = 1024 * 1024;

Replay replayed(const Model& model, const std::vector<bool>& trainable) {
  const std::vector<SegmentRange> segments = segments_by_block(model, "");
  const auto lowered = lower(model, segments, trainable);
  EXPECT_TRUE(lowered && lowered->unknown_ops.empty());
  return replay(*lowered, segments);
}

std::int64_t count_of(const std::vector<std::string>& kernels, const std::string& name) {
  return std::count(kernels.begin(), kernels.end(), name);
}

/// y = f(x, w) of a leaf x [4096, 1024] that requires a gradient, w [2048, 1024]; all in bfloat16 but what is stored.
Model one_product(const std::string& name, DType stored = DType::BFloat16) {
  ToyProgram toy;
  const std::string ids = toy.input("ids", {4096}, DType::Int64);
  toy.module("", "Root");
  toy.param("table", {16, 1024}, DType::BFloat16);
  toy.param("w", {2048, 1024}, stored);
  toy.op("aten.embedding.default", {"%table", ids}, {{"x", {4096, 1024}, DType::BFloat16}});
  toy.op(name, {"x", "%w"}, {{"y", {4096, 2048}, DType::BFloat16}});
  toy.op("aten.sum.default", {"y"}, {{"loss", {}, DType::BFloat16}});
  return toy.finish("loss");
}

TEST(FusedProducts, CastsToFloat8HoldTwoCopiesInFloat32) {
  const Model model = one_product("torchao.matmul_float8_tensorwise.default");
  const Replay ran = replayed(model, all_trainable(model));
  EXPECT_EQ(count_of(ran.forward_kernels, "aten._scaled_mm.default"), 1);
  EXPECT_EQ(count_of(ran.backward_kernels, "aten._scaled_mm.default"), 2);
  // Two of the gradient in float32 and it in 8 bits (72); its first cast (8), the matrix in 8 bits (2) and the gradient
  // of x (8), which live on. Beside that x (8) and the loss.
  EXPECT_NEAR(static_cast<double>(ran.peak), static_cast<double>((72 + 8 + 2 + 8 + 8) * kMiB), 4096);
  EXPECT_EQ(ran.after_forward / kMiB, 8) << "what came in, not what it was cast to; y is gone with the sum";
}

TEST(FusedProducts, ScalesByRowCopyWhatLiesTheWrongWay) {
  const Model model = one_product("torchao.matmul_float8_rowwise.default");
  const Replay ran = replayed(model, all_trainable(model));
  EXPECT_EQ(count_of(ran.forward_kernels, "aten.clone.default"), 0) << "the matrix is read as columns";
  EXPECT_EQ(count_of(ran.backward_kernels, "aten.clone.default"), 3) << "the matrix; gradient and input by columns";
  EXPECT_EQ(count_of(ran.forward_kernels, "aten.amax.default"), 2);
}

TEST(FusedProducts, AProductOfIntegersIsHeldIn32Bits) {
  const Model model = one_product("bitsandbytes.matmul_8bit_lt.default", DType::Int8);
  const Replay ran = replayed(model, {true, false});
  // Integers of x (4) with their scales, sums in 32 bits (32), the same in float16 (16) and bfloat16 (16); x (8).
  EXPECT_EQ(ran.peak, (4 + 32 + 16 + 16 + 8) * kMiB + 4096 * 4);
  EXPECT_EQ(ran.after_forward / kMiB, 8) << "x is kept though nobody wants the matrix's gradient";
  EXPECT_EQ(count_of(ran.backward_kernels, "aten.mm.default"), 1);
}

/// Hidden states [1000, 512] of a product, the head's matrix [8192, 512].
Model fused_loss(DType dtype) {
  ToyProgram toy;
  const std::string ids = toy.input("ids", {1000}, DType::Int64), targets = toy.input("targets", {1000}, DType::Int64);
  toy.module("", "Root");
  toy.param("table", {16, 512}, dtype);
  toy.param("w", {8192, 512}, dtype);
  toy.op("aten.embedding.default", {"%table", ids}, {{"x", {1000, 512}, dtype}});
  toy.op("liger_kernel.fused_linear_cross_entropy.default", {"x", "%w", targets},
         {{"loss", {}, DType::Float32}, {"gx", {1000, 512}, dtype}, {"gw", {8192, 512}, dtype}});
  Model model = toy.finish("loss");
  model.compute_dtype = dtype;
  return model;
}

TEST(FusedProducts, AFusedLossMakesItsGradientsInForward) {
  const Model model = fused_loss(DType::BFloat16);
  const Replay ran = replayed(model, all_trainable(model));
  constexpr Bytes kGradients = 1'024'000 + 8'388'608, kHidden = 1'024'000;
  // Losses and which labels count, and logits of 64 rows: as many bytes as the hidden states, in a power of two.
  EXPECT_EQ(ran.peak, kHidden + kGradients + 4000 + 1000 + 64 * 8192 * 2);
  EXPECT_EQ(ran.after_forward, kGradients + 4);
  EXPECT_EQ(count_of(ran.forward_kernels, "aten.addmm.out"), 16);
  EXPECT_EQ(count_of(ran.backward_kernels, "aten.mm.default"), 0);
}

TEST(FusedProducts, AFusedLossInFloat32AddsAWholeMatrixForEachPiece) {
  const Model model = fused_loss(DType::Float32);
  const Replay ran = replayed(model, all_trainable(model));
  constexpr Bytes kMatrix = 8192 * 512 * 4, kHidden = 1000 * 512 * 4;
  EXPECT_EQ(ran.peak, 2 * kHidden + 2 * kMatrix + 4000 + 1000 + 64 * 8192 * 4);
}

TEST(FusedProducts, AFrozenHeadHasNoGradient) {
  const Model model = fused_loss(DType::BFloat16);
  const Replay ran = replayed(model, {true, false});
  EXPECT_EQ(ran.after_forward, 1'024'000 + 4);
}

}  // namespace
}  // namespace foreshard
