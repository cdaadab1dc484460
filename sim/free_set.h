// The free blocks of one pool of the caching allocator, ordered by (size, address) as best fit asks for them (A2, A4).
//
// Blocks are kept in buckets of nearly equal size, eight to a power of two, each a short sorted vector; a bitmap finds
// the next bucket that holds anything. So an insertion moves a few entries, not half of a pool's. Single-threaded;
// sizes in bytes, > 0.
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

  void insert(const Entry& entry) {
    if (buckets_.empty()) buckets_.resize(kBuckets);  // most pools stay empty
    const std::size_t b = bucket_of(entry.size);
    std::vector<Entry>& bucket = buckets_[b];
    if (bucket.capacity() == 0) bucket.reserve(8);
    bucket.insert(std::lower_bound(bucket.begin(), bucket.end(), entry, after), entry);
    filled_[b / 64] |= std::uint64_t{1} << b % 64;
  }

  /// True if the entry was there.
  bool erase(const Entry& entry) {
    const std::size_t b = bucket_of(entry.size);
    if (!is_filled(b)) return false;
    const auto it = std::lower_bound(buckets_[b].begin(), buckets_[b].end(), entry, after);
    if (it == buckets_[b].end() || *it != entry) return false;
    erase(Cursor{b, static_cast<std::size_t>(it - buckets_[b].begin())});
    return true;
  }

  void erase(Cursor at) {
    std::vector<Entry>& bucket = buckets_[at.bucket];
    bucket.erase(bucket.begin() + static_cast<std::ptrdiff_t>(at.index));
    if (bucket.empty()) filled_[at.bucket / 64] &= ~(std::uint64_t{1} << at.bucket % 64);
  }

  /// The smallest block of at least this size; the one at the lowest address among equals.
  Cursor lower_bound(Bytes size) const {
    const std::size_t b = bucket_of(size);
    if (!is_filled(b)) return first_from(b + 1);
    const std::vector<Entry>& bucket = buckets_[b];
    const auto end = std::upper_bound(bucket.begin(), bucket.end(), Entry{size, 0, -1}, after);
    if (end != bucket.begin()) return {b, static_cast<std::size_t>(end - bucket.begin()) - 1};
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
  const Entry& operator[](Cursor at) const { return buckets_[at.bucket][at.index]; }

 private:
  static constexpr std::size_t kBuckets = 512;  // 2^0 .. 2^63, eight each

  bool is_filled(std::size_t bucket) const { return (filled_[bucket / 64] >> bucket % 64 & 1) != 0; }

  static bool after(const Entry& a, const Entry& b) { return b < a; }

  static std::size_t bucket_of(Bytes size) {
    const auto value = static_cast<std::uint64_t>(size);
    const auto power = static_cast<std::size_t>(63 - std::countl_zero(value | 1));
    const std::uint64_t step = power >= 3 ? (value >> (power - 3)) & 7 : 0;
    return power * 8 + static_cast<std::size_t>(step);
  }

  Cursor first_from(std::size_t bucket) const {
    for (std::size_t word = bucket / 64; word < filled_.size(); ++word) {
      std::uint64_t bits = filled_[word];
      if (word == bucket / 64) bits &= ~std::uint64_t{0} << bucket % 64;
      if (bits == 0) continue;
      const std::size_t b = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
      return {b, buckets_[b].size() - 1};
    }
    return {};
  }

  std::vector<std::vector<Entry>> buckets_;  // none, or kBuckets
  std::array<std::uint64_t, kBuckets / 64> filled_{};
};

}  // namespace foreshard
