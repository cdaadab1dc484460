#include "exec/operators/operator_call.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>

#include <array>
#include <mutex>
#include <string_view>
#include <utility>

#include "exec/operators/random_numbers.h"

namespace foreshard::exec {
namespace {

/// "aten.add.Tensor" -> aten::add, Tensor; "default" is the empty overload. "mesh.copy" has none.
std::optional<c10::OperatorHandle> find_operator(const std::string& name) {
  const std::size_t first = name.find('.');
  const std::size_t last = name.rfind('.');
  if (first != std::string::npos && first == last)
    return c10::Dispatcher::singleton().findSchema({name.substr(0, first) + "::" + name.substr(first + 1), ""});
  if (first == std::string::npos) return std::nullopt;
  std::string overload = name.substr(last + 1);
  if (overload == "default") overload.clear();
  const std::string full = name.substr(0, first) + "::" + name.substr(first + 1, last - first - 1);
  return c10::Dispatcher::singleton().findSchema({full, overload});
}

/// True if a constant argument of that name is zero or false: dropout with p = 0, or not in training.
bool switched_off(const PreparedArguments& arguments, const c10::FunctionSchema& schema, std::string_view name) {
  const auto& formals = schema.arguments();
  for (std::size_t i = 0; i < formals.size(); ++i) {
    if (formals[i].name() != name) continue;
    const c10::IValue& value = arguments.list[i].constant;
    return (value.isDouble() && value.toDouble() == 0.0) || (value.isBool() && !value.toBool()) ||
           (value.isInt() && value.toInt() == 0);
  }
  return false;
}

void find_randomness(OperatorCall& call) {
  if (!call.handle.hasTag(at::Tag::nondeterministic_seeded)) return;
  const c10::FunctionSchema& schema = call.handle.schema();
  for (const std::string_view name : {"p", "dropout_p", "dropout", "train"}) {
    const bool probability = name != "p" || schema.name().find("dropout") != std::string::npos;
    if (probability && switched_off(call.arguments, schema, name)) return;
  }
  call.random = OperatorCall::Random::Global;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() != "generator") continue;
    call.random = OperatorCall::Random::Argument;
    call.generator = i;
  }
}

/// What nn.Module.eval() changes in the operators that modules call.
void find_eval_mode(OperatorCall& call) {
  const c10::FunctionSchema& schema = call.handle.schema();
  const auto& formals = schema.arguments();
  const bool drops = schema.name().find("dropout") != std::string::npos;
  for (std::size_t i = 0; i < formals.size(); ++i) {
    const std::string& name = formals[i].name();
    const bool mode = (name == "train" && drops) || name == "training";
    if (mode && call.arguments.list[i].constant.isBool()) call.in_eval.emplace_back(i, false);
    if (name == "dropout_p" && call.arguments.list[i].constant.isDouble()) call.in_eval.emplace_back(i, 0.0);
  }
}

/// Dropout fallen apart: the mask is drawn and divided by the same number. In eval mode every element is that number,
/// and the quotient one.
bool is_mask_draw(const OperatorCall& call) { return call.handle.schema().name() == "aten::bernoulli_"; }

void fill_mask(torch::jit::Stack& stack) {
  at::Tensor mask = stack[0].toTensor();
  mask.fill_(stack[1].toDouble());
  stack = {mask};
}

bool has_gradient(std::string_view name) {
  constexpr std::array<std::string_view, 4> kWhole{"aten::detach", "aten::detach_", "aten::arange", "aten::full"};
  for (const std::string_view known : kWhole) {
    if (name == known) return false;
  }
  return !name.starts_with("aten::new_") && !name.ends_with("_like") && !name.ends_with("::zeros") &&
         !name.ends_with("::ones");
}

/// Programs name the machine that they were written on, or none: results without a tensor to follow would be the CPU's.
void place(OperatorCall& call) {
  const auto& formals = call.handle.schema().arguments();
  bool follows = false;
  for (std::size_t i = 0; i < formals.size(); ++i) {
    const PreparedArgument& argument = call.arguments.list[i];
    follows = follows || argument.kind != PreparedArgument::Kind::Constant || argument.constant.isTensor();
    if (formals[i].name() != "device") continue;
    c10::IValue& device = call.arguments.list[i].constant;
    if (device.isDevice() || (device.isNone() && !follows && !call.device.is_cpu())) device = call.device;
  }
}

/// Whether something runs the operator on tensors of the device: a kernel of its own, or what it is made of.
bool has_kernel(const c10::OperatorHandle& handle, c10::Device device) {
  using Key = c10::DispatchKey;
  const Key own = device.is_cuda() ? Key::CUDA : Key::CPU;
  for (const Key key : {own, Key::CompositeExplicitAutograd, Key::CompositeExplicitAutogradNonFunctional,
                        Key::CompositeImplicitAutograd, Key::BackendSelect}) {
    if (handle.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

/// LibTorch's own generator is one for the whole process: who draws from it draws alone.
std::mutex& global_draws() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

tl::expected<OperatorCall, std::string> prepare_call(const Op& op, c10::Device device) {
  if (op.opaque >= 0)
    return tl::unexpected(std::string("an opaque operator: nobody can look into it, so it is planned and not run"));
  const auto handle = find_operator(op.name);
  if (!handle) return tl::unexpected(std::string("LibTorch has no such operator"));
  auto arguments = prepare_arguments(op, handle->schema());
  if (!arguments) return tl::unexpected(arguments.error());
  OperatorCall call{OperatorCall::Random::None, *handle, std::move(*arguments), op.out, 0, device, true, {}};
  if (device.is_cpu()) call.equivalent = host_equivalent(handle->schema().name());
  if (call.equivalent == nullptr && !has_kernel(*handle, device))
    return tl::unexpected(std::string("LibTorch has no kernel of it for ") + (device.is_cpu() ? "the CPU" : "CUDA"));
  if (const auto& first = call.arguments.list; !first.empty() && first.front().constant.isIntList()) {
    auto content = literal_content(op, first.front().constant.toIntVector());
    if (!content) return tl::unexpected(content.error());
    call.content = std::move(*content);
  }
  call.differentiable = has_gradient(handle->schema().name());
  place(call);
  find_randomness(call);
  find_eval_mode(call);
  return call;
}

void run_call(const OperatorCall& call, std::uint64_t seed, torch::jit::Stack& stack, bool training) {
  if (!training) {
    if (is_mask_draw(call) && stack[1].isDouble()) return fill_mask(stack);
    for (const auto& [argument, value] : call.in_eval) stack[argument] = value;
  }
  const auto run = [&call](torch::jit::Stack& on) {
    call.equivalent != nullptr ? call.equivalent(on) : call.handle.callBoxed(on);
  };
  switch (call.random) {
    case OperatorCall::Random::None:
      run(stack);
      if (call.content.defined()) stack.back().toTensor().copy_(call.content);
      return;
    case OperatorCall::Random::Argument: stack[call.generator] = generator_of(seed, call.device); return run(stack);
    case OperatorCall::Random::Global: {
      std::lock_guard lock(global_draws());
      at::Generator generator = at::globalContext().defaultGenerator(call.device);
      {
        std::lock_guard own(generator.mutex());
        generator.set_current_seed(seed);
      }
      return run(stack);
    }
  }
}

}  // namespace foreshard::exec
