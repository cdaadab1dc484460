// What the command line says, as plain values: one struct a verb. Filled by cli/console/arguments.cpp, taken by the
// verbs.
#pragma once

#include <cstdint>
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
  std::string schedule = {};  // a schedule file; empty = as the job says
};

/// A link slower than the machine's own, between ranks of the host backend.
struct LinkFlags {
  int latency_us = 0;       // of each collective; 0 = none
  std::string bytes_per_s;  // as 100MB; empty = no limit
};

struct InspectFlags {
  JobFlags job;
  bool report = false;  // with --json: the numbers instead of model.json
  int depth = 0;        // text: levels of the module tree; 0 = all, equal siblings folded
};

struct PlanFlags {
  JobFlags job;
  std::string format = "text";   // text | json | dot
  std::string action = "train";  // train, eval, or a list of init, summon, save, load with options
  int iterations = 0;            // 0 = all; N = the first N
  bool layout = false;
};

struct SimulateFlags {
  JobFlags job;
  std::string trace;             // Chrome JSON
  std::string timeline;          // .fst
  std::string snapshot;          // PyTorch's memory snapshot
  std::string action = "train";  // as for plan
  bool per_unit = false;         // one span a segment instead of one a kernel: faster, coarser
  bool no_remedy = false;        // do not search for a change that fits
  bool explain = false;          // who holds what, why communication is exposed, what would help
  bool wait_each_step = false;   // the loop waits for the device before the next step
  // Ranks that are not all alike: "3=1.2", "8-15=a100-sxm-80".
  std::vector<std::string> slow_ranks, rank_profiles;
  double jitter = 0;
  std::uint64_t seed = 0;
};

struct RunFlags {
  JobFlags job;
  std::string backend = "host";  // host | cuda
  std::string action = "train";  // as for plan, but eval
  int nproc = 0;                 // ranks to start on this machine; 0 = this process is one, as its environment says
  std::string timeline;          // .fst
  std::string trace;             // Chrome JSON
  std::string record = "all";    // all | work
  bool resume = false;
  int timeout_seconds = 300;      // of meetings and collectives
  int stop_seconds = 300;         // that a run may take to save and end after a signal
  std::vector<std::string> load;  // shared libraries with communication hooks
  bool cuda_graphs = false;       // work that repeats, as graphs
  bool nccl_register = false;     // the allocator's memory with NCCL
  int emulate_world = 0;          // this one process stands for that many ranks; 0 = it does not
  LinkFlags link;
};

struct ValidateFlags {
  std::vector<std::string> tables;
  std::string only;  // one row
  bool csv = false;
  bool markdown = false;
};

struct SweepFlags {
  std::vector<std::string> inputs;  // a job, or "merge" and the files of its parts
  std::vector<std::string> set;
  std::vector<std::string> over;  // key=v1,v2
  bool automatic = false;         // choose axes
  std::string budget;             // memory of one device
  std::string part;               // i/n
  int threads = 0;                // 0 = one a core
  std::string csv, picture;
};

struct ScheduleFlags {
  JobFlags job;
  std::string budget;     // reserved memory; empty = the job's, else the card's
  std::string objective;  // time | memory; empty = the job's
  std::string emit;       // fsdp2: a module for PyTorch in place of the schedule file
  double seconds = 0;     // of the search, at most; 0: to its end
  std::string out;
};

struct ExportFlags {
  JobFlags job;
  std::string as;   // torchtitan,accelerate,transformers,trl
  std::string out;  // a folder; empty = the files on stdout
};

struct FitFlags {
  JobFlags job;  // a model or a job; cluster, layout, recomputation and batch are the answer's
  std::string gpus;
  std::string method = "full";       // full, lora, or both
  std::string context;               // max, or tokens; empty = the job's
  std::int64_t tokens_per_step = 0;  // 0 = as many as fit
  int threads = 0;                   // 0 = one a core
  std::string emit, out;
};

struct CompareFlags {
  std::string a, b;  // a recording, or a job that is simulated
  std::vector<std::string> set;
  std::string fail_over;  // "5%"; empty = never
  int iteration = -1;     // -1: the steady one
  int rank = -1;          // -1: all that both have
  // Of one side alone, where they are not the same; -1: as above.
  int a_rank = -1, b_rank = -1, a_iteration = -1, b_iteration = -1;
  int top = 10;  // rows of the long tables; 0 = all
  bool force = false;
};

struct TraceFlags {
  std::string action;              // analyse | convert | kernels | memory | flame | stragglers | query
  std::vector<std::string> files;  // convert: the last one is written; query: the last one is the question
  int rank = -1;                   // -1: all
  std::string from, to;            // "12ms"; empty = all of it
  int top = 10;                    // rows of the long tables; 0 = all
  std::string by;   // kernels: kernel | operator | module | layer, empty = kernel; flame: stack | module, empty = stack
  std::string out;  // flame: a picture (.svg) or folded stacks; empty = folded stacks on stdout
  std::string against;  // kernels, memory: another recording, whose table is taken away
  std::string csv;      // kernels, memory, stragglers, query: the table as a file, all rows
};

struct DiagnoseFlags {
  std::vector<std::string> files, set;
  std::string job;  // whose settings are tried; empty = savings stay estimates
  int rank = -1;    // -1: the one with the longest step
  int top = 0;      // findings; 0 = all
};

struct CheckpointFlags {
  std::string action;  // show | export | import
  std::string source;  // a checkpoint or a folder of them; import: weights
  std::string job;     // import: whose model the weights are
  std::vector<std::string> set;
  std::string out;             // a folder
  std::string max_shard_size;  // "5GB"; empty = that
  std::string dtype;           // empty = as they are
  bool optimizer = false;
  bool verify = false;
};

struct CalibrateFlags {
  JobFlags job;
  std::string output = "calibrated-host.toml";
  std::vector<std::string> from;  // nccl-tests outputs or recordings, instead of measuring
  std::string backend = "host";   // host | cuda
  int ranks = 2;
  int repeats = 15;
  int steps = -1;  // of the job itself, run after its parts; 0 = none, -1 = 20, and more where they are short
  LinkFlags link;
};

struct ConfigFlags {
  JobFlags job;
  bool origin = false;
};

struct ImportFlags {
  bool script = false;  // print the script that writes torchtitan's configurations as JSON
  std::string file;
  std::string model;  // model.source of the job
};

struct ExportScriptFlags {
  std::string model;  // default of the script; empty = it asks
  int batch = 0;      // 0 = the script's default
  int seq = 0;
  std::string output;
};

struct ShadowFlags {
  std::vector<std::string> command;  // behind "--"
  int world = 0;                     // ranks; 0: as the environment or the script's launcher says, else 8
  int rank = -1;                     // -1: as the environment says, else 0
  std::string profile = "h100-sxm-80";
  int steps = 3;         // that are watched, then the script is ended; 0 = until it ends
  std::string timeline;  // .fst
  std::string out;       // folder for job file, model and log; empty: they are not kept
  std::string job;       // what the script was meant to be: its plan stands beside it instead of the found one's
  bool no_plan = false;
  bool fake_weights = false;
  int timeout_seconds = 600;
};

struct ViewFlags {
  std::vector<std::string> files, set;
  std::string render;  // a picture instead of a window
  std::string view;    // timeline | memory | compare | pareto; empty = what suits the files
  std::string range, size, scale, theme;
  int rank = -1;  // compare: one rank
  bool force = false;
};

struct ReportFlags {
  std::vector<std::string> files, set;
  std::string output = "report.html";
  int rank = -1;
  bool force = false;
};

struct DoctorFlags {
  JobFlags op_rules;  // a model whose operator rules are compared with LibTorch; no file: this machine is looked at
};
struct VersionFlags {};

struct CompletionFlags {
  std::string shell;  // bash | zsh | fish
};

using VerbFlags = std::variant<InspectFlags, ImportFlags, FitFlags, ExportFlags, ExportScriptFlags, PlanFlags,
                               SimulateFlags, RunFlags, SweepFlags, ScheduleFlags, ValidateFlags, CompareFlags,
                               TraceFlags, DiagnoseFlags, CheckpointFlags, CalibrateFlags, ConfigFlags, ShadowFlags,
                               ViewFlags, ReportFlags, DoctorFlags, VersionFlags, CompletionFlags>;

struct CommandLine {
  OutputFlags output;
  VerbFlags verb;
};

}  // namespace foreshard::cli
