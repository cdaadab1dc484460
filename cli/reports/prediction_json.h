// `simulate --json`: schema foreshard.prediction/1, docs/formats/prediction.md.
#pragma once

#include <string>

#include "cli/session/simulation.h"

namespace foreshard::cli {

std::string prediction_json(const Simulation& simulation);

}  // namespace foreshard::cli
