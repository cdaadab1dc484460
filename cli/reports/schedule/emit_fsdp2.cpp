#include "cli/reports/schedule/emit_fsdp2.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "cli/console/amount_text.h"
#include "cli/reports/emit_fsdp2_text.h"

namespace foreshard::cli {
namespace {

std::string python_text(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string python_list(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back(python_text(name));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

using Lists = std::map<std::string, std::vector<std::string>>;

std::string python_lists(const Lists& lists) {
  if (lists.empty()) return "{}";
  std::string text = "{\n";
  for (const auto& [unit, targets] : lists)
    text += fmt::format("    {}: {},\n", python_text(unit), python_list(targets));
  return text + "}";
}

/// What a module of PyTorch's cannot be told, for people who read it.
std::vector<std::string> not_expressed(const FoundSchedule& found) {
  std::vector<std::string> missing;
  if (found.job.schedule.separate_reduce_communicator)
    missing.push_back("a communicator of their own for reductions, two at once: fully_shard has one group for both");
  if (found.limit < found.budget)
    missing.push_back(
        fmt::format("the allocator's limit, {} bytes, with which it asks the driver less often than with all of the "
                    "budget: torch.cuda.set_per_process_memory_fraction",
                    found.limit));
  else
    missing.push_back("the budget itself: torch.cuda.set_per_process_memory_fraction holds the allocator to it");
  const Job& job = found.job;
  const bool own_words = std::any_of(job.fsdp.overrides.begin(), job.fsdp.overrides.end(), [](const UnitOverride& one) {
    return !one.shard_dim.empty() || one.mixed_precision || one.strategy;
  });
  if (own_words || job.mesh.expert > 1)
    missing.push_back("meshes, dtypes and dimensions of single units: shard these units yourself, then apply(model)");
  if (job.mesh.tensor > 1 || job.mesh.context > 1 || job.mesh.expert > 1)
    missing.push_back(
        "other dimensions of the mesh: cut the model over them first, and give shard() that of its data ranks");
  if (found.stays_on_device)
    missing.push_back("activations stay on the device: leave the script's own hooks that send them to the host away");
  if (job.checkpointing.offload_activations)
    missing.push_back("activations on the host (checkpointing.offload_activations): the script's own hooks");
  if (!job.fsdp.ignored.empty())
    missing.push_back("what FSDP leaves alone (fsdp.ignored): give shard() ignored_params");
  if (job.checkpointing.policy == CheckpointPolicy::Ops)
    missing.push_back(
        "operators that blocks keep (checkpointing.save): wrap the blocks yourself, not by checkpoint(model)");
  if (job.checkpointing.outside && !found.recomputed.empty())
    missing.push_back(
        "checkpoints around units (checkpointing.placement = outside): checkpoint(model) puts them inside");
  return missing;
}

/// What checkpoint() wraps: nothing where blocks keep single operators.
std::vector<std::string> wrapped(const FoundSchedule& found) {
  return found.job.checkpointing.policy == CheckpointPolicy::Ops ? std::vector<std::string>() : found.recomputed;
}

/// Python's names of decisions, as assignments.
std::string data_of(const FoundSchedule& found) {
  std::vector<std::string> units, reshard, always;
  Lists forward;  // an entry of a unit for itself is a word of ours
  for (const auto& [unit, targets] : found.job.fsdp.prefetch.forward) {
    for (const std::string& target : targets) {
      if (target != unit) forward[unit].push_back(target);
    }
  }
  for (const ScheduledUnit& unit : found.units) {
    const UnitSchedule& decided = unit.decided;
    units.push_back("    " + python_list(unit.modules));
    reshard.push_back(
        fmt::format("    {}: {}", python_text(decided.module), decided.keep == "reshard" ? "True" : "False"));
    if (decided.keep == "always") always.push_back(decided.module);
  }
  return fmt::format(
      "UNITS = [\n{},\n]\nRESHARD_AFTER_FORWARD = {{\n{},\n}}\nFORWARD_PREFETCH = {}\nBACKWARD_PREFETCH = {}\n"
      "RECOMPUTED = {}\nREENTRANT = {}\nKEPT_OVER_MICRO_BATCHES = {}\n",
      fmt::join(units, ",\n"), fmt::join(reshard, ",\n"), python_lists(forward),
      python_lists(found.job.fsdp.prefetch.backward), python_list(wrapped(found)),
      found.job.checkpointing.reentrant ? "True" : "False", python_list(always));
}

}  // namespace

Job expressed_by_fsdp2(const FoundSchedule& found) {
  Job job = found.job;
  job.schedule.separate_reduce_communicator = false;
  if (job.checkpointing.policy != CheckpointPolicy::Ops) job.checkpointing.outside = false;
  return job;
}

std::string fsdp2_module(const FoundSchedule& found, const std::string& model, double expressed_ns) {
  std::string missing;
  for (const std::string& one : not_expressed(found)) missing += fmt::format("    {},\n", python_text(one));
  std::string text(kEmittedModule);
  const auto replace = [&](std::string_view what, const std::string& with) {
    if (const std::size_t at = text.find(what); at != text.npos) text.replace(at, what.size(), with);
  };
  const std::string fsdp2 = found.fsdp2.step_ns > 0 ? duration_text(found.fsdp2.step_ns) : found.fsdp2.why_not;
  replace("@MODEL@", model);
  replace(
      "@NUMBERS@",
      fmt::format("Predicted: {} a step as planned, {} with what this module can say, {} with FSDP2's own schedule; "
                  "{} reserved of {}.",
                  duration_text(found.step_ns), expressed_ns > 0 ? duration_text(expressed_ns) : "no fit", fsdp2,
                  bytes_text(found.peak_reserved), bytes_text(found.budget)));
  replace("@DATA@", data_of(found));
  replace("@MISSING@", missing);
  return text;
}

}  // namespace foreshard::cli
