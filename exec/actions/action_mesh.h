// State dicts of parameters that a mesh cuts: the steps of their redistribution (core/plan/actions/mesh_way.h), from
// what this rank has to the whole, or to its chunk and back. The issuer's: one instruction is done before the next is
// issued.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/plan/actions/mesh_way.h"
#include "exec/actions/action_context.h"

namespace foreshard::exec {

class ActionMesh {
 public:
  explicit ActionMesh(ActionContext& context) : context_(context) {}

  /// An action begins: every parameter is where it is stored.
  void begin() { going_.clear(); }
  /// A step of such a way, or what it begins with.
  bool concerns(const Instruction& i) const;
  void issue(const Instruction& i);

 private:
  /// One tensor on its way.
  struct Going {
    std::vector<MeshStep> steps;
    std::size_t next = 0;
    ActionBuffer at;  // its first elements are the tensor, row after row
    Shape shape;

    const MeshStep& step() const { return steps.at(next); }
    Shape padded() const;
    void arrive(const ActionBuffer& where, std::int64_t size);
  };
  Going& going(const Instruction& i);
  Going started(const Instruction& i) const;
  at::Tensor tensor(const Going& of) const;
  /// This rank's rows, filled up to as many as each rank sends.
  void fill(const Instruction& i, const Going& from);
  void gather(const Instruction& i, Going& of);
  void side_by_side(const Instruction& i, Going& of);
  void cut(const Instruction& i, Going& of);
  /// fsdp1: out of the gathered unit, and out of the dict.
  void take_out(const Instruction& i);
  void bring(const Instruction& i);

  ActionContext& context_;
  std::map<std::pair<ParamId, std::int32_t>, Going> going_;  // by parameter, and tensor of its optimizer's state
};

}  // namespace foreshard::exec
