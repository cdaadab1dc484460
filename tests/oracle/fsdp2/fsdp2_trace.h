// Rows of oracle/fsdp2/traces.jsonl: a configuration becomes a model, a job and a script; a plan becomes the recorder's
// events.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/plan/graph/script.h"
#include "core/result.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

/// A row's configuration in the product's own words.
struct TraceConfig {
  Model model;
  Job job;
  Script script;
  std::map<std::string, std::string> alias;  // unit module -> the row's name of it ("blocks.0" -> "B0")
  std::vector<std::string> unit_modules;     // of the row's units, in its order: the first module
  std::vector<std::string> unit_names;
  std::vector<std::pair<int, int>> micro_batches;  // by iteration of the plan: step, and which of the step's
  std::size_t setup_calls = 0;                     // calls of the configuration, before the first step
};

/// The recorded model is a chain: embed, blocks in the given order, norm, head. Errors: what build_module_graph cannot
/// be asked.
TraceConfig read_trace_config(const Json& row);

/// DTensor works out what a shard's whole tensor looks like once per process and shape: the first row of a process
/// shows it, later ones do not. Printed wherever it may stand.
inline constexpr const char* kShapeOperator = "aten.empty_strided";

/// The plan printed as the recorder's events.
Json print_events(const TraceConfig& config, const Plan& plan);

/// Counts over events as the recorder made them.
Json count_events(const Json& events);

}  // namespace foreshard::oracle
