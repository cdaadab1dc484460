#include "sim/fit/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "cli/console/progress_bar.h"
#include "cli/console/usage_error.h"
#include "cli/reports/fit_report.h"
#include "cli/reports/remedies.h"
#include "cli/session/exported_files.h"
#include "cli/session/job_source.h"
#include "cli/session/pipeline.h"
#include "cli/verbs/verbs.h"
#include "core/job/export/export_job.h"
#include "core/job/import/import_job.h"
#include "core/job/key_meaning.h"
#include "core/output_file.h"
#include "sim/fit/gpus.h"

namespace foreshard::cli {
namespace {

Error fit_usage(std::string place, std::string message, std::string expected, std::string got) {
  return verb_usage_error("fit", std::move(place), std::move(message), std::move(expected), std::move(got));
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    out.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

/// The job before the search, and the settings that make it of the file given.
struct Start {
  Job job;
  std::vector<std::string> set;
};

Result<Start> start_of(const FitFlags& flags, const Console& console) {
  const auto gpus = parse_gpus(flags.gpus);
  if (!gpus) return fail(gpus.error());
  Start start;
  start.set = {fmt::format("cluster.profile=\"{}\"", gpus->profile),
               fmt::format("cluster.world_size={}", gpus->world_size),
               fmt::format("cluster.ranks_per_node={}", gpus->ranks_per_node)};
  if (!flags.context.empty() && flags.context != "max") {
    std::int64_t tokens = 0;
    const char* end = flags.context.data() + flags.context.size();
    if (std::from_chars(flags.context.data(), end, tokens) != std::from_chars_result{end, {}} || tokens < 1)
      return fail(
          fit_usage("--context", "a context is a number of tokens", "max, or tokens as in 8192", flags.context));
    start.set.push_back(fmt::format("model.seq={}", tokens));
  }
  JobFlags wanted = flags.job;
  wanted.set.insert(wanted.set.begin(), start.set.begin(), start.set.end());
  auto loaded = load_job(wanted, console);
  if (!loaded) return fail(loaded.error());
  start.set = wanted.set;
  // Its files stand elsewhere.
  std::error_code none;
  if (const auto path = std::filesystem::absolute(loaded->job.model.source, none); std::filesystem::exists(path, none))
    loaded->job.model.source = path.string();
  start.job = std::move(loaded->job);
  // Same numbers, fewer kernels and no temporaries: what nobody chose otherwise.
  const auto chosen = std::find_if(loaded->values.begin(), loaded->values.end(),
                                   [](const EffectiveValue& value) { return value.key == "train.optimizer.impl"; });
  if (chosen != loaded->values.end() && chosen->origin == "default") {
    start.job.train.optimizer.impl = OptimizerImpl::Fused;
    start.set.push_back("train.optimizer.impl=fused");
  }
  return start;
}

/// True if every program can be told the settings of a line.
bool can_say(const Job& job, const std::vector<std::string>& set, const std::vector<ExportTool>& tools) {
  return std::all_of(tools.begin(), tools.end(), [&](ExportTool tool) {
    const auto exported = export_job(job, tool);
    if (!exported) return false;
    for (const std::string& text : exported->files.front().untold) {
      for (const std::string& setting : set)
        if (text.starts_with(setting.substr(0, setting.find('=')) + " = ")) return false;
    }
    return true;
  });
}

/// The keys that say something and are not as by default.
std::string job_text(const FitChoice& choice) {
  ImportedJob own{"foreshard fit", choice.job, {}, {choice.layout + "; " + choice.recomputation}};
  for (std::size_t k = 0; k < job_keys().size(); ++k) {
    if (has_meaning(job_keys()[k].name, choice.job) && write_job_key(k, choice.job) != job_keys()[k].default_text)
      own.keys.push_back(k);
  }
  return write_imported_job(own, "search", choice.job.model.source);
}

/// OUT/1-full/job.toml and what the programs read, for each choice.
Result<std::vector<std::string>> write_choice(const FitChoice& choice, const std::string& folder,
                                              const std::vector<ExportTool>& tools) {
  ExportedJob own;
  own.files.push_back({"job.toml", job_text(choice), {}});
  auto paths = write_exported(own, folder);
  if (!paths) return paths;
  for (const ExportTool tool : tools) {
    const auto exported = export_job(choice.job, tool);
    if (!exported) return fail(exported.error());
    auto written = write_exported(*exported, folder);
    if (!written) return written;
    paths->insert(paths->end(), written->begin(), written->end());
  }
  return paths;
}

Result<void> write_all(const FitAnswer& answer, const std::string& out, const std::vector<ExportTool>& tools,
                       FitReport& report) {
  for (const FitMethod& method : answer.methods) {
    auto& files = report.files.emplace_back();
    for (std::size_t c = 0; c < method.choices.size() && !out.empty(); ++c) {
      const auto folder = std::filesystem::path(out) / fmt::format("{}-{}", c + 1, method.method);
      auto paths = write_choice(method.choices[c], folder.string(), tools);
      if (!paths) return fail(paths.error());
      files.push_back(std::move(*paths));
    }
  }
  return {};
}

Result<std::vector<ExportTool>> tools_of(const FitFlags& flags) {
  if (flags.emit.empty()) return std::vector<ExportTool>{};
  if (flags.out.empty()) return fail(fit_usage("--emit", "files need a folder", "--out DIR beside --emit", "no --out"));
  return parse_export_tools(flags.emit);
}

FitRequest request_of(const FitFlags& flags, const Job& job, const std::vector<ExportTool>& tools) {
  FitRequest request;
  request.job = job;
  request.methods = split(flags.method);
  request.tokens_per_step = flags.tokens_per_step;
  request.context_first = flags.context == "max";
  request.threads = flags.threads;
  request.one_precision =
      job.fsdp.mixed_precision.param == DType::BFloat16 &&
      std::any_of(tools.begin(), tools.end(), [](ExportTool tool) { return tool != ExportTool::Torchtitan; });
  if (!tools.empty())
    request.sayable = [tools](const Job& said, const std::vector<std::string>& set) {
      return can_say(said, set, tools);
    };
  return request;
}

/// From the job that needs least memory; one copy a rank becomes shards, so that more ranks help.
std::optional<Remedy> nearest_change(const FitMethod& method) {
  Job job = method.smallest;
  std::vector<std::string> set = method.smallest_set;
  if (job.fsdp.runtime == Runtime::None) {
    job.fsdp.runtime = Runtime::Fsdp2;
    std::replace(set.begin(), set.end(), std::string("fsdp.runtime=none"), std::string("fsdp.runtime=fsdp2"));
  }
  std::optional<Remedy> found = find_remedy(job).remedy;
  if (found) found->set.insert(found->set.begin(), set.begin(), set.end());
  return found;
}

}  // namespace

ExitCode run_verb(const FitFlags& flags, const Console& console) {
  const auto tools = tools_of(flags);
  if (!tools) return console.error(tools.error());
  if (auto possible = try_output_folder(flags.out); !possible) return console.error(possible.error());
  const auto start = start_of(flags, console);
  if (!start) return console.error(start.error());
  const auto profile = load_profile(start->job.cluster.profile);
  if (!profile) return console.error(profile.error());
  FitRequest request = request_of(flags, start->job, *tools);
  Result<FitAnswer> answer;
  {
    ProgressBar bar(!console.quiet);
    request.progress = [&bar](const std::string& what, std::size_t done, std::size_t total) {
      bar.draw(done, total, what);
    };
    answer = fit(request);
  }
  if (!answer) return console.error(answer.error());
  FitReport report{std::filesystem::path(start->job.model.source).filename().string(),
                   fmt::format("{} x {}", start->job.cluster.world_size, profile->id),
                   start->job.model.seq,
                   card_memory(start->job, *profile),
                   *answer,
                   start->set,
                   {},
                   {}};
  bool fits = false;
  for (const FitMethod& method : answer->methods) {
    fits = fits || !method.choices.empty();
    const bool search = !method.refused && method.choices.empty();
    report.nearest.push_back(search ? nearest_change(method) : std::nullopt);
  }
  if (!fits && tools->size() > 1) {  // they may share only what does not fit
    return console.error(fit_usage("--emit", "no job that fits can be told to all of these programs",
                                   "programs that share a way to say it, one at a time, or none", flags.emit));
  }
  if (auto written = write_all(*answer, flags.out, *tools, report); !written) return console.error(written.error());
  const ReportStyle style{console.color, console.unicode, console.width};
  if (!console.result(console.json ? fit_json(report) : fit_report(report, style))) return ExitCode::RunFailed;
  return fits ? ExitCode::Ok : ExitCode::DoesNotFit;
}

}  // namespace foreshard::cli
