// One real rank of a group whose other ranks do not exist: what a user with one device needs before renting N.
//
// Every peer is taken to hold what this rank holds. So a gather repeats our part in every slot, a sum is our part times
// the size, an average is our part: values stay finite, bytes are moved on the right stream, and the stream is held
// until the collective's modelled duration is over, with as many thread blocks as NCCL would take from the
// multiprocessors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/plan.h"
#include "exec/communicators/communicator.h"

namespace foreshard::exec {

/// What a device does for an emulation, as work of the stream that is current.
class EmulatedDevice {
 public:
  virtual ~EmulatedDevice() = default;
  virtual void copy(void* to, const void* from, Bytes bytes) = 0;
  virtual void scale(void* data, Numel numel, DType dtype, double factor) = 0;
  /// Marks where the collective begins; the next hold() counts from here.
  virtual void begin() = 0;
  /// The stream stands still until `duration` ns after begin().
  virtual void hold(std::int64_t duration) = 0;
};

/// The stream's own thread copies and sleeps.
std::unique_ptr<EmulatedDevice> emulated_host();

/// Duration in ns of a collective (AllGather, ReduceScatter, AllReduce, Broadcast) over `bytes`: the gathered output,
/// the input of a reduce-scatter, the reduced or sent tensor. An exchange counts as a gather of what is received.
using CollectiveDuration = std::function<std::int64_t(InstructionKind kind, Bytes bytes)>;

/// `device` belongs to this communicator alone.
std::shared_ptr<Communicator> emulated_communicator(int rank, int size, std::unique_ptr<EmulatedDevice> device,
                                                    CollectiveDuration duration);

}  // namespace foreshard::exec
