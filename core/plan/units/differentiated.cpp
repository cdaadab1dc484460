#include "core/plan/units/differentiated.h"

namespace foreshard {

std::vector<bool> differentiated_params(const UnitTable& table, Runtime runtime) {
  std::vector<bool> out = table.trainable;
  if (runtime != Runtime::Fsdp1) return out;
  for (std::size_t p = 0; p < out.size() && p < table.unit_of_param.size(); ++p) {
    const UnitId unit = table.unit_of_param[p];
    if (unit.valid() && table.units[unit.index()].requires_grad) out[p] = true;
  }
  return out;
}

bool keeps_casts(const Job& job) { return job.model.autocast_cache && job.fsdp.runtime != Runtime::Fsdp1; }

}  // namespace foreshard
