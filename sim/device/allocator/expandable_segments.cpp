#include "sim/device/allocator/expandable_segments.h"

#include <algorithm>

namespace foreshard {
namespace {

constexpr Bytes kSmallPage = 2 * kMiB;
constexpr Bytes kLargePage = 20 * kMiB;

}  // namespace

BlockHandle ExpandableSegments::find(std::size_t pool, Bytes size) {
  const auto allocatable = [this](BlockHandle h) {
    return h != kNoBlock && !blocks_[h].allocated && blocks_[h].pending == 0 && blocks_[h].uses == 0;
  };
  for (BlockHandle h : pools_.unmapped_blocks(pool)) {
    if (allocatable(blocks_[h].prev)) h = blocks_[h].prev;  // a free block right before the lowest unmapped one helps
    Bytes room = 0;
    for (BlockHandle b = h; room < size && allocatable(b); b = blocks_[b].next) room += blocks_[b].size;
    if (room >= size) return h;
  }
  return reserve_range(pool);
}

BlockHandle ExpandableSegments::reserve_range(std::size_t pool) {
  const Bytes page = pool % 2 == 1 ? kSmallPage : kLargePage;
  const Bytes range = round_up(settings_.device_memory + settings_.device_memory / 8, page);
  ranges_.push_back({driver_.reserve(range), range, page, static_cast<int>(pool / 2)});
  const BlockHandle h = blocks_.make(pool, ranges_.back().begin, range);
  Block& block = blocks_[h];
  block.expandable = static_cast<std::int32_t>(ranges_.size() - 1);
  block.mapped = false;
  pools_.insert_unmapped(h);
  return h;
}

bool ExpandableSegments::map(BlockHandle h, Bytes size) {
  const VirtualRange& range = ranges_[static_cast<std::size_t>(blocks_[h].expandable)];
  // `h` starts on a page: everything before it is mapped. Every page is one driver allocation.
  const Bytes wanted = round_up(size, range.page);
  Bytes mapped = 0;
  for (; mapped < wanted; mapped += range.page) {
    clock_.host_cost(settings_.driver_ns);
    if (!driver_.charge(range.page)) {
      driver_.discharge(mapped);
      return false;
    }
  }
  pools_.erase_unmapped(h);
  blocks_[h].mapped = true;
  if (mapped < blocks_[h].size) {
    const BlockHandle rest = blocks_.make_after(h);
    Block& tail = blocks_[rest];
    Block& block = blocks_[h];
    tail.address = block.address + mapped;
    tail.size = block.size - mapped;
    tail.mapped = false;
    block.size = mapped;
    pools_.insert_unmapped(rest);
  }
  ledger_.note(MemoryAction::SegmentMap, blocks_[h].address, mapped, range.stream);
  pools_.merge(h, blocks_[h].prev);
  pools_.merge(h, blocks_[h].next);
  pools_.insert(h);
  ++ledger_.stats.device_allocs;
  ledger_.reserve(blocks_[h].stream, mapped);
  return true;
}

BlockHandle ExpandableSegments::take(std::size_t pool, Bytes size) {
  BlockHandle candidate = find(pool, size);
  if (!blocks_[candidate].mapped && !map(candidate, std::min(blocks_[candidate].size, size))) return kNoBlock;
  while (blocks_[candidate].size < size) {
    const BlockHandle next = blocks_[candidate].next;
    if (!map(next, std::min(size - blocks_[candidate].size, blocks_[next].size))) return kNoBlock;
    candidate = next;  // it swallowed the free block before it
  }
  pools_.erase(candidate);
  return candidate;
}

void ExpandableSegments::unmap(BlockHandle h) {
  const VirtualRange& range = ranges_[static_cast<std::size_t>(blocks_[h].expandable)];
  const Bytes offset = blocks_[h].address - range.begin;
  const Bytes begin = round_up(offset, range.page);
  const Bytes end = (offset + blocks_[h].size) / range.page * range.page;
  if (begin >= end) return;  // no whole page
  clock_.stream_synchronize(range.stream);
  driver_.discharge(end - begin);
  ledger_.note(MemoryAction::SegmentUnmap, range.begin + begin, end - begin, range.stream);
  pools_.erase(h);

  const auto keep = [this](BlockHandle part, Bytes address, Bytes size) {
    blocks_[part].address = address;
    blocks_[part].size = size;
    pools_.insert(part);
  };
  if (begin > offset) keep(blocks_.make_before(h), blocks_[h].address, begin - offset);
  const Bytes after = offset + blocks_[h].size - end;
  if (after > 0) keep(blocks_.make_after(h), range.begin + end, after);
  blocks_[h].address = range.begin + begin;
  blocks_[h].size = end - begin;
  blocks_[h].mapped = false;
  pools_.merge(h, blocks_[h].prev);
  pools_.merge(h, blocks_[h].next);
  pools_.insert_unmapped(h);
  ++ledger_.stats.device_frees;
  ledger_.reserve(blocks_[h].stream, -(end - begin));
}

}  // namespace foreshard
