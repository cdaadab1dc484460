// What operators hold of a device's memory, for a recording: LibTorch's allocator tells of its blocks, scopes say what
// they are (exec/host/counting_allocator.h), and a ledger counts them where the issuer stands.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "exec/backend/backend.h"
#include "exec/record/memory_ledger.h"

namespace foreshard::exec {

/// Autograd's thread works while the issuer waits for it, so that its place is the issuer's.
class DeviceOperators final : public OperatorMemory {
 public:
  /// The ledger's first stream is the one that computes.
  explicit DeviceOperators(std::shared_ptr<MemoryLedger> ledger) : ledger_(std::move(ledger)) {}

  /// By the issuer.
  void at(PlanPlace place);
  void changed(MemoryCategory category, Bytes change) override;
  bool of_device() const override { return true; }

 private:
  std::shared_ptr<MemoryLedger> ledger_;
  std::atomic<std::uint64_t> place_{0xffffffffU};  // before the first instruction
};

/// The memory that counts on this thread, while it stands.
class CountedHere {
 public:
  explicit CountedHere(std::shared_ptr<OperatorMemory> memory)
      : before_(OperatorMemory::make_current(std::move(memory))) {}
  ~CountedHere() { OperatorMemory::make_current(std::move(before_)); }
  CountedHere(const CountedHere&) = delete;
  CountedHere& operator=(const CountedHere&) = delete;

 private:
  std::shared_ptr<OperatorMemory> before_;
};

/// From then on LibTorch's allocator tells of its blocks; it cannot be asked to stop. REQUIRES that CUDA is
/// initialised.
void follow_allocator();

}  // namespace foreshard::exec
