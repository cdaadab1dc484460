#include "core/buffer_use.h"

namespace foreshard {

BufferUse buffer_use(BufferWhat what) {
  switch (what) {
    case BufferWhat::Shard: return BufferUse::Shard;
    case BufferWhat::Param: return BufferUse::Parameter;
    case BufferWhat::Full:
    case BufferWhat::FullPrecision:
    case BufferWhat::PostForwardShard: return BufferUse::FullParameter;
    case BufferWhat::Grad:
    case BufferWhat::GradPiece:
    case BufferWhat::AccumulatedGrad: return BufferUse::Gradient;
    case BufferWhat::ReduceOut:
    case BufferWhat::CompressedOut:
    case BufferWhat::SavedGrad:
    case BufferWhat::ShardGrad:
    case BufferWhat::RsOutput:
    case BufferWhat::GradCast:
    case BufferWhat::ShardDimGrad: return BufferUse::ShardedGradient;
    case BufferWhat::HostGrad: return BufferUse::HostGradient;
    case BufferWhat::CastShard:
    case BufferWhat::H2dCopy:
    case BufferWhat::ViewedCopy:
    case BufferWhat::GradReduce:
    case BufferWhat::GradPadded:
    case BufferWhat::CompressedGrad:
    case BufferWhat::AgBuffer:
    case BufferWhat::CastBuffer:
    case BufferWhat::Cast:
    case BufferWhat::ScaledShard:
    case BufferWhat::GatherScale:
    case BufferWhat::RsInput:
    case BufferWhat::ShardDimTemp:
    case BufferWhat::Bucket: return BufferUse::Communication;
    case BufferWhat::OptimizerState: return BufferUse::OptimizerState;
    case BufferWhat::ModuleBuffer: return BufferUse::ModuleBuffer;
    case BufferWhat::Input: return BufferUse::Input;
    default: return BufferUse::Other;
  }
}

}  // namespace foreshard
