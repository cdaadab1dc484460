// Many jobs that differ in a few keys: profiles, models and lowered programs are made once and shared, plans are kept
// as long as the jobs that follow each other have the same one.
//
// SharedParts may be used from several threads at once; a Workbench belongs to one thread. What is shared is never
// changed again, so answers do not depend on who asked first.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/lowering/lowering.h"
#include "core/model/model.h"
#include "core/model/sources/load_model.h"
#include "core/plan.h"
#include "core/plan/build_plan.h"
#include "core/plan/graph/module_graph.h"
#include "core/result.h"
#include "sim/machine/profile.h"
#include "sim/search/sweep_axes.h"
#include "sim/simulate.h"

namespace foreshard {

/// A value that is made once, by whoever comes first; the others wait for it.
template <class T>
class MadeOnce {
 public:
  template <class Make>
  Result<std::shared_ptr<const T>> get(const Make& make) {
    const std::lock_guard lock(mutex_);
    if (!made_) {
      Result<T> result = make();
      made_ = result ? Result<std::shared_ptr<const T>>(std::make_shared<const T>(std::move(*result)))
                     : Result<std::shared_ptr<const T>>(fail(result.error()));
    }
    return *made_;
  }

 private:
  std::mutex mutex_;
  std::optional<Result<std::shared_ptr<const T>>> made_;
};

class SharedParts {
 public:
  Result<std::shared_ptr<const HardwareProfile>> profile(const std::string& id);
  Result<std::shared_ptr<const Model>> model(const Job& job, const HardwareProfile& profile);
  /// A model that has the same plans, the same for all that have them: batch and sequence length change sizes only.
  std::shared_ptr<const Model> planned_as(const std::shared_ptr<const Model>& model);
  Result<std::shared_ptr<const LoweredProgram>> lowered(const std::shared_ptr<const Model>& model,
                                                        const std::vector<SegmentRange>& ranges,
                                                        const std::vector<bool>& trainable,
                                                        const LoweringOptions& options);

 private:
  struct ModelKey {
    ModelOptions options;
    std::optional<DType> compute, buffer;
    ProgramDevice device = ProgramDevice::Cuda;
    bool cudnn = true;
    MeshOptions mesh;
    std::int64_t world_size = 0, rank = 0;  // of a model that is cut
    Runtime runtime = Runtime::None;        // of one too: these say who sums gradients
    bool wraps_root = true;
    std::optional<Job> units;  // of one with adapters, whose dtypes hang on them
    bool full_norms = false;   // its batch norms compute in float32 under FSDP1's mixed precision
    bool operator==(const ModelKey&) const = default;
  };
  struct LoweredKey {
    std::shared_ptr<const Model> model;
    std::vector<SegmentRange> ranges;
    std::vector<bool> trainable;
    LoweringOptions options;
    bool operator==(const LoweredKey&) const = default;
  };
  template <class Key, class T>
  using Shelf = std::list<std::pair<Key, std::shared_ptr<MadeOnce<T>>>>;  // latest use first

  template <class Key, class T>
  std::shared_ptr<MadeOnce<T>> find(Shelf<Key, T>& shelf, const Key& key);

  std::mutex mutex_;
  Shelf<std::string, HardwareProfile> profiles_;
  Shelf<ModelKey, Model> models_;
  Shelf<LoweredKey, LoweredProgram> lowered_;
  std::list<std::pair<std::shared_ptr<const Model>, std::shared_ptr<const Model>>> planned_as_;  // latest use first
};

/// Whether no plan tells the models apart: they differ at most in sizes of values and in whole numbers among operators'
/// arguments.
bool plans_alike(const Model& a, const Model& b);

/// All that simulate() takes. Wrap policy `auto` and a schedule have been searched (sim/search/auto_wrap.h,
/// sim/schedule/schedule_search.h); what was found is among the plan's warnings.
struct JobParts {
  std::shared_ptr<const HardwareProfile> profile;
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const LoweredProgram> lowered;
  std::shared_ptr<const PreparedPlan> prepared;
  std::shared_ptr<std::vector<PoolTape>> others;  // SimulateOptions::record_others of the plan; empty: not recorded yet
};

/// The job without what no plan depends on (allocator, memory, rates of the optimizer, ...): equal ones have equal
/// plans.
Job plan_key(const Job& job);

class Workbench {
 public:
  explicit Workbench(SharedParts& shared) : shared_(shared) {}
  /// Another one, for another thread.
  Workbench beside() const { return Workbench(shared_); }

  /// From now on what the allocator does is written down: worth it where jobs that follow each other differ in
  /// prefetching or the card alone.
  void keep_tapes() { keeps_tapes_ = true; }

  Result<JobParts> prepare(const Job& job);
  /// prepare and simulate at unit level, as `simulate --per-unit` does.
  Result<Prediction> predict(const Job& job);
  /// The same for one of a search's candidates (SimulateOptions::below_ns). What the allocator does is written down
  /// when the second one comes that differs in prefetching or the card alone: most have none like them.
  Result<Prediction> predict_candidate(const Job& job, double below_ns);

 private:
  struct Lowered {
    std::shared_ptr<const Model> model;
    LoweringOptions options;
    std::shared_ptr<const LoweredProgram> program;
  };
  struct Planned {
    Job key;
    std::shared_ptr<const Model> model;  // SharedParts::planned_as
    std::shared_ptr<const Plan> plan;
    std::shared_ptr<const PreparedPlan> prepared;
    std::shared_ptr<std::vector<PoolTape>> others;
    std::shared_ptr<const UnitTable> units;
    std::vector<CheckpointKind> checkpointed;
    std::list<Lowered> lowered;  // latest first
  };
  struct Units {
    Job key;
    std::shared_ptr<const Model> model;
    std::shared_ptr<const UnitTable> units;
  };
  struct Graph {
    std::shared_ptr<const Model> model;
    std::vector<bool> boundary;
    std::vector<CheckpointKind> checkpoint;
    bool inside = true;
    std::vector<bool> differentiated;
    std::shared_ptr<const ModuleGraph> graph;
    GraphAutograd autograd;
  };
  static constexpr std::size_t kKept = 4;
  static constexpr std::size_t kKeptTapes = SweepGrid::kTogether;

  Result<Planned> plan(const Job& job, const Job& key, const std::shared_ptr<const Model>& model);
  Result<std::shared_ptr<const LoweredProgram>> lowered(Planned& planned, const std::shared_ptr<const Model>& model,
                                                        const LoweringOptions& options);

  /// Valid until the next one is asked for.
  Result<Graph*> graph(const std::shared_ptr<const Model>& model, const std::vector<bool>& boundary,
                       const std::vector<CheckpointKind>& checkpoint, bool inside,
                       const std::vector<bool>& differentiated);

  struct Wrapped {
    Job key;
    std::shared_ptr<const Model> model;
    Job job;
    std::vector<std::string> texts;
  };
  /// The job with the units that wrap policy `auto` finds for it, and with its schedule.
  Result<Wrapped> wrapped(const Job& job, const std::shared_ptr<const Model>& model, const HardwareProfile& profile);

  struct Taped {
    Job key;
    std::shared_ptr<const LoweredProgram> lowered;
    std::shared_ptr<PoolTape> tape;  // none: such a job was played once
  };
  /// What the allocator did for a job that differs in prefetching or the card at most; recorded anew where there is
  /// none, `at_once` or when the second such job comes.
  void use_tape(const Job& job, const JobParts& parts, bool at_once, SimulateOptions& options);
  /// What streams but the compute stream do under one plan.
  static void use_tapes_of_others(const Job& job, const JobParts& parts, SimulateOptions& options);
  static Result<Prediction> played(const Job& job, const JobParts& parts, SimulateOptions options);

  SharedParts& shared_;
  bool keeps_tapes_ = false;
  std::list<Taped> tapes_;      // latest use first
  std::list<Wrapped> wrapped_;  // latest first
  std::list<Planned> planned_;  // latest use first
  std::list<Units> units_;      // likewise
  std::list<Graph> graphs_;     // likewise
};

}  // namespace foreshard
