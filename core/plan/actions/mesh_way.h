// How PyTorch redistributes a DTensor of a mesh, one dimension after the other: the steps that plans write and an
// executor takes.
//
//   fsdp2, full_tensor()     both cut dimension 0: data, then the other    else: the other, then data
//   fsdp1, sharded, save     cut along dimension 0: gathered over the other, chunked over data, chunked over the other
//   fsdp1, sharded, load     gathered over the other (if it cuts dimension 0), over data, then this rank's part
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/plan/actions/state_dict.h"

namespace foreshard {

/// `rank` of `ranks` that cut `size` elements as torch.chunk does.
struct MeshChunk {
  std::int64_t begin = 0, size = 0, padded = 0;
};
MeshChunk mesh_chunk_of(std::int64_t size, std::int64_t ranks, std::int64_t rank);

struct MeshStep {
  bool gathers = true;    // chunks of all ranks to `whole`; else this rank's chunk of it is copied
  bool over_data = true;  // the ranks that shard the unit; else those of the parameter's own dimension
  std::size_t dim = 0;    // of the tensor
  std::int64_t whole = 0;
  std::int64_t ranks = 1, rank = 0;
  std::int64_t rows() const { return mesh_chunk_of(whole, ranks, 0).padded; }
  bool operator==(const MeshStep&) const = default;
};

struct MeshWay {
  Shape from;  // what this rank begins with
  std::vector<MeshStep> steps;
};

/// fsdp2: a shard to the whole. REQUIRES a dimension that cuts it.
MeshWay way_to_whole(const StateSource& source, const PlanUnit& unit, const ShardedParam& param);
/// fsdp1, sharded: this rank's part to its chunk, and back.
MeshWay way_to_chunk(const StateSource& source, const PlanUnit& unit, ParamId param);
MeshWay way_to_part(const StateSource& source, const PlanUnit& unit, ParamId param);

/// fsdp1, full: what unsharding leaves is a DTensor of the tensor dimension, not the whole parameter.
StateEntry mesh_entry(const StateSource& source, StateEntry entry, ParamId param);
/// fsdp1, sharded: chunked over data first and then over the tensor dimension, not the other way round as it was cut.
StateEntry mesh_chunk(const StateSource& source, StateEntry entry, ParamId param, const PlanUnit& unit);

}  // namespace foreshard
