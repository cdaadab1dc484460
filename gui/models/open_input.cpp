#include "gui/models/open_input.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "core/input_file.h"
#include "core/job/job_file.h"
#include "core/job/model_defaults.h"
#include "core/model/json_input.h"
#include "core/model/sources/job_defaults.h"
#include "gui/models/simulated_timeline.h"
#include "gui/models/timeline/amounts.h"
#include "traces/formats/open_trace.h"

namespace foreshard::gui {
namespace {

namespace fs = std::filesystem;

enum class InputKind { Recording, Job, Sweep };

/// The first bytes tell sweeps and models from traces, which are JSON too.
InputKind kind_of(const std::string& path) {
  std::error_code code;
  if (fs::is_directory(path, code) || path.ends_with(".toml") || path.ends_with(".pt2")) return InputKind::Job;
  const std::string head = beginning_of_file(path, 8192);
  const auto holds = [&](const char* word) { return head.find(word) != std::string::npos; };
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || head[first] != '{') return InputKind::Recording;
  if (holds("\"foreshard.sweep/")) return InputKind::Sweep;
  if (holds("\"traceEvents\"") || holds("\"schemaVersion\"") || holds("\"deviceProperties\""))
    return InputKind::Recording;
  if (holds("\"foreshard.model/") || holds("\"model_type\"") || holds("\"architectures\"")) return InputKind::Job;
  return InputKind::Recording;
}

Result<OpenedInput> open_job(const std::string& path, const OpenInputOptions& options) {
  const char* variable = std::getenv("FORESHARD_SET");
  JobOverrides overrides;
  overrides.sets = options.sets;
  if (variable != nullptr) overrides.environment = environment_overrides(variable);
  auto loaded = load_job(path, overrides, job_defaults);
  if (!loaded) return fail(loaded.error());
  auto prediction = simulate_job(loaded->job, true);
  if (!prediction) return fail(prediction.error());
  OpenedInput opened;
  opened.notes = loaded->warnings;
  if (!prediction->deadlock.empty()) opened.notes.push_back("the predicted run stands still: " + prediction->deadlock);
  if (prediction->oom)
    opened.notes.push_back(fmt::format("does not fit: out of memory in {} of {}, {} wanted, {} free",
                                       prediction->oom->phase.empty() ? "a step" : prediction->oom->phase,
                                       prediction->oom->unit.empty() ? "the root" : prediction->oom->unit,
                                       bytes_words(static_cast<double>(prediction->oom->requested)),
                                       bytes_words(static_cast<double>(prediction->oom->free))));
  opened.timeline = make_timeline_model(std::move(prediction->timeline), short_name(path));
  opened.job = std::move(loaded->job);
  return opened;
}

Result<OpenedInput> opened_recording(Result<OpenedTrace> trace, const std::string& name) {
  if (!trace) return fail(trace.error());
  OpenedInput opened;
  for (const TraceWarning& warning : trace->warnings) opened.notes.push_back(warning.place + ": " + warning.text);
  if (trace->timeline.provenance.dropped_records > 0)
    opened.notes.push_back(fmt::format("{}: {} records found no room and are not there", name,
                                       trace->timeline.provenance.dropped_records));
  opened.timeline = make_timeline_model(std::move(trace->timeline), name, std::move(trace->arguments));
  return opened;
}

OpenOptions trace_options(const OpenInputOptions& options) {
  OpenOptions trace;
  trace.progress = options.progress;
  return trace;
}

}  // namespace

std::string short_name(const std::string& path) {
  std::string name = fs::path(path).filename().string();
  return name.empty() ? path : name;
}

Result<OpenedInput> open_input(const std::string& path, const OpenInputOptions& options) {
  switch (kind_of(path)) {
    case InputKind::Job: return open_job(path, options);
    case InputKind::Sweep: {
      const auto text = read_text_file(path, kMostSweepBytes);
      if (!text) return fail(text.error());
      auto sweep = read_sweep_points(*text, path);
      if (!sweep) return fail(sweep.error());
      OpenedInput opened;
      opened.sweep = std::move(*sweep);
      return opened;
    }
    case InputKind::Recording: break;
  }
  return opened_recording(open_trace(path, trace_options(options)), short_name(path));
}

Result<OpenedInput> open_inputs(const std::vector<std::string>& paths, const OpenInputOptions& options) {
  if (paths.size() == 1) return open_input(paths.front(), options);
  return opened_recording(open_traces(paths, trace_options(options)),
                          fmt::format("{} and {} more", short_name(paths.front()), paths.size() - 1));
}

}  // namespace foreshard::gui
