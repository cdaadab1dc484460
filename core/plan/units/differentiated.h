// Whose gradients autograd works out, which is not the same as who trains.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/plan/units/units.h"

namespace foreshard {

/// By ParamId. With fsdp1 the modules' parameters are views of one flat parameter, so that frozen ones that share a
/// unit with trainable ones have gradients too (W7); elsewhere those that train.
std::vector<bool> differentiated_params(const UnitTable& table, Runtime runtime);

/// Does autocast keep casts of parameters? Under fsdp1 they are views of the flat parameter in forward, no leaves.
bool keeps_casts(const Job& job);

}  // namespace foreshard
