// Communication hooks (G5): PyTorch's fp16_compress and bf16_compress as its own code runs them, and where a user's own
// hook is called.
//
// A compressing hook replaces the data of the tensors that it is given: the padded gradient and the output of the
// reduce-scatter each get a copy in the hook's type, the latter before anything is in it. FSDP's own casts to the
// reduce type and back are skipped; the hook casts its result to the type of the parameters.
#include "core/plan/fsdp1/runtime.h"

namespace foreshard::fsdp1 {

void Runtime::read_comm_hook() {
  const std::string& hook = job_.fsdp.comm_hook;
  if (hook == "none") return;
  own_hook_ = hook.starts_with("own:");
  if (own_hook_) return;
  hook_dtype_ = hook == "fp16_compress" ? DType::Float16 : DType::BFloat16;
  for (PlanUnit& unit : plan_.units) unit.reduce_dtype = unit.param_dtype;
}

void Runtime::cast_gradient(UnitState& u, BufferWhat to, Numel numel, DType dtype) {
  alloc(Stream::G, u, to, numel, dtype);
  Instruction& cast = emit(InstructionKind::Cast, Stream::G, u);
  cast.buffer = {to, u.id, {}};
  cast.numel = numel;
  cast.dtype = dtype;
  cast.bytes = numel * itemsize(dtype);
}

/// The gradient in the hook's type. What it was made from is the caller's to free.
BufferWhat Runtime::compress(UnitState& u, Numel numel) {
  cast_gradient(u, BufferWhat::CompressedGrad, numel, *hook_dtype_);
  return BufferWhat::CompressedGrad;
}

/// The output in the hook's type; from here on the gradient has it.
BufferWhat Runtime::compress_output(UnitState& u, BufferWhat output) {
  cast_gradient(u, BufferWhat::CompressedOut, u.unit->shard_numel, *hook_dtype_);
  free(Stream::G, u, output);
  u.grad_dtype = *hook_dtype_;
  return BufferWhat::CompressedOut;
}

}  // namespace foreshard::fsdp1
