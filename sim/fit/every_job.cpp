#include "sim/fit/every_job.h"

#include "core/mesh/rank_model.h"

namespace foreshard {

Result<EveryJob> try_every_job(const FitRequest& request) {
  EveryJob out;
  SharedParts shared;
  Workbench bench(shared);
  for (const FitLine& line : fit_lines(request.job, request)) {
    if (line.refused) continue;
    const auto batches = fit_axes::batches(line.job, request.tokens_per_step);
    if (!batches) {
      if (!is_cut(line.job.mesh)) return fail(batches.error());
      continue;
    }
    for (const fit_axes::Batch& batch : *batches) {
      const auto trial = try_job(bench, line.job, batch);
      if (!trial) break;
      ++out.simulated;
      if (trial->fits && (!out.best || trial->ns_per_token < out.best->ns_per_token)) out.best = *trial;
    }
  }
  return out;
}

}  // namespace foreshard
