// The operator program of one rank as it is written: values, how they lie over the ranks, and the operators that bring
// them from one placement to another. Internal to core/mesh.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/mesh/cut.h"
#include "core/model/model.h"
#include "core/result.h"

namespace foreshard::mesh {

/// What the job asks of the tensor dimension.
struct TensorOptions {
  Group group;
  std::int32_t dimension = 0;  // Model::mesh
  bool sequence = true;        // the residual stream is cut along the sequence
  bool loss = true;            // logits stay cut
  /// Gradients are brought to their parameters' placement where autograd makes them, before FSDP sees them: parameters
  /// are local tensors to it (FSDP1), which the program turns into DTensors again.
  bool places_gradients = false;
  /// By ParamId, where gradients are placed: the module of the FSDP unit that holds it. Its views become DTensors when
  /// the unit is gathered, before all of its operators, so autograd sums their gradients after all of them.
  std::vector<ModuleId> home;
  /// The same program for one rank's part of the sequence, what "local" modules run; nullptr: there are none.
  const Model* part = nullptr;
  /// Parameters of style "replicate" whose gradients are terms of the ranks' sum, as far as is known.
  std::set<std::int32_t> terms;
  double imbalance = 1;  // what this rank's experts receive of chosen tokens, over an even spread
};

/// Which dimension of an activation the sequence is: [batch, sequence, width].
inline constexpr std::int32_t kSequenceDim = 1;

inline Arg number_arg(std::int64_t value) { return Arg{value}; }
inline Arg numbers_arg(const Shape& values) {
  ArgList list;
  for (const std::int64_t value : values) list.push_back(number_arg(value));
  return Arg{std::move(list)};
}

inline Arg value_arg(std::int32_t id) { return Arg{ValueRef{ValueId(id)}}; }

/// Of any of the kernels that scaled_dot_product_attention chooses.
inline bool is_attention(const Op& op) { return op.name.find("scaled_dot_product") != std::string::npos; }

class RankProgram {
 protected:
  struct Caller {
    ModuleId module;
    std::int32_t call = 0;
  };

  RankProgram(Model& model, const TensorOptions& options);

  Op& emit(const char* name, std::int32_t from, ModuleId module, std::int32_t call);
  std::int32_t add_value(std::int32_t like, const Cut& cut);
  std::int32_t add_unheld(std::int32_t value, const Cut& cut);
  void set_local(std::int32_t value, const Cut& cut);
  Result<void> cut_inputs();
  std::int32_t latest(std::int32_t value) const;
  bool along_sequence(std::int32_t value) const;
  bool is_of_positions(std::int32_t value) const;
  std::int32_t part_dim() const { return options_.group.own_rows ? 0 : kSequenceDim; }
  std::int32_t gather(std::int32_t value, bool slices, bool replica, ModuleId module, std::int32_t call);
  std::int32_t copied(std::int32_t value, const Caller& caller, bool replica, const char* backward = nullptr);
  std::int32_t parted(std::int32_t value, const Caller& caller, std::int32_t dim);
  std::int32_t placed_parameter(ParamId param, ModuleId module, std::int32_t call, std::int32_t region);
  std::int32_t reduce(std::int32_t value, ModuleId module, std::int32_t call, bool scatters = true);
  std::int32_t shaped(const char* name, std::int32_t from, const Shape& shape, ArgList args, const Caller& caller);
  std::int32_t swapped(std::int32_t value, const Shape& sizes, const Shape& to, const Caller& caller);

  // Rows of chosen tokens (token_choice.cpp)
  struct Rows {
    std::int64_t sent = 0, received = 0, padded = 0;
    std::int32_t order = -1;   // of the received ones, by expert
    std::int32_t splits = -1;  // rows to and from each rank: [2, ranks], on the host
  };
  struct Loads {
    std::int32_t splits = -1, by_rank = -1;  // [2, ranks] on the host; rows of this rank's experts: [ranks, experts]
    std::int32_t ends = -1;                  // of this rank's experts
    std::int32_t chosen = -1, sizes = -1;    // rows of each expert: of all here, of this rank's there
  };
  void repeat_for_rows(Op& op);
  void pad_rows(Op& op);

  Model& model_;
  TensorOptions options_;
  std::vector<Op> ops_;
  std::vector<Shape> whole_;                     // of values
  std::vector<Cut> cuts_;                        // of values
  std::vector<std::int32_t> made_at_;            // operator of the whole program; -1: an input
  std::map<std::int32_t, std::int32_t> now_;     // value -> what stands for it from now on
  std::vector<std::int32_t> place_;              // first operator of this one, in the new program
  std::int32_t region_ = -1;                     // of new operators
  std::vector<Rows> rows_of_;                    // by exchange
  std::map<std::int32_t, Loads> loads_here_;     // ends of all experts' rows -> of this rank's
  std::map<std::int32_t, std::int32_t> picked_;  // places of experts, one for each of their rows -> exchange
};

}  // namespace foreshard::mesh
