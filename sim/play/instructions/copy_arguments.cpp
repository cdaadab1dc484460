#include "sim/play/instructions/copy_arguments.h"

#include <algorithm>
#include <cmath>

namespace foreshard {
namespace {

constexpr Bytes kTile = 128 * 16;                         // threads of a block, bytes of a thread
constexpr std::int64_t kResidentBlocks = 2048 / 128 * 2;  // a multiprocessor's threads, twice
constexpr Bytes kNumber = 8;

std::int64_t blocks_of(const std::vector<Bytes>& chunks, std::int64_t tiles) {
  std::int64_t blocks = 0;
  for (const Bytes chunk : chunks) blocks += ceil_div(chunk, kTile * tiles);
  return blocks;
}

}  // namespace

Bytes split_copy_arguments(const std::vector<Bytes>& chunks, std::int64_t ranks, int multiprocessors) {
  // Where there are more tiles than twice what runs at once, a block takes several: of one rank's part, and of ranks.
  const std::int64_t rounds =
      ceil_div(blocks_of(chunks, 1) * ranks, std::max<std::int64_t>(1, multiprocessors * kResidentBlocks));
  const auto root = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(rounds))));
  const std::int64_t of_ranks = std::clamp<std::int64_t>(root, 1, ranks);
  const auto count = static_cast<std::int64_t>(chunks.size());
  return kNumber * (4 * count + 1 + blocks_of(chunks, std::max<std::int64_t>(1, ceil_div(rounds, of_ranks))));
}

Bytes chunk_cat_arguments(const std::vector<Bytes>& chunks) {
  return kNumber * (6 * static_cast<std::int64_t>(chunks.size()) + 2 + blocks_of(chunks, 1));
}

}  // namespace foreshard
