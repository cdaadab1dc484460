#include "gui/models/simulated_timeline.h"

#include "core/plan/form/plan_json.h"
#include "sim/search/prepare_job.h"

namespace foreshard::gui {

Result<Prediction> simulate_job(const Job& job, bool per_kernel) {
  const auto prepared = prepare(job);
  if (!prepared) return fail(prepared.error());
  SimulateOptions options = simulate_options(job);
  options.timeline = true;
  options.per_kernel = per_kernel;
  auto prediction = simulate(prepared->plan, prepared->model, prepared->lowered, job, prepared->profile, options);
  if (prediction) prediction->timeline.provenance.plan_digest = plan_digest(prepared->plan);
  return prediction;
}

Result<SimulatedJob> simulate_job(Workbench& workbench, const Job& job, bool per_kernel) {
  const auto parts = workbench.prepare(job);
  if (!parts) return fail(parts.error());
  SimulateOptions options = simulate_options(job);
  options.timeline = true;
  options.per_kernel = per_kernel;
  auto prediction = simulate(*parts->plan, *parts->model, *parts->lowered, job, *parts->profile, options);
  if (!prediction) return fail(prediction.error());
  return SimulatedJob{std::move(*prediction), parts->profile->memory_bytes};
}

}  // namespace foreshard::gui
