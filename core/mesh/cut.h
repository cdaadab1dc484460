// How tensors lie over the ranks of one mesh dimension, and how operators carry that on: the part of DTensor's sharding
// rules that local tensors need. Sizes in elements. Internal to core/mesh.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model.h"
#include "core/result.h"

namespace foreshard::mesh {

struct Group {
  std::int64_t ranks = 1;
  std::int64_t place = 0;  // of this rank
  bool own_rows = false;   // each rank has rows of its own, cut along the first dimension: what it makes of all of them
                           // is its own too
};

/// Rows of this rank when `whole` are chunked over the group; every rank but the last ones has as many as the first.
std::int64_t part_of(std::int64_t whole, const Group& group);
std::int64_t begin_of(std::int64_t whole, const Group& group);

/// Where a tensor is cut. The dimension counts before x whole x after elements of which `whole` is chunked over the
/// ranks: neighbours that were merged with it stand around it.
struct Cut {
  std::int32_t dim = -1;  // -1: every rank has all of it
  std::int64_t before = 1, whole = 0, after = 1;
  bool term = false;     // the ranks' tensors are terms of a sum (Partial)
  bool replica = false;  // its gradient is summed where it was gathered, not by who reads it
  bool spread = false;   // stays cut beyond its module, as a DTensor: the loss knows
  bool zero = false;     // all of it are zeros, which are terms as well as a whole
  bool apart = false;    // a piece of what was cut as one: the ranks' rows of it are not those that the whole model has
  /// Where rows that other ranks have sent lie beside this rank's own (experts); -1: there are none.
  std::int32_t rows = -1;
  /// Which exchange of chosen tokens made them (ProgramCutter); -1: none, or one of given capacities.
  std::int32_t exchange = -1;

  bool cut() const { return dim >= 0; }
  bool operator==(const Cut&) const = default;
};

/// The shape of a rank's part.
Shape local_shape(const Shape& whole, const Cut& cut, const Group& group);

/// "aten.view.default" -> "view".
std::string_view base_name(std::string_view name);

/// An argument of an operator that is a number; `fallback`: it is not given.
std::int64_t integer_argument(const Op& op, std::size_t position, std::string_view name, std::int64_t fallback);

/// A tensor argument as the whole model has it.
struct CutTensor {
  Shape shape;
  Cut cut;
  bool floating = true;
  std::int32_t value = -1;  // -1: a parameter or buffer
};

/// Where the results of `op` are cut; constant sizes among its arguments become those of this rank. `results`: the
/// whole model's shapes. Errors (place: the operator, its module's name): the operator mixes what lies on several
/// ranks, or sizes that the ranks do not divide. `parts`: dimensions of a reshape's result that are taken apart later.
Result<std::vector<Cut>> carry_on(Op& op, const std::vector<CutTensor>& args, const std::vector<Shape>& results,
                                  const Group& group, const std::string& place,
                                  const std::set<std::int32_t>& parts = {});

}  // namespace foreshard::mesh
