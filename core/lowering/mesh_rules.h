// Operators of a model cut over a mesh ("mesh.*", written by core/mesh): what DTensor's redistributions, the masked
// embedding and the parallel loss do to memory and work (torch/distributed/tensor: placement_types.py,
// _functional_collectives.py, parallel/loss.py). Internal to lowering, but for the dimensions that operators meet.
//
// Arguments: the tensors, then the mesh dimension and what the operator needs to know of the cut (integers, by position
// or by name).
//
//   mesh.all_gather(x, mesh, dim, whole, backward)   cut -> whole; backward: reduce_scatter, or slice (its own part)
//
//   mesh.reduce_scatter(x, mesh, dim, whole)         terms -> cut; backward gathers
//
//   mesh.all_reduce(x, mesh)                         terms -> whole; backward hands on
//
//   mesh.all_to_all(x, mesh, rows, splits, back)     parts of the first dimension to and from every rank; so back.
//   Equal
//                                                    ones, or as many rows as `splits` says: `rows` expected of them
//
//   mesh.copy(x, mesh, backward)                     handed on; backward sums, or slice: takes this rank's part, or
//                                                    share: an equal share of what every rank has
//
//   mesh.embedding(weight, ids, mesh=, begin=, whole=)   backward makes the gradient of all rows
//
//   mesh.flash_attention(q, k, v, ..., mesh=, rotate=)   core/lowering/mesh/ring_attention.h
//
//   mesh.flash_attention_for_cpu(...)                that of the CPU's; workspaces of its backward aside
//
//   mesh.own_positions(counted, place, ranks)        of a shared sequence, of a part that is counted from 0; meets
//   nobody
//
//   mesh.log_softmax(x, dim, half, mesh=...),
//   mesh.nll_loss(x, target, weight, reduction, ignored, mesh=...)
//
// Around the exchange of rows whose numbers are the run's, which meet nobody (torchtitan: generate_permute_indices):
//
//   mesh.loads_of(ends)                              rows of each expert, of where they end
//
//   mesh.splits(sent, received, ranks)               of both loads: rows to and from each rank, [2, ranks], on the host
//
//   mesh.align_sizes_(sizes, multiple)               up to a multiple, which an expert without a row has too
//
//   mesh.expert_order(by_rank, multiple, rows)       which received row lies where, sorted by expert; -1: padding
//
//   mesh.received_rows(x, splits, rows)              not written yet: the received rows and one for the padding
#pragma once

#include <string_view>
#include <vector>

#include "core/lowering/backward/backward.h"
#include "core/lowering/op_rules.h"

namespace foreshard {

/// nullptr: no operator of a mesh.
const OpRule* find_mesh_rule(std::string_view name);
/// The mesh dimension in which the forward of `op` meets the other ranks; -1: in none.
std::int32_t mesh_dimension_of(const Op& op);
/// ... in which its forward or its backward does.
std::int32_t mesh_dimension_either_way(const Op& op);
/// All that its forward meets, those of what runs inside an opaque operator too.
std::vector<std::int32_t> dimensions_met(const Op& op);

namespace lowering {

std::vector<Ref> mesh_forward(Emitter& emit, const Op& op, const std::vector<Ref>& args,
                              const std::vector<Layout>& results);
/// The largest that the ranks of a dimension have, element by element: a new tensor.
Ref largest_of_ranks(Emitter& emit, const Ref& x, std::int32_t dimension);
/// What a reduce-scatter (number `place` of Model::ops) whose result was kept does all the same when its region runs
/// again: `x` is laid out to be sent. Not on hosts, whose executor takes the result.
void lay_out_again(Machine& machine, const Op& op, std::int32_t place, const Ref& x);
/// Gradients per tensor argument, in their own placements; `g` is the gradient of the first result.
std::vector<Ref> mesh_backward(Emitter& emit, BackwardInput& in, const Ref& g);

}  // namespace lowering
}  // namespace foreshard
