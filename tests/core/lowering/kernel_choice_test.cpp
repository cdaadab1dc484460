// What hangs on sizes, strides and who requires a gradient: tiles of attention, windows that overlap, products that
// fold; products in groups and systems of equations.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/lowering/kernels/host_values.h"
#include "core/lowering/kernels/kernel_shape.h"
#include "core/lowering/lowering.h"
#include "tests/core/lowering/replay.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

using testing::all_trainable;
using testing::replay;
using testing::segments_by_block;
using testing::ToyProgram;

std::vector<Bytes> allocated(const Model& model, const std::vector<bool>& trainable) {
  const auto segments = segments_by_block(model, "");
  const auto lowered = lower(model, segments, trainable);
  std::vector<Bytes> sizes;
  if (!lowered) return sizes;
  for (const testing::ReplayEvent& event : replay(*lowered, segments).events)
    if (event.alloc) sizes.push_back(event.bytes);
  return sizes;
}

bool has(const std::vector<Bytes>& sizes, Bytes bytes) {
  return std::find(sizes.begin(), sizes.end(), bytes) != sizes.end();
}

/// Batch 2, 3 heads, as many queries and keys.
std::vector<Bytes> efficient_attention(DType dtype, std::int64_t queries, std::int64_t keys, std::int64_t head) {
  ToyProgram toy;
  toy.module("", "Root");
  for (const char* name : {"q", "k", "v"}) toy.param(name, {2, 3, name[0] == 'q' ? queries : keys, head}, dtype);
  toy.op("aten._scaled_dot_product_efficient_attention.default", {"%q", "%k", "%v"},
         {{"out", {2, 3, queries, head}, dtype}, {"lse", {2, 3, queries}}}, {Arg{}, Arg{true}});
  toy.op("aten.sum.default", {"out"}, {{"loss", {}, dtype}});
  Model model = toy.finish("loss");
  model.compute_dtype = dtype;  // of its parameters too
  return allocated(model, all_trainable(model));
}

TEST(KernelChoice, EfficientAttentionsWorkspaceIsThatOfTheKernelForItsHead) {
  struct Recorded {  // PyTorch 2.11 on the virtual device
    DType dtype;
    std::int64_t queries, keys, head;
    Bytes workspace;
  };
  constexpr DType kFull = DType::Float32, kHalf = DType::BFloat16;
  for (const Recorded& row : {Recorded{kFull, 96, 104, 32, 196800}, Recorded{kFull, 300, 130, 64, 492000},
                              Recorded{kFull, 64, 64, 72, 393408}, Recorded{kFull, 520, 70, 320, 4917600},
                              Recorded{kHalf, 96, 104, 64, 196800}, Recorded{kHalf, 64, 64, 96, 393312},
                              Recorded{kHalf, 300, 130, 128, 1179936}, Recorded{kHalf, 96, 104, 192, 2162976},
                              Recorded{kHalf, 300, 130, 256, 4719744}, Recorded{kHalf, 520, 70, 320, 7276896}})
    EXPECT_TRUE(has(efficient_attention(row.dtype, row.queries, row.keys, row.head), row.workspace))
        << row.workspace << ", head " << row.head;
}

/// 48 rows of 16 by four matrices to 32 columns, which lie as given or in columns.
Model grouped_product(bool in_columns) {
  ToyProgram toy;
  toy.module("", "Root");
  toy.input("ends", {4}, DType::Int32);
  toy.param("rows", {48, 16}, DType::BFloat16);
  toy.param("experts", in_columns ? Shape{4, 32, 16} : Shape{4, 16, 32}, DType::BFloat16);
  if (in_columns)
    toy.op("aten.transpose.int", {"%experts"}, {{"turned", {4, 16, 32}, DType::BFloat16}},
           {Arg{std::int64_t{1}}, Arg{std::int64_t{2}}});
  toy.op("aten._grouped_mm.default", {"%rows", in_columns ? "turned" : "%experts", "ends"},
         {{"out", {48, 32}, DType::BFloat16}});
  toy.op("aten.sum.default", {"out"}, {{"loss", {}, DType::BFloat16}});
  Model model = toy.finish("loss");
  model.compute_dtype = DType::BFloat16;
  return model;
}

std::vector<Kernel> products_of(const Model& model) {
  std::vector<Kernel> products;
  const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model));
  if (!lowered) return products;
  for (const KernelList* pass : {&lowered->templates[0].forward, &lowered->templates[0].backward})
    for (const Kernel& kernel : pass->kernels)
      if (kernel.kind == KernelClass::Gemm) products.push_back(kernel);
  return products;
}

TEST(KernelChoice, GroupedProductsDoTheWorkOfAllRowsInBothDirections) {
  for (const bool in_columns : {false, true}) {
    const std::vector<Kernel> products = products_of(grouped_product(in_columns));
    ASSERT_EQ(products.size(), 3u);
    for (const Kernel& product : products) {
      EXPECT_EQ(product.flops, 2 * 48 * 16 * 32);
      EXPECT_EQ(product.batch, 4);
      EXPECT_EQ(product.batch * product.m * product.n * product.k, 48 * 16 * 32);  // 12 rows a group
    }
  }
}

TEST(KernelChoice, TheGradientOfGroupedMatricesLiesAsTheyDo) {
  for (const bool in_columns : {false, true}) {
    const std::vector<Bytes> sizes = allocated(grouped_product(in_columns), {true, true});
    EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 4 * 16 * 32 * 2), 1) << in_columns;  // no copy to accumulate
    EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 132 * 512), 3) << in_columns;        // descriptors
  }
}

TEST(KernelChoice, ATriangularSystemKeepsTheMatrixAndTheSolution) {
  ToyProgram toy;
  toy.module("", "Root");
  toy.param("a", {3, 8, 8});
  toy.param("b", {3, 8, 5});
  toy.op("aten.relu.default", {"%a"}, {{"lower", {3, 8, 8}}});
  toy.op("aten.exp.default", {"%b"}, {{"right", {3, 8, 5}}});
  toy.op("aten.add.Tensor", {"right", "right"}, {{"twice", {3, 8, 5}}});
  toy.op("aten.linalg_solve_triangular.default", {"lower", "twice"}, {{"x", {3, 8, 5}}}, {Arg{false}});
  toy.op("aten.sum.default", {"x"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const std::vector<Kernel> products = products_of(model);
  ASSERT_EQ(products.size(), 3u);  // the system, the transposed system, the matrix's gradient
  EXPECT_EQ(products[0].flops, 3 * 8 * 8 * 5);
  EXPECT_EQ(products[1].flops, 3 * 8 * 8 * 5);
  EXPECT_EQ(products[2].flops, 2 * 3 * 8 * 5 * 8);
  const std::vector<Bytes> sizes = allocated(model, all_trainable(model));
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 3 * 8), 2);  // addresses of three matrices, for both sides
}

TEST(KernelChoice, SystemsThatShareAMatrixSumItsGradient) {
  ToyProgram toy;
  toy.module("", "Root");
  toy.param("a", {8, 8});
  toy.param("b", {3, 8, 5});
  toy.op("aten.linalg_solve_triangular.default", {"%a", "%b"}, {{"x", {3, 8, 5}}}, {Arg{false}});
  toy.op("aten.sum.default", {"x"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  EXPECT_EQ(products_of(model).at(2).flops, 2 * 3 * 8 * 5 * 8);
  const std::vector<Bytes> sizes = allocated(model, all_trainable(model));
  EXPECT_GE(std::count(sizes.begin(), sizes.end(), 3 * 8 * 8 * 4), 3);  // the product, its negative, its triangle
  EXPECT_TRUE(has(sizes, 8 * 8 * 4));
}

std::vector<Bytes> windows(std::int64_t step) {  // 64 numbers in windows of 16
  ToyProgram toy;
  toy.module("", "Root");
  toy.param("w", {64});
  const std::int64_t count = (64 - 16) / step + 1;
  toy.op("aten.as_strided.default", {"%w"}, {{"seen", {count, 16}}},
         {Arg{ArgList{Arg{count}, Arg{std::int64_t{16}}}}, Arg{ArgList{Arg{step}, Arg{std::int64_t{1}}}}});
  toy.op("aten.relu.default", {"seen"}, {{"cut", {count, 16}}});
  toy.op("aten.sum.default", {"cut"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  return allocated(model, all_trainable(model));
}

TEST(KernelChoice, WindowsThatOverlapAreAddedUpByNumbersOf64Bits) {
  const std::vector<Bytes> apart = windows(16), over = windows(8);
  EXPECT_FALSE(has(apart, 64 * 8));
  EXPECT_TRUE(has(over, 64 * 8));      // a number for every element
  EXPECT_TRUE(has(over, 7 * 16 * 8));  // those of the windows, written out
}

/// A linear layer of a batch that lies in memory the other way round, as capture saw it with a frozen weight.
Model expanded_product() {
  ToyProgram toy;
  toy.module("", "Root");
  toy.param("x", {5, 7, 4});
  toy.param("w", {6, 4});
  toy.op("aten.transpose.int", {"%x"}, {{"turned", {7, 5, 4}}}, {Arg{std::int64_t{0}}, Arg{std::int64_t{1}}});
  toy.op("aten.t.default", {"%w"}, {{"wt", {4, 6}}});
  const auto sizes = [](std::initializer_list<std::int64_t> list) {
    ArgList out;
    for (const std::int64_t size : list) out.push_back(Arg{size});
    return Arg{out};
  };
  toy.op("aten.expand.default", {"turned"}, {{"e1", {7, 5, 4}}}, {sizes({7, 5, 4})});
  toy.op("aten.view.default", {"e1"}, {{"v1", {7, 5, 4}}}, {sizes({7, 5, 4})});
  toy.op("aten.expand.default", {"wt"}, {{"e2", {7, 4, 6}}}, {sizes({7, 4, 6})});
  toy.op("aten.view.default", {"e2"}, {{"v2", {7, 4, 6}}}, {sizes({7, 4, 6})});
  toy.op("aten.bmm.default", {"v1", "v2"}, {{"product", {7, 5, 6}}});
  toy.op("aten._unsafe_view.default", {"product"}, {{"h", {7, 5, 6}}}, {sizes({7, 5, 6})});
  toy.op("aten.sum.default", {"h"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  model.params[1].requires_grad = false;
  return model;
}

TEST(KernelChoice, AFrozenWeightThatRequiresAGradientInItsFlatParameterIsMultipliedOnce) {
  const Model model = expanded_product();
  const std::vector<Bytes> frozen = allocated(model, {true, false}), flat = allocated(model, {true, true});
  const Bytes weights = 7 * 4 * 6 * 4, rows = 7 * 5 * 4 * 4;
  EXPECT_FALSE(has(frozen, weights));
  EXPECT_FALSE(has(flat, weights));  // one gradient, not one for every entry of the batch
  EXPECT_EQ(std::count(flat.begin(), flat.end(), rows) - std::count(frozen.begin(), frozen.end(), rows), 1);  // copied
  Model trained = model;
  trained.params[1].requires_grad = true;  // whoever captured it so saw what ran
  EXPECT_TRUE(has(allocated(trained, {true, true}), weights));
}

/// Kernels of forward and of backward with this name.
std::vector<Kernel> kernels_of(const Model& model, std::string_view name) {
  const auto segments = segments_by_block(model, "");
  const auto lowered = lower(model, segments, all_trainable(model));
  std::vector<Kernel> found;
  if (!lowered) return found;
  for (const SegmentTemplate& segment : lowered->templates)
    for (const KernelList* list : {&segment.forward, &segment.backward})
      for (const Kernel& kernel : list->kernels)
        if (kernel.op >= 0 && lowered->op_names[static_cast<std::size_t>(kernel.op)] == name) found.push_back(kernel);
  return found;
}

Model head_of(std::int64_t vocabulary) {
  ToyProgram toy;
  toy.module("", "Root");
  toy.param("hidden", {96, 64}, DType::BFloat16);
  toy.param("table", {vocabulary, 64}, DType::BFloat16);
  toy.param("scale", {96, vocabulary}, DType::BFloat16);
  toy.op("aten.linear.default", {"%hidden", "%table"}, {{"logits", {96, vocabulary}, DType::BFloat16}});
  toy.op("aten.mul.Tensor", {"logits", "%scale"}, {{"scaled", {96, vocabulary}, DType::BFloat16}});
  toy.op("aten.sum.default", {"scaled"}, {{"loss", {}, DType::BFloat16}});
  Model model = toy.finish("loss");
  model.compute_dtype = DType::BFloat16;
  return model;
}

// A vocabulary of 50,257 words: rows of logits begin at odd multiples of 2 bytes, in forward and in both products of
// backward; the number of tokens does not matter.
TEST(KernelChoice, AProductsRowsAreAlignedAsTheLengthsThatLieTogether) {
  const auto alignments = [](std::int64_t vocabulary) {
    const Model model = head_of(vocabulary);
    std::vector<std::int32_t> all;
    for (const char* name : {"aten.linear.default", "aten.mm.default"})
      for (const Kernel& kernel : kernels_of(model, name)) all.push_back(kernel.alignment);
    return all;
  };
  EXPECT_EQ(alignments(257), (std::vector<std::int32_t>{2, 2, 2}));
  EXPECT_EQ(alignments(258), (std::vector<std::int32_t>{4, 4, 4}));
  EXPECT_EQ(alignments(260), (std::vector<std::int32_t>{8, 8, 8}));
  EXPECT_EQ(alignments(264), (std::vector<std::int32_t>{16, 16, 16}));
}

TEST(KernelChoice, CublasReadsWhereOneDimensionLiesTogetherAndTheOtherStepsOverIt) {
  const auto copies = [](const Dims& sizes, const Dims& strides) {
    return lowering::cublas_copies({sizes, strides, DType::Float32});
  };
  EXPECT_FALSE(copies({2, 3, 5}, {15, 5, 1}));
  EXPECT_FALSE(copies({2, 3, 5}, {15, 1, 3}));
  EXPECT_FALSE(copies({2, 3, 5}, {1000, 7, 1}));  // a part of longer rows
  EXPECT_TRUE(copies({2, 3, 5}, {1, 10, 2}));     // of [3, 5, 2]: neither lies together
  EXPECT_TRUE(copies({2, 3, 5}, {7, 1, 1}));      // windows that overlap
  EXPECT_TRUE(copies({2, 3, 5}, {15, 0, 1}));     // one row for all
  EXPECT_TRUE(copies({3, 5}, {0, 0}));
  EXPECT_FALSE(copies({3, 1}, {1, 1}));
}

TEST(KernelChoice, AttentionSaysItsMaskInBothDirections) {
  for (const bool causal : {false, true}) {
    ToyProgram toy;
    toy.module("", "Root");
    for (const char* name : {"q", "k", "v"}) toy.param(name, {2, 3, name[0] == 'q' ? 40 : 56, 32}, DType::BFloat16);
    toy.op("aten._scaled_dot_product_flash_attention.default", {"%q", "%k", "%v"},
           {{"out", {2, 3, 40, 32}, DType::BFloat16}, {"lse", {2, 3, 40}}}, {Arg{0.0}, Arg{causal}});
    toy.op("aten.sum.default", {"out"}, {{"loss", {}, DType::BFloat16}});
    Model model = toy.finish("loss");
    model.compute_dtype = DType::BFloat16;
    for (const bool backward : {false, true}) {
      const auto found = kernels_of(model, backward ? "aten._scaled_dot_product_flash_attention_backward.default"
                                                    : "aten._scaled_dot_product_flash_attention.default");
      ASSERT_EQ(found.size(), 1U);
      EXPECT_EQ(found[0].causal, causal);
      EXPECT_EQ(found[0].backward, backward);
      EXPECT_EQ(found[0].n, 56) << "keys";
      EXPECT_EQ(found[0].k, 32) << "of a head";
    }
  }
}

TEST(KernelChoice, ALossReadsOfEachRowItsTargetAlone) {
  constexpr std::int64_t kRows = 96, kWords = 5000;
  ToyProgram toy;
  toy.module("", "Root");
  toy.param("logits", {kRows, kWords});
  toy.param("targets", {kRows}, DType::Int64);
  toy.op("aten._log_softmax.default", {"%logits"}, {{"logs", {kRows, kWords}}}, {Arg{std::int64_t{1}}, Arg{false}});
  toy.op("aten.nll_loss_forward.default", {"logs", "%targets"}, {{"loss", {}}, {"weight", {}}});
  const Model model = toy.finish("loss");
  const auto loss = kernels_of(model, "aten.nll_loss_forward.default");
  ASSERT_EQ(loss.size(), 1U);
  EXPECT_EQ(loss[0].read, kRows * (8 + 4));
  const auto softmax = kernels_of(model, "aten._log_softmax.default");
  ASSERT_EQ(softmax.size(), 1U);
  EXPECT_EQ(softmax[0].read, 2 * kRows * kWords * 4) << "rows that no block's registers hold";
}

/// Single values, and numbers of rows that only values tell: by a mask's places, by what repetitions add up to.
TEST(KernelChoice, OperatorsThatHandValuesToTheHost) {
  Model model;
  const auto value = [&](DType dtype) {
    model.values.emplace_back().dtype = dtype;
    return Arg{ValueRef{ValueId(model.values.size() - 1)}};
  };
  const auto hands = [&](const char* name, ArgList args = {}, std::vector<NamedArg> kwargs = {}) {
    Op op;
    op.name = name;
    op.args = std::move(args);
    op.kwargs = std::move(kwargs);
    return hands_to_host(model, op);
  };
  EXPECT_TRUE(hands("aten._local_scalar_dense.default"));
  EXPECT_TRUE(hands("mesh.splits"));
  EXPECT_TRUE(hands("aten.nonzero.default"));
  EXPECT_FALSE(hands("aten.mm.default"));
  EXPECT_FALSE(hands("aten.no_such_thing.default"));
  const Arg x = value(DType::Float32), mask = value(DType::Bool), places = value(DType::Int64);
  EXPECT_TRUE(hands("aten.index.Tensor", {x, Arg{ArgList{Arg{}, mask}}}));
  EXPECT_FALSE(hands("aten.index.Tensor", {x, Arg{ArgList{Arg{}, places}}}));
  EXPECT_TRUE(hands("aten.index_put_.default", {x, Arg{ArgList{mask}}, x}));
  EXPECT_TRUE(hands("aten.repeat_interleave.Tensor", {places}));
  EXPECT_FALSE(hands("aten.repeat_interleave.Tensor", {places}, {{"output_size", Arg{std::int64_t{8}}}}));
}

}  // namespace
}  // namespace foreshard
