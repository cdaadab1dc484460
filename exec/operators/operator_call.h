// One operator of a program, ready to be called: schema found, constants converted, random or not.
//
// Immutable after prepare_call(); usable from any thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "core/model/model.h"
#include "exec/operators/host_equivalents.h"
#include "exec/operators/operator_arguments.h"

namespace foreshard::exec {

struct OperatorCall {
  /// How an operator draws: not at all, from a generator that it is given, or from LibTorch's own.
  enum class Random : std::uint8_t { None, Argument, Global } random = Random::None;

  c10::OperatorHandle handle;
  PreparedArguments arguments;
  std::vector<ValueId> out;
  std::size_t generator = 0;  // Argument: its position on the stack
  c10::Device device{c10::kCPU};
  bool differentiable = true;  // false: its results never have a gradient (detach, zeros_like)
  /// In eval mode these stand in place of the constants: dropout that does nothing, normalisation by running numbers.
  std::vector<std::pair<std::size_t, c10::IValue>> in_eval;
  at::Tensor content;                   // what the result holds: literals of the script
  HostEquivalent equivalent = nullptr;  // what runs instead of the handle's kernel, which only CUDA has
};

/// What the program makes from nothing (arange, zeros, random numbers) is made on `device`; all else follows its
/// inputs. An unexpected sentence: no such operator, none of its kernels is for `device`, or an argument that does not
/// fit the schema.
tl::expected<OperatorCall, std::string> prepare_call(const Op& op, c10::Device device = c10::kCPU);

/// Runs the operator on the arguments that lie on the stack and leaves its results there. What it draws depends on
/// `seed` alone. `training` false: as a module in eval mode calls it. Throws LibTorch's exceptions.
void run_call(const OperatorCall& call, std::uint64_t seed, torch::jit::Stack& stack, bool training = true);

}  // namespace foreshard::exec
