// Parameters of no unit: all of a plan without sharding (runtime none), and those that a job ignores. Each rank holds
// them whole, or its part where tensor ranks stand alone; their gradients are autograd's own. Plain data parallelism
// brings the gradients into buckets, reduces those and copies the means back. Over tensor ranks alone gradients of
// whole weights on a cut sequence are terms, which every operator of a step sums for itself: what is stepped (and
// clipped) is the first such sum.
#pragma once

#include <vector>

#include "exec/units/unit_tensors.h"

namespace foreshard::exec {

class PlainTensors final : public UnitTensors {
 public:
  /// `alone`: there are no units. Then ranks of a mesh have parts of what is cut.
  PlainTensors(const IssueContext& context, const Model& model, std::vector<ParamId> params,
               const std::vector<bool>& trainable, bool alone);

  void load(const OperatorInterpreter::ParamTensors& full_params) override;
  void issue(const Instruction& instruction, InstructionId id, std::int32_t index) override;
  void freed_without_buffer(const Instruction& instruction, InstructionId id, std::int32_t index) override;
  void zero_gradients(const Instruction& instruction, InstructionId id, bool to_zero) override;
  BlockGradient gradient(std::size_t block) const override;
  at::Tensor parameter(std::size_t index) override { return params_[index].leaf; }
  void take_gradient(std::size_t index, at::Tensor gradient) override;
  bool replicated() const override { return !parts_; }

  /// The plan's mark that a parameter has its gradient: the next copy-in takes it.
  void gradient_is_there(std::int32_t index) { newest_ = index; }

 private:
  struct Param {
    ParamId id;
    Buffer resident;
    at::Tensor leaf;
    std::int32_t block = -1;
    // Work's, on the compute stream.
    at::Tensor gradient;
    bool absorbed = false;
    // Work's too, of a gradient that is a term. The sum is made on the mesh's stream, which waits for the compute
    // stream and is waited for by it.
    at::Tensor summed;      // the first sum of a step over the tensor ranks
    bool unsummed = false;  // it has come, and has no such sum yet
  };
  struct InBucket {
    std::int32_t index = 0;
    Numel offset = 0, numel = 0;
  };

  void bind_resident(Param& param, const at::Tensor& whole);
  void bring_in(const Instruction& instruction, InstructionId id);
  void bring_back(const Instruction& instruction, InstructionId id);
  void place_on_mesh(const Instruction& instruction, InstructionId id, std::int32_t index);
  void sum_on_mesh(const Instruction& instruction, InstructionId id, std::int32_t index);
  bool comes_as_term(const Param& param) const;

  const bool parts_;
  std::vector<Param> params_;
  std::vector<std::size_t> param_of_block_;
  // The issuer's.
  std::int32_t newest_ = -1;
  std::vector<std::vector<InBucket>> buckets_;  // by number, in order of arrival: equal on all ranks
};

}  // namespace foreshard::exec
