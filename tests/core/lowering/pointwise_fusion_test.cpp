#include "core/compiled/pointwise_fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/compiled/made_again.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Kernel kernel(KernelClass kind, Bytes read, Bytes written) {
  Kernel k;
  k.kind = kind;
  k.read = read;
  k.written = written;
  return k;
}

/// A product, then two pointwise kernels through a storage of their own (slot 0) to a result that stays (slot 1).
LoweredProgram chain() {
  SegmentTemplate segment;
  segment.slots = {{100, SlotCategory::Temporary, ParamId()}, {100, SlotCategory::Activation, ParamId()}};
  KernelList& list = segment.forward;
  list.events = {{0, true}, {1, true}, {0, false}};
  list.kernels = {kernel(KernelClass::Gemm, 10, 10), kernel(KernelClass::Elementwise, 100, 100),
                  kernel(KernelClass::Elementwise, 100, 100)};
  list.kernels[1].before_end = 1;
  list.kernels[1].after_begin = list.kernels[1].after_end = 1;
  list.kernels[2].before_begin = 1;
  list.kernels[2].before_end = list.kernels[2].after_begin = 2;
  list.kernels[2].after_end = 3;
  LoweredProgram program;
  program.templates = {segment};
  program.instances = {{0, {}}};
  return program;
}

/// Of a program whose operators nobody knows.
LoweredProgram fused_alone(const LoweredProgram& program) { return fuse_pointwise(program, Model(), {{0, 0}}, {}); }

TEST(PointwiseFusion, ARunBecomesOneKernelWithoutItsInnerStorage) {
  const KernelList fused = fused_alone(chain()).templates[0].forward;
  ASSERT_EQ(fused.kernels.size(), 2U);
  EXPECT_EQ(fused.kernels[0].kind, KernelClass::Gemm);
  EXPECT_EQ(fused.kernels[1].read + fused.kernels[1].written, 200);  // 400 less the storage written and read back
  EXPECT_EQ(fused.kernels[1].launches, 1);
  ASSERT_EQ(fused.events.size(), 1U);
  EXPECT_EQ(fused.events[0], (MemoryEvent{1, true}));
}

// The compiler's backward hands all gradients back when it returns; the last of its kernels has another number then.
TEST(PointwiseFusion, GradientsAreFinalWhenTheCompiledBackwardReturns) {
  LoweredProgram program = chain();
  program.templates[0].backward = program.templates[0].forward;
  program.templates[0].gradients = {{0, 1, 0, false}, {1, 3, 2, true}};
  const SegmentTemplate fused = fused_alone(program).templates[0];
  EXPECT_EQ(fused.gradients, (std::vector<FinishedGradient>{{0, 2, 1, false}, {1, 2, 1, false}}));
}

TEST(PointwiseFusion, ProductsAreNotFused) {
  LoweredProgram program = chain();
  program.templates[0].forward.kernels[1].kind = KernelClass::Gemm;
  program.templates[0].forward.kernels[2].kind = KernelClass::Attention;
  EXPECT_EQ(fused_alone(program), program);
}

std::vector<bool> trained(const Model& model) {
  std::vector<bool> trainable;
  for (const ParamInfo& param : model.params) trainable.push_back(param.requires_grad);
  return trainable;
}

std::vector<SegmentRange> whole(const Model& model, bool checkpointed = false) {
  return {{0, static_cast<std::int32_t>(model.ops.size()), checkpointed}};
}

/// Names of the first results of the operators whose storages a compiled backward makes again.
std::vector<std::string> made_again(const Model& model, bool checkpointed = false) {
  const std::vector<SegmentRange> segments = whole(model, checkpointed);
  const LoweredProgram lowered = lower(model, segments, trained(model), {}).value();
  const SegmentTemplate& segment = lowered.templates[0];
  const KernelList& list = checkpointed ? segment.recompute : segment.forward;
  std::vector<std::string> names;
  for (const std::int32_t slot : MadeAgain(model, trained(model)).cut(segments[0], segment).again) {
    for (const Kernel& kernel : list.kernels)
      for (std::int32_t e = kernel.before_begin; e < kernel.before_end; ++e)
        if (list.events[static_cast<std::size_t>(e)] == MemoryEvent{slot, true})
          names.push_back(model.values[model.ops[static_cast<std::size_t>(kernel.model_op)].out[0].index()].name);
  }
  return names;
}

/// silu(x a) * (x b), times a matrix.
Model gated() {
  testing::ToyProgram toy;
  toy.input("x", {6, 4});
  for (const char* name : {"a", "b"}) toy.param(name, {4, 8});
  toy.param("c", {8, 8});
  toy.op("aten.mm.default", {"x", "%a"}, {{"gate", {6, 8}}});
  toy.op("aten.silu.default", {"gate"}, {{"act", {6, 8}}});
  toy.op("aten.mm.default", {"x", "%b"}, {{"up", {6, 8}}});
  toy.op("aten.mul.Tensor", {"act", "up"}, {{"h", {6, 8}}});
  toy.op("aten.mm.default", {"h", "%c"}, {{"y", {6, 8}}});
  toy.op("aten.sum.default", {"y"}, {{"loss", {}}});
  return toy.finish("loss");
}

// As torch/_functorch/partitioners.py cuts a decoder layer of Llama (Inductor's rules, PyTorch 2.11): it saves what
// matrices read, and makes the activation again from the gate.
TEST(PointwiseFusion, WhatNoProductOfBackwardReadsIsMadeAgain) {
  EXPECT_THAT(made_again(gated()), ElementsAre("act"));
  EXPECT_THAT(made_again(gated(), /*checkpointed=*/true), ElementsAre("act"));
}

/// sigmoid(x a), which keeps its result, through a view or what writes over it, times a matrix.
Model squashed(bool trains, const char* between) {
  testing::ToyProgram toy;
  toy.input("x", {6, 4});
  toy.param("a", {4, 8});
  toy.param("b", {8, 8});
  toy.op("aten.mm.default", {"x", "%a"}, {{"h", {6, 8}}});
  toy.op("aten.silu.default", {"h"}, {{"wide", {6, 8}}});  // keeps the product
  toy.op("aten.sigmoid.default", {"wide"}, {{"s", {6, 8}}});
  if (std::string_view(between) == "view")
    toy.op("aten.view.default", {"s"}, {{"read", {6, 8}}}, {{ArgList{{std::int64_t{6}}, {std::int64_t{8}}}}});
  else
    toy.op(between, {"s"}, {{"read", {6, 8}}});
  toy.op("aten.mm.default", {"read", "%b"}, {{"y", {6, 8}}});
  toy.op("aten.sum.default", {"y"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  model.params[1].requires_grad = trains;
  return model;
}

TEST(PointwiseFusion, WhatAMatrixReadsIsSavedWhereItIsTrained) {
  EXPECT_THAT(made_again(squashed(true, "view")), IsEmpty());
  EXPECT_THAT(made_again(squashed(false, "view")), ElementsAre("s"));
  EXPECT_THAT(made_again(squashed(true, "aten.relu_.default")), IsEmpty()) << "the memory is one";
}

TEST(PointwiseFusion, NothingIsMadeAgainOfProductsThatAreGone) {  // an adapter's sum of its layer and its own
  testing::ToyProgram toy;
  toy.input("x", {6, 4});
  for (const char* name : {"a", "b"}) toy.param(name, {4, 8});
  toy.op("aten.mm.default", {"x", "%a"}, {{"base", {6, 8}}});
  toy.op("aten.mm.default", {"x", "%b"}, {{"low", {6, 8}}});
  toy.op("aten.add.Tensor", {"base", "low"}, {{"sum", {6, 8}}});
  toy.op("aten.silu.default", {"sum"}, {{"act", {6, 8}}});      // saves the sum
  toy.op("aten.sigmoid.default", {"act"}, {{"gate", {6, 8}}});  // saves its result
  toy.op("aten.sum.default", {"gate"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  EXPECT_THAT(made_again(model), ElementsAre("gate"));
  // In a segment of its own the sum is made of what came in and what nobody keeps.
  const std::vector<SegmentRange> cut{{0, 2}, {2, 6}};
  const LoweredProgram lowered = lower(model, cut, trained(model), {}).value();
  const auto& behind = lowered.templates[static_cast<std::size_t>(lowered.instances[1].lowered)];
  EXPECT_EQ(MadeAgain(model, trained(model)).cut(cut[1], behind).again.size(), 1U);
}

TEST(PointwiseFusion, ASmallerProductIsSavedInThePlaceOfWhatIsMadeOfIt) {  // logits in 16 bits
  testing::ToyProgram toy;
  toy.input("x", {6, 4}, DType::BFloat16);
  toy.param("a", {4, 512}, DType::BFloat16);
  toy.op("aten.mm.default", {"x", "%a"}, {{"logits", {6, 512}, DType::BFloat16}});
  toy.op("aten._to_copy.default", {"logits"}, {{"wide", {6, 512}}});
  toy.op("aten.sigmoid.default", {"wide"}, {{"scores", {6, 512}}});  // keeps its result
  toy.op("aten.mm.default", {"x", "%a"}, {{"more", {6, 512}, DType::BFloat16}});
  toy.op("aten.mul.Tensor", {"scores", "more"}, {{"h", {6, 512}}});
  toy.op("aten.sum.default", {"h"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  EXPECT_THAT(made_again(model), ElementsAre("scores"));
  const LoweredProgram lowered = lower(model, whole(model), trained(model), {}).value();
  const auto cut = MadeAgain(model, trained(model)).cut(whole(model)[0], lowered.templates[0]);
  ASSERT_EQ(cut.instead.size(), 1U);
  EXPECT_EQ(lowered.templates[0].slots[static_cast<std::size_t>(cut.instead[0].first)].bytes, 6 * 512 * 2);
  const SegmentTemplate fused = fuse_pointwise(lowered, model, whole(model), trained(model)).templates[0];
  const MemoryEvent release{cut.instead[0].first, false};
  EXPECT_EQ(std::count(fused.forward.events.begin(), fused.forward.events.end(), release), 0);
  EXPECT_EQ(std::count(fused.backward.events.begin(), fused.backward.events.end(), release), 1);
}

TEST(PointwiseFusion, RandomNumbersAreNotDrawnTwice) {
  testing::ToyProgram toy;
  toy.input("x", {6, 4});
  toy.param("a", {4, 8});
  toy.op("aten.mm.default", {"x", "%a"}, {{"h", {6, 8}}});
  toy.op("aten.silu.default", {"h"}, {{"act", {6, 8}}});  // keeps the product, of which all could be made
  toy.op("aten.native_dropout.default", {"act"}, {{"kept", {6, 8}}, {"mask", {6, 8}, DType::Bool}}, {{0.5}, {true}});
  toy.op("aten.sum.default", {"kept"}, {{"loss", {}}});
  EXPECT_THAT(made_again(toy.finish("loss")), IsEmpty());
}

TEST(PointwiseFusion, WhatASegmentIsGivenIsSavedForItsWiderCast) {  // a norm's input in 16 bits
  testing::ToyProgram toy;
  toy.input("x", {6, 4}, DType::BFloat16);
  toy.param("a", {4, 512}, DType::BFloat16);
  toy.op("aten.mm.default", {"x", "%a"}, {{"h", {6, 512}, DType::BFloat16}});
  toy.op("aten._to_copy.default", {"h"}, {{"wide", {6, 512}}});
  toy.op("aten.silu.default", {"wide"}, {{"act", {6, 512}}});  // keeps the cast
  toy.op("aten.sum.default", {"act"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const std::vector<SegmentRange> cut{{0, 1}, {1, 4}};
  const LoweredProgram lowered = lower(model, cut, trained(model), {}).value();
  const auto& behind = lowered.templates[static_cast<std::size_t>(lowered.instances[1].lowered)];
  const auto found = MadeAgain(model, trained(model)).cut(cut[1], behind);
  EXPECT_EQ(found.again.size(), 1U);
  ASSERT_EQ(found.instead.size(), 1U);
  EXPECT_LT(found.instead[0].first, 0) << "an import";
}

TEST(PointwiseFusion, WhatIsMadeAgainIsNotHeldInBetween) {
  const Model model = gated();
  const LoweredProgram lowered = lower(model, whole(model), trained(model), {}).value();
  const LoweredProgram fused = fuse_pointwise(lowered, model, whole(model), trained(model));
  const auto held = [](const KernelList& list) {
    std::int64_t count = 0;
    for (const MemoryEvent& event : list.events) count += event.alloc ? 1 : -1;
    return count;
  };
  EXPECT_EQ(held(fused.templates[0].forward), held(lowered.templates[0].forward) - 1);
  EXPECT_EQ(held(fused.templates[0].backward), held(lowered.templates[0].backward) + 1);
}

TEST(PointwiseFusion, OnlyWhatBlocksAloneRunIsCompiled) {
  Model model;
  model.block_class = "Block";
  model.modules.resize(3);
  for (const std::size_t block : {1U, 2U}) {
    model.modules[block].class_name = "Block";
    model.modules[block].parent = ModuleId(0);
  }
  model.ops.resize(3);
  for (std::size_t op = 0; op < 3; ++op) model.ops[op].module = ModuleId((op + 1) % 3);  // block, block, root
  LoweredProgram program = chain();
  program.templates.push_back(program.templates[0]);
  program.instances = {{0, {}}, {0, {}}, {1, {}}};
  const std::vector<SegmentRange> segments{{0, 1}, {1, 2}, {2, 3}};
  const LoweredProgram compiled = compile_blocks(program, model, segments, {});
  EXPECT_EQ(compiled.templates[0], fused_alone(program).templates[0]);
  EXPECT_EQ(compiled.templates[1], program.templates[1]) << "the head stays eager";
  program.instances[2].lowered = 0;
  EXPECT_EQ(compile_blocks(program, model, segments, {}).templates, program.templates) << "something else runs it too";
}

TEST(PointwiseFusion, RanksMeetInKernelsOfTheirOwn) {
  LoweredProgram program = chain();
  program.templates[0].forward.kernels[1].collective = KernelCollective::AllReduce;
  EXPECT_EQ(fused_alone(program).templates[0].forward.kernels.size(), program.templates[0].forward.kernels.size());
}

}  // namespace
}  // namespace foreshard
