// What the instructions of an action do to memory that is there: fills, gathers, copies and transfers, each as its name
// says. The issuer's: one instruction is done before the next is issued.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>
#include <vector>

#include "exec/actions/action_context.h"
#include "exec/actions/action_mesh.h"

namespace foreshard::exec {

class ActionCopies {
 public:
  explicit ActionCopies(ActionContext& context) : context_(context), mesh_(context) {}

  /// An action begins.
  void begin(const PlanIteration& iteration);
  void issue(const Instruction& i);

 private:
  /// reset_parameters of a module (fsdp1) or of a shard (fsdp2), and zeros.
  void fill(const Instruction& i);
  void all_gather(const Instruction& i);
  at::Tensor sent(const Instruction& i) const;
  /// What a bucket holds: the copies out of it, which stand together before it goes (I5).
  std::vector<const Instruction*> bucket_copies(const Instruction& concat) const;
  void concat(const Instruction& i);
  void copy(const Instruction& i);
  void copy_shard(const Instruction& i, bool on_host);
  bool any_full(UnitId unit) const {
    const BufferName full = context_.full_of(unit);
    return context_.has(full) || context_.has(full, 0, true);
  }
  /// What a state dict clones: a parameter out of the gathered unit, or this rank's rows of it (K1).
  at::Tensor whole_of(const BufferName& buffer, Numel numel, bool on_host) const;
  void fill_from_dict(const BufferName& shard, const at::Tensor& to);
  const at::Tensor& of_dict(ParamId param) const {
    return context_.dict.at(context_.model().params[param.index()].fqn);
  }
  /// Loads name the unit for each of its parameters in turn.
  ParamId next_in_unit(const Instruction& i);
  void to_device(const Instruction& i);
  /// fsdp2: the rank's own rows, or rows of a whole tensor.
  void load_rows(ParamId param, const at::Tensor& shard);
  void to_host(const Instruction& i);

  ActionContext& context_;
  ActionMesh mesh_;
  const PlanIteration* iteration_ = nullptr;
  std::vector<std::size_t> filled_;                                    // by unit: parameters loaded so far
  std::map<const Instruction*, std::pair<ActionBuffer, Numel>> sent_;  // copies out of a bucket: which, and where
};

}  // namespace foreshard::exec
