#include "sim/play/instructions/step_calls.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace foreshard {
namespace {

using Calls = std::vector<StepCall>;

// Variables, in the order in which a function that ends drops them.
constexpr int kGradient = 0, kRoot = 1, kNumerator = 2, kPart = 3, kOther = 4, kTerm = 5, kVariables = 6;

// What operators read and write of a parameter's size.
constexpr int kInPlace = 2, kCopy = 2, kLerp = 3, kAddcmul = 3, kAdd = 3, kAddcdiv = 4;

Calls adagrad_lists(bool decays) {
  Calls calls{{kAddcmul}, {kCopy, kRoot}, {kInPlace}};
  if (decays)
    calls.push_back({kInPlace});  // the decayed gradients become the numerator
  else
    calls.push_back({kCopy, kNumerator});
  calls.push_back({kAddcdiv});
  return calls;
}

Calls adagrad_loop() { return {{kAddcmul}, {kCopy, kRoot}, {kInPlace}, {kAddcdiv}}; }

/// Over lists and by a loop.
Calls rmsprop(const OptimizerOptions& options) {
  Calls calls{{kInPlace}, {kAddcmul}};
  if (options.centered) {
    calls.push_back({kLerp});
    calls.push_back({kAddcmul, kRoot});
    calls.push_back({kInPlace});  // its root
  } else {
    calls.push_back({kCopy, kRoot});
  }
  calls.push_back({kInPlace});
  if (options.momentum > 0) {
    calls.push_back({kInPlace});
    calls.push_back({kAddcdiv});
    calls.push_back({kAdd});
  } else {
    calls.push_back({kAddcdiv});
  }
  return calls;
}

Calls nadam_lists() {
  return {{kLerp}, {kInPlace}, {kAddcmul}, {kCopy, kRoot}, {kInPlace}, {kInPlace}, {kAddcdiv}, {kAddcdiv}};
}

Calls nadam_loop() {
  return {{kLerp}, {kInPlace}, {kAddcmul}, {kCopy, kPart}, {kCopy, kRoot, {kPart}}, {kInPlace}, {kAddcdiv}, {kAddcdiv}};
}

Calls radam_lists() {
  return {{kLerp},        {kInPlace}, {kAddcmul, StepCall::kNone, {kGradient}},
          {kCopy, kRoot}, {kInPlace}, {kInPlace},
          {kInPlace},     {kInPlace}, {kAddcmul + 1}};
}

/// The corrected average times the rate; then times a reciprocal root times a number, where there is an adaptive rate.
Calls radam_loop(bool rectified) {
  Calls calls{{kLerp}, {kInPlace}, {kAddcmul}, {kCopy, kRoot}, {kCopy, kPart}};
  if (!rectified) {
    calls.push_back({kAdd, StepCall::kNone, {kPart}});
    return calls;
  }
  calls.push_back({kCopy, kNumerator});  // the root of the squares
  calls.push_back({kInPlace});
  calls.push_back({kCopy, kTerm});                        // its reciprocal
  calls.push_back({kCopy, kOther, {kTerm, kNumerator}});  // the adaptive rate
  calls.push_back({kAdd, kTerm, {kPart, kOther}});
  calls.push_back({kCopy, kPart, {kTerm}});
  calls.push_back({kAdd, StepCall::kNone, {kPart}});
  return calls;
}

Calls adamax_lists(bool decays) {
  Calls calls{{kLerp}, {kInPlace}};
  if (decays)
    calls.push_back({kInPlace});  // of the decayed gradients
  else
    calls.push_back({kCopy, kGradient});
  calls.push_back({kInPlace});
  calls.push_back({kAdd});
  calls.push_back({kAddcdiv});
  return calls;
}

Calls adamax_loop() {
  return {{kLerp}, {kInPlace}, {kCopy, kPart}, {kInPlace}, {kAdd, StepCall::kNone, {kPart}}, {kAddcdiv}};
}

Calls calls_of(const OptimizerOptions& options, bool lists, bool decays, std::int64_t step) {
  switch (options.name) {
    case OptimizerKind::Adagrad: return lists ? adagrad_lists(decays) : adagrad_loop();
    case OptimizerKind::RMSprop: return rmsprop(options);
    case OptimizerKind::NAdam: return lists ? nadam_lists() : nadam_loop();
    case OptimizerKind::RAdam: return lists ? radam_lists() : radam_loop(averaged_length(options.beta2, step) > 5);
    case OptimizerKind::Adamax: return lists ? adamax_lists(decays) : adamax_loop();
    default: return {};
  }
}

}  // namespace

std::vector<StepCall> step_calls(const OptimizerOptions& options, bool lists, std::int64_t step) {
  const bool decays = decays_gradients(options);
  Calls calls;
  if (decays_params(options)) calls.push_back({kInPlace});
  if (decays && !lists) calls.push_back({0, StepCall::kNone, {kGradient}});  // the loop names the next gradient
  if (decays) calls.push_back({kAdd, kGradient});
  std::ranges::move(calls_of(options, lists, decays, step), std::back_inserter(calls));
  return calls;
}

bool play_step_calls(Device& device, Stream stream, const ActivitySpan& what, const std::vector<LocalParam>& params,
                     const std::vector<StepCall>& calls, bool lists) {
  std::array<std::vector<BlockHandle>, kVariables> named;
  const auto drop = [&](int variable) {
    free_list(device, std::exchange(named[static_cast<std::size_t>(variable)], {}));
  };
  const auto play = [&](const std::vector<LocalParam>& these) {
    for (const StepCall& call : calls) {
      std::vector<BlockHandle> made;
      for (const LocalParam& param : these) {
        if (call.makes == StepCall::kNone) break;
        made.push_back(device.book.allocate(param.bytes, static_cast<int>(stream), MemoryCategory::Temporaries));
        if (made.back() == kNoBlock) return false;
      }
      if (call.passes > 0 && lists) list_call(device, stream, what, call.passes, these);
      if (call.passes > 0 && !lists) {
        const LocalParam& param = these.front();
        device.launch(stream, device.cost.op_ns() + device.cost.launch_ns(),
                      device.cost.copy(param.bytes * call.passes, param.dtype), what);
      }
      for (const int variable : call.drops) drop(variable);
      if (call.makes == StepCall::kNone) continue;
      drop(call.makes);
      named[static_cast<std::size_t>(call.makes)] = std::move(made);
    }
    return true;
  };
  bool fits = true;
  if (lists) fits = play(params);
  for (std::size_t k = 0; !lists && fits && k < params.size(); ++k) fits = play({params[k]});
  for (int variable = 0; fits && variable < kVariables; ++variable) drop(variable);
  return fits;
}

}  // namespace foreshard
