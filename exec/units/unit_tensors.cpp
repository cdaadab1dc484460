#include "exec/units/unit_tensors.h"

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
    case BufferWhat::GradCast:
    case BufferWhat::RsOutput:
    case BufferWhat::Bucket: return true;
    default: return false;
  }
}

}  // namespace

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
