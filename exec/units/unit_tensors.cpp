#include "exec/units/unit_tensors.h"

#include <algorithm>
#include <utility>

#include "core/mesh/rank_model.h"
#include "core/model/mesh_dimension.h"

namespace foreshard::exec {
namespace {

bool is_gradient(BufferWhat what) {
  switch (what) {
    case BufferWhat::Grad:
    case BufferWhat::AccumulatedGrad:
    case BufferWhat::SavedGrad:
    case BufferWhat::ShardGrad:
    case BufferWhat::CompressedGrad:
    case BufferWhat::CompressedOut:
    case BufferWhat::HostGrad:
    case BufferWhat::MeshGrad:
    case BufferWhat::GradCast:
    case BufferWhat::RsOutput:
    case BufferWhat::Bucket: return true;
    default: return false;
  }
}

}  // namespace

bool repeated_on_mesh(const Model& model, const ParamInfo& param) {
  const std::int32_t on = param.part.dimension;
  // Experts lie on ranks of the other dimensions too, each on one.
  if (on >= 0 && !shares_samples(model.mesh[static_cast<std::size_t>(on)])) return false;
  for (std::size_t d = 0; d < model.mesh.size(); ++d) {
    if (!stands_beside_fsdp(model.mesh[d])) continue;
    const bool cut = param.part.dim >= 0 && param.part.dimension == static_cast<std::int32_t>(d);
    if (!cut && model.mesh[d].place != 0) return true;
  }
  return false;
}

at::Tensor own_part_of(const Model& model, const ParamInfo& param, const at::Tensor& whole) {
  const MeshPart& part = param.part;
  if (part.dim < 0) return whole;
  const std::int64_t parts = packed_parts(model, param),
                     numel = param.shape[static_cast<std::size_t>(part.dim)] / parts;
  std::vector<at::Tensor> own;
  for (std::int64_t k = 0; k < parts; ++k)
    own.push_back(whole.narrow(part.dim, (k * part.whole + part.begin) / parts, numel));
  return parts == 1 ? own.front() : at::cat(own, part.dim);
}

std::vector<StatePiece> pieces_of_whole(const Model& model, const ParamInfo& param, std::vector<StatePiece> pieces) {
  if (param.part.dim < 0) return pieces;
  const std::int64_t parts = packed_parts(model, param);
  const auto dim = static_cast<std::size_t>(param.part.dim);
  Numel inner = 1;
  for (std::size_t d = dim + 1; d < param.shape.size(); ++d) inner *= param.shape[d];
  const Numel run = param.shape[dim] / parts * inner;  // neighbours here that are neighbours in the whole
  const Numel stride = param.part.whole / parts * inner, begin = param.part.begin / parts * inner;
  std::vector<StatePiece> whole;
  for (const StatePiece& piece : pieces) {
    for (Numel done = 0; done < piece.numel;) {
      const Numel at = piece.global_offset + done;
      const Numel numel = std::min(piece.numel - done, run - at % run);
      const Numel to = at / run * stride + begin + at % run;
      if (!whole.empty() && whole.back().global_offset + whole.back().numel == to &&
          whole.back().local_offset + whole.back().numel == piece.local_offset + done) {
        whole.back().numel += numel;
      } else {
        whole.push_back({to, piece.local_offset + done, numel});
      }
      done += numel;
    }
  }
  return whole;
}

Buffer& UnitTensors::slot(BufferWhat what, std::int32_t index, std::int32_t instance) {
  const auto row = static_cast<std::size_t>(what);
  if (slots_.size() <= row) slots_.resize(row + 1);
  const std::size_t at = static_cast<std::size_t>(instance) * (param_count_ + 1) + static_cast<std::size_t>(index + 1);
  if (slots_[row].size() <= at) slots_[row].resize(at + 1);
  return slots_[row][at];
}

void UnitTensors::drop_gathered() {
  for (std::size_t what = 0; what < slots_.size(); ++what) {
    if (is_gradient(static_cast<BufferWhat>(what))) continue;
    for (Buffer& buffer : slots_[what]) {
      if (buffer.valid()) context_.backend().free(buffer, {});
      buffer = {};
    }
  }
  gathered_dropped();
}

}  // namespace foreshard::exec
