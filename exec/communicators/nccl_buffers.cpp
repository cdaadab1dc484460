#include "exec/communicators/nccl_buffers.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

namespace foreshard::exec {
namespace {

namespace Allocator = c10::cuda::CUDACachingAllocator;
using Entry = Allocator::TraceEntry;

class Registered {
 public:
  static Registered& all() {
    static auto* registered = new Registered;  // never destroyed: the allocator goes on calling
    return *registered;
  }

  void add(ncclComm_t comm, int device) {
    {
      std::lock_guard lock(mutex_);
      of_[comm].device = device;
      if (!std::exchange(listens_, true)) {
        Allocator::attachAllocatorTraceTracker([](const Entry& entry) { all().changed(entry); });
      }
    }
    // Behind the listener, so that no segment is missed, and without our lock, since the allocator takes its own first.
    for (const Allocator::SegmentInfo& segment : Allocator::snapshot().segments) {
      if (segment.device != device) continue;
      std::lock_guard lock(mutex_);
      enter(comm, reinterpret_cast<void*>(segment.address), segment.total_size);
    }
  }

  void remove(ncclComm_t comm) {
    std::lock_guard lock(mutex_);
    const auto found = of_.find(comm);
    if (found == of_.end()) return;
    for (const auto& [address, handle] : found->second.handles) ncclCommDeregister(comm, handle);
    of_.erase(found);
  }

  void forget(ncclComm_t comm) {
    std::lock_guard lock(mutex_);
    of_.erase(comm);
  }

 private:
  struct Segments {
    int device = 0;
    std::map<void*, void*> handles;  // by address
  };

  void changed(const Entry& entry) {
    const bool comes = entry.action_ == Entry::SEGMENT_ALLOC || entry.action_ == Entry::SEGMENT_MAP;
    const bool goes = entry.action_ == Entry::SEGMENT_FREE || entry.action_ == Entry::SEGMENT_UNMAP;
    if (!comes && !goes) return;
    std::lock_guard lock(mutex_);
    for (auto& [comm, segments] : of_) {
      if (segments.device != entry.device_) continue;
      void* address = reinterpret_cast<void*>(entry.addr_);
      if (comes) {
        enter(comm, address, entry.size_);
      } else if (const auto known = segments.handles.find(address); known != segments.handles.end()) {
        ncclCommDeregister(comm, known->second);
        segments.handles.erase(known);
      }
    }
  }

  /// Memory that NCCL does not take is sent as before.
  void enter(ncclComm_t comm, void* address, std::size_t bytes) {
    const auto found = of_.find(comm);
    if (found == of_.end() || found->second.handles.count(address) > 0) return;
    void* handle = nullptr;
    if (ncclCommRegister(comm, address, bytes, &handle) == ncclSuccess) found->second.handles[address] = handle;
  }

  std::mutex mutex_;
  bool listens_ = false;
  std::map<ncclComm_t, Segments> of_;
};

}  // namespace

void register_allocator(ncclComm_t comm, int device) { Registered::all().add(comm, device); }
void deregister_allocator(ncclComm_t comm) { Registered::all().remove(comm); }
void forget_allocator(ncclComm_t comm) { Registered::all().forget(comm); }

}  // namespace foreshard::exec
