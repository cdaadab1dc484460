#include "gui/models/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/job/job_file.h"
#include "core/job/job_keys.h"
#include "gui/models/simulated_timeline.h"
#include "sim/machine/profile.h"
#include "sim/search/shared_parts.h"
#include "sim/search/sweep_axes.h"

namespace foreshard::gui {
namespace {

constexpr std::size_t kMostChoicesKept = 100;

struct Control {
  const char* key;
  const char* name;
  std::int64_t low = 0, high = 0;  // numbers only
};

constexpr auto kControls = std::to_array<Control>({{"fsdp.runtime", "Runtime"},
                                                   {"fsdp.strategy", "Strategy"},
                                                   {"fsdp.wrap.policy", "Wrap policy"},
                                                   {"fsdp.backward_prefetch", "Backward prefetch"},
                                                   {"fsdp.forward_prefetch", "Forward prefetch"},
                                                   {"fsdp.limit_all_gathers", "Limit all-gathers"},
                                                   {"fsdp.reshard_after_forward", "Reshard after forward"},
                                                   {"fsdp.cpu_offload", "Offload to the CPU"},
                                                   {"checkpointing.policy", "Checkpointing"},
                                                   {"checkpointing.k", "... every k blocks", 1, 1024},
                                                   {"model.batch", "Micro-batch", 1, 4096},
                                                   {"train.micro_batches", "Micro-batches a step", 1, 1024},
                                                   {"cluster.world_size", "Ranks", 1, 1'048'576},
                                                   {"mesh.tensor", "Tensor-parallel ranks"},
                                                   {"mesh.context", "Context-parallel ranks"},
                                                   {"mesh.expert", "Expert-parallel ranks"},
                                                   {"mesh.context_rotate", "... keys and values"},
                                                   {"mesh.sequence_parallel", "... sequence parallel"},
                                                   {"adapters.kind", "Adapters"},
                                                   {"adapters.rank", "... rank", 1, 4096},
                                                   {"adapters.base", "... base stored as"},
                                                   {"model.loss", "Loss"},
                                                   {"model.loss_chunks", "... pieces", 1, 4096},
                                                   {"model.compile", "Compile blocks"},
                                                   {"train.optimizer.name", "Optimizer"},
                                                   {"train.optimizer.impl", "... as"},
                                                   {"schedule.budget", "Budget"},
                                                   {"cluster.profile", "Machine"}});

/// Powers of two that divide the ranks; what else a model asks of a degree is told when it is set.
std::vector<std::string> degrees(std::int64_t ranks) {
  std::vector<std::string> words;
  for (std::int64_t degree = 1; degree <= ranks && ranks % degree == 0; degree *= 2)
    words.push_back(std::to_string(degree));
  return words;
}

/// Shares of the card, in whole GiB.
std::vector<std::string> budgets(Bytes card) {
  std::vector<std::string> words;
  for (const int percent : {40, 50, 60, 70, 80, 90})
    if (const Bytes gib = (card >> 30) * percent / 100; gib > 0) words.push_back(fmt::format("{}GiB", gib));
  return words;
}

std::vector<std::string> words_of(const std::string& key, const Outcome& now, const std::string& current) {
  const Job& job = now.job;
  if (key == "fsdp.reshard_after_forward") return {"false", "true"};
  if (key == "fsdp.wrap.policy") return {"module_class", "size", "always", "none", "auto"};
  std::vector<std::string> words;
  if (key.starts_with("mesh."))
    words = degrees(job.cluster.world_size);
  else if (key == "schedule.budget")
    words = budgets(now.card_bytes);
  else if (key == "cluster.profile")
    words = known_profiles();
  else if (const auto at = find_job_key(key))
    words = job_keys()[*at].choices;
  if (std::find(words.begin(), words.end(), current) == words.end()) words.push_back(current);
  return words;
}

/// TOML text as --set takes it: without quotes around a word.
std::string plain(std::string text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') return text.substr(1, text.size() - 2);
  return text;
}

}  // namespace

JobSimulator::JobSimulator(std::string name)
    : name_(std::move(name)), shared_(std::make_unique<SharedParts>()), bench_(std::make_unique<Workbench>(*shared_)) {}
JobSimulator::~JobSimulator() = default;

Result<WhatIf> WhatIf::start(Job job, std::string name) {
  WhatIf what_if;
  what_if.simulator_ = std::make_shared<JobSimulator>(std::move(name));
  auto outcome = what_if.simulator_->simulate(job);
  if (!outcome) return fail(outcome.error());
  what_if.opened_ = what_if.now_ = std::move(*outcome);
  return what_if;
}

std::string WhatIf::value_of(const std::string& key) const { return value_of(key, now_->job); }

std::string WhatIf::value_of(const std::string& key, const Job& job) {
  const auto at = find_job_key(key);
  return at ? plain(write_job_key(*at, job)) : std::string();
}

std::vector<Choice> WhatIf::choices() const {
  std::vector<Choice> list;
  for (const Control& control : kControls) {
    Choice choice{control.key, control.name, {}, control.low, control.high, true};
    if (control.high == 0) choice.values = words_of(choice.key, *now_, value_of(choice.key));
    if (choice.key == "train.optimizer.name" && opened_->job.train.optimizer.name != OptimizerKind::Watched)
      std::erase(choice.values, "watched");  // there is nothing of a script's to stand for it
    choice.has_meaning = foreshard::has_meaning(choice.key, now_->job);
    list.push_back(std::move(choice));
  }
  return list;
}

Result<void> WhatIf::set(const std::string& key, const std::string& value) { return set_all({key + "=" + value}); }

Result<void> WhatIf::set_all(const std::vector<std::string>& settings) {
  const auto job = with(now_->job, settings);
  if (!job) return fail(job.error());
  if (*job == now_->job) return {};
  auto outcome = simulator_->simulate(*job);
  if (!outcome) return fail(outcome.error());
  accept(std::move(*outcome));
  return {};
}

Result<Job> WhatIf::with(Job job, const std::vector<std::string>& settings) {
  for (const std::string& text : settings) {
    const auto parsed = parse_setting(text);
    if (!parsed) return fail(parsed.error());
    for (const JobSetting& setting : *parsed)
      if (auto applied = apply_setting(setting, job); !applied) return fail(applied.error());
  }
  if (auto valid = validate_job(job); !valid) return fail(valid.error());
  return job;
}

void WhatIf::accept(std::shared_ptr<const Outcome> outcome) {
  before_.push_back(std::move(now_));
  if (before_.size() > kMostChoicesKept) before_.erase(before_.begin());
  after_.clear();
  now_ = std::move(outcome);
}

bool WhatIf::undo() {
  if (before_.empty()) return false;
  after_.push_back(std::move(now_));
  now_ = std::move(before_.back());
  before_.pop_back();
  return true;
}

bool WhatIf::redo() {
  if (after_.empty()) return false;
  before_.push_back(std::move(now_));
  now_ = std::move(after_.back());
  after_.pop_back();
  return true;
}

void WhatIf::toggle_pin() {
  if (pinned_)
    pinned_.reset();
  else
    pinned_ = now_;
}

std::string WhatIf::job_file() const { return job_to_toml(now_->job); }

Result<std::shared_ptr<const Outcome>> JobSimulator::simulate(const Job& job) {
  const std::lock_guard lock(mutex_);
  auto simulated = simulate_job(*bench_, job, false);
  if (!simulated) return fail(simulated.error());
  Prediction* const prediction = &simulated->prediction;
  auto outcome = std::make_shared<Outcome>();
  outcome->job = job;
  outcome->card_bytes = simulated->card_bytes;
  outcome->tokens_per_s = prediction->tokens_per_s.value;
  outcome->mfu = prediction->mfu.value;
  if (!prediction->iterations.empty()) {
    const IterationResult& steady = prediction->iterations.back();
    outcome->step_ns = static_cast<double>(steady.step_time);
    outcome->exposed_ns = static_cast<double>(steady.exposed_comm);
  }
  outcome->peak_allocated = prediction->memory.allocated;
  outcome->peak_reserved = prediction->memory.reserved;
  outcome->fits = prediction->fits && prediction->deadlock.empty();
  if (!prediction->deadlock.empty()) outcome->misfit = "stands still: " + prediction->deadlock;
  if (prediction->oom)
    outcome->misfit = fmt::format("out of memory in {} of {}", prediction->oom->phase,
                                  prediction->oom->unit.empty() ? "the root" : prediction->oom->unit);
  outcome->timeline = make_timeline_model(std::move(prediction->timeline), name_);
  return std::shared_ptr<const Outcome>(std::move(outcome));
}

}  // namespace foreshard::gui
