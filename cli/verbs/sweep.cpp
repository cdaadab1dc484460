#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "cli/console/progress_bar.h"
#include "cli/console/usage_error.h"
#include "cli/reports/sweep_document.h"
#include "cli/reports/sweep_picture.h"
#include "cli/reports/sweep_report.h"
#include "cli/session/job_source.h"
#include "cli/verbs/verbs.h"
#include "core/job/located_error.h"
#include "core/model/json_input.h"
#include "core/output_file.h"
#include "core/text/digest.h"
#include "sim/search/prepare_job.h"

namespace foreshard::cli {
namespace {

/// Some 180,000 points.
constexpr Bytes kMostSweepFile = 64 * kMiB;

Error sweep_usage(std::string place, std::string message, std::string expected, std::string got) {
  return verb_usage_error("sweep", std::move(place), std::move(message), std::move(expected), std::move(got));
}

Result<SweepPart> parse_part(const std::string& text) {
  SweepPart part;
  if (text.empty()) return part;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, part.index);
  const bool slash = first.ec == std::errc() && first.ptr != end && *first.ptr == '/';
  const auto second = slash ? std::from_chars(first.ptr + 1, end, part.of) : first;
  if (!slash || second.ec != std::errc() || second.ptr != end || part.of < 1 || part.index < 1 || part.index > part.of)
    return fail(sweep_usage("--part", "a part has the form i/n", "1/8 to 8/8", text));
  return part;
}

Result<Bytes> parse_budget(const std::string& text) {
  if (text.empty()) return Bytes{0};
  const auto bytes = parse_size(text);
  if (!bytes || *bytes <= 0) return fail(sweep_usage("--budget", "a budget is a size", "80GiB", text));
  return *bytes;
}

Result<void> write_file(const std::string& path, const std::string& text) {
  return path.empty() ? Result<void>() : write_whole_file(path, text);
}

Result<SweepDocument> merged(const std::vector<std::string>& inputs) {
  if (inputs.size() < 2)
    return fail(sweep_usage("merge", "there is nothing to merge", "files that sweep --json wrote", "none"));
  std::vector<SweepDocument> parts;
  for (std::size_t k = 1; k < inputs.size(); ++k) {
    const auto text = read_text_file(inputs[k], kMostSweepFile);
    if (!text) return fail(text.error());
    auto part = parse_sweep(*text, inputs[k]);
    if (!part) return fail(part.error());
    parts.push_back(std::move(*part));
  }
  return merge_sweeps(parts);
}

Result<std::vector<SweepAxis>> axes_of(const SweepFlags& flags, const Job& job, const Model& model,
                                       const HardwareProfile& profile, const Console& console) {
  std::vector<SweepAxis> axes;
  for (const std::string& text : flags.over) {
    auto axis = parse_sweep_axis(text);
    if (!axis) return fail(axis.error());
    axes.push_back(std::move(*axis));
  }
  if (!flags.automatic) return axes;
  auto more = choose_sweep_axes(job, model, profile, axes);
  if (!more) return fail(more.error());
  for (const std::string& refused : more->refused) console.note("note: not varied: " + refused);
  for (SweepAxis& axis : more->axes) axes.push_back(std::move(axis));
  return axes;
}

Result<SweepDocument> swept(const SweepFlags& flags, const Console& console) {
  if (flags.inputs.size() != 1)
    return fail(sweep_usage("JOB", "a sweep has one job", "one job file or model file",
                            fmt::format("{}", flags.inputs.size())));
  SweepOptions options;
  const auto part = parse_part(flags.part);
  if (!part) return fail(part.error());
  const auto budget = parse_budget(flags.budget);
  if (!budget) return fail(budget.error());
  const auto loaded = load_job({flags.inputs.front(), flags.set}, console);
  if (!loaded) return fail(loaded.error());
  const Job& job = loaded->job;
  const auto profile = load_profile(job.cluster.profile);
  if (!profile) return fail(profile.error());
  const auto model = load_job_model(job, *profile);
  if (!model) return fail(located(model.error(), *loaded));
  auto axes = axes_of(flags, job, *model, *profile, console);
  if (!axes) return fail(axes.error());
  const auto grid = SweepGrid::make(std::move(*axes));
  if (!grid) return fail(grid.error());
  for (const std::string& key : grid->axes_without_meaning(job))
    console.note(fmt::format("note: {} means nothing in any of these points: all its values are the same job", key));

  ProgressBar bar(!console.quiet);
  options.part = *part;
  options.budget = *budget;
  options.threads = flags.threads;
  options.progress = [&bar](std::size_t done, std::size_t total) { bar.draw(done, total); };
  auto result = sweep(job, *grid, options);
  if (!result) return fail(result.error());
  SweepDocument document;
  document.model = model->name;
  document.profile = profile->id;
  document.job = digest_of(job_to_toml(job));
  document.budget = *budget > 0 ? *budget : job.cluster.memory > 0 ? job.cluster.memory : profile->memory_bytes;
  document.axes = grid->axes();
  document.points_in_all = grid->size();
  document.of = part->of;
  document.have = {part->index};
  document.result = std::move(*result);
  return document;
}

}  // namespace

ExitCode run_verb(const SweepFlags& flags, const Console& console) {
  if (auto possible = try_outputs({flags.csv, flags.picture}); !possible) return console.error(possible.error());
  const bool merges = !flags.inputs.empty() && flags.inputs.front() == "merge";
  const auto document = merges ? merged(flags.inputs) : swept(flags, console);
  if (!document) return console.error(document.error());
  if (auto written = write_file(flags.csv, sweep_csv(*document)); !written) return console.error(written.error());
  if (!flags.picture.empty()) {
    if (auto written = write_file(flags.picture, sweep_picture(*document)); !written)
      return console.error(written.error());
    console.note(fmt::format("picture: {}", flags.picture));
  }
  const ReportStyle style{console.color, console.unicode, console.width};
  if (!console.result(console.json ? sweep_json(*document) : sweep_report(*document, style)))
    return ExitCode::RunFailed;
  if (merges && !document->whole()) {
    console.note(fmt::format("note: {} of {} parts are here", document->have.size(), document->of));
    return ExitCode::Partial;
  }
  return document->result.front.empty() ? ExitCode::DoesNotFit : ExitCode::Ok;
}

}  // namespace foreshard::cli
