// One long file on purpose: every flag of every verb, one after the other.
#include "cli/console/arguments.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "cli/console/spelling.h"
#include "cli/console/verb_examples.h"

namespace foreshard::cli {
namespace {

constexpr const char* kAbout =
    "Plan an FSDP run before you pay for it: does it fit, how long is a step, which communication is exposed, and why.";
constexpr const char* kFooter =
    "A JOB is a job file (TOML) or a model file; then the rest is defaults. Results go to stdout, notes to stderr.\n"
    "Exit codes: 0 ok, 1 the run failed, 2 usage, 3 bad input, 4 does not fit, 5 partial result.\n\n"
    "Files that are read are regular files, or - for standard input; no pipes, no devices. At most: a job 1 MiB;\n"
    "config.json, model.json, tokenizer.json and a sweep 64 MiB; the program in a .pt2 48 MiB; .fst and memory\n"
    "snapshots 4 GiB unpacked; recordings in JSON any size, 64 GiB of timeline; a packed file 256 MiB or 200 times its "
    "size.";
constexpr const char* kSetAbout = "Override a value of the job, for example fsdp.runtime=fsdp1 (repeatable)";

Error usage(std::string message, std::string got, std::string expected, std::string hint) {
  Error error;
  error.code = ErrorCode::Usage;
  error.place = "command line";
  error.message = std::move(message);
  error.got = std::move(got);
  error.expected = std::move(expected);
  error.hint = std::move(hint);
  return error;
}

std::string footer_of(const std::string& verb) { return "Example:\n  " + example_of(verb) + "\n\n" + kFooter; }

/// CLI11's way of checking: a sentence if the text is no NAME=SIZE.
std::string not_a_dim(std::string& text) {
  const std::size_t equals = text.find('=');
  const bool size = equals != std::string::npos && equals > 0 && equals + 1 < text.size() &&
                    text.size() - equals < 20 && text.find_first_not_of("0123456789", equals + 1) == std::string::npos;
  return size && text.find_first_of("\"\\") == std::string::npos ? "" : text + " is no NAME=SIZE";
}

/// --dim A=1 --dim B=2 is --set model.dims={"A"=1,"B"=2}.
std::string set_of_dims(const std::vector<std::string>& dims) {
  std::string set = "model.dims={";
  for (const std::string& dim : dims) {
    const std::size_t equals = dim.find('=');
    set += fmt::format("{}\"{}\"={}", set.back() == '{' ? "" : ",", dim.substr(0, equals), dim.substr(equals + 1));
  }
  return set + "}";
}

/// The parser with the places that its flags are written to.
class Declaration {
 public:
  Declaration() : app_(kAbout, "foreshard") {
    app_.require_subcommand(1);
    app_.add_flag("--version", version_, "Print the version");
    add_output_flags(app_);
    declare_inspect();
    declare_import();
    declare_fit();
    declare_export();
    declare_export_script();
    declare_plan();
    declare_simulate();
    declare_run();
    declare_shadow();
    declare_sweep();
    declare_schedule();
    declare_validate();
    declare_compare();
    declare_trace();
    declare_diagnose();
    declare_checkpoint();
    declare_view();
    declare_calibrate();
    declare_config();
    declare_rest();
    app_.footer(footer_of(""));
    for (CLI::App* verb : app_.get_subcommands({})) verb->footer(footer_of(verb->get_name()));
  }

  CLI::App& app() { return app_; }
  CommandLine take(const std::string& verb);
  std::vector<VerbDescription> describe() const;
  bool version_asked() const { return version_; }

 private:
  void add_output_flags(CLI::App& app) {
    app.add_flag("--json", output_.json, "Answer as JSON with a versioned schema (errors too)");
    app.add_flag("-q,--quiet", output_.quiet, "No notes on stderr");
    app.add_flag("--no-color", output_.no_color, "Plain ASCII without colour (as NO_COLOR)");
  }

  CLI::App& add_verb(const char* name, const char* about) {
    CLI::App& verb = *app_.add_subcommand(name, about);
    add_output_flags(verb);
    return verb;
  }

  void add_schedule_file(CLI::App& verb, JobFlags& job) {
    files_.push_back(
        verb.add_option("--schedule", job.schedule, "What `foreshard schedule --out` wrote: runtime planned")
            ->type_name("FILE"));
  }

  void add_job(CLI::App& verb, JobFlags& job, const char* name, const char* about) {
    files_.push_back(verb.add_option(name, job.file, about)->required()->type_name("FILE"));
    verb.add_option("--set", job.set, kSetAbout)->type_name("KEY=VALUE")->allow_extra_args(false);
    for (const char* size : {"batch", "seq"}) {
      verb.add_option_function<std::int64_t>(
              fmt::format("--{}", size),
              [&job, size](std::int64_t n) { job.set.push_back(fmt::format("model.{}={}", size, n)); },
              fmt::format("Short for --set model.{}=N", size))
          ->check(CLI::Range(1, 1 << 30).description(""))
          ->type_name("N");
    }
    verb.add_option_function<std::string>(
            "--program", [&job](const std::string& program) { job.set.push_back("model.program=" + program); },
            ".pt2 of several programs: which one (as model.program)")
        ->type_name("NAME");
    verb.add_option_function<std::vector<std::string>>(
            "--dim", [&job](const std::vector<std::string>& dims) { job.set.push_back(set_of_dims(dims)); },
            ".pt2: the size of a symbolic dimension, named s27 or tokens.1 (repeatable; as model.dims)")
        ->check(CLI::Validator(&not_a_dim, "", "dim"))
        ->type_name("NAME=SIZE")
        ->allow_extra_args(false);
  }

  void add_choice(CLI::Option* option, std::vector<std::string> words) {
    CLI::Validator member = CLI::IsMember(words);
    std::string list;
    for (const std::string& word : words) list += (list.empty() ? "" : "|") + word;
    option->check(member.description(""))->type_name(list);
    choices_[option] = std::move(words);
  }

  void add_output_file(CLI::App& verb, const char* name, std::string& path, const char* about) {
    files_.push_back(verb.add_option(name, path, about)->type_name("FILE"));
  }

  void declare_inspect() {
    CLI::App& verb =
        add_verb("inspect", "A model: module tree, parameters, FLOPs, activation bytes, operators without a rule");
    add_job(verb, inspect_.job, "MODEL", "config.json, a folder that holds one, model.json, or a job file");
    verb.add_flag("--report", inspect_.report, "With --json: the numbers (foreshard.inspect/1) instead of model.json");
    verb.add_option("--depth", inspect_.depth, "Levels of the module tree; 0 = all")
        ->check(CLI::Range(0, 64).description(""))
        ->type_name("N");
  }

  void declare_import() {
    CLI::App& verb =
        add_verb("import", "A job file from accelerate's, Transformers', TRL's or torchtitan's configuration");
    files_.push_back(verb.add_option("FILE", import_.file, "YAML, JSON or TOML")->type_name("FILE"));
    verb.add_flag("--script", import_.script, "Print a script that writes torchtitan's Python configurations as JSON");
    files_.push_back(verb.add_option("--model", import_.model, "model.source of the job")->type_name("MODEL"));
  }

  void declare_fit() {
    CLI::App& verb = add_verb("fit", "From a model and GPUs to the jobs that train it fastest, and their files");
    add_job(verb, fit_.job, "MODEL", "config.json, a folder that holds one, model.json, or a job file");
    verb.add_option("--gpus", fit_.gpus, "8xh100-sxm-80, 2x8xh100-sxm-80 for two nodes, or a calibrated file's path")
        ->required()
        ->type_name("GPUS");
    verb.add_option("--method", fit_.method, "full, lora, or both with a comma between")->type_name("METHODS");
    verb.add_option("--context", fit_.context, "Tokens in a sequence; max = the longest that fits")
        ->type_name("TOKENS");
    verb.add_option("--tokens-per-step", fit_.tokens_per_step, "Of all ranks, with accumulation; else what fits")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40).description(""))
        ->type_name("N");
    verb.add_option("--threads", fit_.threads, "0 = one a core")
        ->check(CLI::Range(0, 4096).description(""))
        ->type_name("N");
    verb.add_option("--emit", fit_.emit, "Only jobs that these can be told, and their files: torchtitan,accelerate,...")
        ->type_name("TOOLS");
    files_.push_back(
        verb.add_option("--out", fit_.out, "The folder for the files, one inside it a choice")->type_name("DIR"));
  }

  void declare_export() {
    CLI::App& verb = add_verb("export", "The files that start a job in torchtitan, accelerate, Transformers or TRL");
    add_job(verb, export_.job, "JOB", "A job file or a model file");
    verb.add_option("--as", export_.as, "torchtitan, accelerate, transformers, trl, or several with commas between")
        ->required()
        ->type_name("TOOLS");
    files_.push_back(
        verb.add_option("--out", export_.out, "The folder to write to; else all goes to stdout")->type_name("DIR"));
  }

  void declare_export_script() {
    CLI::App& verb =
        add_verb("export-script", "A Python script that exports your own model to a small .pt2, to be run beside it");
    verb.add_option("MODEL", export_script_.model, "Transformers id or config.json, timm:NAME, or FILE.py:FUNCTION")
        ->type_name("MODEL");
    verb.add_option("--batch", export_script_.batch, "Default of the script")
        ->check(CLI::Range(1, 1'000'000).description(""))
        ->type_name("N");
    verb.add_option("--seq", export_script_.seq, "Default of the script")
        ->check(CLI::Range(1, 100'000'000).description(""))
        ->type_name("N");
    verb.add_option("--output", export_script_.output, "Name of the archive")->type_name("FILE");
  }

  void declare_plan() {
    CLI::App& verb = add_verb("plan", "Units, layouts, execution order, instructions, checks and traps of a job");
    add_job(verb, plan_.job, "JOB", "A job file or a model file");
    add_schedule_file(verb, plan_.job);
    add_choice(verb.add_option("--format", plan_.format, "How it is printed; dot is for Graphviz"),
               {"text", "json", "dot"});
    verb.add_option("--iterations", plan_.iterations, "Only the first N iterations; 0 = until steady")
        ->check(CLI::Range(0, 1000).description(""))
        ->type_name("N");
    verb.add_flag("--layout", plan_.layout, "With the place of every parameter in every shard");
    verb.add_option(
            "--action", plan_.action,
            "Which plan: train, eval (train.eval), or a list of init, summon, save and load with their options, "
            "as in init:sync,save:full:rank0_only:offload")
        ->type_name("LIST");
  }

  void declare_simulate() {
    CLI::App& verb = add_verb("simulate", "Predict memory, step time and exposed communication of a job");
    add_job(verb, simulate_.job, "JOB", "A job file or a model file");
    add_schedule_file(verb, simulate_.job);
    add_output_file(verb, "--trace", simulate_.trace,
                    "Write the timeline as Chrome JSON for Perfetto (.json or .json.gz)");
    add_output_file(verb, "--timeline", simulate_.timeline, "Write the timeline in our own form (.fst)");
    add_output_file(verb, "--snapshot", simulate_.snapshot,
                    "Write what the allocator does as PyTorch's memory snapshot, for memory_viz (.pickle)");
    verb.add_option(
            "--action", simulate_.action,
            "Which plan: train, eval, or a list of init, summon, save and load, as for plan: their memory and time")
        ->type_name("LIST");
    verb.add_flag("--per-unit", simulate_.per_unit, "One span a segment instead of one a kernel: faster, coarser");
    verb.add_flag("--wait-each-step", simulate_.wait_each_step,
                  "The loop waits for the device after every step, as `run` does and whoever reads the loss each time");
    verb.add_flag("--no-remedy", simulate_.no_remedy,
                  "If it does not fit, do not search for the nearest change that would");
    verb.add_flag("--explain", simulate_.explain,
                  "Who holds what at the peak, why communication is exposed, and which change removes how much");
    verb.add_option("--slow-rank", simulate_.slow_ranks, "Ranks whose compute takes longer, as in 3=1.2 or 8-15=1.3")
        ->type_name("RANKS=FACTOR")
        ->allow_extra_args(false);
    verb.add_option("--rank-profile", simulate_.rank_profiles, "Ranks on another device, as in 8-15=a100-sxm-80")
        ->type_name("RANKS=PROFILE")
        ->allow_extra_args(false);
    verb.add_option("--jitter", simulate_.jitter, "Standard deviation of every segment's duration, relative, per rank")
        ->check(CLI::Range(0.0, 1.0).description(""))
        ->type_name("SHARE");
    verb.add_option("--seed", simulate_.seed, "Of the jitter")->type_name("N");
  }

  void add_link(CLI::App& verb, LinkFlags& link) {
    verb.add_option("--link-latency", link.latency_us, "--backend host: microseconds that each collective takes longer")
        ->check(CLI::Range(0, 100'000'000).description(""))
        ->type_name("US");
    verb.add_option("--link-bandwidth", link.bytes_per_s, "... and bytes per second that a rank sends, as in 100MB")
        ->type_name("SIZE");
  }

  void declare_run() {
    CLI::App& verb = add_verb("run", "Train: the same plan on real tensors, on one rank or many");
    add_job(verb, run_.job, "JOB", "A job file or a model file");
    add_schedule_file(verb, run_.job);
    verb.add_option("--nproc", run_.nproc, "Start N ranks on this machine; without it torchrun, Slurm or MPI has")
        ->check(CLI::Range(1, 1024).description(""))
        ->type_name("N");
    add_choice(verb.add_option("--backend", run_.backend, "What the ranks compute on"), {"host", "cuda"});
    add_output_file(verb, "--timeline", run_.timeline, "Write what all ranks did in our own form (.fst)");
    add_output_file(verb, "--trace", run_.trace, "... as Chrome JSON for Perfetto (.json or .json.gz)");
    add_choice(
        verb.add_option("--record", run_.record,
                        "--backend cuda: what they hold; work alone, without waits and memory, costs the host less"),
        {"all", "work"});
    verb.add_flag("--resume", run_.resume, "Go on from the newest whole checkpoint in train.checkpoint.dir");
    verb.add_option("--load", run_.load,
                    "A library with communication hooks of your own, for fsdp.comm_hook; repeatable")
        ->type_name("LIBRARY")
        ->allow_extra_args(false);
    add_link(verb, run_.link);
    verb.add_option("--emulate-world", run_.emulate_world,
                    "One real rank (cluster.rank) of N: its memory and compute, collectives of the modelled duration")
        ->check(CLI::Range(2, 1'000'000).description(""))
        ->type_name("N");
    verb.add_option("--action", run_.action,
                    "Instead of training: a list of init, summon, save and load, as for plan: what they hold, show and "
                    "return, measured beside the prediction")
        ->type_name("LIST");
    verb.add_flag("--cuda-graphs", run_.cuda_graphs, "--backend cuda: repeat a fused optimizer step as a CUDA graph");
    verb.add_flag("--nccl-register", run_.nccl_register, "--backend cuda: register the allocator's memory with NCCL");
    verb.add_option("--timeout", run_.timeout_seconds, "Seconds that a rank waits for the others")
        ->check(CLI::Range(1, 1'000'000).description(""))
        ->type_name("SECONDS");
    verb.add_option("--stop-within", run_.stop_seconds,
                    "Seconds that the run may take to finish its step, save and end after Ctrl-C or SIGTERM")
        ->check(CLI::Range(1, 1'000'000).description(""))
        ->type_name("SECONDS");
  }

  void declare_shadow() {
    CLI::App& verb = add_verb(
        "shadow", "An unmodified PyTorch script on a virtual GPU: memory, steps, its FSDP set-up, what differs");
    verb.add_option("COMMAND", shadow_.command,
                    "Behind --: what starts the script, as python train.py, torchrun or accelerate launch")
        ->required()
        ->type_name("COMMAND");
    verb.add_option("--world", shadow_.world,
                    "Ranks that it sees; else as the environment or its launcher says, else 8")
        ->check(CLI::Range(1, 1'000'000).description(""))
        ->type_name("N");
    verb.add_option("--rank", shadow_.rank, "Which of them it is")
        ->check(CLI::Range(0, 1'000'000).description(""))
        ->type_name("R");
    verb.add_option("--profile", shadow_.profile, "Whose memory and clock the GPU has")->type_name("PROFILE");
    verb.add_option("--steps", shadow_.steps, "Steps that are watched, then the script is ended; 0 = until it ends")
        ->check(CLI::Range(0, 1'000'000).description(""))
        ->type_name("N");
    add_output_file(verb, "--timeline", shadow_.timeline, "Write what the device did in our own form (.fst)");
    add_output_file(verb, "--out", shadow_.out,
                    "Keep the found job file, the model and the device's log in this folder");
    files_.push_back(
        verb.add_option("--job", shadow_.job, "The job that the script was meant to be: its plan stands beside it")
            ->type_name("JOB"));
    verb.add_flag("--no-plan", shadow_.no_plan,
                  "The figures alone: the model is not written down and nothing is planned");
    verb.add_flag("--fake-weights", shadow_.fake_weights,
                  "from_pretrained makes weights from a config; tokenizers and data sets have stand-ins");
    verb.add_option("--timeout", shadow_.timeout_seconds, "Seconds of real time after which the script is ended")
        ->check(CLI::Range(1, 1'000'000).description(""))
        ->type_name("SECONDS");
  }

  void declare_validate() {
    CLI::App& verb = add_verb("validate", "Errors, interval coverage and rank correlation over published measurements");
    files_.push_back(verb.add_option("TABLE", validate_.tables, "Tables of training runs or of collectives (CSV)")
                         ->required()
                         ->type_name("FILE"));
    verb.add_option("--only", validate_.only, "One row of the table")->type_name("ID");
    CLI::Option* csv = verb.add_flag("--csv", validate_.csv, "One line a number instead of the report");
    verb.add_flag("--markdown", validate_.markdown, "The tables of docs/accuracy.md")->excludes(csv);
  }

  void declare_sweep() {
    CLI::App& verb = add_verb("sweep", "Search many jobs: the front of step time against peak memory");
    files_.push_back(verb.add_option("JOB", sweep_.inputs, "A job file or a model file; or: merge A.json B.json ...")
                         ->required()
                         ->type_name("FILE"));
    verb.add_option("--set", sweep_.set, kSetAbout)->type_name("KEY=VALUE")->allow_extra_args(false);
    verb.add_option("--over", sweep_.over, "A key of the job and the values to try (repeatable)")
        ->type_name("KEY=V1,V2")
        ->allow_extra_args(false);
    verb.add_flag("--auto", sweep_.automatic, "Choose what to vary: batch, checkpointing, strategy, prefetch, ...");
    verb.add_option("--budget", sweep_.budget, "Memory of one device in place of the profile's")->type_name("SIZE");
    verb.add_option("--part", sweep_.part, "Only part i of n, for job arrays; sweep merge joins them")
        ->type_name("I/N");
    verb.add_option("--threads", sweep_.threads, "0 = one a core")
        ->check(CLI::Range(0, 1024).description(""))
        ->type_name("N");
    add_output_file(verb, "--csv", sweep_.csv, "Write all points as a table");
    add_output_file(verb, "--picture", sweep_.picture, "Draw the front (.svg)");
  }

  void declare_schedule() {
    CLI::App& verb =
        add_verb("schedule", "A schedule for a memory budget: what is kept, when gathers start, how near the best");
    add_job(verb, schedule_.job, "JOB", "A job file or a model file");
    verb.add_option("--budget", schedule_.budget, "Reserved memory at most, as in 72GiB; else all that the card has")
        ->type_name("SIZE");
    add_choice(verb.add_option("--objective", schedule_.objective,
                               "The shortest step, or the least memory that is no slower than fsdp2"),
               {"time", "memory"});
    add_choice(verb.add_option("--emit", schedule_.emit, "Write a module that sets PyTorch's FSDP2 up like this"),
               {"fsdp2"});
    verb.add_option("--seconds", schedule_.seconds, "Search no longer, and take the best so far; else to its end")
        ->check(CLI::Range(0.001, 1e6).description(""))
        ->type_name("N");
    add_output_file(verb, "--out", schedule_.out, "Write the schedule, for --schedule (or what --emit asks for)");
  }

  void declare_compare() {
    CLI::App& verb = add_verb("compare", "Where two timelines part: by instruction, unit, cause and memory category");
    files_.push_back(verb.add_option("A", compare_.a, "A recording (docs/traces.md), or a job, which is simulated")
                         ->required()
                         ->type_name("FILE"));
    files_.push_back(
        verb.add_option("B", compare_.b, "What it is measured against: likewise")->required()->type_name("FILE"));
    verb.add_option("--set", compare_.set, kSetAbout)->type_name("KEY=VALUE")->allow_extra_args(false);
    verb.add_option("--iteration", compare_.iteration, "Of both; else the steady one of each")
        ->check(CLI::Range(0, 1 << 30).description(""))
        ->type_name("N");
    verb.add_option("--rank", compare_.rank, "One rank; else all that both have")
        ->check(CLI::Range(0, 1 << 30).description(""))
        ->type_name("N");
    verb.add_option("--top", compare_.top, "Rows of the long tables; 0 = all")
        ->check(CLI::Range(0, 1 << 30).description(""))
        ->type_name("N");
    for (const auto& [flag, target, about] :
         {std::tuple{"--a-rank", &compare_.a_rank, "The rank of A, where it is not that of B"},
          std::tuple{"--b-rank", &compare_.b_rank, "The rank of B"},
          std::tuple{"--a-iteration", &compare_.a_iteration, "The iteration of A; else as --iteration"},
          std::tuple{"--b-iteration", &compare_.b_iteration, "The iteration of B"}}) {
      verb.add_option(flag, *target, about)->check(CLI::Range(0, 1 << 30).description(""))->type_name("N");
    }
    verb.add_option("--fail-over", compare_.fail_over,
                    "Exit with 1 if step time, peak memory or exposed communication part by more, as in 5%")
        ->type_name("SHARE");
    verb.add_flag("--force", compare_.force, "Compare timelines of different plans all the same");
  }

  void declare_trace() {
    CLI::App& verb = add_verb(
        "trace", "Recordings of any kind: busy, idle by cause, kernels, flame graphs, stragglers, SQL; other formats");
    add_choice(
        verb.add_option("ACTION", trace_.action,
                        "analyse, convert IN... OUT, kernels, flame, memory, stragglers, or query FILE... SELECT")
            ->required(),
        {"analyse", "convert", "kernels", "flame", "memory", "stragglers", "query"});
    files_.push_back(verb.add_option("FILE", trace_.files,
                                     "Kineto or Chrome JSON, .fst, memory snapshots, nsys' sqlite; several are ranks")
                         ->required()
                         ->type_name("FILE"));
    verb.add_option("--rank", trace_.rank, "One rank; else all")
        ->check(CLI::Range(0, 1 << 30).description(""))
        ->type_name("N");
    verb.add_option(
            "--from", trace_.from,
            "Work that begins at this time or later, as in 12ms; convert: that lasts until then; memory: the moment, "
            "else the peak")
        ->type_name("TIME");
    verb.add_option("--to", trace_.to, "... and before this time")->type_name("TIME");
    verb.add_option("--top", trace_.top, "Rows of the long tables; 0 = all")
        ->check(CLI::Range(0, 1 << 30).description(""))
        ->type_name("N");
    add_choice(
        verb.add_option("--by", trace_.by, "kernels: what a row is, else a kernel's name; flame: stack or module"),
        {"kernel", "operator", "module", "layer", "stack"});
    files_.push_back(verb.add_option("--against", trace_.against, "kernels, memory: the difference to this recording")
                         ->type_name("FILE"));
    add_output_file(verb, "--out", trace_.out, "flame: a picture (.svg) or folded stacks (.txt); else stdout");
    add_output_file(verb, "--csv", trace_.csv, "kernels, memory, stragglers, query: write all rows of the table");
  }

  void declare_diagnose() {
    CLI::App& verb = add_verb("diagnose", "What costs a recorded run time and memory, why, and what mends it");
    files_.push_back(verb.add_option("FILE", diagnose_.files,
                                     "Kineto or Chrome JSON, .fst, a memory snapshot, nsys' sqlite; several are ranks")
                         ->required()
                         ->type_name("FILE"));
    files_.push_back(
        verb.add_option("--job", diagnose_.job, "The job that was recorded: what mends a cause is simulated with it")
            ->type_name("JOB"));
    verb.add_option("--set", diagnose_.set, kSetAbout)->type_name("KEY=VALUE")->allow_extra_args(false);
    verb.add_option("--rank", diagnose_.rank, "Whose step is looked at; else the longest")
        ->check(CLI::Range(0, 1 << 30).description(""))
        ->type_name("N");
    verb.add_option("--top", diagnose_.top, "That many findings; 0 = all")
        ->check(CLI::Range(0, 1 << 30).description(""))
        ->type_name("N");
  }

  void declare_view() {
    CLI::App& view = add_verb("view", "Look at timelines: a window, or with --render a picture without a screen");
    add_seen_files(view, view_.files, view_.set, view_.rank, view_.force);
    view.get_option("FILE")->required(false);
    add_output_file(view, "--render", view_.render, "Draw a picture (.svg or .png) instead of opening a window");
    add_choice(view.add_option("--view", view_.view, "What is drawn; else what suits the files"),
               {"timeline", "memory", "compare", "pareto"});
    view.add_option("--range", view_.range, "For example 100ms..250ms; else the step that stands for the run")
        ->type_name("A..B");
    view.add_option("--size", view_.size, "Of the picture: 1600, or 1600x900")->type_name("WxH");
    view.add_option("--scale", view_.scale, "Device pixels to a pixel of a PNG")->type_name("S");
    add_choice(view.add_option("--theme", view_.theme, "Pictures are light, the window is as the desktop"),
               {"light", "dark"});
    CLI::App& report = add_verb("report", "One HTML file with pictures and tables: a timeline, or A against B");
    add_seen_files(report, report_.files, report_.set, report_.rank, report_.force);
    add_output_file(report, "-o,--output", report_.output, "The file to write; default report.html");
  }

  void add_seen_files(CLI::App& verb, std::vector<std::string>& files, std::vector<std::string>& set, int& rank,
                      bool& force) {
    files_.push_back(
        verb.add_option("FILE", files, "Recordings, a job or model (which is simulated), or a sweep's JSON")
            ->required()
            ->type_name("FILE"));
    verb.add_option("--set", set, kSetAbout)->type_name("KEY=VALUE")->allow_extra_args(false);
    verb.add_option("--rank", rank, "Compare this rank only")
        ->check(CLI::Range(0, 1 << 30).description(""))
        ->type_name("N");
    verb.add_flag("--force", force, "Compare timelines of different plans all the same");
  }

  void declare_checkpoint() {
    CLI::App& verb = add_verb("checkpoint", "Look into checkpoints; weights as safetensors out of them and into them");
    add_choice(verb.add_option("ACTION", checkpoint_.action, "show, export or import")->required(),
               {"show", "export", "import"});
    files_.push_back(verb.add_option("SOURCE", checkpoint_.source,
                                     "A checkpoint, or a folder of them (the newest whole one); import: safetensors")
                         ->required()
                         ->type_name("FILE"));
    files_.push_back(verb.add_option("JOB", checkpoint_.job, "import: the job or model file that the weights are for")
                         ->type_name("FILE"));
    verb.add_option("--set", checkpoint_.set, kSetAbout)->type_name("KEY=VALUE")->allow_extra_args(false);
    add_output_file(verb, "--out", checkpoint_.out, "The folder to write: weights (export), checkpoints (import)");
    verb.add_option("--max-shard-size", checkpoint_.max_shard_size, "export: split above this size; default 5GB")
        ->type_name("SIZE");
    verb.add_option("--dtype", checkpoint_.dtype, "export: convert the weights, for example to bfloat16")
        ->type_name("DTYPE");
    verb.add_flag("--optimizer", checkpoint_.optimizer, "export: the optimizer's state too, optimizer.safetensors");
    verb.add_flag("--verify", checkpoint_.verify, "show: read every byte and compare its checksum");
  }

  void declare_calibrate() {
    CLI::App& verb = add_verb("calibrate", "Measure this machine for a job's model and write a hardware profile");
    add_job(verb, calibrate_.job, "JOB", "A job file or a model file: its operators are measured over their shapes");
    add_output_file(verb, "--output", calibrate_.output, "The profile, for --set cluster.profile=FILE");
    files_.push_back(verb.add_option("--from", calibrate_.from,
                                     "Do not measure: take the collectives from an output of nccl-tests, or fit the "
                                     "profile to recorded steps of this job (docs/calibrate.md; repeatable)")
                         ->type_name("FILE")
                         ->allow_extra_args(false));
    add_choice(verb.add_option("--backend", calibrate_.backend, "What is measured: CPUs, or CUDA devices"),
               {"host", "cuda"});
    verb.add_option("--ranks", calibrate_.ranks, "How many ranks compute at once and talk to each other")
        ->check(CLI::Range(1, 64).description(""))
        ->type_name("N");
    add_link(verb, calibrate_.link);
    verb.add_option("--repeats", calibrate_.repeats, "Of every measurement; the median counts")
        ->check(CLI::Range(1, 1000).description(""))
        ->type_name("N");
    verb.add_option(
            "--steps", calibrate_.steps,
            "Of the job itself, run at the end on a host (20, and 60 more where they are short); 0 = its parts alone")
        ->check(CLI::Range(0, 1000).description(""))
        ->type_name("N");
  }

  void declare_config() {
    CLI::App& verb = add_verb("config", "Every effective value of a job");
    add_choice(verb.add_option("ACTION", config_action_, "show")->required(), {"show"});
    add_job(verb, config_.job, "JOB", "A job file or a model file");
    verb.add_flag("--origin", config_.origin, "Where each value came from");
  }

  void declare_rest() {
    CLI::App& doctor = add_verb("doctor", "What is found on this machine, what is missing, and what each gives");
    files_.push_back(doctor
                         .add_option("--op-rules", doctor_.op_rules.file,
                                     "Ask LibTorch what this model's operators keep and run, and compare our rules")
                         ->type_name("MODEL"));
    doctor.add_option("--set", doctor_.op_rules.set, kSetAbout)->type_name("KEY=VALUE")->allow_extra_args(false);
    add_verb("version", "Version, schemas and what this build holds");
    CLI::App& completion = add_verb("completion", "Completion for a shell: source <(foreshard completion bash)");
    add_choice(completion.add_option("SHELL", completion_.shell, "The shell")->required(), {"bash", "zsh", "fish"});
    app_.add_subcommand("help", "This text, or the help of one verb: foreshard help simulate");
  }

  CLI::App app_;
  OutputFlags output_;
  InspectFlags inspect_;
  ImportFlags import_;
  FitFlags fit_;
  ExportFlags export_;
  ExportScriptFlags export_script_;
  PlanFlags plan_;
  SimulateFlags simulate_;
  RunFlags run_;
  SweepFlags sweep_;
  ScheduleFlags schedule_;
  ValidateFlags validate_;
  CompareFlags compare_;
  TraceFlags trace_;
  DiagnoseFlags diagnose_;
  CalibrateFlags calibrate_;
  CheckpointFlags checkpoint_;
  ShadowFlags shadow_;
  ViewFlags view_;
  ReportFlags report_;
  ConfigFlags config_;
  DoctorFlags doctor_;
  CompletionFlags completion_;
  std::string config_action_;
  bool version_ = false;
  std::vector<const CLI::Option*> files_;
  std::map<const CLI::Option*, std::vector<std::string>> choices_;
};

CommandLine Declaration::take(const std::string& verb) {
  CommandLine line;
  line.output = output_;
  if (verb == "inspect") line.verb = std::move(inspect_);
  if (verb == "import") line.verb = std::move(import_);
  if (verb == "fit") line.verb = std::move(fit_);
  if (verb == "export") line.verb = std::move(export_);
  if (verb == "export-script") line.verb = std::move(export_script_);
  if (verb == "plan") line.verb = std::move(plan_);
  if (verb == "simulate") line.verb = std::move(simulate_);
  if (verb == "run") line.verb = std::move(run_);
  if (verb == "validate") line.verb = std::move(validate_);
  if (verb == "sweep") line.verb = std::move(sweep_);
  if (verb == "schedule") line.verb = std::move(schedule_);
  if (verb == "compare") line.verb = std::move(compare_);
  if (verb == "trace") line.verb = std::move(trace_);
  if (verb == "diagnose") line.verb = std::move(diagnose_);
  if (verb == "checkpoint") line.verb = std::move(checkpoint_);
  if (verb == "calibrate") line.verb = std::move(calibrate_);
  if (verb == "shadow") line.verb = std::move(shadow_);
  if (verb == "view") line.verb = std::move(view_);
  if (verb == "report") line.verb = std::move(report_);
  if (verb == "config") line.verb = std::move(config_);
  if (verb == "doctor") line.verb = std::move(doctor_);
  if (verb == "version") line.verb = VersionFlags{};
  if (verb == "completion") line.verb = std::move(completion_);
  return line;
}

std::vector<VerbDescription> Declaration::describe() const {
  std::vector<VerbDescription> verbs;
  for (const CLI::App* app : app_.get_subcommands(nullptr)) {
    VerbDescription verb{app->get_name(), app->get_description(), {}, false, {}};
    for (const CLI::Option* option : app->get_options()) {
      const bool file = std::find(files_.begin(), files_.end(), option) != files_.end();
      const auto words = choices_.find(option);
      if (option->get_positional()) {
        verb.takes_file = verb.takes_file || file;
        if (words != choices_.end()) verb.words = words->second;
        continue;
      }
      FlagDescription flag;
      for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
      for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
      flag.about = option->get_description();
      flag.takes_value = option->get_items_expected_max() > 0;
      flag.takes_file = file;
      if (words != choices_.end()) flag.values = words->second;
      verb.flags.push_back(std::move(flag));
    }
    verbs.push_back(std::move(verb));
  }
  return verbs;
}

Error unknown_verb(const std::string& verb, const std::vector<VerbDescription>& verbs) {
  std::vector<std::string> names;
  for (const VerbDescription& known : verbs) names.push_back(known.name);
  const std::string near = nearest(verb, names);
  return usage(fmt::format("there is no verb {}", verb), verb, "",
               near.empty() ? "`foreshard help` lists the verbs" : fmt::format("did you mean {}?", near));
}

// The parser's own text for an unknown flag names neither the verb nor what comes near.
Error unknown_flag(const std::string& text, const std::string& verb, const std::vector<std::string>& arguments,
                   const std::vector<VerbDescription>& verbs) {
  const auto known = std::find_if(verbs.begin(), verbs.end(), [&](const VerbDescription& v) { return v.name == verb; });
  std::vector<std::string> flags;
  if (known != verbs.end()) {
    for (const FlagDescription& flag : known->flags) flags.insert(flags.end(), flag.names.begin(), flag.names.end());
  }
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    if (name.size() < 2 || name[0] != '-' || std::find(flags.begin(), flags.end(), name) != flags.end()) continue;
    std::string near = nearest(name, flags);
    for (const std::string& flag : flags) {  // --output for --out
      if (near.empty() && flag.size() > 4 && (name.starts_with(flag) || flag.starts_with(name))) near = flag;
    }
    return usage(
        fmt::format("{} has no flag {}", verb, name), name, "a flag of the verb",
        near.empty() ? fmt::format("`foreshard help {}` lists them", verb) : fmt::format("did you mean {}?", near));
  }
  return usage(text, "", fmt::format("the arguments of {}", verb),
               fmt::format("`foreshard help {}` shows the usage", verb));
}

std::string first_word(const std::vector<std::string>& arguments, std::size_t from = 0) {
  for (std::size_t i = from; i < arguments.size(); ++i) {
    if (!arguments[i].empty() && arguments[i][0] != '-') return arguments[i];
  }
  return {};
}

}  // namespace

std::vector<VerbDescription> describe_verbs() { return Declaration().describe(); }

Result<std::variant<CommandLine, HelpText>> parse_arguments(const std::vector<std::string>& arguments) {
  Declaration declaration;
  CLI::App& app = declaration.app();
  const auto verbs = declaration.describe();
  const std::string verb = first_word(arguments);
  const auto known = [&](const std::string& name) {
    return std::any_of(verbs.begin(), verbs.end(), [&](const VerbDescription& v) { return v.name == name; });
  };
  if (!verb.empty() && !known(verb)) return fail(unknown_verb(verb, verbs));
  if (verb == "help") {
    const auto at = std::find(arguments.begin(), arguments.end(), "help") - arguments.begin();
    const std::string about = first_word(arguments, static_cast<std::size_t>(at) + 1);
    if (about.empty() || about == "help") return HelpText{app.help()};
    if (!known(about)) return fail(unknown_verb(about, verbs));
    return HelpText{app.get_subcommand(about)->help("foreshard")};
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // the parser takes them from the back
  } catch (const CLI::CallForHelp&) {
    return HelpText{app.help()};
  } catch (const CLI::ParseError& error) {
    if (verb.empty() && declaration.version_asked()) return CommandLine{{}, VersionFlags{}};
    if (verb.empty()) return fail(usage("no verb given", "", "a verb", "`foreshard help` lists the verbs"));
    return fail(unknown_flag(error.what(), verb, arguments, verbs));
  }
  return declaration.take(verb);
}

}  // namespace foreshard::cli
