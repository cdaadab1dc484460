#include "tests/sim/laws/laws.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/job/job_file.h"
#include "sim/play/memory_interval.h"

// What is really no law, with its mechanism and the bound that is held instead:
// - Under FSDP1 a block that another stream used goes back to its pool when the host next looks and that stream is done
//   (record_stream): what is reserved, and requested, follows from how far the host is ahead, not from sizes alone. On
//   a faster card or link the host is ahead by less or by more.
// - A block is as large as the free one that it was cut from if the rest is small (up to 1 MiB), and best fit leaves
//   other pieces for other sizes: a larger job may find better fitting ones.
// - How many kernels an operator launches depends on its shapes (a reduction that is split over thread blocks, the sort
//   behind an embedding's gradient): where the host is what a step waits for, a longer one may have fewer.
// - Where memory is short the allocator gives its cache back and the driver is asked anew: such a step takes less
// memory
//   and more time than one with room. Steps with retries are held to no comparison.
// - A further micro-batch costs more than a step where its gradients are added, a kernel each, and the host is what the
//   step waits for.
namespace foreshard::testing {
namespace {

constexpr double kRounding = 0.005;                      // of times: interference is summed in whole nanoseconds
constexpr double kHeldForStreams = 0.75;                 // of reserved memory under FSDP1
constexpr double kOtherPieces = 0.25;                    // of reserved memory, between sizes
constexpr double kSlowGrowth = 0.15;                     // ... that three further steps may still add
constexpr double kUncutPages = 0.01;                     // of reserved memory elsewhere: a segment more, once
constexpr double kScratch = 0.001;                       // of requested memory: scratch of split reductions
constexpr double kUncut = 0.12;                          // of allocated memory
constexpr double kOtherLaunches = 0.02, kAdding = 0.35;  // of times

/// Everything that a prediction says, as text: equal texts are equal predictions.
std::string digest(const Prediction& p) {
  std::string text =
      fmt::format("{} {} {} {} {} {}|", p.fits, p.deadlock, p.step_time_ns.value, p.mfu.value, p.hfu.value, p.events);
  for (const IterationResult& i : p.iterations) {
    text += fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {}|", i.step_time, i.exposed_comm, i.host_wait,
                        i.compute, i.idle, i.peak_allocated, i.peak_active, i.peak_reserved, i.peak_requested,
                        i.end_allocated, i.end_active, i.end_reserved, i.alloc_retries, i.ooms);
  }
  for (const CategoryBytes& c : p.memory.categories) text += fmt::format("{} {}|", c.category, c.bytes);
  for (const CommResult& c : p.comm)
    text += fmt::format("{} {} {} {} {}|", c.kind, c.count, c.bytes, c.busy, c.exposed);
  return text + fmt::format("{} {} {}", p.memory.allocated, p.memory.active, p.memory.reserved);
}

Bytes sharded_bytes(const Plan& plan) {
  Bytes bytes = 0;
  for (const PlanUnit& unit : plan.units) bytes += unit.shard_numel * itemsize(unit.orig_dtype);
  return bytes;
}

Bytes most_requested(const Prediction& p) {
  Bytes most = 0;
  for (const IterationResult& i : p.iterations) most = std::max(most, i.peak_requested);
  return most;
}

struct Trial {
  RandomJob random;
  HardwareProfile profile;
  RandomCase made;
  Prediction prediction;
};

/// The laws on one job.
class Trials {
 public:
  Trials(const RandomJob& random, LawRun& run) : run_(run), base_{random, {}, {}, {}} {}

  /// False: the job is not valid.
  bool run() {
    auto job = job_of(base_.random);
    if (!job) return false;
    auto profile = load_profile(job->cluster.profile);
    if (!profile) return false;
    base_.profile = std::move(*profile);
    auto made = make_case(base_.random, base_.profile);
    if (!made) return false;
    base_.made = std::move(*made);
    auto prediction = predict(base_.made, base_.profile);
    if (!prediction) return false;
    base_.prediction = std::move(*prediction);
    alone();
    if (runs(base_.made, base_.prediction)) {
      machines();
      jobs();
    }
    return true;
  }

 private:
  /// Whether there is a steady step to compare: PyTorch may raise where a script or a trap leads it.
  /// Whether blocks wait for the streams that use them.
  bool waits() const { return base_.made.plan.runtime == Runtime::Fsdp1; }

  /// Whether memory is far from short: a cache that is given back is not always counted as a retry (max_split_size).
  static bool roomy(const RandomCase& made, const Prediction& p) {
    const Bytes given = made.job.cluster.memory;
    return given == 0 || p.memory.reserved < (given - Bytes(p.memory.outside_allocator.value)) / 10 * 9;
  }

  static bool runs(const RandomCase& made, const Prediction& p) {
    return p.fits && p.deadlock.empty() && !made.plan.failure && made.plan.steady && p.memory.growth == 0 &&
           p.iterations.back().alloc_retries == 0 && roomy(made, p);
  }

  std::optional<Prediction> predict(const RandomCase& made, const HardwareProfile& profile, Bytes memory = 0) {
    ++run_.simulations;
    SimulateOptions options;
    options.memory = memory;
    auto result = simulate(made.plan, made.model, made.lowered, made.job, profile, options);
    if (!result) return std::nullopt;
    return std::move(*result);
  }

  void check(const std::string& law, bool holds, double excess = 0, const std::string& what = {}) {
    LawRecord& record = run_.book[law];
    if (holds) {
      ++record.held;
      return;
    }
    ++record.broken;
    if (!record.example.empty() && excess <= record.worst) return;
    record.worst = excess;
    record.example = fmt::format("{} {}", what, base_.random.text());
  }
  /// `less` <= `more`, but for a part `slack` of it.
  void at_most(const std::string& law, double less, double more, double slack, const std::string& with = {}) {
    const double excess = more > 0 ? less / more - 1 : less;
    check(law, less <= more * (1 + slack) + 0.5, excess, fmt::format("{} > {} [{}]", less, more, with));
  }

  void alone() {
    const Prediction& p = base_.prediction;
    const auto again = predict(base_.made, base_.profile);
    check("the same job gives the same bytes", again && digest(*again) == digest(p));
    const std::string which = p.fits ? "" : " where it does not fit";
    at_most("active >= allocated" + which, double(p.memory.allocated), double(p.memory.active), 0);
    at_most("reserved >= active" + which, double(p.memory.active), double(p.memory.reserved), 0);
    for (const IterationResult& i : p.iterations) {
      at_most(waits() ? "in an iteration active >= requested" : "in an iteration allocated >= requested",
              double(i.peak_requested), double(waits() ? i.peak_active : i.peak_allocated), 0);
      at_most("in an iteration active >= allocated", double(i.peak_allocated), double(i.peak_active), 0);
      at_most("in an iteration reserved >= active", double(i.peak_active), double(i.peak_reserved), 0);
      at_most("compute <= step", double(i.compute), double(i.step_time), 0);
      at_most("exposed communication <= idle or on the compute stream", double(i.exposed_comm), double(i.step_time), 0);
    }
    Bytes sum = 0;
    for (const CategoryBytes& c : p.memory.categories) sum += c.bytes;
    check("categories add up to allocated", sum == p.memory.allocated, double(sum - p.memory.allocated));
    at_most("MFU <= 100 %", p.hfu.value, 1, 0);
    at_most("MFU <= HFU", p.mfu.value, p.hfu.value, 0);
    intervals(p);
    run_.growing += p.memory.growth > 0 ? 1 : 0;
    run_.restless += base_.made.plan.steady || base_.made.plan.failure ? 0 : 1;
    if (runs(base_.made, p)) steadiness(p);
    text();
  }

  void steadiness(const Prediction& p) {
    ++run_.lengths[p.iterations.size()];
    SimulateOptions options;
    options.iterations = static_cast<int>(p.iterations.size()) + 3;
    const auto longer =
        simulate(base_.made.plan, base_.made.model, base_.made.lowered, base_.made.job, base_.profile, options);
    if (!longer) return;
    at_most("reserved memory is steady, or said to grow", double(longer->memory.reserved), double(p.memory.reserved),
            waits() ? kSlowGrowth : kUncutPages);
    at_most("later steps take no longer", longer->step_time_ns.value, p.step_time_ns.value, kRounding);
    at_most("later steps take no less", p.step_time_ns.value, longer->step_time_ns.value, kRounding);
  }

  void intervals(const Prediction& p) {
    const MemoryIntervals memory = memory_intervals(p, base_.profile.kind);
    for (const Estimate& e : {p.step_time_ns, p.tokens_per_s, p.mfu, p.hfu, p.memory.outside_allocator,
                              memory.allocated, memory.active, memory.reserved, memory.device}) {
      check("intervals hold their value", e.low <= e.value && e.value <= e.high, 0,
            fmt::format("{} {} {}", e.low, e.value, e.high));
    }
  }

  /// The whole job as a file, and key by key over a job of defaults.
  void text() {
    const auto file = parse_job(job_to_toml(base_.made.job), "", std::vector<std::string>{});
    check("a job and its file are the same", file && file->job == base_.made.job);
    if (!file) return;
    std::vector<std::string> sets;
    for (std::size_t k = 0; k < job_keys().size(); ++k) {
      const std::string& name = job_keys()[k].name;
      if (name == "model.seq" && !base_.made.job.model.seq_given) continue;
      sets.push_back(name + "=" + write_job_key(k, base_.made.job));
    }
    const auto keys = parse_job("", "", sets);
    check("a job by --set is the same", keys && keys->job == base_.made.job, 0, keys ? "" : to_text(keys.error()));
  }

  // ---------------------------------------------------------------------------------------------- other machines

  void machine(const std::string& law, const HardwareProfile& profile, Bytes memory = 0) {
    const auto other = predict(base_.made, profile, memory);
    if (!other) return;
    const Prediction& p = base_.prediction;
    check(law + " still fits", other->fits);
    if (!other->fits) return;
    if (!runs(base_.made, *other)) return;
    at_most(law + " never takes longer", other->step_time_ns.value, p.step_time_ns.value, kRounding);
    at_most(law + " never takes more (allocated)", double(other->memory.allocated), double(p.memory.allocated), kUncut);
    at_most(law + " never takes more (reserved)", double(other->memory.reserved), double(p.memory.reserved),
            waits() ? kHeldForStreams : 0);
  }

  void machines() {
    HardwareProfile faster = base_.profile;
    for (auto* rates : {&faster.peak_tflops, &faster.gemm_tflops, &faster.vector_tflops})
      for (auto& [dtype, rate] : *rates) rate *= 2;
    for (const char* key : {kTf32Peak, kTf32Reached})
      if (faster.extra.contains(key)) faster.extra[key] *= 2;
    machine("a card of twice the rates", faster);
    faster = base_.profile;
    faster.hbm_gb_per_s *= 2;
    machine("a card of twice the bandwidth", faster);
    faster = base_.profile;
    faster.scale_up_gb_per_s *= 2;
    faster.scale_out_gb_per_s *= 2;
    faster.channel_gb_per_s *= 2;
    machine("links of twice the bandwidth", faster);
    const Bytes memory = base_.made.job.cluster.memory > 0 ? base_.made.job.cluster.memory : base_.profile.memory_bytes;
    machine("a card of twice the memory", base_.profile, 2 * memory);
  }

  // -------------------------------------------------------------------------------------------------- other jobs

  std::optional<RandomCase> make(const RandomJob& random) {
    auto made = make_case(random, base_.profile);
    if (!made) return std::nullopt;
    return std::move(*made);
  }

  void larger(const std::string& law, const RandomJob& random) {
    const auto made = make(random);
    if (!made) return;
    const auto other = predict(*made, base_.profile);
    if (!other || !runs(*made, *other)) return;
    const Prediction& p = base_.prediction;
    at_most(law + " is never faster", p.step_time_ns.value, other->step_time_ns.value, kOtherLaunches);
    if (!waits())
      at_most(law + " never asks for less", double(most_requested(p)), double(most_requested(*other)), kScratch);
    at_most(law + " never takes less (allocated)", double(p.memory.allocated), double(other->memory.allocated), kUncut);
    at_most(law + " never takes less (reserved)", double(p.memory.reserved), double(other->memory.reserved),
            waits() ? kHeldForStreams : kOtherPieces);
  }

  /// `without` is the same job without something that only adds work.
  void adds_work(const std::string& law, const RandomJob& without, const RandomJob& with) {
    const auto a = make(without), b = make(with);
    if (!a || !b) return;
    const auto pa = predict(*a, base_.profile), pb = predict(*b, base_.profile);
    if (!pa || !pb || !runs(*a, *pa) || !runs(*b, *pb)) return;
    at_most(law, pa->step_time_ns.value, pb->step_time_ns.value, kRounding);
  }

  void jobs() {
    const RandomJob& random = base_.random;
    ModelSizes sizes = random.sizes;
    sizes.layers += 1;
    larger("a deeper model", random.resized(sizes));
    sizes = random.sizes;
    sizes.heads *= 2;
    larger("a wider model", random.resized(sizes));
    if (sizes.family != "vit")
      larger("a longer sequence", random.with({fmt::format("model.seq={}", 2 * base_.made.job.model.seq)}));
    larger("a larger batch", random.with({fmt::format("model.batch={}", base_.made.job.model.batch + 1)}));
    adds_work("clipping is never faster", random.with({"train.clip_grad_norm=0"}),
              random.with({"train.clip_grad_norm=1.0"}));
    adds_work("recomputation is never faster", random.with({"checkpointing.policy=none"}),
              random.with({"checkpointing.policy=block"}));
    micro_batches();
    more_ranks();
  }

  void micro_batches() {
    const auto one = make(base_.random.with({"train.micro_batches=1"})),
               four = make(base_.random.with({"train.micro_batches=4"}));
    if (!one || !four) return;
    const auto p1 = predict(*one, base_.profile), p4 = predict(*four, base_.profile);
    if (!p1 || !p4 || !runs(*one, *p1) || !runs(*four, *p4)) return;
    at_most("four micro-batches cost at most four steps", p4->step_time_ns.value, 4 * p1->step_time_ns.value, kAdding);
    at_most("four micro-batches cost no less than one", p1->step_time_ns.value, p4->step_time_ns.value, kRounding);
  }

  void more_ranks() {
    const Job& job = base_.made.job;
    if (job.fsdp.strategy == Strategy::NoShard) return;  // nothing is cut; padding to the ranks is all that changes
    const auto twice =
        make(base_.random.with({fmt::format("cluster.world_size={}", 2 * job.cluster.world_size), "cluster.rank=0"}));
    if (!twice) return;
    at_most("more ranks never hold more of the shards", double(sharded_bytes(twice->plan)),
            double(sharded_bytes(base_.made.plan)), 0);
  }

  LawRun& run_;
  Trial base_;
};

void merge(LawRun& into, const LawRun& from) {
  into.jobs += from.jobs;
  into.refused += from.refused;
  into.simulations += from.simulations;
  into.growing += from.growing;
  into.restless += from.restless;
  for (const auto& [length, count] : from.lengths) into.lengths[length] += count;
  for (const auto& [law, record] : from.book) {
    LawRecord& all = into.book[law];
    all.held += record.held;
    all.broken += record.broken;
    if (record.example.empty() || (!all.example.empty() && record.worst <= all.worst)) continue;
    all.worst = record.worst;
    all.example = record.example;
  }
}

}  // namespace

LawRun try_laws(std::uint64_t first_seed, std::int64_t jobs, int threads) {
  LawRun all;
  std::mutex guard;
  std::atomic<std::uint64_t> next{first_seed};
  std::atomic<std::int64_t> wanted{jobs};
  const auto work = [&] {
    LawRun run;
    while (wanted.load() > 0) {
      Trials trials(random_job(next++), run);
      if (!trials.run()) {
        ++run.refused;
        continue;
      }
      ++run.jobs;
      --wanted;
    }
    const std::lock_guard lock(guard);
    merge(all, run);
  };
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  return all;
}

}  // namespace foreshard::testing
