// Why a prediction is as it is: who holds what at the peak, what leaves communication exposed and which change removes
// how much of it, and what in the job is not as its owner may think.
//
// Changes are found by simulating them, never by formula. Deterministic; times in nanoseconds, sizes in bytes.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"
#include "core/plan.h"
#include "core/result.h"
#include "sim/search/prepare_job.h"
#include "sim/simulate.h"

namespace foreshard {

/// A collective of the steady iteration that ran while the compute stream stood idle; equal ones are one entry.
struct ExposedCollective {
  std::string kind, unit, phase;
  std::int64_t count = 0;
  SimDuration exposed = 0;
};

/// What keeps communication exposed.
enum class ExposureCause { HostLate, Limiter, Prefetch, Link, Interference };
std::string_view exposure_cause_name(ExposureCause cause);  // "host_late", ...

/// One change, simulated.
struct ChangeEffect {
  std::string text;
  std::vector<std::string> set;  // ready for --set; empty: no setting does it, it shows what a cause costs
  ExposureCause cause = ExposureCause::Link;
  SimDuration step_time = 0;     // with the change
  SimDuration removed_time = 0;  // from the step; negative: it takes longer
  SimDuration removed_exposed = 0;
  Bytes peak_reserved = 0;
  bool fits = true;
};

/// Something that the job's owner should know: a need of the semantics page's section 22, or a trap of section 24.
struct Finding {
  int need = 0;  // section 22
  int trap = 0;  // section 24; 0 = none
  std::string text;
  std::vector<std::string> set;  // what would change it; may be empty
};

/// A gather that was issued ahead for a unit that is not the next one to be used, or is never used.
struct Mistarget {
  InstructionId instruction;  // position in the iteration
  UnitId unit;
  bool wasted = false;  // no use before it is gathered again, or before the iteration ends
  UnitId needed_first;  // else: the unit that is used before it but gathered after it
};

struct Explanation {
  std::vector<MemoryHolder> holders;  // at the peak, largest first
  std::vector<ExposedCollective> exposed;
  SimDuration step_time = 0, exposed_time = 0;
  std::vector<ChangeEffect> changes;   // that remove time, most first; what no setting does stands after them
  std::vector<std::string> not_tried;  // degrees of a mesh that cannot be, with why
  std::vector<Finding> findings;
};

/// REQUIRES `prepared` and a fitting prediction are those of the job. A job that does not fit has holders and findings
/// only.
Result<Explanation> explain(const Job& job, const Prepared& prepared);

/// Gathers of an iteration that do not serve the next unit. A unit around the one that is used first is none: it is
/// gathered when its own forward begins. Pure; by position.
std::vector<Mistarget> find_mistargets(const Plan& plan, const PlanIteration& iteration);

/// How often each unit is gathered in an iteration, by UnitId.
std::vector<std::int64_t> gathers_by_unit(const Plan& plan, const PlanIteration& iteration);

}  // namespace foreshard
