// MemoryLedger: bytes by pool and category, counted twice: as the issuer decides and as the streams do it.
//
// `allocated` is called by the issuer only, `resident` by any thread. A report is a snapshot.
#pragma once

#include <array>
#include <mutex>
#include <vector>

#include "exec/backend.h"

namespace foreshard::exec {

class MemoryLedger {
 public:
  void add_stream();
  void allocated(StreamIndex pool, MemoryCategory category, Bytes change);
  void resident(StreamIndex pool, MemoryCategory category, Bytes change);
  MemoryReport report() const;

 private:
  MemoryCount& count(StreamIndex pool, MemoryCategory category);

  mutable std::mutex mutex_;
  MemoryReport report_;
};

}  // namespace foreshard::exec
