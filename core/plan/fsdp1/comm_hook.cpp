// Communication hooks (G5): PyTorch's fp16_compress and bf16_compress as its own code runs them, and where a user's own
// hook is called.
//
// A compressing hook replaces the data of the tensors that it is given: the padded gradient and the output of the
// reduce-scatter each get a copy in the hook's type, the latter before anything is in it. FSDP's own casts to the
// reduce type and back are skipped; the hook casts its result to the type of the parameters.
#include "core/plan/fsdp1/gradients.h"

namespace foreshard::fsdp1 {

bool is_own_hook(const Job& job) { return job.fsdp.comm_hook.starts_with("own:"); }

std::optional<DType> compressing_hook(const Job& job) {
  if (job.fsdp.comm_hook == "none" || is_own_hook(job)) return std::nullopt;
  return job.fsdp.comm_hook == "fp16_compress" ? DType::Float16 : DType::BFloat16;
}

Gradients::Gradients(Run& run, Gathering& gathering)
    : run_(run),
      out_(run.out),
      gathering_(gathering),
      hook_dtype_(compressing_hook(run.job)),
      own_hook_(is_own_hook(run.job)) {}

void Gradients::cast(UnitState& u, Stream stream, BufferWhat to, Numel numel, DType dtype) {
  out_.alloc(stream, u, to, numel, dtype);
  out_.work(InstructionKind::Cast, stream, u, to, numel, dtype);
}

/// The gradient in the hook's type. What it was made from is the caller's to free.
BufferWhat Gradients::compress(UnitState& u, Numel numel) {
  cast(u, Stream::G, BufferWhat::CompressedGrad, numel, *hook_dtype_);
  return BufferWhat::CompressedGrad;
}

/// The output in the hook's type; from here on the gradient has it.
BufferWhat Gradients::compress_output(UnitState& u, BufferWhat output) {
  cast(u, Stream::G, BufferWhat::CompressedOut, u.unit->shard_numel, *hook_dtype_);
  out_.free(Stream::G, u, output);
  u.grad_dtype = *hook_dtype_;
  return BufferWhat::CompressedOut;
}

}  // namespace foreshard::fsdp1
