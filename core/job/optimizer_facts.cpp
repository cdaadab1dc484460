#include "core/job/optimizer_facts.h"

#include <cmath>

namespace foreshard {

bool is_other_elementwise(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::Adagrad:
    case OptimizerKind::RMSprop:
    case OptimizerKind::NAdam:
    case OptimizerKind::RAdam:
    case OptimizerKind::Adamax: return true;
    default: return false;
  }
}

bool is_elementwise(OptimizerKind kind) {
  return kind == OptimizerKind::AdamW || kind == OptimizerKind::Sgd || is_other_elementwise(kind);
}

std::string_view class_name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::AdamW: return "AdamW";
    case OptimizerKind::Sgd: return "SGD";
    case OptimizerKind::Adafactor: return "Adafactor";
    case OptimizerKind::Muon: return "Muon";
    case OptimizerKind::AdamW8bit: return "AdamW8bit";
    case OptimizerKind::Adagrad: return "Adagrad";
    case OptimizerKind::RMSprop: return "RMSprop";
    case OptimizerKind::NAdam: return "NAdam";
    case OptimizerKind::RAdam: return "RAdam";
    case OptimizerKind::Adamax: return "Adamax";
    case OptimizerKind::Watched: return "Optimizer";
  }
  return "";
}

bool decays_params(const OptimizerOptions& options) {
  const bool may = options.name == OptimizerKind::NAdam || options.name == OptimizerKind::RAdam;
  return options.weight_decay != 0 && may && options.decoupled_weight_decay;
}

bool decays_gradients(const OptimizerOptions& options) {
  return is_other_elementwise(options.name) && options.weight_decay != 0 && !decays_params(options);
}

double averaged_length(double beta2, std::int64_t step) {
  const double longest = 2.0 / (1.0 - beta2) - 1.0;
  if (step == 0) return longest;
  const auto count = static_cast<double>(step);
  const double power = std::pow(beta2, count);
  return longest - 2.0 * count * power / (1.0 - power);
}

std::vector<OptimizerOptions> optimizers_of(const TrainOptions& train) {
  std::vector<OptimizerOptions> all{train.optimizer};
  for (const OptimizerPart& part : train.optimizer_parts)
    if (part.steps) all.push_back(part.options);
  return all;
}

const std::string& watched_name(const OptimizerOptions& options) { return options.class_name; }

OptimizerFacts optimizer_facts(const OptimizerOptions& options) {
  switch (options.name) {
    case OptimizerKind::AdamW:
      if (options.amsgrad) return {{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, {"step"}};
      return {{"exp_avg", "exp_avg_sq"}, {"step"}};
    case OptimizerKind::RAdam: return {{"exp_avg", "exp_avg_sq"}, {"step"}};
    case OptimizerKind::NAdam: return {{"exp_avg", "exp_avg_sq"}, {"step", "mu_product"}};
    case OptimizerKind::Adamax: return {{"exp_avg", "exp_inf"}, {"step"}};
    case OptimizerKind::Adagrad: return {{"sum"}, {"step"}, true};
    case OptimizerKind::Sgd:
      if (options.momentum != 0) return {{"momentum_buffer"}, {}};
      return {};
    case OptimizerKind::RMSprop: {
      OptimizerFacts facts{{"square_avg"}, {"step"}};
      if (options.momentum > 0) facts.states.emplace_back("momentum_buffer");
      if (options.centered) facts.states.emplace_back("grad_avg");
      return facts;
    }
    default: return {};
  }
}

}  // namespace foreshard
