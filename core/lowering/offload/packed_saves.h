// Where the machine's autograd meets activation offload: what is packed when it is saved, and unpacked when a node
// runs. Internal to lowering; part of the machine.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "core/lowering/lowering_autograd.h"
#include "core/lowering/offload/activation_offload.h"

namespace foreshard::lowering {

struct CheckpointFrame;
struct Program;

/// Whether hooks of the model's own take saved tensors to the host, or a region's function what it is called with
/// (docs/formats/model.md).
bool saves_through_hooks(const Model& model);

class PackedSaves {
 public:
  PackedSaves(Machine& machine, const Model& model, const Program& program, const OffloadedActivations& options);

  bool on() const { return offload_.on() || by_hooks_; }
  void note_param(const Ref& param) { offload_.note_param(param); }
  /// Whether what the operator saves is packed: hooks are off inside the output head.
  bool travels(const Op& op) const;
  /// Packs arguments before the call, in the order in which they are saved; take() gives them out.
  void pack_arguments(const Op& op, const OpRule& rule, const std::vector<Ref>& args);
  Saved take(const SaveRule& save);
  Saved pack(const Op& op, const OpRule& rule, const SaveRule& save, const Ref& tensor);
  /// A checkpointed call saves the tensors that it was called with, but for those given by name, which it holds.
  void pack_input(CheckpointFrame& frame, const Op& op, std::int32_t value);
  /// A region is computed again: its inputs are brought, and go with the function that was called.
  void bring_inputs(CheckpointFrame& frame, const Op& first);
  static void drop_inputs(CheckpointFrame& frame);

  void node_begins() { offload_.node_begins(); }
  void unpack(Emitter& emit, Node& node);
  void node_done(Emitter& emit) { offload_.node_done(emit); }
  void backward_done(Emitter& emit) { offload_.backward_done(emit); }

 private:
  void find_regions();
  static bool is_sent(const Op& op, const SaveRule& save);
  bool makes_node(const Op& op, const OpRule& rule, const std::vector<Ref>& args);
  std::vector<SaveRule> saves_of(const Op& op, const OpRule& rule, const std::vector<Ref>& args);
  bool comes_first(const CheckpointFrame& frame, std::int32_t value) const;
  Emitter emitter(const Op& op);

  Machine& machine_;
  const Model& model_;
  const Program& program_;
  ActivationOffload offload_;
  ModuleId head_;
  bool by_hooks_ = false;
  std::map<std::int32_t, std::set<std::int32_t>> on_host_;  // by region, values that it is called with
  std::vector<Saved> packed_;
};

}  // namespace foreshard::lowering
