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

Replay replayed(const Model& model, const std::vector<bool>& trainable, const LoweringOptions& options = {},
                const std::vector<SegmentRange>& blocks = {}) {
  const std::vector<SegmentRange> segments = blocks.empty() ? segments_by_block(model, "") : blocks;
  const auto lowered = lower(model, segments, trainable, options);
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

TEST(FusedProducts, ScalesByRowAreMultipliedInBehindWhatIsNotSummedFast) {
  const Replay ran = replayed(one_product("torchao.matmul_float8_rowwise.default"), {false, true});
  EXPECT_EQ(count_of(ran.forward_kernels, "aten.mul_.Tensor"), 0);
  EXPECT_EQ(count_of(ran.backward_kernels, "aten.mul_.Tensor"), 2);
  EXPECT_EQ(count_of(ran.forward_kernels, "aten.exp2.default"), 2) << "scales are powers of two";
}

TEST(FusedProducts, TheWideRecipeTakesTheMatrixsGradientInSixteenBits) {
  const Replay ran = replayed(one_product("torchao.matmul_float8_rowwise_with_gw_hp.default"), {false, true});
  EXPECT_EQ(count_of(ran.backward_kernels, "aten._scaled_mm.default"), 1);
  EXPECT_EQ(count_of(ran.backward_kernels, "aten.mm.default"), 1);
  EXPECT_EQ(count_of(ran.backward_kernels, "aten.repeat.default"), 1) << "the matrix's one scale beside rows'";
}

TEST(FusedProducts, AMatrixGatheredIn8BitsIsNotCast) {
  const Replay cast = replayed(one_product("torchao.matmul_float8_tensorwise.default"), {false, true});
  const Replay ran = replayed(one_product("torchao.matmul_float8_gathered.default"), {false, true});
  EXPECT_EQ(count_of(cast.forward_kernels, "aten.abs.default"), 2);
  EXPECT_EQ(count_of(ran.forward_kernels, "aten.abs.default"), 1);
  EXPECT_EQ(count_of(cast.backward_kernels, "aten.abs.default"), 4);
  EXPECT_EQ(count_of(ran.backward_kernels, "aten.abs.default"), 3);
  EXPECT_EQ(count_of(ran.backward_kernels, "aten._scaled_mm.default"), 2);
}

/// The maximum of a matrix that lies in columns is read from a copy in rows (ReduceAllOps.cpp).
TEST(FusedProducts, TheLargestOfATurnedMatrixIsReadFromACopy) {
  const Replay ran = replayed(one_product("torchao.matmul_float8_tensorwise.default"), {false, true});
  std::vector<Bytes> made;
  for (const testing::ReplayEvent& event : ran.events)
    if (event.alloc) made.push_back(event.bytes);
  constexpr Bytes kWhole = 8 * kMiB;                         // |w|, [2048, 1024], in float32, as its copy
  const std::vector<Bytes> copied{kWhole, 4, kWhole, 1024};  // the largest, its copy, and where blocks meet
  int found = 0;
  for (auto at = made.begin(); (at = std::search(at, made.end(), copied.begin(), copied.end())) != made.end(); ++at)
    ++found;
  EXPECT_EQ(found, 2) << "in forward and in backward";
}

/// Two blocks, each an embedding and a product.
Model two_blocks() {
  ToyProgram toy;
  const std::string ids = toy.input("ids", {4096}, DType::Int64);
  toy.module("", "Root");
  toy.param("table", {16, 1024}, DType::BFloat16);
  toy.op("aten.embedding.default", {"%table", ids}, {{"x0", {4096, 1024}, DType::BFloat16}});
  for (const std::string block : {"0", "1"}) {
    toy.module(block, "Block");
    toy.param(block + ".w", {1024, 1024}, DType::BFloat16);
    toy.op("torchao.matmul_float8_tensorwise.default", {"x" + block, "%" + block + ".w"},
           {{"x" + std::string(block == "0" ? "1" : "2"), {4096, 1024}, DType::BFloat16}});
  }
  toy.module("", "Root");
  toy.op("aten.sum.default", {"x2"}, {{"loss", {}, DType::BFloat16}});
  return toy.finish("loss");
}

TEST(FusedProducts, AFunctionSavesOnceItsForwardHasRun) {
  const Model model = two_blocks();
  const Replay ran = replayed(model, all_trainable(model), {}, segments_by_block(model, "Block", true));
  EXPECT_EQ(count_of(ran.recompute_kernels, "aten._scaled_mm.default"), 2)
      << "a region stops where all is saved that it promised, behind a function and not before it";
}

TEST(FusedProducts, AListOfOperatorsLooksInsideAFunction) {
  const Model model = two_blocks();
  LoweringOptions options;
  options.saved.names = {"aten.max.default", "aten.mm.default"};
  const Replay ran = replayed(model, all_trainable(model), options, segments_by_block(model, "Block", true));
  EXPECT_EQ(count_of(ran.recompute_kernels, "aten._scaled_mm.default"), 0) << "both products are kept";
  EXPECT_EQ(count_of(ran.recompute_kernels, "aten.max.default"), 0);
  EXPECT_EQ(count_of(ran.recompute_kernels, "aten.abs.default"), 4) << "what the list does not name runs again";
  options.saved.rerun_product = 2;
  const Replay half = replayed(model, all_trainable(model), options, segments_by_block(model, "Block", true));
  EXPECT_EQ(count_of(half.recompute_kernels, "aten._scaled_mm.default"), 0) << "counted anew in each region";
  options.saved.names = {"aten.mm.default"};
  const Replay maxima = replayed(model, all_trainable(model), options, segments_by_block(model, "Block", true));
  EXPECT_EQ(count_of(maxima.recompute_kernels, "aten.max.default"), 4);
}

// Its policy was asked when it was captured: each operator says what is kept inside of it.
TEST(FusedProducts, ARegionOfTheModelsOwnKeepsWhatItsOperatorsName) {
  const auto again = [](const ArgList& kept) {
    Model model = two_blocks();
    for (std::size_t i = 1; i < 3; ++i) {
      model.regions.push_back({Region::Kind::Operators, {}, 0, {}, {}, {}});
      model.ops[i].region = static_cast<std::int32_t>(i) - 1;
      if (!kept.empty()) model.ops[i].kwargs.push_back({"kept_inside", Arg{kept}});
    }
    std::vector<SegmentRange> segments = segments_by_block(model, "Block", true);
    for (SegmentRange& segment : segments) segment.module = {};
    const Replay ran = replayed(model, all_trainable(model), {}, segments);
    return std::pair(count_of(ran.recompute_kernels, "aten.max.default"),
                     count_of(ran.recompute_kernels, "aten.abs.default"));
  };
  EXPECT_EQ(again({}), (std::pair<std::int64_t, std::int64_t>(4, 4)));
  EXPECT_EQ(again({Arg{std::string("aten.max.default")}}), (std::pair<std::int64_t, std::int64_t>(0, 4)));
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
