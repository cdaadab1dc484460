#include "core/lowering/lowering_opaque.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <variant>

#include "core/lowering/lowering_machine.h"
#include "core/model/mesh_dimension.h"
#include "core/model/op_keywords.h"

namespace foreshard::lowering {

Layout layout_of(const ValueInfo& value) {
  Layout layout = contiguous_layout(dims_of(value.shape), value.dtype);
  for (std::size_t d = 0; d < value.strides.size(); ++d)
    layout.strides[static_cast<std::int32_t>(d)] = value.strides[d];
  return layout;
}

namespace {

/// What multiplies matrices asks cuBLAS for its workspace while all that it has beside is there.
KernelClass class_of(Flops flops) { return flops > 0 ? KernelClass::Gemm : KernelClass::Elementwise; }

/// The values among the arguments that are tensors, in their order; -1: parameters and buffers.
std::vector<std::int32_t> values_of(const Op& op) {
  std::vector<std::int32_t> values;
  for_each_arg(op, [&](const Arg& arg) {
    if (const auto* value = std::get_if<ValueRef>(&arg.value)) values.push_back(value->id.value);
    if (std::holds_alternative<ParamRef>(arg.value) || std::holds_alternative<BufferRef>(arg.value))
      values.push_back(-1);
  });
  return values;
}

/// A result under an argument's name is that argument: handed on, or written in place (ctx.mark_dirty).
std::vector<Ref> results_of(Emitter& emit, const std::vector<Ref>& args, const std::vector<Layout>& results) {
  const std::vector<std::int32_t> given = values_of(*emit.op());
  std::vector<Ref> out;
  for (const ValueId id : emit.op()->out) {
    if (!id.valid()) continue;
    const Layout& layout = results[out.size()];
    const auto at = static_cast<std::size_t>(std::find(given.begin(), given.end(), id.value) - given.begin());
    out.push_back(at < args.size() ? emit.tape().alias(args[at], layout, false)
                                   : emit.tape().make(layout, emit.category()));
  }
  return out;
}

/// One kernel each while its results are there; all that it does is meet others where it multiplies nothing.
void meet(Emitter& emit, const ArgList* rows, DType dtype) {
  static constexpr std::array<KernelCollective, kMetCollectives.size()> kKinds{
      KernelCollective::AllGather, KernelCollective::ReduceScatter, KernelCollective::AllReduce,
      KernelCollective::AllToAll};
  if (rows == nullptr) return;
  for (const Arg& arg : *rows) {
    const auto& row = std::get<ArgList>(arg.value);
    const auto& word = std::get<std::string>(row[0].value);
    const auto kind = std::find(kMetCollectives.begin(), kMetCollectives.end(), word) - kMetCollectives.begin();
    Kernel kernel = emit.start("c10d." + word, KernelClass::Copy, dtype);
    kernel.collective = kKinds.at(static_cast<std::size_t>(kind));
    kernel.dimension = static_cast<std::int32_t>(std::get<std::int64_t>(row[1].value));
    kernel.vector_bytes = std::get<std::int64_t>(row[2].value);
    emit.tape().kernel(kernel);
  }
}

/// What only meets others launches nothing of its own.
void without_work(Kernel& kernel, const ArgList* rows) {
  if (rows == nullptr || kernel.flops > 0) return;
  kernel.read = kernel.written = 0;
  kernel.launches = 0;
}

}  // namespace

std::vector<Ref> opaque_forward(Emitter& emit, const OpaqueOp& opaque, const std::vector<Ref>& args,
                                const std::vector<Layout>& results) {
  Kernel kernel =
      emit.start(emit.op()->name, class_of(opaque.flops), results.empty() ? DType::Float32 : results.front().dtype);
  kernel.flops = opaque.flops;
  for (const Ref& arg : args) kernel.read += emit.layout(arg).bytes();
  std::vector<Ref> out = results_of(emit, args, results);
  for (const Layout& result : results) kernel.written += result.bytes();
  if (opaque.bytes_moved > 0) kernel.read = std::max<Bytes>(opaque.bytes_moved - kernel.written, 0);
  const Ref workspace =
      opaque.workspace_bytes > 0 ? emit.tape().make_bytes(opaque.workspace_bytes, SlotCategory::Workspace) : Ref();
  const ArgList* met = collectives_inside(*emit.op());
  without_work(kernel, met);
  const DType dtype = kernel.dtype;
  emit.tape().kernel(std::move(kernel));
  meet(emit, met, dtype);
  return out;
}

Ref opaque_saved(Emitter& emit, const OpaqueOp::Saved& saved) {
  const Layout layout = contiguous_layout(dims_of(saved.shape), saved.dtype);
  Ref made = emit.tape().make(layout, SlotCategory::Activation);
  Kernel kernel = emit.start(emit.op()->name, KernelClass::Elementwise, saved.dtype);
  kernel.launches = 0;  // the operator's own kernel wrote it
  emit.tape().kernel(kernel);
  return made;
}

void opaque_unsaved(Emitter& emit, const OpaqueOp& opaque) {
  std::vector<Ref> made;
  for (const OpaqueOp::Saved& saved : opaque.saved)
    if (!saved.value.valid()) made.push_back(opaque_saved(emit, saved));
}

namespace {

/// A gradient of its own, or one that stands where something stood that backward needs no more.
Ref opaque_gradient(Emitter& emit, const OpaqueOp::Gradient& gradient, const BackwardInput& in) {
  const Layout layout = contiguous_layout(dims_of(gradient.shape), gradient.dtype);
  const auto& over = gradient.storage == OpaqueOp::Gradient::Storage::Saved ? in.saved : in.grads;
  const auto place = static_cast<std::size_t>(gradient.of);
  const bool reuses = gradient.storage != OpaqueOp::Gradient::Storage::Own && place < over.size() && over[place];
  if (reuses && emit.layout(over[place]).contiguous() && emit.layout(over[place]).bytes() >= layout.bytes())
    return emit.tape().alias(over[place], layout, false);
  return emit.tape().make(layout, emit.category());
}

}  // namespace

std::vector<Ref> opaque_backward(Emitter& emit, const OpaqueOp& opaque, const BackwardInput& in) {
  std::vector<Ref> out(in.node.in.size());
  const Flops flops = opaque.backward_flops < 0 ? 2 * opaque.flops : opaque.backward_flops;
  Kernel kernel = emit.start(emit.op()->name, class_of(flops), DType::Float32);
  kernel.flops = flops;
  for (const Ref& grad : in.grads)
    if (grad) kernel.read += emit.layout(grad).bytes();
  for (const Ref& saved : in.saved)
    if (saved) kernel.read += emit.layout(saved).bytes();
  for (std::size_t i = 0; i < out.size() && i < opaque.backward.size(); ++i) {
    const OpaqueOp::Gradient& gradient = opaque.backward[i];
    if (!gradient.made) continue;
    out[i] = opaque_gradient(emit, gradient, in);
    kernel.written += emit.layout(out[i]).bytes();
    kernel.dtype = gradient.dtype;
  }
  std::vector<Ref> temporaries;  // what is listed behind the arguments' gradients
  for (std::size_t i = out.size(); i < opaque.backward.size(); ++i) {
    const Layout layout = contiguous_layout(dims_of(opaque.backward[i].shape), opaque.backward[i].dtype);
    temporaries.push_back(emit.tape().make(layout, SlotCategory::Workspace));
  }
  const ArgList* met = collectives_inside(*emit.op(), /*backward=*/true);
  without_work(kernel, met);
  const DType dtype = kernel.dtype;
  emit.tape().kernel(std::move(kernel));
  meet(emit, met, dtype);
  return out;
}

/// What the model says an opaque operator saves: arguments, results, and tensors of its own (numbered from -1 down).
void Machine::save_opaque(Node& node, std::int32_t step, const std::vector<Ref>& args,
                          const std::vector<Ref>& results) {
  CheckpointFrame* frame = frame_of(step);
  const Op& op = *node.op;
  const OpaqueOp& opaque = model_.opaques[static_cast<std::size_t>(op.opaque)];
  const std::vector<std::int32_t> values = values_of(op);  // parallel to args
  std::int32_t own = 0;
  for (const OpaqueOp::Saved& kept : opaque.saved) {
    Saved saved;
    const auto arg = std::find(values.begin(), values.end(), kept.value.value);
    const auto out = std::find(op.out.begin(), op.out.end(), kept.value);
    if (kept.value.valid() && arg == values.end() && out == op.out.end()) continue;
    saved.result = !kept.value.valid() || arg == values.end();
    if (!kept.value.valid()) {
      saved.index = --own;
    } else if (arg != values.end()) {
      saved.index = static_cast<std::int32_t>(arg - values.begin());
    } else {  // among the results that are tensors
      saved.index =
          static_cast<std::int32_t>(std::count_if(op.out.begin(), out, [](ValueId id) { return id.valid(); }));
    }
    if (frame != nullptr) {
      promise(*frame, saved, step, true);
    } else {
      saved.tensor = saved_tensor(op, saved, args, results);
      if (saved.tensor && packed_.travels(op)) {
        const Ref tensor = std::exchange(saved.tensor, {});
        const std::int32_t index = saved.index;
        saved = packed_.pack(op, *node.rule, {saved.result, 0, 0}, tensor);
        saved.index = index;
      }
    }
    node.saved.push_back(std::move(saved));
  }
}

}  // namespace foreshard::lowering
