#include "sim/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "core/job/optimizer_facts.h"
#include "core/model/mesh_dimension.h"
#include "core/plan/planned/arena.h"
#include "sim/device/device.h"
#include "sim/device/root_streams.h"
#include "sim/play/action_start.h"
#include "sim/play/core_sharing.h"
#include "sim/play/exposure.h"
#include "sim/play/plan_player.h"
#include "sim/play/timeline_builder.h"
#include "sim/refusals.h"
#include "sim/settling.h"

namespace foreshard {
namespace {

constexpr int kMostIterations = 1000;
constexpr std::size_t kMostSettling = 64, kLeastSettling = 8;  // iterations beyond the plan's ...
constexpr std::size_t kSettlingInstructions = 65536;           // ... as many as these make

Estimate around(double value, double below, double above) { return {value, value / (1 + below), value * (1 + above)}; }

/// CUDA context and communicators; cuBLAS's workspaces come from the allocator. Wide: drivers and NCCL settings differ.
Estimate memory_outside(const Plan& plan, const Job& job, const HardwareProfile& profile) {
  const auto context = profile.extra.find("context_bytes");
  double bytes = profile.kind == "gpu" ? 600.0 * static_cast<double>(kMiB) : 0;
  if (context != profile.extra.end()) bytes = context->second;
  for (const PlanCommunicator& one : plan.communicators) {
    bytes += static_cast<double>(communicator_bytes(profile, place_group(one.ranks, job.cluster.ranks_per_node)));
  }
  return {bytes, bytes * 0.6, bytes * 2.0};
}

IterationResult result_of(const PlanPlayer& player, const Device& device, std::int32_t index, SimTime begin,
                          SimTime end) {
  IterationResult result;
  result.index = index;
  result.step_time = end - begin;
  result.host_wait = player.host_wait();
  const AllocatorStats& now = device.allocator.stats();
  result.stats = now;
  for (const PlanPlayer::PhaseEnd& phase : player.phases()) {
    const AllocatorStats& stats = phase.stats;
    for (const auto stat : {&AllocatorStats::allocated, &AllocatorStats::active, &AllocatorStats::reserved,
                            &AllocatorStats::requested, &AllocatorStats::inactive_split}) {
      (result.stats.*stat).peak = std::max((result.stats.*stat).peak, (stats.*stat).peak);
    }
    result.phases.push_back({std::string(loop_phase_name(phase.phase)), stats.allocated.peak, stats.allocated.current,
                             stats.reserved.peak, stats});
  }
  result.peak_allocated = result.stats.allocated.peak;
  result.peak_active = result.stats.active.peak;
  result.peak_reserved = result.stats.reserved.peak;
  result.peak_requested = result.stats.requested.peak;
  result.end_allocated = now.allocated.current;
  result.end_active = now.active.current;
  result.end_reserved = now.reserved.current;
  result.end_requested = now.requested.current;
  result.alloc_retries = now.retries;
  result.ooms = now.ooms;
  result.device_used = device.driver.used();
  result.device_peak = device.driver.peak();
  return result;
}

/// One simulation, from wrapping to the last iteration.
class Simulation {
 public:
  Simulation(const Plan& plan, const Model& model, const LoweredProgram& lowered, const Job& job,
             const HardwareProfile& profile, const SimulateOptions& options, Bytes memory)
      : by_root_(plan, model, job),
        plan_(by_root_.plan()),
        model_(model),
        lowered_(lowered),
        job_(job),
        limited_(job.cluster.nccl_max_ctas > 0 ? std::optional(with_max_ctas(profile, job.cluster.nccl_max_ctas))
                                               : std::nullopt),
        profile_(limited_ ? *limited_ : profile),
        options_(options),
        device_(profile_, job.allocator, memory, by_root_.streams()) {
    device_.activity.keep_spans = options.timeline;
    if (options.holders) device_.book.keep_holders();
    if (options.memory_log != nullptr) device_.book.log_to(options.memory_log);
    if (options.memory_log != nullptr || !device_.allocator.tapes().can_follow()) return;
    if (options.follow_pools != nullptr)
      device_.allocator.tapes().follow(index_of(Stream::D), *options.follow_pools);
    else if (options.record_pools != nullptr)
      device_.allocator.tapes().record(index_of(Stream::D), options.record_pools);
    tape_others();
  }

  /// When work runs, if something else says so than the clock: sim/play/core_sharing.h.
  void follow(const std::vector<WorkSpan>& schedule) { schedule_ = &schedule; }

  Prediction run() {
    start({}, false);
    advance();
    return finish();
  }

  /// Wrapping. With `meets` advance() pauses before every collective.
  void start(const RankSpeed& speed, bool meets) {
    prediction_.level = profile_.level;
    prediction_.unknown_ops = lowered_.unknown_ops;
    prediction_.lifetimes = model_.lifetimes;
    prediction_.assumes_choices = model_.assumes_choices;
    prediction_.memory.outside_allocator = memory_outside(plan_, job_, profile_);
    initialise();
    device_.clock.record_on(options_.tape);
    if (schedule_ != nullptr) device_.clock.follow(*schedule_);
    meets_ = meets;
    if (options_.prepared == nullptr) prepared_.emplace(plan_, model_);
    const PreparedPlan& prepared = options_.prepared != nullptr ? *options_.prepared : *prepared_;
    FORESHARD_CHECK(prepared.lists.size() == plan_.iterations.size(), "a plan is prepared as it is played");
    PlayRequest request{
        plan_, model_, lowered_, job_, prepared, options_.per_kernel, speed, arena_ ? &*arena_ : nullptr, meets};
    const CachingAllocator& allocator = device_.allocator;
    if (sums_up_runs() && speed.plain()) {
      if (allocator.tapes().records(index_of(Stream::D))) request.record_runs = options_.record_pools;
      if (allocator.tapes().follows(index_of(Stream::D))) request.follow_runs = options_.follow_pools;
    }
    request.waived = options_.waived;
    player_.emplace(request, device_, std::move(buffers_));
  }

  /// True: a collective waits for meet(). False: everything has been played.
  bool advance() {
    if (!prediction_.fits || ended_) return false;
    while (is_open_ || open_iteration()) {
      if (player_->advance() == PlanPlayer::Progress::Meeting) return true;
      if (!close_iteration()) break;
    }
    ended_ = true;
    return false;
  }
  /// Nothing has stopped it.
  bool plays() const { return prediction_.fits && prediction_.deadlock.empty(); }
  /// Whether the last step was no steady one and another may be. Ranks that meet go on together: go_on().
  bool unsettled() const {
    return plays() && !settling_.settled() && options_.iterations == 0 && plan_.steady &&
           static_cast<std::size_t>(next_) < plan_.iterations.size() + most_settling() &&
           !gives_up(steps_of(prediction_), plan_.iterations.size(), options_.below_ns);
  }
  /// One iteration more.
  void go_on() {
    goes_on_ = true;
    ended_ = false;
  }
  const PlanPlayer::Meeting& meeting() const { return player_->meeting(); }
  void meet(SimTime begin, SimDuration time) { player_->meet(begin, time); }

  Prediction finish() {
    conclude();
    return std::move(prediction_);
  }

 private:
  void tape_others() {
    PoolTapes& tapes = device_.allocator.tapes();
    if (options_.record_others != nullptr) options_.record_others->resize(by_root_.streams());
    for (std::size_t s = 0; s < by_root_.streams(); ++s) {
      if (s == static_cast<std::size_t>(index_of(Stream::D))) continue;
      if (options_.follow_others != nullptr)
        tapes.follow(static_cast<int>(s), (*options_.follow_others)[s]);
      else if (options_.record_others != nullptr)
        tapes.record(static_cast<int>(s), &(*options_.record_others)[s]);
    }
  }

  std::size_t most_settling() const {
    const std::size_t each = std::max<std::size_t>(1, plan_.iterations.back().instructions.size());
    return std::clamp(kSettlingInstructions / each, kLeastSettling, kMostSettling);
  }

  /// Nobody wants to know of single kernels or blocks.
  bool sums_up_runs() const {
    return !options_.timeline && !options_.holders && options_.memory_log == nullptr && options_.tape == nullptr &&
           schedule_ == nullptr && device_.clock.mode() == ClockMode::Model;
  }

  void initialise() {
    const bool action = is_action_plan(plan_);
    if (!(action ? play_action_start(device_, plan_, model_, job_, buffers_)
                 : play_initialisation(device_, plan_, model_, job_, buffers_))) {
      return nothing_fits(0);
    }
    const bool constructs = !action && optimizer_facts(job_.train.optimizer).made_by_constructor;
    if (constructs && !hold_optimizer_state(device_, plan_, model_, job_)) return nothing_fits(0);
    if (!action && !make_arena()) return;
    device_.clock.device_synchronize();
    if (options_.empty_cache_after_init) device_.allocator.empty_cache();
    const AllocatorStats& stats = device_.allocator.stats();
    prediction_.init_allocated = stats.allocated.current;
    prediction_.init_active = stats.active.current;
    prediction_.init_reserved = stats.reserved.current;
    prediction_.init = stats;
  }

  void nothing_fits(Bytes requested) {
    prediction_.fits = false;
    OutOfMemory oom;
    oom.phase = "init";
    oom.requested = requested;
    oom.free = device_.driver.free_bytes();
    prediction_.oom = oom;
  }

  /// One block a stream, as long as the plan is played. False: one does not fit.
  bool make_arena() {
    if (!has_arena(plan_, job_.schedule)) return true;
    arena_ = lay_out_arena(plan_);
    for (std::size_t s = 0; s < kStreamCount; ++s) {
      if (arena_->bytes[s] == 0) continue;
      if (device_.book.allocate(arena_->bytes[s], static_cast<int>(s), MemoryCategory::CommBuffers) != kNoBlock)
        continue;
      nothing_fits(arena_->bytes[s]);
      return false;
    }
    return true;
  }

  /// The next iteration, if there is one.
  bool open_iteration() {
    const int planned = static_cast<int>(plan_.iterations.size());
    const int wanted = options_.iterations > 0 ? std::min(options_.iterations, kMostIterations) : planned;
    if (planned == 0 || (next_ >= wanted && !std::exchange(goes_on_, false))) return false;
    const int k = next_++;
    const auto index = static_cast<std::size_t>(std::min(k, planned - 1));
    const PlanIteration& iteration = plan_.iterations[index];
    const std::int32_t first = issued_;
    issued_ += static_cast<std::int32_t>(iteration.instructions.size());
    issues_.push_back({first, &iteration});
    const SimTime begin = std::max(last_end_, options_.synchronize_each_step ? device_.clock.host() : SimTime{0});
    if (k == 0) last_end_ = device_.clock.host();
    played_.push_back({k, k == 0 ? last_end_ : begin, InstructionId(first), device_.clock.host()});
    device_.activity.gaps.clear();
    device_.activity.collectives.clear();
    busy_before_ = device_.activity.compute_busy;
    settling_.begin(device_);
    player_->begin(index, std::max(0, k - (planned - 1)), first);
    is_open_ = true;
    return true;
  }

  /// False if memory ran out in it, or it waits for ever.
  bool close_iteration() {
    is_open_ = false;
    const int k = next_ - 1;
    const PlanPlayer::Outcome outcome = player_->outcome();
    if (outcome != PlanPlayer::Outcome::Done) {
      const std::size_t last = plan_.iterations.size() - 1;
      stopped(*player_, outcome, k, plan_.iterations[std::min(static_cast<std::size_t>(k), last)]);
      return false;
    }
    if (options_.synchronize_each_step) {
      device_.clock.device_synchronize();
      device_.clock.host_cost(profile_.call_ns);
    }
    if (options_.tape != nullptr) options_.tape->end_iteration();
    const SimTime end =
        std::max(device_.clock.device_tail(), options_.synchronize_each_step ? device_.clock.host() : last_end_);
    device_.activity.gaps.push_back({std::max(device_.compute_tail, played_.back().begin), end, false, Phase::None});
    IterationResult result = result_of(*player_, device_, k, played_.back().begin, end);
    result.compute = device_.activity.compute_busy - busy_before_;
    const Exposure exposure = find_exposure(device_.activity, played_.back().begin, end);
    result.exposed_comm = exposure.exposed;
    result.idle = exposure.idle;
    prediction_.comm = exposure.comm;
    prediction_.exposed = exposure.causes;
    prediction_.iterations.push_back(std::move(result));
    last_end_ = end;
    settling_.note(device_, prediction_.iterations);
    goes_on_ = !meets_ && unsettled();
    return true;
  }

  void stopped(const PlanPlayer& player, PlanPlayer::Outcome outcome, int k, const PlanIteration& iteration) {
    const PlayStop& stop = player.stop();
    const Instruction& i = iteration.instructions[static_cast<std::size_t>(stop.instruction)];
    if (outcome == PlanPlayer::Outcome::Deadlock) {
      prediction_.deadlock = stop.text;
      return;
    }
    prediction_.fits = false;
    prediction_.unfinished = result_of(player, device_, k, played_.back().begin, device_.clock.host());
    OutOfMemory oom;
    oom.iteration = k;
    oom.instruction = InstructionId(issues_.back().first + stop.instruction);
    if (i.unit.valid() && i.unit.index() < plan_.units.size()) oom.unit = plan_.units[i.unit.index()].name;
    oom.phase = std::string(loop_phase_name(stop.phase));
    oom.requested = stop.requested;
    oom.free = stop.free;
    prediction_.oom = std::move(oom);
  }

  void conclude() {
    prediction_.events = device_.activity.events + device_.allocator.stats().allocations;
    PeakMemory& memory = prediction_.memory;
    const MemoryPeaks highest =
        device_.allocator.highest();  // wrapping and an iteration that was not finished counted in
    memory.allocated = highest.allocated;
    memory.active = highest.active;
    memory.reserved = highest.reserved;
    memory.pinned_host = device_.pinned_host;
    const std::size_t steps = prediction_.iterations.size();
    if (!settling_.settled() && prediction_.fits && steps > 1) {
      const Bytes last = prediction_.iterations[steps - 1].peak_reserved;
      memory.growth = std::max<Bytes>(0, last - prediction_.iterations[steps - 2].peak_reserved);
    }
    for (std::size_t c = 0; c < kMemoryCategories; ++c) {
      const Bytes bytes = device_.book.at_peak()[c];
      if (bytes > 0)
        memory.categories.push_back({std::string(memory_category_name(static_cast<MemoryCategory>(c))), bytes});
    }
    std::stable_sort(memory.categories.begin(), memory.categories.end(),
                     [](const CategoryBytes& a, const CategoryBytes& b) { return a.bytes > b.bytes; });
    const std::int32_t at = device_.book.peak_instruction();
    if (const Instruction* const made_by = instruction_at(at); made_by != nullptr) {
      const Instruction& i = *made_by;
      memory.instruction = InstructionId(at);
      if (i.unit.valid() && i.unit.index() < plan_.units.size()) memory.unit = plan_.units[i.unit.index()].name;
      memory.phase = std::string(phase_name(i.phase));
    } else {
      memory.phase = "init";
    }
    holders();
    memory_log();
    speed();
    if (options_.timeline && player_) {
      prediction_.timeline = build_timeline(plan_, lowered_, device_, *player_, all_instructions(), played_);
    }
  }

  const Instruction* instruction_at(std::int32_t id) const {
    if (id < 0 || id >= issued_) return nullptr;
    const auto after =
        std::find_if(issues_.begin(), issues_.end(), [id](const Issue& issue) { return issue.first > id; });
    const Issue& issue = *(after - 1);
    return &issue.iteration->instructions[static_cast<std::size_t>(id - issue.first)];
  }

  /// By the id under which each was played.
  std::vector<const Instruction*> all_instructions() const {
    std::vector<const Instruction*> all;
    for (const Issue& issue : issues_) {
      for (const Instruction& i : issue.iteration->instructions) all.push_back(&i);
    }
    return all;
  }

  void holders() {
    std::map<std::tuple<std::int32_t, std::int32_t, MemoryCategory>, MemoryHolder> groups;
    for (const MemoryBook::Holder& held : device_.book.holders_at_peak()) {
      const Instruction* made_by = instruction_at(held.instruction);
      std::int32_t unit = held.unit;
      if (unit < 0 && made_by != nullptr) unit = made_by->unit.value;
      MemoryHolder& group = groups[{held.instruction, unit, held.category}];
      if (group.blocks++ == 0) {
        if (unit >= 0 && static_cast<std::size_t>(unit) < plan_.units.size())
          group.unit = plan_.units[static_cast<std::size_t>(unit)].name;
        group.category = std::string(memory_category_name(held.category));
        group.phase = made_by != nullptr ? std::string(phase_name(made_by->phase)) : "init";
        group.instruction = InstructionId(held.instruction);
        group.iteration = held.iteration;
      }
      group.bytes += held.bytes;
    }
    std::vector<MemoryHolder>& list = prediction_.memory.holders;
    for (auto& [key, group] : groups) list.push_back(std::move(group));
    std::stable_sort(list.begin(), list.end(),
                     [](const MemoryHolder& a, const MemoryHolder& b) { return a.bytes > b.bytes; });
  }

  void memory_log() {
    if (options_.memory_log == nullptr) return;
    options_.memory_log->segments = device_.allocator.held_segments();
    for (std::size_t k = 0; k < options_.memory_log->origins.size(); ++k) {
      MemoryOrigin& origin = options_.memory_log->origins[k];
      const Instruction* made_by = instruction_at(origin.instruction);
      const std::int32_t unit = device_.book.origin_units()[k];
      const UnitId owner = unit < 0 && made_by != nullptr ? made_by->unit : UnitId(unit);
      if (owner.valid() && owner.index() < plan_.units.size()) origin.unit = plan_.units[owner.index()].name;
      origin.phase = made_by != nullptr ? std::string(phase_name(made_by->phase)) : "init";
    }
  }

  /// Ranks that see tokens of their own: those of a mesh's tensor and context dimensions share theirs.
  double data_ranks() const {
    auto ranks = static_cast<double>(plan_.world_size);
    for (const MeshDimension& dimension : model_.mesh)
      if (shares_samples(dimension)) ranks /= static_cast<double>(dimension.ranks.size());
    return ranks;
  }

  /// By what share a real step may be longer, nine times of ten: the profile's interval and, where nobody measured the
  /// network, half of it, as errors that know nothing of each other.
  double longer_by(double step) const {
    const double slower = static_cast<double>(prediction_.between_nodes.step_at_half) / step - 1;
    return std::hypot(profile_.interval, std::max(slower, 0.0));
  }

  /// Of the step that is told: what was found of the last one, in proportion.
  BetweenNodes between_nodes(double step) const {
    BetweenNodes found = find_between_nodes(device_.activity, played_.back().begin, last_end_);
    const auto last = static_cast<double>(prediction_.iterations.back().step_time);
    found.step_at_half = static_cast<SimDuration>(static_cast<double>(found.step_at_half) * step / last);
    return found;
  }

  /// The last one. Where the allocator never comes to rest, most often because it alternates between two states, the
  /// mean of the last two.
  double told_step() const {
    const std::vector<IterationResult>& all = prediction_.iterations;
    const auto last = static_cast<double>(all.back().step_time);
    const bool alternates = !settling_.settled() && plays() && all.size() > plan_.iterations.size() + 1;
    return alternates ? (last + static_cast<double>(all[all.size() - 2].step_time)) / 2 : last;
  }

  void speed() {
    if (prediction_.iterations.empty()) return;
    const double step = told_step();
    if (step <= 0) return;
    if (!prediction_.unfinished) prediction_.between_nodes = between_nodes(step);
    const double interval = profile_.interval, longer = longer_by(step);
    prediction_.step_time_ns = around(step, interval, longer);
    const int micro_batches = plan_.iterations.empty() ? 1 : std::max(plan_.iterations.back().micro_batches, 1);
    const double tokens = static_cast<double>(model_.tokens_per_batch) * micro_batches * data_ranks();
    prediction_.tokens_per_s = around(tokens / (step * 1e-9), longer, interval);
    if (!player_) return;
    const WorkCount& work = player_->work();
    prediction_.work = work.shares();
    prediction_.mfu = around(work.least_ns() / step, longer, interval);
    prediction_.hfu = around((work.least_ns() + work.recomputed_least_ns()) / step, longer, interval);
  }

  const RootStreams by_root_;
  const Plan& plan_;
  const Model& model_;
  const LoweredProgram& lowered_;
  const Job& job_;
  std::optional<HardwareProfile> limited_;  // where the job limits collectives
  const HardwareProfile& profile_;
  const SimulateOptions& options_;
  const std::vector<WorkSpan>* schedule_ = nullptr;
  Device device_;
  std::vector<ResidentBuffer> buffers_;
  std::optional<Arena> arena_;
  std::optional<PreparedPlan> prepared_;  // where nobody else has done it
  std::optional<PlanPlayer> player_;
  /// An iteration that was issued: its instructions have ids from `first` on.
  struct Issue {
    std::int32_t first = 0;
    const PlanIteration* iteration = nullptr;
  };
  std::vector<Issue> issues_;
  std::int32_t issued_ = 0;  // instructions
  std::vector<PlayedIteration> played_;
  SimTime last_end_ = 0;
  SimDuration busy_before_ = 0;
  int next_ = 0;  // iteration
  bool is_open_ = false, ended_ = false, meets_ = false;
  Settling settling_;
  bool goes_on_ = false;
  Prediction prediction_;
};

Bytes allocator_memory(const Plan& plan, const Job& job, const HardwareProfile& profile,
                       const SimulateOptions& options) {
  const Bytes whole = options.memory > 0       ? options.memory
                      : job.cluster.memory > 0 ? job.cluster.memory
                                               : profile.memory_bytes;
  const Bytes free = whole - static_cast<Bytes>(memory_outside(plan, job, profile).value);
  // A schedule's budget is held by the allocator (torch.cuda.set_per_process_memory_fraction).
  const bool held = job.fsdp.runtime == Runtime::Planned && job.schedule.budget > 0;
  return held ? std::min(free, job.schedule.budget) : free;
}

}  // namespace

Result<Prediction> simulate(const Plan& plan, const Model& model, const LoweredProgram& lowered, const Job& job,
                            const HardwareProfile& profile, const SimulateOptions& options) {
  const Bytes memory = allocator_memory(plan, job, profile, options);
  if (const auto error = refused_simulation(plan, model, lowered, job, profile, memory)) return fail(*error);
  if (!shares_cores(profile)) return Simulation(plan, model, lowered, job, profile, options, memory).run();
  IssueTape tape;
  SimulateOptions last = options;
  last.synchronize_each_step = true;  // as `run` does, whose times the profile's are
  SimulateOptions first = last;
  first.tape = &tape;
  first.timeline = false;
  first.memory_log = nullptr;
  last.iterations =
      static_cast<int>(Simulation(plan, model, lowered, job, profile, first, memory).run().iterations.size());
  const std::vector<WorkSpan> schedule = share_cores(tape, shared_cores(profile, job));
  Simulation shared(plan, model, lowered, job, profile, last, memory);
  shared.follow(schedule);
  return shared.run();
}

Result<std::vector<Prediction>> simulate_together(const std::vector<RankRequest>& ranks,
                                                  const SimulateOptions& options) {
  std::vector<std::unique_ptr<Simulation>> simulations;
  for (const RankRequest& rank : ranks) {
    const Bytes memory = allocator_memory(rank.plan, rank.job, rank.profile, options);
    if (const auto error = refused_simulation(rank.plan, rank.model, rank.lowered, rank.job, rank.profile, memory))
      return fail(*error);
    simulations.push_back(
        std::make_unique<Simulation>(rank.plan, rank.model, rank.lowered, rank.job, rank.profile, options, memory));
    simulations.back()->start(rank.speed, true);
  }
  // All ranks issue the same collectives in the same order: their k-th ones meet.
  std::vector<bool> waits(ranks.size());
  for (;;) {
    std::size_t waiting = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      waits[r] = simulations[r]->advance();
      waiting += waits[r] ? 1 : 0;
    }
    if (waiting == 0) {
      const bool all = std::all_of(simulations.begin(), simulations.end(), [](const auto& s) { return s->plays(); });
      const bool one =
          std::any_of(simulations.begin(), simulations.end(), [](const auto& s) { return s->unsettled(); });
      if (!all || !one) break;
      for (const auto& simulation : simulations) simulation->go_on();
      continue;
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (!waits[r]) continue;
      PlanPlayer::Meeting all = simulations[r]->meeting();
      for (const std::size_t peer : ranks[r].peers[all.communicator.index()]) {
        if (!waits[peer]) continue;  // it ran out of memory: the answer says so
        const PlanPlayer::Meeting& other = simulations[peer]->meeting();
        all.ready = std::max(all.ready, other.ready);
        all.time = std::max(all.time, other.time);
      }
      simulations[r]->meet(all.ready, all.time);
    }
  }
  std::vector<Prediction> predictions;
  for (const auto& simulation : simulations) predictions.push_back(simulation->finish());
  return predictions;
}

}  // namespace foreshard
