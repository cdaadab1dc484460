#include "core/model/facts.h"

namespace foreshard {

std::string_view lifetimes_name(Lifetimes lifetimes) {
  switch (lifetimes) {
    case Lifetimes::Built: return "built";
    case Lifetimes::Recorded: return "recorded";
    case Lifetimes::Assumed: break;
  }
  return "assumed";
}

std::string_view loss_origin(const Model& model) {
  if (!model.has_loss) return "none";
  return model.loss_begin >= 0 ? "script" : "model";
}

}  // namespace foreshard
