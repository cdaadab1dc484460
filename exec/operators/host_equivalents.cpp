#include "exec/operators/host_equivalents.h"

#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <utility>

namespace foreshard::exec {
namespace {

std::optional<double> scale_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toDouble());
}

/// scaled_dot_product_attention chose a kernel of the card's when it was captured; here it chooses again.
void attend(torch::jit::Stack& stack, const std::optional<at::Tensor>& mask, double dropout, bool causal,
            std::optional<double> scale) {
  const at::Tensor query = stack[0].toTensor(), key = stack[1].toTensor(), value = stack[2].toTensor();
  const bool grouped = query.size(1) != key.size(1);
  at::Tensor out = at::scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale, grouped);
  stack.clear();
  stack.emplace_back(std::move(out));
}

/// (query, key, value, dropout_p, is_causal, return_debug_mask, *, scale)
void flash(torch::jit::Stack& stack) {
  attend(stack, std::nullopt, stack[3].toDouble(), stack[4].toBool(), scale_of(stack[6]));
}

/// (query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, ...): two kernels, whose last is the scale.
void with_bias(torch::jit::Stack& stack) {
  const std::optional<at::Tensor> bias = stack[3].isNone() ? std::nullopt : std::optional(stack[3].toTensor());
  attend(stack, bias && bias->defined() ? bias : std::nullopt, stack[5].toDouble(), stack[6].toBool(),
         scale_of(stack.back()));
}

at::Tensor gates_of(const c10::IValue& gates, const c10::IValue& bias) {
  const bool has_bias = bias.isTensor() && bias.toTensor().defined();
  return has_bias ? gates.toTensor() + bias.toTensor() : gates.toTensor();
}

/// (input_gates, hidden_gates, cx, input_bias, hidden_bias) -> (hy, cy, workspace)
void lstm_cell(torch::jit::Stack& stack) {
  const at::Tensor gates = gates_of(stack[0], stack[3]) + gates_of(stack[1], stack[4]);
  const auto parts = gates.chunk(4, 1);
  const at::Tensor cell = parts[1].sigmoid() * stack[2].toTensor() + parts[0].sigmoid() * parts[2].tanh();
  at::Tensor hidden = parts[3].sigmoid() * cell.tanh();
  stack.clear();
  stack.emplace_back(std::move(hidden));
  stack.emplace_back(cell);
}

/// (input_gates, hidden_gates, hx, input_bias, hidden_bias) -> (hy, workspace)
void gru_cell(torch::jit::Stack& stack) {
  const auto input = gates_of(stack[0], stack[3]).chunk(3, 1);
  const auto hidden = gates_of(stack[1], stack[4]).chunk(3, 1);
  const at::Tensor before = stack[2].toTensor();
  const at::Tensor reset = (input[0] + hidden[0]).sigmoid(), update = (input[1] + hidden[1]).sigmoid();
  const at::Tensor fresh = (input[2] + reset * hidden[2]).tanh();
  at::Tensor out = fresh + update * (before - fresh);
  stack.clear();
  stack.emplace_back(std::move(out));
}

at::Tensor tensor_or_none(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }

/// (input, weight, bias, running_mean, running_var, training, momentum, epsilon)
void batch_norm(torch::jit::Stack& stack) {
  auto [out, mean, rstd] = at::native_batch_norm(
      stack[0].toTensor(), tensor_or_none(stack[1]), tensor_or_none(stack[2]), tensor_or_none(stack[3]),
      tensor_or_none(stack[4]), stack[5].toBool(), stack[6].toDouble(), stack[7].toDouble());
  stack.clear();
  stack.emplace_back(std::move(out));
}

}  // namespace

HostEquivalent host_equivalent(std::string_view schema_name) {
  constexpr std::array<std::pair<std::string_view, HostEquivalent>, 6> kKnown{{
      {"aten::_scaled_dot_product_flash_attention", flash},
      {"aten::_scaled_dot_product_efficient_attention", with_bias},
      {"aten::_scaled_dot_product_cudnn_attention", with_bias},
      {"aten::cudnn_batch_norm", batch_norm},
      {"aten::_thnn_fused_lstm_cell", lstm_cell},
      {"aten::_thnn_fused_gru_cell", gru_cell},
  }};
  for (const auto& [name, function] : kKnown) {
    if (name == schema_name) return function;
  }
  return nullptr;
}

}  // namespace foreshard::exec
