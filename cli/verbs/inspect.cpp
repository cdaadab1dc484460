#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/console/amount_text.h"
#include "cli/session/job_source.h"
#include "cli/session/pipeline.h"
#include "cli/verbs/verbs.h"
#include "core/job/located_error.h"
#include "core/lowering/activations/activation.h"
#include "core/model/inspect.h"
#include "core/model/model_json.h"
#include "core/text/format_append.h"

namespace foreshard::cli {
namespace {

/// What forward leaves behind for backward: storages that it allocates and does not free itself.
Bytes kept_bytes(const LoweredProgram& lowered) {
  Bytes bytes = 0;
  for (const SegmentInstance& instance : lowered.instances) {
    const SegmentTemplate& segment = lowered.templates[static_cast<std::size_t>(instance.lowered)];
    for (const MemoryEvent& event : segment.forward.events) {
      if (event.slot < 0) continue;
      const Bytes size = segment.slots[static_cast<std::size_t>(event.slot)].bytes;
      bytes += event.alloc ? size : -size;
    }
  }
  return bytes;
}

/// The whole forward as one segment: what is kept does not depend on where units begin.
Result<InspectReport> report_of(const Model& model) {
  InspectReport report = inspect_model(model);
  if (model.ops.empty()) return report;
  std::vector<bool> trainable;
  for (const ParamInfo& param : model.params) trainable.push_back(param.requires_grad);
  const auto lowered = lower(model, {{0, static_cast<std::int32_t>(model.ops.size()), false, -1}}, trainable);
  if (!lowered) return fail(lowered.error());
  report.activation_bytes = kept_bytes(*lowered);
  report.unknown_ops = lowered->unknown_ops;
  const auto kept = activation_report(model, false);
  if (!kept) return fail(kept.error());
  for (const auto& share : kept->by_class) report.kept_by_class.emplace_back(share.name, share.bytes);
  for (const auto& share : kept->by_operator) report.kept_by_operator.emplace_back(share.name, share.bytes);
  return report;
}

std::string shapes_of(const Model& model) {
  std::string text;
  for (const ValueId id : model.inputs) {
    const ValueInfo& value = model.values[id.index()];
    text += fmt::format("{}{} {} [", text.empty() ? "" : ", ", value.name, dtype_name(value.dtype));
    for (std::size_t i = 0; i < value.shape.size(); ++i) text += fmt::format("{}{}", i > 0 ? ", " : "", value.shape[i]);
    text += "]";
  }
  return text;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

/// The largest few, and what the rest is together.
void add_kept(std::string& text, std::string_view title, std::vector<std::pair<std::string, Bytes>> kept) {
  constexpr std::size_t kShown = 8;
  if (kept.empty()) return;
  std::stable_sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  format_append(text, "\n{}\n", title);
  Bytes rest = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (i < kShown)
      format_append(text, "  {:<54}{:>18}\n", kept[i].first, bytes_text(kept[i].second));
    else
      rest += kept[i].second;
  }
  if (rest > 0) format_append(text, "  {:<54}{:>18}\n", "others", bytes_text(rest));
}

std::string inspect_text(const Model& model, const InspectReport& report, int depth) {
  std::string text;
  const auto line = [&](std::string_view label, const std::string& content) {
    format_append(text, "{:<14}{}\n", label, content);
  };
  line("model",
       fmt::format("{}{}", model.name, model.architecture.empty() ? "" : fmt::format(" ({})", model.architecture)));
  line("parameters", fmt::format("{} in {}, {}; {} trainable", grouped_text(report.total.params),
                                 counted(report.param_tensors, "tensor"), bytes_text(report.total.param_bytes),
                                 grouped_text(report.trainable_params)));
  if (report.total.params_all_names != report.total.params)
    line("", fmt::format("{} with every name of a shared tensor counted", grouped_text(report.total.params_all_names)));
  if (report.buffer_bytes > 0) line("buffers", bytes_text(report.buffer_bytes));
  line("inputs", shapes_of(model));
  if (model.ops.empty()) {
    line("operators", "none: the model can be planned, but carries no times and no activations");
  } else {
    line("operators", fmt::format("{} in {}", grouped_text(static_cast<std::int64_t>(model.ops.size())),
                                  dtype_name(model.compute_dtype)));
    line("FLOPs",
         fmt::format("forward {}, backward {}", short_count_text(static_cast<double>(report.total.flops.forward)),
                     short_count_text(static_cast<double>(report.total.flops.backward))));
    if (report.activation_bytes)
      line("activations", fmt::format("{} kept between forward and backward", bytes_text(*report.activation_bytes)));
    line("without rule", listed(report.unknown_ops));
  }
  format_append(text, "\n{:<32}{:>8}{:>18}{:>16}\n", "class", "modules", "own parameters", "forward FLOPs");
  for (const ClassNumbers& c : report.classes) {
    format_append(text, "{:<32}{:>8}{:>18}{:>16}\n", c.class_name, grouped_text(c.modules), grouped_text(c.own_params),
                  short_count_text(static_cast<double>(c.flops.forward)));
  }
  add_kept(text, "kept for backward by class", report.kept_by_class);
  add_kept(text, "kept for backward by operator", report.kept_by_operator);
  return text + "\n" + write_module_tree(model, report, depth);
}

Result<Model> model_of(const Job& job) {
  auto profile = load_profile(job.cluster.profile);
  if (!profile) return fail(profile.error());
  return load_job_model(job, *profile);
}

}  // namespace

ExitCode run_verb(const InspectFlags& flags, const Console& console) {
  const auto loaded = load_job(flags.job, console);
  if (!loaded) return console.error(loaded.error());
  const auto model = model_of(loaded->job);
  if (!model) return console.error(located(model.error(), *loaded));
  if (console.json && !flags.report)
    return console.result(write_model_json(*model)) ? ExitCode::Ok : ExitCode::RunFailed;
  const auto report = report_of(*model);
  if (!report) return console.error(report.error());
  const std::string text =
      console.json ? write_inspect_json(*model, *report) : inspect_text(*model, *report, flags.depth);
  return console.result(text) ? ExitCode::Ok : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
