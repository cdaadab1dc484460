// Device memory as the driver hands it out: whole 2 MiB pages, the lowest free address first, with a limit.
//
// Addresses only matter for their order (the caching allocator breaks ties by address). Owned by one simulation.
#pragma once

#include <cstddef>
#include <vector>

#include "core/units.h"

namespace foreshard {

class DriverMemory {
 public:
  static constexpr Bytes kPage = 2 * kMiB;
  static constexpr Bytes kNoAddress = -1;

  explicit DriverMemory(Bytes limit) : limit_(limit) {}

  /// cudaMalloc: pages and addresses. kNoAddress when the limit does not allow it. REQUIRES bytes > 0.
  Bytes allocate(Bytes bytes);
  void release(Bytes address, Bytes bytes);

  /// cuMemAddressReserve: addresses without pages.
  Bytes reserve(Bytes bytes);
  /// cuMemCreate and cuMemRelease: pages without addresses.
  bool charge(Bytes bytes);
  void discharge(Bytes bytes) { used_ -= bytes; }

  Bytes used() const { return used_; }
  Bytes peak() const { return peak_; }
  Bytes limit() const { return limit_; }
  Bytes free_bytes() const { return limit_ > used_ ? limit_ - used_ : 0; }

 private:
  struct Hole {
    Bytes begin, size;
  };
  Bytes limit_;
  Bytes used_ = 0, peak_ = 0;
  Bytes end_ = kPage;        // first address never handed out; 0 stays nobody's
  std::vector<Hole> holes_;  // by address, never adjacent
};

}  // namespace foreshard
