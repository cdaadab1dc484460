// The free blocks of one pool of the caching allocator, ordered by (size, address) as best fit asks for them (A2, A4).
//
// Blocks are kept in buckets of nearly equal size, eight to a power of two, each sorted downwards; a bitmap finds the
// next bucket that holds anything. Most blocks come as the smallest of their bucket and go as that, which is its end,
// so a change rarely moves an entry. All buckets live in one piece of memory. Single-threaded; sizes in bytes, > 0.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/units.h"

namespace foreshard {

class FreeSet {
 public:
  struct Entry {
    Bytes size = 0, address = 0;
    std::int32_t block = -1;
    bool operator==(const Entry&) const = default;
    bool operator<(const Entry& other) const {
      return size != other.size ? size < other.size : address < other.address;
    }
  };

  /// A place in the order; valid until the next change.
  struct Cursor {
    std::size_t bucket = kBuckets;
    std::size_t index = 0;
    bool end() const { return bucket == kBuckets; }
    bool operator==(const Cursor&) const = default;
  };

  void insert(Entry entry) {
    const std::size_t b = bucket_of(entry.size);
    if (buckets_.empty()) buckets_.resize(kBuckets);  // most pools stay empty
    Bucket& bucket = buckets_[b];
    if (bucket.count == bucket.capacity) grow(bucket);
    Entry* end = end_of(bucket);
    if (bucket.count == 0)
      filled_[b / 64] |= std::uint64_t{1} << b % 64;
    else if (!(entry < end[-1]))
      end = make_room(bucket, entry);
    *end = entry;
    ++bucket.count;
  }

  /// True if the entry was there.
  bool erase(Entry entry) {
    const Cursor at = find(entry);
    if (at.end()) return false;
    erase(at);
    return true;
  }

  void erase(Cursor at) {
    Bucket& bucket = buckets_[at.bucket];
    if (at.index + 1 < bucket.count) {
      Entry* const entry = begin_of(bucket) + at.index;
      std::move(entry + 1, end_of(bucket), entry);
    }
    drop_last(at.bucket);
  }

  /// The smallest block of at least this size; the one at the lowest address among equals.
  Cursor lower_bound(Bytes size) const {
    const std::size_t b = bucket_of(size);
    if (!is_filled(b)) return first_from(b + 1);
    const Entry* const end = end_of(buckets_[b]);
    if (end[-1].size >= size) return {b, buckets_[b].count - 1};
    const Entry* const begin = begin_of(buckets_[b]);
    const Entry* const above = std::upper_bound(begin, end, Entry{size, 0, -1}, after);
    if (above != begin) return {b, static_cast<std::size_t>(above - begin) - 1};
    return first_from(b + 1);
  }

  Cursor first() const { return first_from(0); }

  Cursor next(Cursor at) const { return at.index > 0 ? Cursor{at.bucket, at.index - 1} : first_from(at.bucket + 1); }

  /// REQUIRES not empty.
  Cursor last() const {
    for (std::size_t word = filled_.size(); word-- > 0;) {
      if (filled_[word] != 0) return {word * 64 + 63 - static_cast<std::size_t>(std::countl_zero(filled_[word])), 0};
    }
    return {};
  }

  bool empty() const { return first().end(); }
  const Entry& operator[](Cursor at) const { return begin_of(buckets_[at.bucket])[at.index]; }

 private:
  /// Where the entry stands; end() if nowhere.
  Cursor find(Entry entry) const {
    const std::size_t b = bucket_of(entry.size);
    if (!is_filled(b)) return {};
    const Entry* const end = end_of(buckets_[b]);
    if (end[-1] == entry) return {b, buckets_[b].count - 1};
    const Entry* const begin = begin_of(buckets_[b]);
    const Entry* const at = std::lower_bound(begin, end, entry, after);
    if (at == end || !(*at == entry)) return {};
    return {b, static_cast<std::size_t>(at - begin)};
  }

  static constexpr std::size_t kBuckets = 512;  // 2^0 .. 2^63, eight each
  struct Bucket {
    std::uint32_t begin = 0, count = 0, capacity = 0;  // in entries_
  };

  Entry* begin_of(const Bucket& bucket) { return entries_.data() + bucket.begin; }
  Entry* end_of(const Bucket& bucket) { return entries_.data() + bucket.begin + bucket.count; }
  const Entry* begin_of(const Bucket& bucket) const { return entries_.data() + bucket.begin; }
  const Entry* end_of(const Bucket& bucket) const { return entries_.data() + bucket.begin + bucket.count; }

  /// Moves the bucket to the end of the memory, where it has twice the room. What it leaves is not used again.
  [[gnu::noinline]] void grow(Bucket& bucket) {
    const std::size_t begin = entries_.size();
    const std::uint32_t capacity = bucket.capacity == 0 ? 8 : 2 * bucket.capacity;
    entries_.resize(begin + capacity);
    std::copy(begin_of(bucket), end_of(bucket), entries_.begin() + static_cast<std::ptrdiff_t>(begin));
    bucket.begin = static_cast<std::uint32_t>(begin);
    bucket.capacity = capacity;
  }

  /// REQUIRES count < capacity. Where the entry belongs; what comes after it has been moved on.
  [[gnu::noinline]] Entry* make_room(Bucket& bucket, const Entry& entry) {
    Entry* const end = end_of(bucket);
    Entry* const at = std::lower_bound(begin_of(bucket), end, entry, after);
    std::move_backward(at, end, end + 1);
    return at;
  }

  void drop_last(std::size_t bucket) {
    if (--buckets_[bucket].count == 0) clear(bucket);
  }

  bool is_filled(std::size_t bucket) const { return (filled_[bucket / 64] >> bucket % 64 & 1) != 0; }

  void clear(std::size_t bucket) { filled_[bucket / 64] &= ~(std::uint64_t{1} << bucket % 64); }

  static bool after(const Entry& a, const Entry& b) { return b < a; }

  static std::size_t bucket_of(Bytes size) {
    const auto value = static_cast<std::uint64_t>(size);
    const auto power = static_cast<std::size_t>(63 - std::countl_zero(value | 1));
    return power * 8 + static_cast<std::size_t>((value << 3 >> power) & 7);
  }

  Cursor first_from(std::size_t bucket) const {
    for (std::size_t word = bucket / 64; word < filled_.size(); ++word) {
      std::uint64_t bits = filled_[word];
      if (word == bucket / 64) bits &= ~std::uint64_t{0} << bucket % 64;
      if (bits == 0) continue;
      const std::size_t b = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
      return {b, buckets_[b].count - 1};
    }
    return {};
  }

  std::vector<Bucket> buckets_;  // none, or kBuckets
  std::vector<Entry> entries_;
  std::array<std::uint64_t, kBuckets / 64> filled_{};
};

}  // namespace foreshard
