// Backend: what a plan runs on. Streams, events, memory with stream-aware lifetimes, work and collectives.
//
// One host thread per rank (the *issuer*) calls everything here except Buffer addresses; nothing it calls blocks but
// host_wait and synchronize. Work runs later, on its stream: in order within a stream, in any order between streams
// unless an event says otherwise. What is issued carries the plan's InstructionId, which comes back with a failure.
//
//   issuer   alloc a   launch 1   record e         wait_event e  launch 3      free a
//   stream C [a comes to be][ 1 ][ e fires ]
//   stream D                                       [ waits for e ][ 3, may use a ]
//                                                                  a goes once C and D are past the free
//
// Memory comes to be in the order of its pool's stream and goes in the order of all streams that were said to use it,
// so that a host that runs ahead does not hold a whole iteration's buffers. Addresses are therefore asked for inside
// work. A failure in any work stops all later work of this backend (events still fire, memory is still released: nobody
// waits for ever) and is reported by host_wait and synchronize. One contract suite,
// tests/exec/backend_contract_test.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "core/ids.h"
#include "core/units.h"

namespace foreshard::exec {

class Communicator;

using StreamIndex = Id<struct BackendStreamTag>;  // in order of creation

/// What memory is for, as `simulate` counts it, and under the same names.
enum class MemoryCategory : std::uint8_t {
  Parameters,      // "sharded_params"
  FullParameters,  // "full_params"
  Gradients,       // "param_grads": unsharded
  ShardedGradients,
  ReduceBuffers,  // "comm_buffers"
  Activations,
  ActivationGradients,
  Temporaries,
  Outputs,
  OptimizerState,
  Inputs,
  Buffers,  // the module's
};
inline constexpr std::size_t kMemoryCategoryCount = 12;
std::string_view memory_category_name(MemoryCategory category);  // "sharded_params", ...

/// Work that went wrong: which instruction, on which stream, in the words of whoever threw.
struct Failure {
  InstructionId instruction;
  std::string stream;
  std::string text;
  bool operator==(const Failure&) const = default;
};
template <class T>
using Outcome = tl::expected<T, Failure>;

/// Bytes of one pool and category. `allocated` follows the issuer (as PyTorch's counter does), operators' tensors
/// included; its peak is that of the plan's order, whoever was faster, and is worked out by synchronize(). `resident`
/// follows the streams: what is really held now.
struct MemoryCount {
  Bytes allocated = 0, peak_allocated = 0;
  Bytes resident = 0, peak_resident = 0;
  bool operator==(const MemoryCount&) const = default;
};

/// A caching allocator under the backend, as PyTorch's memory_stats() names it.
struct AllocatorCount {
  Bytes allocated = 0, peak_allocated = 0;
  Bytes active = 0, peak_active = 0;
  Bytes reserved = 0, peak_reserved = 0;
  std::int64_t retries = 0, ooms = 0;  // num_alloc_retries, num_ooms: since the process began
};

using CategoryCounts = std::array<Bytes, kMemoryCategoryCount>;

struct MemoryReport {
  MemoryCount total;
  CategoryCounts at_peak{};                                              // of total.peak_allocated
  InstructionId peak_instruction;                                        // where it stood; invalid: outside the plan
  std::optional<AllocatorCount> allocator;                               // none on the host
  std::vector<std::array<MemoryCount, kMemoryCategoryCount>> by_stream;  // [stream][category]
};

/// Told of memory that work holds beside the plan's buffers: operators' tensors.
class OperatorMemory {
 public:
  virtual ~OperatorMemory() = default;
  /// + when memory was taken, - when it went back. From any thread, also when the backend is gone.
  virtual void changed(MemoryCategory category, Bytes change) = 0;
  /// Of memory that a device's allocator hands out, not the host's.
  virtual bool of_device() const { return false; }
  /// On a thread that runs a backend's work: that backend's. Elsewhere empty.
  static const std::shared_ptr<OperatorMemory>& current();
  /// Another one on this thread; returns the one before.
  static std::shared_ptr<OperatorMemory> make_current(std::shared_ptr<OperatorMemory> memory);
};

/// Where the addresses of Buffers point.
enum class DeviceKind : std::uint8_t { Host, Cuda };

/// A handle on one allocation. Copies share it; it lives until Backend::free, not until the handle goes.
class Buffer {
 public:
  /// The backend's own record of an allocation.
  class Record {
   public:
    virtual ~Record() = default;
    virtual void* data() const = 0;  // throws if the pool's stream has not come to the allocation, or it is gone
    virtual Bytes bytes() const = 0;
  };

  Buffer() = default;
  explicit Buffer(std::shared_ptr<Record> record) : record_(std::move(record)) {}

  bool valid() const { return record_ != nullptr; }
  Bytes bytes() const { return record_->bytes(); }
  /// Inside work only, on the pool's stream or after an event that was recorded there behind the allocation.
  void* data() const { return record_->data(); }
  const std::shared_ptr<Record>& record() const { return record_; }

 private:
  std::shared_ptr<Record> record_;
};

/// A handle on one recording of an event; copies share it.
class Event {
 public:
  class Record {
   public:
    virtual ~Record() = default;
  };

  Event() = default;
  explicit Event(std::shared_ptr<Record> record) : record_(std::move(record)) {}
  bool valid() const { return record_ != nullptr; }
  const std::shared_ptr<Record>& record() const { return record_; }

 private:
  std::shared_ptr<Record> record_;
};

using Work = std::function<void()>;  // may throw: that is a Failure
using CollectiveWork = std::function<void(Communicator&)>;

/// Where something is issued and on whose behalf.
struct Issue {
  StreamIndex stream;
  InstructionId instruction;
  std::span<const Buffer> uses = {};  // memory that the work touches, its own pool's too: none of it goes before it ran
};

class Backend {
 public:
  virtual ~Backend() = default;  // waits for all work that was issued

  virtual DeviceKind device() const = 0;
  virtual StreamIndex create_stream(std::string_view name, int priority) = 0;

  virtual Buffer allocate(const Issue& issue, Bytes bytes, MemoryCategory category) = 0;
  /// The memory may be reused by work issued from now on, wherever the uses so far are over.
  virtual void free(const Buffer& buffer, InstructionId instruction) = 0;

  /// The plan's note_use (record_stream): the issue's stream uses memory of another's pool. Where Issue::uses holds
  /// memory already, it adds nothing.
  virtual void note_use(const Issue& issue, const Buffer& buffer) = 0;

  virtual void launch(const Issue& issue, Work work) = 0;
  /// Inside work: a part of it that is the same each time it comes under this key (kernels, addresses, numbers), and
  /// makes nothing that outlives it. A backend may record it and repeat it as a whole.
  virtual bool repeats() const { return false; }
  virtual void repeat(std::uint64_t key, const Work& work) {
    static_cast<void>(key);
    work();
  }
  virtual void copy(const Issue& issue, const Buffer& to, const Buffer& from, Bytes bytes) = 0;
  /// Collectives of one communicator run one after the other in the order of these calls, whatever their streams: run
  /// side by side they would meet in another order on each rank. The communicator is aborted when this backend fails,
  /// so that its peers do not wait for us.
  virtual void collective(const Issue& issue, std::shared_ptr<Communicator> communicator, CollectiveWork work) = 0;

  /// Fires when the stream has done all that was issued to it so far.
  virtual Event record_event(const Issue& issue) = 0;
  /// The stream waits; the issuer does not.
  virtual void wait_event(const Issue& issue, const Event& event) = 0;

  /// The issuer waits. A failure so far, of any stream, is returned instead of success.
  virtual Outcome<void> host_wait(const Event& event) = 0;
  /// The issuer waits for all streams.
  virtual Outcome<void> synchronize() = 0;

  virtual MemoryReport memory() const = 0;
  /// Peaks begin again at what is held now. REQUIRES that nothing runs: after synchronize().
  virtual void reset_peak_memory() = 0;

  /// For recordings and for the order of memory: the issuer turns to an instruction of the run's step number `step`;
  /// what it does until the next call is that instruction's host work. An invalid id: to none.
  virtual void at_instruction(std::int32_t step, InstructionId instruction) = 0;
};

}  // namespace foreshard::exec
