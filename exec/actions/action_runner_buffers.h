// The memory of ActionRunner, by the plan's names: on the device through the Backend, on the host as tensors. Changed
// by the issuer between instructions, read by the work of one instruction.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "core/plan.h"
#include "exec/backend/backend.h"

namespace foreshard::exec {

/// A buffer of the plan: on the host or on the device, which use one name for a tensor and its copy. A parameter has
/// one buffer of a kind, whichever unit an instruction names with it.
struct ActionBuffer {
  BufferName name;
  std::int32_t instance = 0;
  bool on_host = false;

  auto key() const {
    return std::tuple(on_host, name.what, name.param.valid() ? -1 : name.unit.value, name.param.value, instance);
  }
  bool operator<(const ActionBuffer& other) const { return key() < other.key(); }
};

class ActionBuffers {
 public:
  ActionBuffers(Backend& backend, StreamIndex stream) : backend_(backend), stream_(stream) {}
  ~ActionBuffers();
  ActionBuffers(const ActionBuffers&) = delete;
  ActionBuffers& operator=(const ActionBuffers&) = delete;

  /// One that is there already loses its name and stays: the plan has not freed it (what a save returned belongs to its
  /// caller).
  void allocate(const ActionBuffer& buffer, Numel numel, DType dtype, InstructionId instruction);
  /// Beside the plan, on the device.
  void allocate_zero(const ActionBuffer& buffer, Numel numel, DType dtype);
  /// Nothing, if no action made it.
  void release(const ActionBuffer& buffer, InstructionId instruction);

  bool has(const ActionBuffer& buffer) const;
  bool has(const BufferName& name) const { return has(ActionBuffer{name, 0, false}); }
  /// One-dimensional. REQUIRES has().
  at::Tensor tensor(const ActionBuffer& buffer) const;
  at::Tensor tensor(const BufferName& name) const { return tensor(ActionBuffer{name, 0, false}); }

  /// What a transfer to the host goes to: the plan allocates it just before.
  const ActionBuffer& last_on_host() const { return last_on_host_; }

 private:
  struct Held {
    Buffer buffer;
    DType dtype = DType::Float32;
  };
  static at::Tensor tensor_of(const Held& held);

  Backend& backend_;
  StreamIndex stream_;
  std::map<ActionBuffer, Held> device_;
  std::vector<Buffer> kept_;  // without a name
  std::map<ActionBuffer, at::Tensor> host_;
  ActionBuffer last_on_host_;
};

}  // namespace foreshard::exec
