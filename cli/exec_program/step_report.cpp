#include "cli/exec_program/step_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>

#include "cli/console/amount_text.h"
#include "cli/console/json_text.h"

namespace foreshard::cli {
namespace {

using exec::StepReport;

struct Quantiles {
  double value = 0, low = 0, high = 0;  // the median, the 5 % and the 95 % quantile
};

double quantile(const std::vector<double>& sorted, double share) {
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::lround(share * last))];
}

/// Of all steps but the first, which brings memory and code in; of that one if there is no other.
template <class F>
std::optional<Quantiles> quantiles_of(const std::vector<StepReport>& steps, F number) {
  std::vector<double> values;
  for (std::size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i) {
    if (const std::optional<double> value = number(steps[i])) values.push_back(*value);
  }
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  return Quantiles{quantile(values, 0.5), quantile(values, 0.05), quantile(values, 0.95)};
}

std::optional<Quantiles> step_times(const std::vector<StepReport>& steps) {
  return quantiles_of(steps, [](const StepReport& s) { return std::optional(static_cast<double>(s.step_time_ns)); });
}
std::optional<Quantiles> token_rates(const std::vector<StepReport>& steps) {
  return quantiles_of(steps, [](const StepReport& s) { return s.tokens_per_s; });
}

void estimate(JsonText& out, const char* key, const std::optional<Quantiles>& q) {
  out.key(key);
  if (!q) {
    out.null();
    return;
  }
  out.begin_object().field("value", q->value).field("low", q->low).field("high", q->high).end_object();
}

template <class Number>
void optional_number(JsonText& out, const char* key, const std::optional<Number>& number) {
  out.key(key);
  if (number) {
    out.value(*number);
  } else {
    out.null();
  }
}

void step_fields(JsonText& out, const StepReport& step) {
  out.begin_object().field("step", step.step).field("loss", step.loss);
  optional_number(out, "grad_norm", step.grad_norm);
  if (step.loss_scale) out.field("loss_scale", *step.loss_scale).field("skipped", step.skipped);
  out.field("lr", step.lr).field("step_time_ns", step.step_time_ns);
  optional_number(out, "tokens_per_s", step.tokens_per_s);
  out.field("peak_allocated_bytes", step.peak_allocated_bytes).field("peak_reserved_bytes", step.peak_reserved_bytes);
  if (step.eval_loss) out.field("eval_loss", *step.eval_loss).field("eval_time_ns", step.eval_time_ns);
  out.end_object();
}

Bytes peak_of(const std::vector<StepReport>& steps, Bytes StepReport::*bytes) {
  Bytes peak = 0;
  for (const StepReport& step : steps) peak = std::max(peak, step.*bytes);
  return peak;
}

void memory_fields(JsonText& out, const MeasuredTraining& m) {
  const exec::MemoryReport report = m.training.memory();
  const Bytes allocated = peak_of(m.steps, &StepReport::peak_allocated_bytes);
  std::optional<Bytes> active;
  for (const StepReport& step : m.steps)
    if (step.peak_active_bytes) active = std::max(active.value_or(0), *step.peak_active_bytes);
  const Bytes reserved = peak_of(m.steps, &StepReport::peak_reserved_bytes);
  out.key("memory").begin_object();
  out.field("peak_allocated_bytes", allocated);
  optional_number(out, "peak_active_bytes", active);
  out.field("peak_reserved_bytes", reserved).key("outside_allocator_bytes").null();
  out.key("at_peak").begin_object().field("instruction", report.peak_instruction.value);
  out.key("categories").begin_object();
  for (std::size_t c = 0; c < exec::kMemoryCategoryCount; ++c) {
    if (report.at_peak[c] != 0) {
      out.field(exec::memory_category_name(static_cast<exec::MemoryCategory>(c)), report.at_peak[c]);
    }
  }
  out.end_object().end_object().end_object();
}

void after_init_fields(JsonText& out, const exec::MemoryReport& report) {
  const auto& held = report.allocator;
  const Bytes all = report.total.allocated;
  out.key("after_init").begin_object().field("allocated_bytes", held ? held->allocated : all);
  optional_number(out, "active_bytes", held ? std::optional(held->active) : std::nullopt);
  out.field("reserved_bytes", held ? held->reserved : report.total.resident).end_object();
}

/// What the plan's steady iteration sends; how long it took is a timeline's to say.
void communication_fields(JsonText& out, const Plan& plan) {
  struct Sum {
    std::int64_t count = 0;
    Bytes bytes = 0;
  };
  std::map<std::string_view, Sum> sums;
  for (const Instruction& instruction : plan.iterations.back().instructions) {
    if (instruction.kind < InstructionKind::AllGather || instruction.kind > InstructionKind::Broadcast) continue;
    Sum& sum = sums[instruction_kind_name(instruction.kind)];
    ++sum.count;
    sum.bytes += instruction.bytes;
  }
  out.key("comm").begin_array();
  for (const auto& [kind, sum] : sums) {
    out.begin_object().field("kind", kind).field("count", sum.count).field("bytes", sum.bytes);
    out.key("busy_ns").null().key("exposed_ns").null().end_object();
  }
  out.end_array();
}

void iteration_fields(JsonText& out, const std::vector<StepReport>& steps) {
  out.key("iterations").begin_array();
  for (const StepReport& step : steps) {
    out.begin_object().field("index", step.step - 1).field("step_time_ns", step.step_time_ns);
    out.field("peak_allocated_bytes", step.peak_allocated_bytes);
    optional_number(out, "peak_active_bytes", step.peak_active_bytes);
    out.field("peak_reserved_bytes", step.peak_reserved_bytes).field("end_allocated_bytes", step.end_allocated_bytes);
    optional_number(out, "alloc_retries", step.alloc_retries);
    optional_number(out, "ooms", step.ooms);
    out.end_object();
  }
  out.end_array();
}

const char* end_word(exec::TrainingEnd::How how) {
  switch (how) {
    case exec::TrainingEnd::How::Done: return "done";
    case exec::TrainingEnd::How::Interrupted: return "interrupted";
    case exec::TrainingEnd::How::Failed: return "failed";
  }
  return "";
}

}  // namespace

std::string step_json(const StepReport& step) {
  JsonText out(0);
  step_fields(out, step);
  return out.take();
}

std::string step_line(const StepReport& step, std::int64_t steps) {
  std::string line = fmt::format("step {:>5}/{}  loss {:.4f}", step.step, steps, step.loss);
  if (step.grad_norm) line += fmt::format("  norm {:.4f}", *step.grad_norm);
  if (step.loss_scale) line += fmt::format("  scale {:g}{}", *step.loss_scale, step.skipped ? " (step left out)" : "");
  line += fmt::format("  lr {:.2e}  {}", step.lr, duration_text(static_cast<double>(step.step_time_ns)));
  if (step.tokens_per_s) line += fmt::format("  {} tokens/s", rate_text(*step.tokens_per_s));
  line += fmt::format("  peak {}", bytes_text(step.peak_allocated_bytes));
  if (step.eval_loss) {
    line +=
        fmt::format("  eval loss {:.4f} ({})", *step.eval_loss, duration_text(static_cast<double>(step.eval_time_ns)));
  }
  return line + "\n";
}

std::string progress_bar(const StepReport& step, std::int64_t steps, int width, bool unicode) {
  const std::string text = fmt::format(" {}/{}  loss {:.4f}  {}", step.step, steps, step.loss,
                                       duration_text(static_cast<double>(step.step_time_ns)));
  const int room = std::max(width - static_cast<int>(text.size()) - 2, 8);
  const auto filled = static_cast<int>(static_cast<std::int64_t>(room) * step.step / std::max<std::int64_t>(steps, 1));
  std::string bar;
  for (int i = 0; i < room; ++i) bar += i < filled ? (unicode ? "█" : "#") : (unicode ? "░" : ".");
  return bar + text;
}

std::string summary_json(const MeasuredTraining& m) {
  JsonText out(0);
  const Plan& plan = m.training.plan();
  out.begin_object().field("schema", "foreshard.run/1").field("end", end_word(m.end.how)).field("steps", m.end.steps);
  out.field("first_step", m.training.first_step()).field("fits", true).key("oom").null().field("deadlock", "");
  out.key("job").begin_object().field("model", m.training.model().name);
  out.field("runtime", runtime_name(m.job.fsdp.runtime)).field("strategy", strategy_name(m.job.fsdp.strategy));
  out.field("world_size", plan.world_size).field("rank", plan.rank).field("backend", m.backend);
  out.field("emulated", m.emulated);
  out.field("units", plan.units.size()).field("tokens_per_rank", m.training.model().tokens_per_batch).end_object();
  estimate(out, "step_time_ns", step_times(m.steps));
  estimate(out, "tokens_per_s", token_rates(m.steps));
  out.key("mfu").null().key("hfu").null();
  after_init_fields(out, m.training.after_init());
  iteration_fields(out, m.steps);
  memory_fields(out, m);
  communication_fields(out, plan);
  out.field("level", "measured").key("unknown_ops").begin_array().end_array().end_object();
  return out.take();
}

std::string summary_text(const MeasuredTraining& m) {
  if (m.steps.empty()) return fmt::format("{} steps are done already\n", m.end.steps);
  const auto times = step_times(m.steps);
  std::string text = fmt::format("{} on {}: loss {:.4f} -> {:.4f}, median step {} ({} to {})",
                                 counted(static_cast<std::int64_t>(m.steps.size()), "step"),
                                 counted(m.training.plan().world_size, m.emulated ? "emulated rank" : "rank"),
                                 m.steps.front().loss, m.steps.back().loss, duration_text(times->value),
                                 duration_text(times->low), duration_text(times->high));
  if (const auto rates = token_rates(m.steps)) text += fmt::format(", {} tokens/s", rate_text(rates->value));
  return text + fmt::format(", peak {}\n", bytes_text(peak_of(m.steps, &StepReport::peak_allocated_bytes)));
}

}  // namespace foreshard::cli
