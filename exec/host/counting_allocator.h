// Counts the bytes that LibTorch's allocators hand out while a MemoryScope stands: operators' results, saved tensors,
// gradients and temporaries, which no plan allocates. The CPU's under scopes of the thread that asks; a device's under
// the scope that stands over the device's work, since autograd runs backward on a thread of its own.
//
// A scope stands around the work of one instruction. What is taken under it counts as one category while the work runs;
// what is still held when the scope ends stays, under another:
//
//   forward of a segment     temporaries  ->  activations          (saved for backward, or handed on)
//   backward of a segment    temporaries  ->  activation gradients (handed back); parameters' gradients by claim()
//
// Counts go to OperatorMemory::current() of the thread (exec/backend/backend.h). Without a scope, or without a backend,
// nothing is counted; once the allocator stands, each piece of memory is 64 bytes longer than asked for (not counted
// either), and large ones are kept when they go back (exec/host/kept_memory.h). Memory may go back on any thread, also
// long after its scope.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "exec/backend/backend.h"

namespace foreshard::exec {

/// Puts the counting allocator in front of LibTorch's own, once per process. Any thread.
void install_counting_allocator();

class MemoryScope {
 public:
  /// Counts as `during`, and as `after` what is left when the scope ends. Scopes nest; the innermost counts.
  MemoryScope(MemoryCategory during, MemoryCategory after);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  struct Ledger;

 private:
  std::shared_ptr<Ledger> ledger_, outer_;
  MemoryCategory after_;
};

/// A device's allocator has handed out a block, or has been given one back. Any thread, also under the allocator's own
/// lock; a block that was taken without a scope is not counted.
void device_memory_taken(const void* data, Bytes bytes);
void device_memory_given_back(const void* data);

/// From now on the tensor's storage counts as `category`, if it was counted at all.
void claim(const at::Tensor& tensor, MemoryCategory category);

}  // namespace foreshard::exec
