#include "core/mesh/cut_errors.h"

#include <fmt/format.h>

#include "core/mesh/rank_program.h"

namespace foreshard::mesh {
namespace {

std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace

/// Activations of which some are cut along the sequence and some are not.
bool CutErrors::whole_beside_sequence() const {
  bool cut = false, whole = false;
  for (const CutTensor& arg : args) {
    if (arg.shape.size() != 3) continue;
    (arg.cut.cut() ? cut : whole) = true;
    if (arg.cut.cut() && arg.cut.dim != kSequenceDim) return false;
  }
  return cut && whole;
}

Error CutErrors::mixes(const std::string& why) const {
  std::string shapes;
  for (const CutTensor& arg : args) {
    shapes += (shapes.empty() ? "" : ", ") + text_of(arg.shape);
    if (arg.cut.cut()) shapes += " cut along " + std::to_string(arg.cut.dim);
    if (arg.cut.term) shapes += " to be summed";
  }
  return {ErrorCode::Inconsistent,
          op.name + " mixes what lies on different ranks: " + why,
          {},
          place,
          "operators between a colwise and a rowwise module that keep the cut dimension apart",
          shapes,
          whole_beside_sequence()
              ? "what is cut along the sequence stays so until a module of style gather or gather_output; or set "
                "mesh.sequence_parallel = false, or let the layer that is cut be rowwise_reduced"
              : "cut the layers that make its other operands too (mesh.plan), or change mesh.plan so that its input is "
                "whole, or leave the module out"};
}

Error CutErrors::does_not_divide(std::int64_t size) const {
  return {ErrorCode::OutOfRange,
          "the ranks of the mesh do not divide what is cut over them",
          {},
          place,
          "a number of heads, or a width, that " + std::to_string(group.ranks) + " divides",
          std::to_string(size),
          "set mesh.tensor to a divisor of it, or leave the layer that makes it out of mesh.plan"};
}

Error CutErrors::outside_plan() const {
  return mixes(
      "the sequence module before it hands on a DTensor, and this layer is no part of the plan (PyTorch: "
      "RuntimeError: Attempted to flatten multiple dimensions, with dimension 1 being sharded, or: mixed "
      "torch.Tensor and DTensor)");
}

Error CutErrors::torn_head(std::int64_t heads) const {
  Error error = does_not_divide(heads);
  error.message +=
      " (PyTorch: RuntimeError: shape is invalid for input of the rank's size)";  // one line for all degrees
  return error;
}

Error CutErrors::uneven_sum(std::int64_t size) const {
  const std::int64_t rows = (size + group.ranks - 1) / group.ranks;
  Error error = does_not_divide(size);
  error.message = "PyTorch fails here: RuntimeError: a and b must have same reduction dim, but got " +
                  std::to_string(rows * group.ranks) + " and " + std::to_string(size);
  return error;
}

Error mask_of_a_part(const Job& job, bool scores) {
  const ModelOptions& model = job.model;
  const std::string failure =
      scores
          ? fmt::format("The size of tensor a ({}) must match the size of tensor b ({}) at non-singleton dimension 3",
                        model.seq, model.seq / job.mesh.tensor)
          : fmt::format(
                "The expanded size of the tensor ({}) must match the existing size ({}) at non-singleton "
                "dimension 2",
                model.seq, model.seq / job.mesh.tensor);
  return {ErrorCode::Refused,
          "PyTorch fails here: RuntimeError: " + failure + ": the mask is made for the rank's part",
          model.source,
          model.packed           ? "model.packed"
          : model.attention_mask ? "model.attention_mask"
                                 : "model.attention",
          "no mask, or mesh.sequence_parallel = false",
          "a mask",
          "set mesh.sequence_parallel = false"};
}

}  // namespace foreshard::mesh
