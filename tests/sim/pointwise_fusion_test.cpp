#include "sim/device/pointwise_fusion.h"

#include <gtest/gtest.h>

namespace foreshard {
namespace {

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
  return program;
}

TEST(PointwiseFusion, ARunBecomesOneKernelWithoutItsInnerStorage) {
  const KernelList fused = fuse_pointwise(chain()).templates[0].forward;
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
  const SegmentTemplate fused = fuse_pointwise(program).templates[0];
  EXPECT_EQ(fused.gradients, (std::vector<FinishedGradient>{{0, 2, 1, false}, {1, 2, 1, false}}));
}

TEST(PointwiseFusion, ProductsAreNotFused) {
  LoweredProgram program = chain();
  program.templates[0].forward.kernels[1].kind = KernelClass::Gemm;
  program.templates[0].forward.kernels[2].kind = KernelClass::Attention;
  EXPECT_EQ(fuse_pointwise(program), program);
}

// A pointwise result that a product reads and backward uses: not held in between.
TEST(PointwiseFusion, WhatPointwiseKernelsMadeIsMadeAgainInBackward) {
  SegmentTemplate segment;
  segment.slots = {{100, SlotCategory::Activation, ParamId()}};
  segment.forward.events = {{0, true}};
  segment.forward.kernels = {kernel(KernelClass::Elementwise, 100, 100), kernel(KernelClass::Gemm, 10, 10)};
  segment.forward.kernels[0].before_end = 1;
  for (std::int32_t* at : {&segment.forward.kernels[0].after_begin, &segment.forward.kernels[0].after_end,
                           &segment.forward.kernels[1].before_begin, &segment.forward.kernels[1].before_end,
                           &segment.forward.kernels[1].after_begin, &segment.forward.kernels[1].after_end})
    *at = 1;
  segment.backward.events = {{0, false}};
  segment.backward.kernels = {kernel(KernelClass::Gemm, 10, 10)};
  segment.backward.kernels[0].after_end = 1;
  LoweredProgram program;
  program.templates = {segment};
  const SegmentTemplate fused = fuse_pointwise(program).templates[0];
  EXPECT_EQ(fused.forward.events, (std::vector<MemoryEvent>{{0, true}, {0, false}}));
  EXPECT_EQ(fused.backward.events, (std::vector<MemoryEvent>{{0, true}, {0, false}}));
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
  EXPECT_EQ(compiled.templates[0], fuse_pointwise(program).templates[0]);
  EXPECT_EQ(compiled.templates[1], program.templates[1]) << "the head stays eager";
  program.instances[2].lowered = 0;
  EXPECT_EQ(compile_blocks(program, model, segments).templates, program.templates) << "something else runs it too";
}

TEST(PointwiseFusion, RanksMeetInKernelsOfTheirOwn) {
  LoweredProgram program = chain();
  program.templates[0].forward.kernels[1].collective = KernelCollective::AllReduce;
  EXPECT_EQ(fuse_pointwise(program).templates[0].forward.kernels.size(), program.templates[0].forward.kernels.size());
}

}  // namespace
}  // namespace foreshard
