#include "sim/device/pointwise_fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/device/made_again.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;

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
LoweredProgram fused_alone(const LoweredProgram& program) { return fuse_pointwise(program, Model(), {{0, 0}}); }

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

/// Names of the values whose storages a compiled backward of the whole program makes again.
std::vector<std::string> made_again(const Model& model) {
  const std::vector<SegmentRange> segments{{0, static_cast<std::int32_t>(model.ops.size())}};
  std::vector<bool> trainable;
  for (const ParamInfo& param : model.params) trainable.push_back(param.requires_grad);
  const LoweredProgram lowered = lower(model, segments, trainable, {}).value();
  const SegmentTemplate& whole = lowered.templates[0];
  std::vector<std::string> names;
  for (const std::int32_t slot : slots_made_again(model, segments[0], whole.forward, whole.backward)) {
    for (const Kernel& kernel : whole.forward.kernels)
      for (std::int32_t e = kernel.before_begin; e < kernel.before_end; ++e)
        if (whole.forward.events[static_cast<std::size_t>(e)] == MemoryEvent{slot, true})
          names.push_back(model.values[model.ops[static_cast<std::size_t>(kernel.model_op)].out[0].index()].name);
  }
  return names;
}

/// silu(x a) * (x b), times a matrix.
Model gated(bool last_trains) {
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
  Model model = toy.finish("loss");
  model.params[2].requires_grad = last_trains;
  return model;
}

// As torch/_functorch/partitioners.py cuts a decoder layer of Llama (Inductor's rules, PyTorch 2.11): it saves what
// matrices read, and makes the activation again from the gate.
TEST(PointwiseFusion, WhatNoProductOfBackwardReadsIsMadeAgain) {
  EXPECT_THAT(made_again(gated(true)), ElementsAre("act"));
  EXPECT_THAT(made_again(gated(false)), ElementsAre("act")) << "nobody saves what a frozen matrix reads";
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
  EXPECT_THAT(made_again(toy.finish("loss")), ElementsAre("gate"));
}

TEST(PointwiseFusion, WhatIsMadeAgainIsNotHeldInBetween) {
  const Model model = gated(true);
  const std::vector<SegmentRange> segments{{0, static_cast<std::int32_t>(model.ops.size())}};
  const LoweredProgram lowered = lower(model, segments, {true, true, true}, {}).value();
  const LoweredProgram fused = fuse_pointwise(lowered, model, segments);
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
  const LoweredProgram compiled = compile_blocks(program, model, segments);
  EXPECT_EQ(compiled.templates[0], fused_alone(program).templates[0]);
  EXPECT_EQ(compiled.templates[1], program.templates[1]) << "the head stays eager";
  program.instances[2].lowered = 0;
  EXPECT_EQ(compile_blocks(program, model, segments).templates, program.templates) << "something else runs it too";
}

TEST(PointwiseFusion, RanksMeetInKernelsOfTheirOwn) {
  LoweredProgram program = chain();
  program.templates[0].forward.kernels[1].collective = KernelCollective::AllReduce;
  EXPECT_EQ(fused_alone(program).templates[0].forward.kernels.size(), program.templates[0].forward.kernels.size());
}

}  // namespace
}  // namespace foreshard
