#include "sim/play/instructions/copy_arguments.h"

#include <gtest/gtest.h>

namespace foreshard {
namespace {

// Sizes from the allocator's log of recorded case m048: 8 ranks, hidden size 1024, 132 multiprocessors, gathers in
// bfloat16, reductions in float32.
std::vector<Bytes> layer(Bytes element) {
  std::vector<Bytes> chunks;
  for (const Numel rows : {1024, 512, 512, 1024, 2816, 2816, 2816, 1, 1}) chunks.push_back(rows * 1024 / 8 * element);
  return chunks;
}

TEST(CopyArguments, OfALayer) {
  EXPECT_EQ(split_copy_arguments(layer(2), 8, 132), 6072);
  EXPECT_EQ(chunk_cat_arguments(layer(4)), 23504);
}

TEST(CopyArguments, ABlockTakesMoreWhereThereAreMany) {
  const std::vector<Bytes> root = {32000 * 128 * 2, 128 * 2, 32000 * 128 * 2};
  EXPECT_EQ(split_copy_arguments(root, 8, 132), 16112);
  EXPECT_EQ(split_copy_arguments(root, 8, 1 << 20), 8 * (4 * 3 + 1 + 4000 + 1 + 4000));
}

TEST(CopyArguments, OfOneRank) {
  EXPECT_EQ(split_copy_arguments({1}, 1, 132), 8 * 6);
  EXPECT_EQ(chunk_cat_arguments({1}), 8 * 9);
}

}  // namespace
}  // namespace foreshard
