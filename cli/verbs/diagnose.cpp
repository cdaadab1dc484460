// `foreshard diagnose`: a recording in, causes and remedies out; with the job, what each remedy saves is simulated.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/console/usage_error.h"
#include "cli/reports/recordings/diagnosis_report.h"
#include "cli/session/job_source.h"
#include "cli/session/pipeline.h"
#include "cli/verbs/verbs.h"
#include "sim/simulate.h"
#include "traces/diagnosis/diagnosis.h"
#include "traces/formats/open_trace.h"

namespace foreshard::cli {
namespace {

struct Simulated {
  double step = 0;  // ns
  Bytes reserved = 0;
  std::vector<Trap> traps;
};

Result<Simulated> simulated(const JobFlags& flags, const Console& console) {
  const auto loaded = load_job(flags, console);
  if (!loaded) return fail(loaded.error());
  const auto prepared = prepare(loaded->job);
  if (!prepared) return fail(prepared.error());
  SimulateOptions options = simulate_options(loaded->job);
  options.per_kernel = false;
  const auto prediction =
      simulate(prepared->plan, prepared->model, prepared->lowered, loaded->job, prepared->profile, options);
  if (!prediction) return fail(prediction.error());
  if (!prediction->fits || !prediction->deadlock.empty()) {
    Error error;
    error.message = prediction->fits ? "the predicted run stands still" : "the predicted run does not fit";
    error.file = flags.file;
    error.expected = "a job that fits and runs";
    error.hint = "foreshard simulate says more";
    return fail(std::move(error));
  }
  return Simulated{prediction->step_time_ns.value, prediction->memory.reserved, prepared->plan.traps};
}

/// What the recording cannot show: the plan says it with certainty.
DiagnosedCause finding_of(const Trap& trap) {
  DiagnosedCause finding;
  finding.name = fmt::format("trap_{}", trap.number);
  finding.cause = fmt::format("{}: {} (rules {})", trap.name, trap.text, trap.rules);
  finding.where = trap.units;
  finding.remedy = trap.remedy;
  return finding;
}

/// The rules of traces/diagnosis that say of a recording what the plan's traps say of its job.
bool told_by_recording(const Diagnosis& diagnosis, const Trap& trap) {
  return std::any_of(diagnosis.findings.begin(), diagnosis.findings.end(), [&](const DiagnosedCause& finding) {
    return (trap.number == 12 && finding.name == "nothing_wrapped") ||
           (trap.number == 13 && finding.name == "huge_root_unit");
  });
}

void simulate_remedies(const DiagnoseFlags& flags, const Console& console, Diagnosis& diagnosis,
                       DiagnosedFiles& about) {
  about.job = flags.job;
  Console quiet = console;
  quiet.quiet = true;  // the job's warnings were told once
  const auto base = simulated({flags.job, flags.set}, quiet);
  if (!base) {  // the findings stand without it
    about.not_simulated.push_back(fmt::format("what remedies save: {}", to_text(base.error())));
    about.job.clear();
    return;
  }
  for (DiagnosedCause& finding : diagnosis.findings) {
    if (finding.set.empty()) continue;
    std::vector<std::string> set = flags.set;
    set.insert(set.end(), finding.set.begin(), finding.set.end());
    const auto changed = simulated({flags.job, set}, quiet);
    if (!changed) {
      about.not_simulated.push_back(fmt::format("what {} saves: the job with {} gives \"{}\"", finding.name,
                                                fmt::join(finding.set, ", "), changed.error().message));
      continue;
    }
    finding.simulated = true;
    finding.saving = static_cast<SimDuration>(base->step - changed->step);
    finding.saving_bytes = base->reserved - changed->reserved;
  }
  for (const Trap& trap : base->traps) {
    if (!told_by_recording(diagnosis, trap)) diagnosis.findings.push_back(finding_of(trap));
  }
}

}  // namespace

ExitCode run_verb(const DiagnoseFlags& flags, const Console& console) {
  if (!flags.set.empty() && flags.job.empty())
    return console.error(usage_error("--set changes a job", "--job JOB beside --set", flags.set.front()));
  if (!flags.job.empty()) {  // before the recording, which may take minutes to read
    if (auto loaded = load_job({flags.job, flags.set}, console); !loaded) return console.error(loaded.error());
  }
  const auto opened = open_traces(flags.files);
  if (!opened) return console.error(opened.error());
  for (const TraceWarning& warning : opened->warnings)
    console.note(fmt::format("warning: {}: {}", warning.place, warning.text));
  DiagnosisOptions options;
  if (flags.rank >= 0) options.rank = flags.rank;
  auto diagnosis = diagnose(*opened, options);
  if (!diagnosis) {
    Error error = diagnosis.error();
    if (error.file.empty()) error.file = flags.files.front();
    return console.error(error);
  }
  DiagnosedFiles about{flags.files, "", {}, flags.top};
  if (!flags.job.empty()) simulate_remedies(flags, console, *diagnosis, about);
  const ReportStyle style{console.color, console.unicode, console.width};
  const bool written = console.result(console.json ? diagnosis_json(*opened, *diagnosis, about)
                                                   : diagnosis_report(*opened, *diagnosis, about, style));
  return written ? ExitCode::Ok : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
