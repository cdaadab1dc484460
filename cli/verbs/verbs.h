// One function a verb, each in its own file: flags in, text on the console, exit code out.
#pragma once

#include "cli/console/console.h"
#include "cli/console/flags.h"

namespace foreshard::cli {

ExitCode run_verb(const InspectFlags& flags, const Console& console);
ExitCode run_verb(const ImportFlags& flags, const Console& console);
ExitCode run_verb(const FitFlags& flags, const Console& console);
ExitCode run_verb(const ExportFlags& flags, const Console& console);
ExitCode run_verb(const ExportScriptFlags& flags, const Console& console);
ExitCode run_verb(const PlanFlags& flags, const Console& console);
ExitCode run_verb(const SimulateFlags& flags, const Console& console);
ExitCode run_verb(const RunFlags& flags, const Console& console);
ExitCode run_verb(const ValidateFlags& flags, const Console& console);
ExitCode run_verb(const SweepFlags& flags, const Console& console);
ExitCode run_verb(const ScheduleFlags& flags, const Console& console);
ExitCode run_verb(const CompareFlags& flags, const Console& console);
ExitCode run_verb(const TraceFlags& flags, const Console& console);
ExitCode run_verb(const DiagnoseFlags& flags, const Console& console);
ExitCode run_verb(const CheckpointFlags& flags, const Console& console);
ExitCode run_verb(const CalibrateFlags& flags, const Console& console);
ExitCode run_verb(const ConfigFlags& flags, const Console& console);
ExitCode run_verb(const ShadowFlags& flags, const Console& console);
ExitCode run_verb(const ViewFlags& flags, const Console& console);
ExitCode run_verb(const ReportFlags& flags, const Console& console);
ExitCode run_verb(const DoctorFlags& flags, const Console& console);
ExitCode run_verb(const VersionFlags& flags, const Console& console);
ExitCode run_verb(const CompletionFlags& flags, const Console& console);

}  // namespace foreshard::cli
