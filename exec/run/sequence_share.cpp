#include "exec/run/sequence_share.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/model/mesh_dimension.h"

namespace foreshard::exec {
namespace {

Error not_by_itself(const Model& model, const Op& op, std::string message, std::string expected, std::string hint) {
  Error error;
  error.code = ErrorCode::Unsupported;
  error.message = std::move(message);
  error.place = op.module.valid() ? model.modules[op.module.index()].fqn : std::string();
  if (error.place.empty()) error.place = "the root";
  error.expected = std::move(expected);
  error.got = op.name;
  error.hint = std::move(hint);
  return error;
}

/// The input that an operator reads first, or an invalid id.
ValueId first_input(const Model& model, const Op& op) {
  const auto* value = op.args.empty() ? nullptr : std::get_if<ValueRef>(&op.args.front().value);
  const bool given =
      value != nullptr && std::find(model.inputs.begin(), model.inputs.end(), value->id) != model.inputs.end();
  return given ? value->id : ValueId();
}

/// arange(own) + 0, what Transformers' models make their position_ids of: the sum is the rank's own.
bool shift_positions(Model& model, const MeshDimension& dimension, ValueId counted) {
  std::vector<Op*> sums;
  for (Op& op : model.ops) {
    for (const Arg& arg : op.args) {
      const auto* value = std::get_if<ValueRef>(&arg.value);
      if (value == nullptr || value->id != counted) continue;
      if (op.name != "aten.add.Tensor" || op.args.size() != 2 ||
          !std::holds_alternative<std::int64_t>(op.args[1].value))
        return false;
      sums.push_back(&op);
    }
  }
  for (Op* op : sums) {
    op->name = "mesh.own_positions";
    op->args = {Arg{ValueRef{counted}}, Arg{std::int64_t{dimension.place}},
                Arg{static_cast<std::int64_t>(dimension.ranks.size())}};
  }
  return !sums.empty();
}

/// True: the program counts positions.
Result<bool> settle_positions(Model& model, const MeshDimension& dimension, std::int64_t own) {
  bool any = false;
  for (std::size_t o = 0; o < model.ops.size(); ++o) {
    const Op& op = model.ops[o];
    const bool counts = op.name.starts_with("aten.arange") && !op.out.empty() &&
                        model.values[op.out.front().index()].shape == Shape{own};
    if (counts && !shift_positions(model, dimension, op.out.front())) {
      return fail(not_by_itself(model, op, "what the model counts along the sequence is not run over context",
                                "a table of positions whose rows the program takes (torchtitan's freqs_cis), or "
                                "position_ids as Transformers' models make them",
                                "set mesh.context = 1, or `foreshard simulate`"));
    }
    any = any || counts;
    const bool moves = op.name == "aten.constant_pad_nd.default" || op.name == "aten.slice.Tensor";
    if (moves && first_input(model, op).valid()) {
      return fail(not_by_itself(model, op,
                                "a model that moves its labels by one inside loses those between the ranks' pieces",
                                "a loss of the script's, whose labels lie beside their tokens",
                                "set model.loss = \"cross_entropy_flat\", or mesh.context = 1"));
    }
  }
  return any;
}

}  // namespace

Result<SequenceShare> SequenceShare::of(Model& own, std::size_t inputs, std::int64_t length) {
  const auto found = std::find_if(own.mesh.begin(), own.mesh.end(),
                                  [](const MeshDimension& dimension) { return dimension.name == kContextDimension; });
  SequenceShare share;
  if (found == own.mesh.end()) return share;
  own.inputs.resize(std::min(inputs, own.inputs.size()));
  const auto ranks = static_cast<std::int64_t>(found->ranks.size());
  const auto counts = settle_positions(own, *found, length / ranks);
  if (!counts) return fail(counts.error());
  share.counts_ = *counts;
  const std::int64_t piece = length / (2 * ranks), last = 2 * ranks - 1 - found->place;
  share.length_ = length;
  share.positions_ = at::cat({at::arange(found->place * piece, (found->place + 1) * piece, at::kLong),
                              at::arange(last * piece, (last + 1) * piece, at::kLong)});
  return share;
}

at::Tensor SequenceShare::cut(const at::Tensor& input) const {
  const bool whole = any() && input.dim() == 2 && !input.is_floating_point() && input.size(1) == length_;
  return whole ? input.index_select(1, positions_.to(input.device())) : input;
}

std::vector<at::Tensor> SequenceShare::cut_tables(const Model& own, std::vector<at::Tensor> buffers) const {
  std::set<std::size_t> tables;
  for (const Op& op : own.ops) {
    const auto* buffer = op.args.empty() ? nullptr : std::get_if<BufferRef>(&op.args.front().value);
    if (any() && op.name == "aten.slice.Tensor" && buffer != nullptr)
      tables.insert(static_cast<std::size_t>(buffer->index));
  }
  for (const std::size_t b : tables) {
    if (b >= buffers.size() || buffers[b].dim() == 0 || buffers[b].size(0) < length_) continue;
    const at::Tensor rows = buffers[b].index_select(0, positions_);
    buffers[b] = at::cat({rows, buffers[b].narrow(0, rows.size(0), buffers[b].size(0) - rows.size(0))});
  }
  return buffers;
}

}  // namespace foreshard::exec
