#include "exec/step/issue_context.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "core/buffer_use.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

bool keeps_on_host(const Plan& plan) {
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& instruction : iteration.instructions) {
      const bool moves = instruction.kind == InstructionKind::H2d || instruction.kind == InstructionKind::D2h;
      if (moves && instruction.buffer.what != BufferWhat::None) return true;  // of nothing: a number is read
    }
  }
  return false;
}

/// Groups of a mesh make streams of their own, which no runtime lists.
bool meets_on_mesh(const Plan& plan) {
  return std::any_of(plan.iterations.begin(), plan.iterations.end(), [](const PlanIteration& iteration) {
    return std::any_of(iteration.instructions.begin(), iteration.instructions.end(),
                       [](const Instruction& i) { return i.stream == Stream::M || i.other == Stream::M; });
  });
}

}  // namespace

IssueContext::IssueContext(Backend& backend, const Plan& plan, Communicators communicators)
    : backend_(backend), plan_(plan), communicators_(std::move(communicators)), has_host_stream_(keeps_on_host(plan)) {
  streams_[static_cast<std::size_t>(Stream::D)] = backend.create_stream("D", 0);
  for (const StreamInfo& info : plan.streams) {
    streams_[static_cast<std::size_t>(info.stream)] = backend.create_stream(stream_name(info.stream), info.priority);
  }
  const bool listed = std::any_of(plan.streams.begin(), plan.streams.end(),
                                  [](const StreamInfo& info) { return info.stream == Stream::M; });
  if (!listed && meets_on_mesh(plan))
    streams_[static_cast<std::size_t>(Stream::M)] = backend.create_stream(stream_name(Stream::M), 0);
  streams_[static_cast<std::size_t>(Stream::Host)] =
      has_host_stream_ ? backend.create_stream(stream_name(Stream::Host), 0) : stream(Stream::D);
}

Buffer IssueContext::allocate(Stream pool, InstructionId id, Bytes bytes, MemoryCategory category) const {
  Buffer buffer = backend_.allocate(on(pool, id), bytes, category);
  if (pool == Stream::Host) static_cast<void>(wait_for(pool, id));  // a failure comes back from synchronize
  return buffer;
}

void IssueContext::launch(const Instruction& instruction, InstructionId id, std::span<const Buffer> uses,
                          Work work) const {
  backend_.launch(on(instruction.stream, id, uses), std::move(work));
}

void IssueContext::collective(const Instruction& instruction, InstructionId id, std::span<const Buffer> uses,
                              CollectiveWork work, Work alone) const {
  if (group_size(instruction) <= 1) {
    if (alone) launch(instruction, id, uses, std::move(alone));
    return;
  }
  backend_.collective(on(instruction.stream, id, uses), communicators_.find(instruction.communicator), std::move(work));
}

Outcome<void> IssueContext::wait_for(Stream letter, InstructionId id) const {
  return backend_.host_wait(backend_.record_event(on(letter, id)));
}

c10::Device IssueContext::device(Stream pool) const {
  const bool there = pool != Stream::Host && backend_.device() == DeviceKind::Cuda;
  // With its index: operators compare devices, and "cuda" is not "cuda:0" to them. The backend has made its own
  // current.
  return there ? c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice() : c10::Device(c10::kCPU);
}

at::Tensor IssueContext::tensor(const Buffer& buffer, Stream pool, Numel offset, c10::IntArrayRef shape,
                                DType dtype) const {
  return tensor_over(static_cast<std::byte*>(buffer.data()) + offset * itemsize(dtype), shape, dtype, device(pool));
}

MemoryCategory category_of(BufferWhat what) {
  switch (buffer_use(what)) {
    case BufferUse::Shard:
    case BufferUse::Parameter: return MemoryCategory::Parameters;
    case BufferUse::FullParameter: return MemoryCategory::FullParameters;
    case BufferUse::Gradient: return MemoryCategory::Gradients;
    case BufferUse::ShardedGradient:
    case BufferUse::HostGradient: return MemoryCategory::ShardedGradients;
    case BufferUse::Communication: return MemoryCategory::ReduceBuffers;
    case BufferUse::OptimizerState: return MemoryCategory::OptimizerState;
    case BufferUse::ModuleBuffer: return MemoryCategory::Buffers;
    case BufferUse::Input: return MemoryCategory::Inputs;
    default: return MemoryCategory::Temporaries;
  }
}

}  // namespace foreshard::exec
