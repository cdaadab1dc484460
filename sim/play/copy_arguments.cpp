#include "sim/play/copy_arguments.h"

#include <algorithm>
#include <cmath>

#include "sim/play/plan_player.h"

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

/// They are gone when the copy was issued.
bool PlanPlayer::take_copy_arguments(const Instruction& i) {
  const bool splits = i.kind == InstructionKind::CopyOut && i.buffer.what == BufferWhat::AgBuffer;
  const bool joins = i.kind == InstructionKind::CopyIn && i.buffer.what == BufferWhat::RsInput;
  if (plan_.runtime != Runtime::Fsdp2 || (!splits && !joins) || device_.profile.kind == "cpu") return true;
  const PlanUnit& unit = plan_.units[i.unit.index()];
  const std::int64_t ranks = splits ? gathered_from_[i.unit.index()] : unit.shard_size;
  std::vector<Bytes> chunks;
  for (const ShardedParam& param : unit.sharded) {
    const ParamInfo& info = model_.params[param.param.index()];
    if (joins && !info.requires_grad) continue;
    const bool cast = unit.param_dtype != unit.orig_dtype;
    const DType computed = cast ? unit.param_dtype : info.dtype;
    const bool accumulated = find_buffer({BufferWhat::AccumulatedGrad, i.unit, param.param}, 0) != kNoBlock;
    // Anything else is cut, padded and cast tensor by tensor.
    const bool fused = computed == i.dtype || accumulated || (computed == DType::BFloat16 && i.dtype == DType::Float32);
    if (joins && !fused) return true;
    const Bytes element = itemsize(splits ? computed : i.dtype);
    chunks.push_back(numel_of(param.padded_local_shape) * element * unit.shard_size / std::max<std::int64_t>(1, ranks));
  }
  if (chunks.empty()) return true;
  const Bytes bytes =
      splits ? split_copy_arguments(chunks, ranks, device_.profile.sm_count) : chunk_cat_arguments(chunks);
  const BlockHandle block = device_.book.allocate(bytes, index_of(i.stream), MemoryCategory::Temporaries);
  if (block == kNoBlock) return out_of_memory(bytes);
  device_.book.free(block);
  return true;
}

}  // namespace foreshard
