// The Emitter of lowering_autograd.h: kernels with what they take and make; and the constant arguments of operators.
#include <algorithm>
#include <cmath>

#include "core/lowering/cpu_workspace.h"
#include "core/lowering/kernels/kernel_shape.h"
#include "core/lowering/lowering_autograd.h"
#include "core/lowering/lowering_machine.h"
#include "core/lowering/views/views.h"

namespace foreshard::lowering {

namespace {

const Arg* find_arg(const Op& op, std::size_t position, std::string_view name) {
  if (position < op.args.size()) return &op.args[position];
  for (const NamedArg& named : op.kwargs)
    if (named.name == name) return &named.arg;
  return nullptr;
}

}  // namespace

std::int64_t int_arg(const Op& op, std::size_t position, std::string_view name, std::int64_t fallback) {
  const Arg* arg = find_arg(op, position, name);
  if (arg == nullptr) return fallback;
  if (const auto* value = std::get_if<std::int64_t>(&arg->value)) return *value;
  if (const auto* value = std::get_if<bool>(&arg->value)) return *value ? 1 : 0;
  return fallback;
}

double number_arg(const Op& op, std::size_t position, std::string_view name, double fallback) {
  const Arg* arg = find_arg(op, position, name);
  if (arg == nullptr) return fallback;
  if (const auto* value = std::get_if<double>(&arg->value)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&arg->value)) return static_cast<double>(*value);
  return fallback;
}

bool bool_arg(const Op& op, std::size_t position, std::string_view name, bool fallback) {
  const Arg* arg = find_arg(op, position, name);
  if (arg == nullptr) return fallback;
  if (const auto* value = std::get_if<bool>(&arg->value)) return *value;
  return fallback;
}

std::vector<std::int64_t> list_arg(const Op& op, std::size_t position, std::string_view name) {
  std::vector<std::int64_t> out;
  const Arg* arg = find_arg(op, position, name);
  if (arg == nullptr) return out;
  if (const auto* value = std::get_if<std::int64_t>(&arg->value)) out.push_back(*value);
  if (const auto* list = std::get_if<ArgList>(&arg->value))
    for (const Arg& item : *list)
      if (const auto* value = std::get_if<std::int64_t>(&item.value)) out.push_back(*value);
  return out;
}

// ----------------------------------------------------------------------------------------------------------------
// emitter

Tape& Emitter::tape_of(Machine& machine) { return machine.tape; }

SlotCategory Emitter::category() const {
  return machine_.in_backward ? SlotCategory::ActivationGrad : SlotCategory::Activation;
}

Kernel Emitter::start(std::string_view name, KernelClass kind, DType dtype) {
  Kernel kernel;
  kernel.op = machine_.name_id(name);
  kernel.kind = kind;
  kernel.dtype = dtype;
  kernel.model_op = model_op_;
  return kernel;
}

void Emitter::finish(Kernel& kernel, std::initializer_list<const Ref*> inputs,
                     std::initializer_list<const Ref*> outputs) {
  for (const Ref* input : inputs)
    if (*input) kernel.read += layout(*input).bytes();
  for (const Ref* output : outputs)
    if (*output) kernel.written += layout(*output).bytes();
  note(kernel, {inputs.begin(), inputs.size()}, {outputs.begin(), outputs.size()});
  run(kernel);
}

void Emitter::launch(const Kernel& kernel, std::span<const Ref> inputs, std::span<const Ref> outputs) {
  if (machine_.trace() != nullptr) {
    std::vector<const Ref*> in, out;
    for (const Ref& ref : inputs) in.push_back(&ref);
    for (const Ref& ref : outputs) out.push_back(&ref);
    note(kernel, in, out);
  }
  run(kernel);
}

void Emitter::run(const Kernel& kernel) {
  const LoweringOptions& options = machine_.options;
  Ref workspace;
  if (options.blas_workspace > 0 && kernel.kind == KernelClass::Gemm && !kernel.convolution && kernel.launches > 0) {
    const bool lt =
        through_cublas_lt(kernel, machine_.name_id("aten.addmm.default"), machine_.name_id("aten._scaled_mm.default"));
    workspace = tape().make_bytes(lt ? options.blas_lt_workspace : options.blas_workspace, SlotCategory::Workspace);
  }
  tape().kernel(kernel);
}

void Emitter::note(const Kernel& kernel, std::span<const Ref* const> inputs, std::span<const Ref* const> outputs) {
  Trace* const trace = machine_.trace();
  if (trace == nullptr) return;
  const auto traced = [&](std::span<const Ref* const> refs) {
    std::vector<TracedTensor> all;
    for (const Ref* ref : refs)
      if (*ref) all.push_back({tape().at(*ref).storage, layout(*ref)});
    return all;
  };
  trace->kernels.push_back({kernel.op, tape().kind(), traced(inputs), traced(outputs)});
}

Ref Emitter::fresh(std::string_view name, KernelClass kind, const Layout& result,
                   std::initializer_list<const Ref*> inputs, int launches) {
  Kernel kernel = start(name, kind, result.dtype);
  kernel.launches = launches;
  Ref out = tape().make(result, category());
  finish(kernel, inputs, {&out});
  return out;
}

Ref Emitter::elementwise(std::string_view name, std::initializer_list<const Ref*> inputs, DType dtype) {
  std::array<Layout, 4> layouts;
  std::array<const Layout*, 4> pointers{};
  std::size_t count = 0;
  Dims sizes;
  for (const Ref* input : inputs) {
    if (!*input || count == layouts.size()) continue;
    layouts[count] = layout(*input);
    pointers[count] = &layouts[count];
    sizes = broadcast_sizes(sizes, layouts[count].sizes);
    ++count;
  }
  return fresh(name, KernelClass::Elementwise, elementwise_layout({pointers.data(), count}, sizes, dtype), inputs);
}

Ref Emitter::elementwise(std::string_view name, std::initializer_list<const Ref*> inputs) {
  return elementwise(name, inputs, layout(**inputs.begin()).dtype);
}

Kernel Emitter::start_product(std::string_view name, DType dtype, const Layout& left, const Layout& right) {
  const std::int32_t n = left.sizes.n;
  Kernel kernel = start(name, KernelClass::Gemm, dtype);
  kernel.m = n >= 2 ? left.sizes[n - 2] : 1;
  kernel.k = n >= 1 ? left.sizes[n - 1] : 1;
  kernel.n = right.sizes.n >= 2 ? right.sizes[right.sizes.n - 1] : 1;
  kernel.batch = n >= 3 ? left.sizes[0] : 1;
  kernel.flops = 2 * kernel.batch * kernel.m * kernel.n * kernel.k;
  kernel.alignment = product_alignment(left, right, kernel.n);
  return kernel;
}

std::vector<Ref> Emitter::cublas_copies_of(const Layout& left, const Layout& right, Kernel& kernel) {
  std::vector<Ref> copies;
  for (const Layout* operand : {&right, &left}) {
    if (!cublas_copies(*operand)) continue;
    copies.push_back(tape().make_bytes(operand->bytes(), SlotCategory::Temporary));
    ++kernel.launches;
  }
  return copies;
}

Ref Emitter::matmul(std::string_view name, const Ref& a, const Ref& b, const Ref* bias) {
  const Layout left = layout(a), right = layout(b);
  Kernel kernel = start_product(name, left.dtype, left, right);
  Dims sizes;
  if (left.sizes.n >= 3) sizes.push(kernel.batch);
  sizes.push(kernel.m);
  sizes.push(kernel.n);
  Ref out = tape().make(contiguous_layout(sizes, left.dtype), category());
  std::vector<Ref> workspace;
  if (machine_.options.cpu_threads > 0) {
    workspace = held(tape(), cpu_product_workspace(kernel, left, right, machine_.options));
  } else {
    workspace = cublas_copies_of(left, right, kernel);
  }
  static const Ref kNone;
  finish(kernel, {&a, &b, bias != nullptr ? bias : &kNone}, {&out});
  return out;
}

/// make_reduction_from_out_ty: all elements are converted first, but halves that are summed in float32.
bool converts_to_sum(DType in, DType out) {
  const bool half = in == DType::Float16 || in == DType::BFloat16;
  return in != out && !(half && out == DType::Float32);
}

Ref Emitter::sum(const Ref& a, const std::vector<std::int32_t>& dims, bool keepdim, std::string_view name,
                 KernelClass kind, DType dtype) {
  const Layout in = layout(a);
  Dims sizes;
  for (std::int32_t i = 0; i < in.sizes.n; ++i) {
    const bool reduced = dims.empty() || std::find(dims.begin(), dims.end(), i) != dims.end();
    if (!reduced)
      sizes.push(in.sizes[i]);
    else if (keepdim)
      sizes.push(1);
  }
  Kernel kernel = start(name, kind, in.dtype);
  Ref out = tape().make(contiguous_layout(sizes, dtype), category());
  Ref converted, buffer, semaphores;
  Layout counted = in;
  if (name.starts_with("aten.sum") && converts_to_sum(in.dtype, dtype)) {
    counted = contiguous_layout(in.sizes, dtype);
    converted = tape().make_bytes(counted.bytes(), SlotCategory::Temporary);
    ++kernel.launches;
  }
  if (name == "aten.max.default" && !in.contiguous()) {  // ReduceAllOps.cpp
    counted = contiguous_layout(in.sizes, in.dtype);
    converted = tape().make_bytes(counted.bytes(), SlotCategory::Temporary);
    ++kernel.launches;
  }
  const ReduceWorkspace extra = reduce_workspace(name, counted, dims, machine_.options.multiprocessors);
  if (extra.buffer > 0) {
    buffer = tape().make_bytes(extra.buffer, SlotCategory::Workspace);
    semaphores = tape().make_bytes(extra.semaphores, SlotCategory::Workspace);
    ++kernel.launches;  // the semaphores are zeroed first
  }
  finish(kernel, {&a}, {&out});
  semaphores.reset();
  buffer.reset();
  converted.reset();
  return out;
}

Ref Emitter::transpose(const Ref& a, std::int32_t d0, std::int32_t d1) {
  Layout out = layout(a);
  if (out.sizes.n > std::max(d0, d1)) {
    std::swap(out.sizes[d0], out.sizes[d1]);
    std::swap(out.strides[d0], out.strides[d1]);
  }
  return tape().alias(a, out);
}

Ref Emitter::view(const Ref& a, const Dims& sizes) {
  Layout out = layout(a);
  Dims strides;
  if (!view_strides(out, sizes, strides)) strides = contiguous_strides(sizes);
  out.sizes = sizes;
  out.strides = strides;
  return tape().alias(a, out);
}

Ref Emitter::reshape(const Ref& a, const Dims& sizes) {
  Layout from = layout(a);
  Dims strides;
  if (view_strides(from, sizes, strides)) return view(a, sizes);
  Ref copy = fresh("aten.clone.default", KernelClass::Copy, contiguous_layout(from.sizes, from.dtype), {&a});
  return tape().alias(copy, contiguous_layout(sizes, from.dtype), false);  // _unsafe_view is no view to autograd
}

Ref Emitter::expand(const Ref& a, const Dims& sizes) {
  const Layout from = layout(a);
  return tape().alias(a, {sizes, expanded_strides(from, sizes), from.dtype});
}

Ref Emitter::sum_to(const Ref& a, const Dims& sizes) {
  const Layout from = layout(a);
  if (from.sizes == sizes || from.sizes.n < sizes.n) return a;
  const std::int32_t leading = from.sizes.n - sizes.n;
  std::vector<std::int32_t> dims;
  for (std::int32_t i = 0; i < from.sizes.n; ++i)
    if (i < leading || (sizes[i - leading] == 1 && from.sizes[i] != 1)) dims.push_back(i);
  if (dims.empty()) return a;
  if (sizes.n == 0) return sum(a, {}, false, "aten.sum.default", KernelClass::Reduction, from.dtype);
  Ref out = sum(a, dims, true, "aten.sum.dim_IntList", KernelClass::Reduction, from.dtype);
  return leading > 0 ? view(out, sizes) : out;
}

Ref Emitter::cast(const Ref& a, DType dtype) {
  if (layout(a).dtype == dtype) return a;
  return elementwise("aten._to_copy.default", {&a}, dtype);
}

}  // namespace foreshard::lowering
