#include "core/job/export/export_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "core/job/export/export_writer.h"
#include "core/job/import/import_job.h"
#include "core/job/key_meaning.h"

namespace foreshard {
namespace exporting {

std::int64_t nodes_of(const Job& job) {
  const ClusterOptions& cluster = job.cluster;
  return cluster.world_size <= cluster.ranks_per_node ? 1 : cluster.world_size / cluster.ranks_per_node;
}

std::string_view one_precision(const Job& job) {
  const std::optional<DType>& param = job.fsdp.mixed_precision.param;
  return param == DType::BFloat16 ? "bf16" : param == DType::Float16 ? "fp16" : "no";
}

}  // namespace exporting

namespace {

using exporting::nodes_of;

struct Tool {
  ExportTool tool;
  std::string_view name;
  std::string_view file;
};

constexpr std::array<Tool, 4> kTools{{{ExportTool::Torchtitan, "torchtitan", "torchtitan.toml"},
                                      {ExportTool::Accelerate, "accelerate", "accelerate.yaml"},
                                      {ExportTool::Transformers, "transformers", "transformers.json"},
                                      {ExportTool::Trl, "trl", "trl.yaml"}}};

const Tool& tool_of(ExportTool tool) { return kTools[static_cast<std::size_t>(tool)]; }

bool any_of(std::string_view key, std::initializer_list<std::string_view> starts) {
  return std::any_of(starts.begin(), starts.end(), [&](std::string_view start) { return key.starts_with(start); });
}

/// What describes the machine or Foreshard's own work, and what the command says (allocator, ranks).
bool is_no_matter_of_files(std::string_view key, ExportTool tool) {
  if (any_of(key, {"cluster.profile", "cluster.memory", "cluster.rank", "cluster.init", "fsdp.quirks",
                   "fsdp.allow_traps", "allocator.", "train.beside"}) &&
      key != "cluster.ranks_per_node")
    return true;
  if (tool == ExportTool::Accelerate) return false;
  return key == "cluster.ranks_per_node" || (tool != ExportTool::Torchtitan && key == "cluster.world_size");
}

struct Reason {
  std::string_view key;  // with a dot at its end: all keys of the table
  ExportTool tool;
  std::string_view why;
};

constexpr auto kReasons = std::to_array<Reason>({
    {"model.source", ExportTool::Torchtitan, "models are registered there: set model.name and model.flavor"},
    {"model.", ExportTool::Accelerate, "the training script says it"},
    {"train.", ExportTool::Accelerate, "the training script says it"},
    {"fsdp.mixed_precision.", ExportTool::Accelerate, "one word sets parameters, reductions and outputs alike"},
    {"fsdp.mixed_precision.", ExportTool::Transformers, "bf16 sets parameters, reductions and outputs alike"},
    {"fsdp.mixed_precision.", ExportTool::Trl, "bf16 sets parameters, reductions and outputs alike"},
    {"adapters.", ExportTool::Accelerate, "the training script says it"},
    {"adapters.", ExportTool::Transformers, "the training script adds adapters; TRL's configuration can say it"},
    {"checkpointing.offload_activations", ExportTool::Torchtitan, "only its graph trainer offloads activations"},
    {"checkpointing.offload_activations", ExportTool::Accelerate, "the training script says it"},
    {"checkpointing.offload_activations", ExportTool::Transformers, "TRL's configuration can say it"},
    {"fsdp.strategy", ExportTool::Transformers, "hybrid sharding of version 2 is accelerate's parallelism_config"},
    {"fsdp.strategy", ExportTool::Trl, "hybrid sharding of version 2 is accelerate's parallelism_config"},
});

std::string_view reason_of(std::string_view key, const Job& job, ExportTool tool) {
  if (key == "fsdp.runtime" && job.fsdp.runtime == Runtime::Planned)
    return "a schedule is applied in Python: foreshard schedule --emit fsdp2";
  for (const Reason& reason : kReasons) {
    if (reason.tool == tool && (reason.key.back() == '.' ? key.starts_with(reason.key) : key == reason.key))
      return reason.why;
  }
  return {};
}

/// Jobs that do the same: the size of shard groups and "auto" written out, a model's folder for its file.
Job spelled_out(Job job) {
  job.cluster.shard_group = shard_ranks(job);
  if (job.fsdp.float8_all_gather == "auto") job.fsdp.float8_all_gather = gathers_float8(job) ? "precomputed" : "none";
  const std::filesystem::path source(job.model.source);
  if (source.filename() == "config.json") job.model.source = source.has_parent_path() ? source.parent_path() : ".";
  return job;
}

/// What the file, read as `import` reads it, does not say as the job does.
std::vector<std::string> untold(const Job& job, Job read_back, ExportTool tool) {
  std::vector<std::string> out;
  // The command says them; groups of ranks are counted with them.
  if (is_no_matter_of_files("cluster.ranks_per_node", tool))
    read_back.cluster.ranks_per_node = job.cluster.ranks_per_node;
  if (is_no_matter_of_files("cluster.world_size", tool)) read_back.cluster.world_size = job.cluster.world_size;
  const Job ours = spelled_out(job), theirs = spelled_out(read_back);
  for (std::size_t k = 0; k < job_keys().size(); ++k) {
    const std::string& key = job_keys()[k].name;
    if (is_no_matter_of_files(key, tool) || !has_meaning(key, job)) continue;
    const std::string want = write_job_key(k, ours), got = write_job_key(k, theirs);
    if (want == got) continue;
    const std::string_view why = reason_of(key, job, tool);
    const bool stands = !got.empty() && got != "\"\"" && key != "model.source" && has_meaning(key, read_back);
    out.push_back(fmt::format("{} = {} is not in {}", key, want, tool_of(tool).file));
    if (!why.empty()) {
      out.back() += fmt::format(": {}", why);
    } else if (stands) {
      out.back() += fmt::format(", which stands for {}", got);
    }
  }
  return out;
}

/// PYTORCH_CUDA_ALLOC_CONF=...
std::string allocator_words(const AllocatorOptions& allocator) {
  std::vector<std::string> words;
  if (allocator.expandable_segments) words.push_back("expandable_segments:True");
  if (allocator.max_split_size_mb > 0)
    words.push_back(fmt::format("max_split_size_mb:{}", allocator.max_split_size_mb));
  if (allocator.roundup_power2_divisions > 0)
    words.push_back(fmt::format("roundup_power2_divisions:{}", allocator.roundup_power2_divisions));
  if (allocator.garbage_collection_threshold > 0)
    words.push_back(fmt::format("garbage_collection_threshold:{}", allocator.garbage_collection_threshold));
  return words.empty() ? "" : fmt::format("PYTORCH_CUDA_ALLOC_CONF={} ", fmt::join(words, ","));
}

std::string start_of(const Job& job, ExportTool tool) {
  const std::int64_t nodes = nodes_of(job);
  std::string torchrun = fmt::format("torchrun --nproc_per_node {}", job.cluster.world_size / nodes);
  if (nodes > 1) torchrun += fmt::format(" --nnodes {} --rdzv_backend c10d --rdzv_endpoint HOST:29500", nodes);
  const std::string allocator = allocator_words(job.allocator);
  switch (tool) {
    case ExportTool::Torchtitan: return allocator + torchrun + " -m torchtitan.train --job.config_file torchtitan.toml";
    case ExportTool::Accelerate: return allocator + "accelerate launch --config_file accelerate.yaml train.py";
    case ExportTool::Transformers: return allocator + torchrun + " run_clm.py transformers.json";
    case ExportTool::Trl: break;
  }
  return allocator + torchrun + " -m trl.scripts.sft --config trl.yaml";
}

JobValue tree_of(const Job& job, ExportTool tool) {
  switch (tool) {
    case ExportTool::Torchtitan: return exporting::torchtitan_tree(job);
    case ExportTool::Accelerate: return exporting::accelerate_tree(job);
    case ExportTool::Transformers: return exporting::transformers_tree(job);
    case ExportTool::Trl: break;
  }
  return exporting::trl_tree(job);
}

std::string file_text(const JobValue& tree, ExportTool tool, const std::vector<std::string>& comment) {
  if (tool == ExportTool::Transformers) return write_json(tree);
  return tool == ExportTool::Torchtitan ? write_toml(tree, comment) : write_yaml(tree, comment);
}

}  // namespace

std::string_view export_tool_name(ExportTool tool) { return tool_of(tool).name; }

Result<std::vector<ExportTool>> parse_export_tools(std::string_view list) {
  std::vector<ExportTool> out;
  while (true) {
    const std::size_t comma = list.find(',');
    const std::string_view word = list.substr(0, comma);
    const auto at = std::find_if(kTools.begin(), kTools.end(), [&](const Tool& tool) { return tool.name == word; });
    if (at == kTools.end()) {
      return fail({.code = ErrorCode::Usage,
                   .message = "there is no configuration of this name",
                   .file = {},
                   .place = "--as",
                   .expected = "torchtitan, accelerate, transformers, trl, or several with commas between",
                   .got = std::string(word),
                   .hint = {}});
    }
    if (std::find(out.begin(), out.end(), at->tool) == out.end()) out.push_back(at->tool);
    if (comma == list.npos) return out;
    list.remove_prefix(comma + 1);
  }
}

Result<ExportedJob> export_job(const Job& job, ExportTool tool) {
  ExportedJob out;
  out.tool = tool;
  out.start = start_of(job, tool);
  const JobValue tree = tree_of(job, tool);
  ExportedFile file{std::string(tool_of(tool).file), {}, {}};
  const Result<ImportedJob> read_back = import_job(file_text(tree, tool, {}), file.name);
  if (!read_back) return fail(read_back.error());
  file.untold = untold(job, read_back->job, tool);
  std::vector<std::string> comment{"Written by foreshard export. Start: " + out.start};
  for (const std::string& text : file.untold) comment.push_back(text);
  file.text = file_text(tree, tool, comment);
  out.files.push_back(std::move(file));
  return out;
}

}  // namespace foreshard
