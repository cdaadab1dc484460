// A schedule while it is searched for: decisions by unit as small numbers, and the job that they stand for.
//
// Units are numbered as in the plan of the job under fsdp2; starts are places in the order in which units run. Plain
// values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/units.h"
#include "sim/schedule/unit_schedule.h"

namespace foreshard {

enum class KeepParams : std::uint8_t { AsJob, Reshard, Keep, Always };
enum class KeepActivations : std::uint8_t { AsJob, Keep, Recompute };

struct UnitChoice {
  KeepParams params = KeepParams::AsJob;
  int forward = 0, backward = 0;  // places in UnitFrame::forward, ::backward before which gathers are issued
  bool operator==(const UnitChoice&) const = default;
};

/// What recomputes as one: a block of the architecture, or those that one unit groups.
struct ScheduledBlock {
  std::vector<std::string> modules;
  Numel numel = 0;          // of its parameters, whole
  int kind = 0;             // equal: as many parameters, and operators of the same names and results in the same order
  int unit = -1;            // that it is; -1: it lies in one, or has some inside
  bool recomputed = false;  // as the job has it
};

/// What the decisions are about: the units of one way of wrapping, and the blocks.
struct UnitFrame {
  Job job;                                        // as given, with this wrapping
  std::shared_ptr<const Plan> plan;               // fsdp2's
  std::vector<std::string> names;                 // by unit: its first module
  std::vector<std::vector<std::string>> modules;  // by unit: that it groups
  std::vector<Bytes> bytes;                       // by unit: gathered parameters
  std::vector<int> forward, backward;             // units that have parameters, in the order in which they run
  std::vector<int> forward_at, backward_at;       // by unit: its place there, -1 if it does not run
  std::vector<bool> kept;                         // by unit: as the job has it
  std::vector<bool> block;                        // by unit: it is one
  std::vector<ScheduledBlock> blocks;             // in the order of the model; none where the job says finer things
  std::vector<std::string> recomputed;            // modules that recompute as the job has it, and are no such block
  std::vector<UnitChoice> own_starts;             // fsdp2's own starts
};

/// `blocks`, `checkpointed`: by module, what may recompute and what does as the job has it.
UnitFrame frame_of_units(const Job& job, const Model& model, std::shared_ptr<const Plan> plan,
                         const std::vector<bool>& blocks, const std::vector<bool>& checkpointed);

struct Candidate {
  std::vector<UnitChoice> units;
  std::vector<KeepActivations> activations;  // by block
  bool starts = false;  // false: gathers start as fsdp2's rule, and the job's own prefetch options, have them
  bool operator==(const Candidate&) const = default;

  /// Equal ones are equal.
  std::string key() const;
};

/// Names of modules; the root's is "".
bool is_within(const std::string& inner, const std::string& outer);
/// Parameters of a module, without and with what lies inside.
Numel own_numel(const Model& model, const ModuleInfo& module);
Numel numel_within(const Model& model, const std::string& name);

/// Nothing decided: fsdp2's schedule of the job.
Candidate as_fsdp2(const UnitFrame& frame);

bool keeps_params(const UnitFrame& frame, const Candidate& candidate, int unit);
bool recomputes(const UnitFrame& frame, const Candidate& candidate, int block);

/// Modules that recompute.
std::vector<std::string> recomputed_modules(const UnitFrame& frame, const Candidate& candidate);

/// Whether one of `modules` is the unit, lies in it or has it inside.
bool meets_unit(const UnitFrame& frame, int unit, const std::vector<std::string>& modules);

/// Everything decided stands in the job's own keys (core/plan/planned/planned_runtime.h); nothing is searched.
Job job_of(const UnitFrame& frame, const Candidate& candidate);

}  // namespace foreshard
