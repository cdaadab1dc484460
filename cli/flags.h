// What the command line says, as plain values: one struct a verb. Filled by cli/arguments.cpp, taken by the verbs.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace foreshard::cli {

/// Flags that every verb takes.
struct OutputFlags {
  bool json = false;
  bool quiet = false;
  bool no_color = false;
};

/// A job file (or a model file, then the rest is defaults) and what --set changes in it.
struct JobFlags {
  std::string file;
  std::vector<std::string> set;
};

struct InspectFlags {
  JobFlags job;
  bool report = false;  // with --json: the numbers instead of model.json
  int depth = 0;        // text: levels of the module tree; 0 = all, equal siblings folded
};

struct PlanFlags {
  JobFlags job;
  std::string format = "text";   // text | json | dot
  std::string action = "train";  // train, or a list of init, summon, save, load with options
  int iterations = 0;            // 0 = all; N = the first N
  bool layout = false;
};

struct SimulateFlags {
  JobFlags job;
  std::string trace;       // Chrome JSON
  std::string timeline;    // .fst
  bool per_unit = false;   // one span a segment instead of one a kernel: faster, coarser
  bool no_remedy = false;  // do not search for a change that fits
};

struct ConfigFlags {
  JobFlags job;
  bool origin = false;
};

struct DoctorFlags {};
struct VersionFlags {};

struct CompletionFlags {
  std::string shell;  // bash | zsh | fish
};

using VerbFlags =
    std::variant<InspectFlags, PlanFlags, SimulateFlags, ConfigFlags, DoctorFlags, VersionFlags, CompletionFlags>;

struct CommandLine {
  OutputFlags output;
  VerbFlags verb;
};

}  // namespace foreshard::cli
