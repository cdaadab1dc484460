// The operator program of one rank: operators of the whole model carried over part by part, with "mesh.*" operators
// where a module's style changes how its input or result lies. Internal to core/mesh.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/mesh/cut.h"
#include "core/mesh/parallel_plan.h"
#include "core/mesh/partial_gradients.h"
#include "core/mesh/rank_program.h"
#include "core/mesh/whole_parameters.h"
#include "core/model/model.h"
#include "core/operators/layout.h"
#include "core/result.h"

namespace foreshard::mesh {

template <class Visit>
void each_arg(ArgList& args, const Visit& visit) {
  for (Arg& arg : args) {
    if (auto* list = std::get_if<ArgList>(&arg.value))
      each_arg(*list, visit);
    else
      visit(arg);
  }
}

template <class Visit>
void each_arg(Op& op, const Visit& visit) {
  each_arg(op.args, visit);
  for (NamedArg& named : op.kwargs) {
    if (auto* list = std::get_if<ArgList>(&named.arg.value))
      each_arg(*list, visit);
    else
      visit(named.arg);
  }
}

/// The operator of a new program that made a value; nullptr: none, as of inputs. What writes into a value that is there
/// has not made it.
const Op* maker_of(const std::vector<Op>& ops, std::int32_t value);

/// The name of an operator's module, for errors.
const std::string& place_of(const Model& model, const Op& op);

/// What the module at `place` cannot do on a rank's part of the sequence.
Error not_local(std::string place, std::string message, std::string got);

class ProgramCutter : private RankProgram {
 public:
  /// `model`: whole; its parameters' parts are `params`, by ParamId.
  ProgramCutter(Model& model, const std::vector<ModuleStyle>& styles, std::vector<Cut> params,
                const TensorOptions& options);

  Result<void> run();

  /// Parameters of style "replicate" whose gradients are terms of the ranks' sum.
  const std::set<std::int32_t>& terms() const { return partial_.reached(); }

 private:
  /// A styled module whose call is running.
  struct Open {
    ModuleId module;
    std::int32_t begin = 0;                       // first operator of the call, in the whole program
    std::int32_t call = 0;                        // of the operator that opened it
    std::map<std::int32_t, std::int32_t> inputs;  // value outside -> what the module sees
  };

  Result<void> carry(std::int32_t index);
  std::vector<CutTensor> tensors_of(Op& op);
  Result<void> open_modules(const Op& op, std::int32_t index);
  Result<void> close_until(std::size_t depth);
  void finish_rowwise(const Open& open);
  std::int32_t seen(std::int32_t value);
  std::int32_t enter(Open& open, std::int32_t value);
  std::int32_t enter_replicated(const Open& open, std::int32_t value);
  bool inside(ModuleStyle style) const;
  bool within(ModuleStyle style) const;
  void gather_to_split(Op& op);
  bool gathers(const Op& op, std::int32_t index);
  void find_homes();
  void set_results(const Op& op, std::vector<Cut> cuts, std::int32_t index);
  void finish_results(const Op& op);
  void renumber();
  void special(Op& op, const std::vector<CutTensor>& args);
  void fit_copies(Op& op);

  // Modules that run on a rank's own part (local_part.cpp)
  Result<void> carry_local(std::int32_t index);

  // Experts (expert_exchange.cpp)
  Caller caller_of(const Open& open) const;
  std::int32_t dispatch(const Open& open, std::int32_t value);
  Result<void> combine(const Open& open);
  std::int64_t experts_in(ModuleId module) const;
  void grow(const Op& op, const std::vector<CutTensor>& args, std::vector<Shape>& results);
  void tell_sizes(Op& op);

  // Tokens that choose (token_choice.cpp)
  Loads exchanged_loads(std::int32_t ends, std::int64_t experts, const Caller& caller);
  std::int32_t send_rows(std::int32_t value, std::int64_t experts, const Loads& loads, const Caller& caller);
  std::int32_t rows_back(std::int32_t value, const Caller& caller);
  void exchange_rows(Op& op);
  void follow_rows(const Op& op, const std::vector<CutTensor>& args, std::vector<Shape>& results,
                   std::vector<Cut>& cuts);

  // Modules that are handed a rank's rows (split_rows.cpp)
  std::int32_t split(const Open& open, std::int32_t value);
  std::optional<std::vector<Cut>> carry_rows(const Op& op, const std::vector<CutTensor>& args,
                                             const std::vector<Shape>& results) const;
  void finish_split(const Open& open);

  // Whole operands beside cut ones (whole_operands.cpp)
  void part_whole_operands(Op& op);
  void share_gradients(Op& op);
  std::int32_t part_of_operand(std::int32_t value, std::int32_t base, const Cut& cut, const Caller& caller);

  Error refused_in_experts(Error error) const;

  const std::vector<ModuleStyle>& styles_;
  std::vector<Cut> params_;
  WholeParameters whole_params_;
  PartialGradients partial_;
  std::vector<Op> old_;
  std::vector<Open> open_;
  std::optional<Error> wrong_;                        // with what a module was about to be given
  std::set<std::int32_t> gathered_later_;             // logits that stay cut until the loss copies them
  std::set<std::int32_t> torn_;                       // values of a rank's part that are no part of the whole model's
  std::map<std::int32_t, std::int32_t> sent_;         // rows -> what their experts' rank has of them
  std::map<std::int32_t, std::vector<ParamId>> due_;  // operator of the whole program -> what is gathered before it
  std::map<std::int32_t, std::int32_t> placed_;       // parameter -> what its readers see
  std::vector<ModuleId> chain_;
  std::int32_t chain_call_ = -1;
  ModuleId chain_module_;
};

}  // namespace foreshard::mesh
