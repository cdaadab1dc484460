// The part of CachingAllocator that grows and shrinks expandable segments (A10).
#include <algorithm>

#include "core/result.h"
#include "sim/device/caching_allocator.h"

namespace foreshard {
namespace {

constexpr Bytes kSmallPage = 2 * kMiB;
constexpr Bytes kLargePage = 20 * kMiB;

}  // namespace

void CachingAllocator::insert_unmapped(BlockHandle h) {
  std::vector<BlockHandle>& set = pool_of(at(h)).unmapped;
  const auto before = [this](BlockHandle a, BlockHandle b) { return at(a).address < at(b).address; };
  set.insert(std::lower_bound(set.begin(), set.end(), h, before), h);
}

void CachingAllocator::erase_unmapped(BlockHandle h) {
  std::vector<BlockHandle>& set = pool_of(at(h)).unmapped;
  const auto it = std::find(set.begin(), set.end(), h);
  FORESHARD_CHECK(it != set.end(), "an unmapped block stands in its pool");
  set.erase(it);
}

BlockHandle CachingAllocator::find_expandable(int stream, bool small, Bytes size) {
  const auto allocatable = [this](BlockHandle h) {
    return h != kNoBlock && !at(h).allocated && at(h).pending == 0 && at(h).uses == 0;
  };
  for (BlockHandle h : pool_of(stream, small).unmapped) {
    if (allocatable(at(h).prev)) h = at(h).prev;  // a free block right before the lowest unmapped one helps
    Bytes room = 0;
    for (BlockHandle b = h; room < size && allocatable(b); b = at(b).next) room += at(b).size;
    if (room >= size) return h;
  }
  const Bytes page = small ? kSmallPage : kLargePage;
  const Bytes range = round_up(settings_.device_memory + settings_.device_memory / 8, page);
  ranges_.push_back({driver_.reserve(range), range, page, stream});
  const BlockHandle h = new_block();
  Block& block = at(h);
  block.address = ranges_.back().begin;
  block.size = range;
  block.stream = static_cast<std::uint8_t>(stream);
  block.small = small;
  block.expandable = static_cast<std::int32_t>(ranges_.size() - 1);
  block.mapped = false;
  insert_unmapped(h);
  return h;
}

bool CachingAllocator::map_block(BlockHandle h, Bytes size) {
  const VirtualRange& range = ranges_[static_cast<std::size_t>(at(h).expandable)];
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
  erase_unmapped(h);
  at(h).mapped = true;
  if (mapped < at(h).size) {
    const BlockHandle rest = new_block();
    Block& tail = at(rest);
    Block& block = at(h);
    tail.address = block.address + mapped;
    tail.size = block.size - mapped;
    tail.stream = block.stream;
    tail.small = block.small;
    tail.expandable = block.expandable;
    tail.mapped = false;
    tail.prev = h;
    tail.next = block.next;
    if (tail.next != kNoBlock) at(tail.next).prev = rest;
    block.next = rest;
    block.size = mapped;
    insert_unmapped(rest);
  }
  note(MemoryAction::SegmentMap, at(h).address, mapped, range.stream);
  merge(h, at(h).prev);
  merge(h, at(h).next);
  insert_free(h);
  ++stats_.device_allocs;
  stats_.reserved.add(mapped);
  reserved_by_stream_[at(h).stream] += mapped;
  return true;
}

BlockHandle CachingAllocator::allocate_expandable(int stream, bool small, Bytes size) {
  BlockHandle candidate = find_expandable(stream, small, size);
  if (!at(candidate).mapped && !map_block(candidate, std::min(at(candidate).size, size))) return kNoBlock;
  while (at(candidate).size < size) {
    const BlockHandle next = at(candidate).next;
    if (!map_block(next, std::min(size - at(candidate).size, at(next).size))) return kNoBlock;
    candidate = next;  // it swallowed the free block before it
  }
  erase_free(candidate);
  return candidate;
}

void CachingAllocator::unmap_block(BlockHandle h) {
  const VirtualRange& range = ranges_[static_cast<std::size_t>(at(h).expandable)];
  const Bytes offset = at(h).address - range.begin;
  const Bytes begin = round_up(offset, range.page);
  const Bytes end = (offset + at(h).size) / range.page * range.page;
  if (begin >= end) return;  // no whole page
  clock_.stream_synchronize(range.stream);
  driver_.discharge(end - begin);
  note(MemoryAction::SegmentUnmap, range.begin + begin, end - begin, range.stream);
  erase_free(h);

  const auto split_off = [this, h](Bytes address, Bytes size, bool before) {
    const BlockHandle part = new_block();
    Block& p = at(part);
    Block& block = at(h);
    p.address = address;
    p.size = size;
    p.stream = block.stream;
    p.small = block.small;
    p.expandable = block.expandable;
    p.prev = before ? block.prev : h;
    p.next = before ? h : block.next;
    if (p.prev != kNoBlock) at(p.prev).next = part;
    if (p.next != kNoBlock) at(p.next).prev = part;
    insert_free(part);
  };
  if (begin > offset) split_off(at(h).address, begin - offset, true);
  const Bytes after = offset + at(h).size - end;
  if (after > 0) split_off(range.begin + end, after, false);
  at(h).address = range.begin + begin;
  at(h).size = end - begin;
  at(h).mapped = false;
  merge(h, at(h).prev);
  merge(h, at(h).next);
  insert_unmapped(h);
  ++stats_.device_frees;
  stats_.reserved.remove(end - begin);
  reserved_by_stream_[at(h).stream] -= end - begin;
}

}  // namespace foreshard
