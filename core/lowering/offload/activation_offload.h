// Activations on the host between forward and backward, as torchtune's and TRL's OffloadActivations keep them
// (trl/models/activation_offloading.py, with its streams): what autograd packs is copied on a stream of its own, what
// it unpacks is copied back on it, and tensors on the device live until that stream is done with them.
//
//   compute  | kernel |            | kernel | ...five tensors later: wait for the copy, drop the tensor
//   copies        wait | to host |
//
// Internal to lowering. Owned by the machine; writes kernels and frees onto its tape.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "core/lowering/lowering_tape.h"

namespace foreshard::lowering {

class Emitter;
class Machine;

class ActivationOffload {
 public:
  ActivationOffload(Machine& machine, const OffloadedActivations& options) : machine_(machine), options_(options) {}

  bool on() const { return options_.on; }
  /// A parameter that the program uses: the module's own tensor.
  void note_param(const Ref& param);

  /// What a packed tensor is known by; 0: it stays on the device, as it is.
  using Number = std::int32_t;
  Number pack(Emitter& emit, const Ref& tensor);
  /// What hooks of the model's own send (torch.autograd.graph.save_on_cpu): at once, the compute stream waits.
  /// `contiguous`: into memory that lies so, whatever the tensor does.
  Number send(Emitter& emit, const Ref& tensor, bool contiguous);
  /// ... and bring, a tensor of its own for everyone who asks.
  Ref fetch(Emitter& emit, Number number);
  bool has_sent(Number number) const { return sent_.count(number) > 0; }

  /// The tensor on the device again. The node that runs now is done with it at node_done().
  Ref unpack(Emitter& emit, Number number);
  /// Another node runs.
  void node_begins() { node_is_new_ = true; }
  /// It ran, its gradients are made and checked, none was handed on.
  void node_done(Emitter& emit);
  /// The engine's last callback.
  void backward_done(Emitter& emit);

 private:
  using Key = std::tuple<std::int32_t, std::int64_t, DType>;  // storage, offset, type
  struct OnHost {
    Layout layout;
    Bytes bytes = 0;
  };
  struct Stashed {
    Ref tensor;
    std::int32_t copy = 0;  // its number among all copies to the host
  };
  struct Unpacked {
    Number number = 0;
    bool brought = false;         // by a copy; else it was still on the device
    std::vector<Number> earlier;  // what earlier nodes brought
  };

  bool stays(const Ref& tensor) const;
  void drop_stashed(Emitter& emit, Number up_to);
  Ref laid_out(Emitter& emit, const Ref& tensor, Bytes& bytes);
  void order(Emitter& emit, OffloadStep step, std::int32_t back = 0);
  void await_use(Emitter& emit, Number number);

  Machine& machine_;
  const OffloadedActivations options_;
  std::set<std::int32_t> param_tensors_, param_storages_;
  Number last_ = 0;
  std::int32_t copies_ = 0, uses_ = 0;
  std::map<Key, Number> known_;  // storages that were packed and are still on the device
  std::map<Number, Key> key_of_;
  std::map<Number, OnHost> on_host_;
  std::map<Number, Layout> sent_;
  std::map<Number, Stashed> stash_;      // forward: on the device until its copy is waited for
  std::map<Number, Ref> brought_;        // backward: on the device until the compute stream is done with it
  std::map<Number, std::int32_t> used_;  // number of the note that the compute stream is done with it
  std::vector<Unpacked> unpacked_;       // by the node that runs
  bool node_is_new_ = true;
};

}  // namespace foreshard::lowering
