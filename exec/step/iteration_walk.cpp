#include "exec/step/iteration_walk.h"

namespace foreshard::exec {

std::int32_t first_instruction(const Plan& plan, std::size_t iteration) {
  std::size_t first = 0;
  for (std::size_t i = 0; i < iteration; ++i) first += plan.iterations[i].instructions.size();
  return static_cast<std::int32_t>(first);
}

}  // namespace foreshard::exec
