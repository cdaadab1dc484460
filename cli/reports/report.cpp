#include "cli/reports/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/console/amount_text.h"
#include "cli/console/text_lines.h"
#include "cli/reports/stream_windows.h"
#include "core/mesh/rank_model.h"
#include "core/model/facts.h"
#include "core/plan_warnings.h"
#include "sim/play/memory_interval.h"
#include "traces/formats/timeline_text.h"

namespace foreshard::cli {
namespace {

constexpr int kLabelWidth = 15;

class PredictionText : private TextLines {
 public:
  PredictionText(const Simulation& simulation, const ReportStyle& style)
      : s_(simulation), p_(simulation.prediction), style_(style) {}

  std::string text() {
    heading();
    verdict();
    if (p_.deadlock.empty() && has_time()) speed();
    memory();
    communication();
    plan();
    warnings();
    basis();
    streams();
    return std::move(out_);
  }

 private:
  void row(std::string_view label, const std::string& content) { line("  {:<{}}{}", label, kLabelWidth, content); }
  void title(std::string_view text) { line("\n{}", bold(text)); }
  std::string paint(const char* code, std::string_view text) const {
    return style_.color ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
  }
  std::string bold(std::string_view text) const { return paint("1", text); }
  std::string dim(std::string_view text) const { return paint("2", text); }
  const char* times() const { return style_.unicode ? "×" : "x"; }
  const char* to() const { return style_.unicode ? "…" : ".."; }

  bool has_time() const { return p_.step_time_ns.value > 0; }

  std::string batch_text(const Model& model, const Job& job) const;
  void heading();
  void verdict();
  void out_of_memory();
  void speed();
  void memory();
  void communication();
  void plan();
  void warnings();
  std::string board_of_four() const;
  void basis();
  void network();
  void streams();
  void drawing(const std::string& heading, const StreamWindow& window);
  std::string interval(const std::string& low, const std::string& high) const {
    return dim(fmt::format("{} {} {}", low, to(), high));
  }
  std::string bar(double share, int width) const;
  std::string peaks() const;
  std::string causes_of(const std::string& kind) const;
  void wrapped(std::string_view label, const std::string& text);

  const Simulation& s_;
  const Prediction& p_;
  ReportStyle style_;
};

std::string dtype_text(const std::optional<DType>& dtype, std::string_view otherwise) {
  return std::string(dtype ? dtype_short_name(*dtype) : otherwise);
}

/// What a rank computes at once. An archive may have fixed sizes, whatever the job's batch.
std::string PredictionText::batch_text(const Model& model, const Job& job) const {
  const auto sizes = [this](const Shape& shape) {
    std::string text;
    for (const std::int64_t size : shape)
      text += (text.empty() ? "" : fmt::format(" {} ", times())) + grouped_text(size);
    return text;
  };
  if (model.tokens_per_batch > 0) {
    for (const ValueId input : model.inputs) {
      const ValueInfo& value = model.values[input.index()];
      if (!is_floating(value.dtype) && value.shape.size() == 2) return sizes(value.shape) + " tokens a rank";
    }
    return fmt::format("{} {} {} tokens a rank", job.model.batch, times(),
                       grouped_text(model.tokens_per_batch / std::max<std::int64_t>(1, job.model.batch)));
  }
  if (model.inputs.empty()) return fmt::format("batch {} a rank", job.model.batch);
  return fmt::format("input {} a rank", sizes(model.values[model.inputs.front().index()].shape));
}

void PredictionText::heading() {
  const Job& job = s_.job;
  const auto& cluster = job.cluster;
  std::string sharding(runtime_name(job.fsdp.runtime));
  if (job.fsdp.runtime == Runtime::None) {
    sharding = "no sharding";
  } else {
    sharding += fmt::format(" {}", strategy_name(job.fsdp.strategy));
  }
  const std::string name = s_.model.name.empty() ? job.model.source : s_.model.name;
  line("{}", bold(fmt::format("{}, {}, {} {} {}", name, sharding, cluster.world_size, times(), s_.profile.id)));
  std::string work = batch_text(s_.model, job);
  if (job.train.micro_batches > 1)
    work +=
        fmt::format(" {} {} micro-batches{}", times(), job.train.micro_batches, job.train.no_sync ? " (no_sync)" : "");
  const auto& mixed = job.fsdp.mixed_precision;
  const std::string original = dtype_text(job.model.dtype, "the file's dtype");
  const std::string gathered = dtype_text(mixed.param, original);
  // A program that came as it is (model.json, .pt2) computes in the dtype it was written in, whatever is gathered.
  const std::string computed = s_.model.ops.empty() ? gathered : std::string(dtype_short_name(s_.model.compute_dtype));
  work += fmt::format(", {} parameters, computed in {}, reduced in {}", original, computed,
                      dtype_text(mixed.reduce, gathered));
  constexpr const char* kPolicies[] = {"no checkpointing", "every block checkpointed", "every k-th block checkpointed",
                                       "chosen modules checkpointed"};
  work += fmt::format(", {}", kPolicies[static_cast<int>(job.checkpointing.policy)]);
  if (job.fsdp.cpu_offload) work += ", CPU offload";
  line("{}", dim(work));
}

void PredictionText::verdict() {
  line("");
  if (!p_.deadlock.empty()) {
    row("deadlock", paint("1;31", p_.deadlock));
    return;
  }
  if (!p_.fits) {
    out_of_memory();
    return;
  }
  const Bytes outside = std::llround(p_.memory.outside_allocator.value);
  const Bytes used = p_.memory.reserved + outside;
  if (s_.card_memory <= 0) {
    row("fits", fmt::format("the profile names no memory; {} reserved", bytes_text(p_.memory.reserved)));
    return;
  }
  const double share = static_cast<double>(used) / static_cast<double>(s_.card_memory);
  row("fits", fmt::format("{}: {} of {} ({}), {} left", paint("1;32", "yes"), bytes_text(used),
                          bytes_text(s_.card_memory), percent_text(share), bytes_text(s_.card_memory - used)));
}

void PredictionText::out_of_memory() {
  row("fits", paint("1;31", "no"));
  if (p_.oom) {
    const std::string unit = p_.oom->unit.empty() ? "the root" : p_.oom->unit;
    if (p_.oom->phase == "init") {
      row("", "out of memory while parameters are made and sharded, before the first iteration");
    } else {
      row("", fmt::format("out of memory in iteration {}, {} of {}, at instruction {}", p_.oom->iteration,
                          p_.oom->phase, unit, p_.oom->instruction.value));
    }
    const std::string asked = p_.oom->requested > 0 ? fmt::format("{} asked for, ", bytes_text(p_.oom->requested)) : "";
    row("", fmt::format("{}{} free of {}", asked, bytes_text(p_.oom->free), bytes_text(s_.card_memory)));
    if (p_.oom->requested > 0 && p_.oom->free >= p_.oom->requested) {
      row("", "what is free lies in pieces, or is kept for another stream");
    }
  }
  if (s_.remedy) {
    row("would fit", bold(s_.remedy->text));
    std::string sets;
    for (const std::string& set : s_.remedy->set) sets += fmt::format("--set {} ", set);
    row("", sets);
    row("", fmt::format(
                "then {} reserved{}", bytes_text(s_.remedy->peak_reserved),
                s_.remedy->step_time_ns > 0 ? fmt::format(", {} a step", duration_text(s_.remedy->step_time_ns)) : ""));
  } else if (!s_.tried.empty()) {
    row("would fit", "none of the changes tried:");
    for (const std::string& text : s_.tried) row("", "- " + text);
  }
}

void PredictionText::speed() {
  const Estimate& step = p_.step_time_ns;
  row("step",
      fmt::format("{:<16}{}", duration_text(step.value), interval(duration_text(step.low), duration_text(step.high))));
  if (p_.tokens_per_s.value > 0) {
    const Estimate& tokens = p_.tokens_per_s;
    row("tokens/s",
        fmt::format(
            "{:<16}{}  {} a card", rate_text(tokens.value), interval(rate_text(tokens.low), rate_text(tokens.high)),
            rate_text(tokens.value / static_cast<double>(std::max<std::int64_t>(1, s_.job.cluster.world_size)))));
  }
  if (p_.mfu.value > 0) {
    const std::string hfu = std::fabs(p_.hfu.value - p_.mfu.value) > 5e-4
                                ? fmt::format("  with recomputation {}", percent_text(p_.hfu.value))
                                : "";
    row("MFU", fmt::format("{:<16}{}{}", percent_text(p_.mfu.value),
                           interval(percent_text(p_.mfu.low), percent_text(p_.mfu.high)), hfu));
    row("", dim(peaks()));
  }
  const IterationResult* steady = steady_iteration(p_);
  if (steady == nullptr || steady->step_time <= 0) return;
  const auto share = [&](SimDuration time) {
    return percent_text(static_cast<double>(time) / static_cast<double>(steady->step_time));
  };
  const StepShares shares = step_shares(p_);
  row("of it", fmt::format("compute {} ({}), exposed communication {} ({}), idle beside it {} ({})",
                           duration_text(static_cast<double>(shares.compute)), share(shares.compute),
                           duration_text(static_cast<double>(shares.exposed)), share(shares.exposed),
                           duration_text(static_cast<double>(shares.idle)), share(shares.idle)));
  if (steady->host_wait > 0)
    row("", fmt::format("the host waits {} ({})", duration_text(static_cast<double>(steady->host_wait)),
                        share(steady->host_wait)));
}

// What MFU is held against, the dtypes that do most first; below a thousandth of the operations nothing is said.
std::string PredictionText::peaks() const {
  std::vector<WorkShare> work = p_.work;
  std::stable_sort(work.begin(), work.end(), [](const WorkShare& a, const WorkShare& b) { return a.flops > b.flops; });
  double all = 0;
  for (const WorkShare& share : work) all += share.flops;
  std::string text;
  for (const WorkShare& share : work) {
    if (share.flops < 1e-3 * all) continue;
    text += fmt::format("{}{} in {} over {:.4g}", text.empty() ? "" : ", ", percent_text(share.flops / all),
                        share.tf32 ? "tf32" : dtype_name(share.dtype), share.peak_tflops);
  }
  return "of the operations " + text + " TFLOP/s";
}

std::string PredictionText::bar(double share, int width) const {
  const int full = std::clamp(static_cast<int>(std::lround(share * width)), share > 0 ? 1 : 0, width);
  std::string text;
  for (int i = 0; i < full; ++i) text += style_.unicode ? "█" : "#";
  return text + std::string(static_cast<std::size_t>(width - full), ' ');
}

void PredictionText::memory() {
  const PeakMemory& m = p_.memory;
  std::string where;
  if (m.phase == "init") {
    where = " (while parameters are made and sharded)";
  } else if (!m.phase.empty()) {
    where =
        fmt::format(" ({} of {}, instruction {})", m.phase, m.unit.empty() ? "the root" : m.unit, m.instruction.value);
  }
  title("Memory at its peak" + where);
  auto categories = m.categories;
  std::stable_sort(categories.begin(), categories.end(),
                   [](const CategoryBytes& a, const CategoryBytes& b) { return a.bytes > b.bytes; });
  const double all = static_cast<double>(std::max<Bytes>(1, m.allocated));
  for (const CategoryBytes& category : categories) {
    if (category.bytes <= 0) continue;
    const double share = static_cast<double>(category.bytes) / all;
    std::string name = category.category;
    std::replace(name.begin(), name.end(), '_', ' ');
    line("  {:<22}{:>10}  {:>6}  {}", name, bytes_text(category.bytes), percent_text(share), bar(share, 30));
  }
  const auto total = [&](std::string_view name, Bytes bytes, const std::string& more) {
    line("  {:<22}{:>10}{}{}", name, bytes_text(bytes), more.empty() ? "" : "  ", more);
  };
  total("allocated", m.allocated, "");
  total("reserved", m.reserved,
        m.reserved > m.allocated
            ? dim(fmt::format("{} held by the allocator, free or fragmented", bytes_text(m.reserved - m.allocated)))
            : "");
  if (m.outside_allocator.value > 0) {
    total("beside the allocator", std::llround(m.outside_allocator.value),
          dim(fmt::format("{} {} {}, CUDA context and NCCL", bytes_text(std::llround(m.outside_allocator.low)), to(),
                          bytes_text(std::llround(m.outside_allocator.high)))));
    const Estimate device = memory_intervals(p_, s_.profile.kind).device;
    total("on the card", std::llround(device.value),
          dim(fmt::format("{} {} {} in nine of ten cases", bytes_text(std::llround(device.low)), to(),
                          bytes_text(std::llround(device.high)))));
  }
  if (m.pinned_host > 0) total("pinned on the host", m.pinned_host, dim("of this rank, what is offloaded"));
  if (m.growth > 0) {
    const double left =
        static_cast<double>(s_.card_memory) - m.outside_allocator.value - static_cast<double>(m.reserved);
    wrapped("grows", fmt::format("by {} a step, after {} steps still{}: blocks are kept for streams that the host runs "
                                 "ahead of, or lie in pieces",
                                 bytes_text(m.growth), p_.iterations.size(),
                                 left > 0 ? fmt::format("; at that rate the card is full after {:.0f} more",
                                                        left / static_cast<double>(m.growth))
                                          : ""));
  }
  const IterationResult* steady = steady_iteration(p_);
  if (steady != nullptr && steady->alloc_retries > 0)
    row("", fmt::format("the allocator flushed its cache {} times: each blocks the host", steady->alloc_retries));
}

std::string PredictionText::causes_of(const std::string& kind) const {
  std::string text;
  for (const ExposedCause& cause : p_.exposed) {
    if (cause.kind != kind || cause.time <= 0) continue;
    std::string name = cause.cause;
    std::replace(name.begin(), name.end(), '_', ' ');
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, duration_text(static_cast<double>(cause.time)));
  }
  return text;
}

void PredictionText::communication() {
  if (p_.comm.empty()) return;
  title("Communication in one step");
  line("  {:<16}{:>7}{:>12}{:>11}{:>11}   {}", "", "count", "bytes", "busy", "exposed", "by cause");
  for (const CommResult& comm : p_.comm) {
    line("  {:<16}{:>7}{:>12}{:>11}{:>11}   {}", comm.kind, grouped_text(comm.count), bytes_text(comm.bytes),
         duration_text(static_cast<double>(comm.busy)), duration_text(static_cast<double>(comm.exposed)),
         causes_of(comm.kind));
  }
}

void PredictionText::plan() {
  const Plan& plan = s_.plan;
  title("Plan");
  Bytes largest = 0;
  std::string name;
  for (const PlanUnit& unit : plan.units) {
    const Bytes bytes = unit.padded_numel * itemsize(unit.param_dtype);
    if (bytes > largest) largest = bytes, name = unit.name.empty() ? "the root" : unit.name;
  }
  std::string text = counted(static_cast<std::int64_t>(plan.units.size()), "unit");
  if (largest > 0) text += fmt::format(", the largest {} ({} gathered)", name, bytes_text(largest));
  if (!plan.iterations.empty()) {
    const PlanCounts c = count_instructions(plan.iterations.back());
    const std::pair<std::int64_t, const char*> counts[] = {{c.all_gather, "all-gather"},
                                                           {c.reduce_scatter, "reduce-scatter"},
                                                           {c.all_reduce, "all-reduce"},
                                                           {c.h2d + c.d2h, "host copy"},
                                                           {c.limiter_waits, "limiter wait"}};
    for (const auto& [count, what] : counts) {
      if (count > 0)
        text +=
            "; " + counted(count, what, count > 1 && std::string_view(what) == "host copy" ? "host copies" : nullptr);
    }
    text += fmt::format("; {} a step",
                        counted(static_cast<std::int64_t>(plan.iterations.back().instructions.size()), "instruction"));
  }
  wrapped("", text);
  std::map<CheckStatus, std::string> checks;
  for (const PlanCheck& check : plan.checks)
    checks[check.status] += (checks[check.status].empty() ? "" : " ") + check.name;
  if (!checks[CheckStatus::Pass].empty()) row("checks", fmt::format("{} hold", checks[CheckStatus::Pass]));
  if (!checks[CheckStatus::Fail].empty())
    row("checks", paint("1;31", fmt::format("{} fail", checks[CheckStatus::Fail])));
}

// Text broken at spaces to the width of the terminal, under its label.
void PredictionText::wrapped(std::string_view label, const std::string& text) {
  const std::size_t width = static_cast<std::size_t>(std::max(40, style_.width - kLabelWidth - 2));
  std::string rest = text;
  bool first = true;
  const int indent = label.empty() ? 0 : kLabelWidth;
  while (!rest.empty()) {
    std::size_t end = rest.size();
    if (rest.size() > width) {
      end = rest.rfind(' ', width);
      if (end == std::string::npos || end == 0) end = std::min(rest.find(' '), rest.size());
    }
    line("  {:<{}}{}", first ? label : "", indent, rest.substr(0, end));
    rest.erase(0, std::min(rest.size(), end + 1));
    first = false;
  }
}

void PredictionText::warnings() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Trap& trap : s_.plan.traps) {
    all.emplace_back(
        fmt::format("trap {}", trap.number),
        fmt::format("{} ({}): {}{}", trap.name, trap.rules, trap.text,
                    trap.remedy.empty() ? "" : fmt::format(" {} {}", style_.unicode ? "→" : "->", trap.remedy)));
  }
  for (const std::string& warning : s_.plan.warnings) all.emplace_back(said(warning).by, said(warning).text);
  const std::optional<DType>& param = s_.job.fsdp.mixed_precision.param;
  if (!s_.model.ops.empty() && param && *param != s_.model.compute_dtype) {
    all.emplace_back(
        "program",
        fmt::format("its operators are written in {0}: gathers are predicted in {1}, activations, times and MFU as "
                    "written {2} export it in {1}, or set fsdp.mixed_precision.param",
                    dtype_short_name(s_.model.compute_dtype), dtype_short_name(*param), style_.unicode ? "→" : "->"));
  }
  if (const std::string board = board_of_four(); !board.empty()) {
    all.emplace_back("machine",
                     fmt::format("nodes of four such cards have no switch as a rule, and two of them a third "
                                 "of a card's links {} cluster.profile = \"{}\"",
                                 style_.unicode ? "→" : "->", board));
  }
  if (all.empty()) return;
  title("To know");
  for (const auto& [label, text] : all) wrapped(label, text);
}

/// The profile of the card on boards of four, where the job's nodes have four ranks and its profile has a switch.
std::string PredictionText::board_of_four() const {
  const ClusterOptions& cluster = s_.job.cluster;
  if (cluster.ranks_per_node != 4 || cluster.world_size <= 4 || s_.profile.fabric != Fabric::Switch) return "";
  return profile_variant(s_.profile.id, kBoardOfFour);
}

void PredictionText::basis() {
  title("Rests on");
  const char* meaning = "";
  switch (p_.level) {
    case CalibrationLevel::Datasheet:
      meaning = "data sheets and general experience, nothing measured on this machine";
      break;
    case CalibrationLevel::Published: meaning = "published measurements of this kind of machine"; break;
    case CalibrationLevel::Microbenchmark: meaning = "microbenchmarks of this machine"; break;
    case CalibrationLevel::MeasuredStep: meaning = "a measured step of this machine"; break;
  }
  row("profile", fmt::format("{}, level {}: {}", s_.profile.id, calibration_level_name(p_.level), meaning));
  if (const std::vector<std::string> assumed = assumed_numbers(s_.profile); !assumed.empty()) {
    std::string names;
    for (const std::string& key : assumed) names += (names.empty() ? "" : ", ") + key;
    wrapped("assumed", fmt::format("{} of {} numbers of it, by experience instead of a source: {}", assumed.size(),
                                   s_.profile.sources.size(), names));
  }
  if (has_time()) row("intervals", "90 %: nine of ten real runs should fall inside");
  network();
  if (s_.model.ops.empty()) {
    wrapped("no operators",
            "the model has no operator program: memory of activations and times of compute are not predicted");
  } else if (!p_.unknown_ops.empty()) {
    std::string names;
    for (const std::string& op : p_.unknown_ops) names += (names.empty() ? "" : ", ") + op;
    wrapped("default rule", fmt::format("for {}", names));
  }
  if (s_.model.ops.empty()) return;
  if (sends_chosen_tokens(s_.model))
    wrapped("experts", fmt::format("assumed: this rank's receive {:g} times an even spread (mesh.expert_imbalance)",
                                   s_.job.mesh.expert_imbalance));
  if (p_.lifetimes == Lifetimes::Assumed)
    wrapped("lifetimes",
            "assumed: until when Python names a value is told by module boundaries and source lines; memory's "
            "intervals are wider for it");
  if (p_.assumes_choices)
    wrapped(
        "choices",
        "assumed: what routers or masks choose is balanced, or as it was told; memory's intervals are wider for it");
  if (loss_origin(s_.model) == "script" && p_.lifetimes == Lifetimes::Assumed)
    wrapped("loss",
            "assumed: the script's cross entropy of the first output, which it names until backward is over; "
            "model.loss says otherwise");
}

/// What the network between nodes is taken to give, where nobody has measured it and the step hangs on it.
void PredictionText::network() {
  const SimDuration at_half = p_.between_nodes.step_at_half;
  if (!has_time() || static_cast<double>(at_half) < 1.02 * p_.step_time_ns.value) return;
  wrapped("between nodes",
          fmt::format("{:g} GB/s a card, not measured; at half of it a step would take about {}: the interval is wider "
                      "for it {} in a profile with base = \"{}\", links.scale_out_gb_per_s and where you measured it "
                      "(docs/formats/profile.md)",
                      s_.profile.scale_out_gb_per_s, duration_text(static_cast<double>(at_half)),
                      style_.unicode ? "→" : "->", s_.profile.id));
}

void PredictionText::streams() {
  if (p_.timeline.spans.empty() && has_time()) {
    title("The steady step");
    row("", "too long to be drawn here; --trace writes it for Perfetto");
    return;
  }
  const bool whole = p_.fits && p_.deadlock.empty();
  const StreamWindow step = whole ? last_iteration(p_.timeline) : StreamWindow{};
  drawing(!p_.fits ? "Until memory ran out" : whole ? "The steady step" : "Until the deadlock", step);
  if (!whole) return;
  const auto near = middle_of_backward(p_.timeline, step, s_.job.cluster.rank);
  if (near)
    drawing(fmt::format("From near by: the backward of {} and its neighbours",
                        near->unit.empty() ? "the root" : near->unit),
            near->window);
}

void PredictionText::drawing(const std::string& heading, const StreamWindow& window) {
  TimelineTextOptions options;
  options.rank = s_.job.cluster.rank;
  options.unicode = style_.unicode;
  options.width = style_.width - 20;
  options.start = window.start;
  options.end = window.end;
  const std::string text = draw_timeline(p_.timeline, options);
  if (text.empty()) return;
  title(heading);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t next = text.find('\n', at);
    line("  {}", text.substr(at, next - at));
    at = next + 1;
  }
}

}  // namespace

std::vector<std::string> assumed_numbers(const HardwareProfile& profile) {
  std::vector<std::string> keys;
  for (const auto& [key, source] : profile.sources)
    if (source.find("assumed") != std::string::npos) keys.push_back(key);
  return keys;
}

StepShares step_shares(const Prediction& prediction) {
  const IterationResult* steady = steady_iteration(prediction);
  if (steady == nullptr) return {};
  SimDuration on_compute = 0;  // is in both, compute and exposed
  for (const ExposedCause& cause : prediction.exposed)
    if (cause.cause == "compute_stream") on_compute += cause.time;
  StepShares shares;
  shares.exposed = std::min(steady->exposed_comm, steady->step_time);
  shares.compute = std::clamp<SimDuration>(steady->compute - on_compute, 0, steady->step_time - shares.exposed);
  shares.idle = steady->step_time - shares.exposed - shares.compute;
  return shares;
}

std::string simulation_report(const Simulation& simulation, const ReportStyle& style) {
  return PredictionText(simulation, style).text();
}

}  // namespace foreshard::cli
