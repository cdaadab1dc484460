#include "core/plan/tensor_traps.h"

#include <fmt/format.h>

#include <set>
#include <string_view>
#include <variant>

namespace foreshard {
namespace {

/// Operators of one name, by the values that they read.
struct Uses {
  std::int64_t count = 0;
  std::set<std::int32_t> inputs;
  Bytes bytes = 0;  // of what they make
};

Uses uses_of(const Model& model, std::string_view name) {
  Uses uses;
  for (const Op& op : model.ops) {
    if (op.name != name || op.args.empty() || op.out.empty()) continue;
    const auto* read = std::get_if<ValueRef>(&op.args.front().value);
    const bool meets = name != "mesh.copy" || op.args.size() == 2;
    if (read == nullptr || !meets) continue;  // a parameter's, or one that meets nobody
    ++uses.count;
    uses.inputs.insert(read->id.value);
    const ValueInfo& made = model.values[op.out.front().index()];
    uses.bytes += numel_of(made.shape) * itemsize(made.dtype);
  }
  return uses;
}

}  // namespace

// FlatParamHandle._writeback_orig_params compares a DTensor, which has the whole's size and no storage of its own, with
// what the flat parameter holds.
Result<void> check_original_dtensors(const Model& model, const Job& job, const UnitTable& table) {
  if (job.fsdp.runtime != Runtime::Fsdp1 || !job.fsdp.use_orig_params) return {};
  const auto refused = [&](std::string message, std::string got, std::string hint) {
    return fail({ErrorCode::Refused, std::move(message), job.model.source, "fsdp.use_orig_params",
                 "false beside [mesh] tensor", std::move(got), std::move(hint)});
  };
  const bool held = job.train.no_sync && job.train.micro_batches > 1;
  for (const PlanUnit& unit : table.units) {
    for (const ParamId param : unit.params) {
      const MeshPart& part = model.params[param.index()].part;
      if (part.dimension >= 0 && held) {
        return refused("RuntimeError: Attempted to access the data pointer on an invalid python storage.",
                       "gradients that no_sync holds behind parameters that are DTensors",
                       "set fsdp.use_orig_params = false, or train.no_sync = false");
      }
      if (part.dim >= 0 && unit.strategy == Strategy::NoShard) {
        return refused("RuntimeError: Cannot writeback when the parameter shape changes",
                       "NO_SHARD over parameters that are DTensors",
                       "set fsdp.use_orig_params = false, or a strategy that shards");
      }
    }
  }
  return {};
}

std::vector<Trap> tensor_traps(const Model& model) {
  std::vector<Trap> traps;
  const Uses copies = uses_of(model, "mesh.copy"), gathers = uses_of(model, "mesh.all_gather");
  const auto distinct = [](const Uses& uses) { return static_cast<std::int64_t>(uses.inputs.size()); };
  if (copies.count > distinct(copies)) {
    traps.push_back(
        {48,
         "plain tensor parallelism sums once for every columnwise layer",
         "mesh",
         {},
         fmt::format("backward all-reduces the input's gradient of each layer before they are added: {} all-reduces of "
                     "{} bytes a micro-batch where {} inputs are shared, and nothing runs beside them",
                     copies.count, copies.bytes, distinct(copies)),
         "mesh.sequence_parallel = true, where one reduce-scatter takes their sum",
         false});
  }
  if (gathers.count > distinct(gathers)) {
    traps.push_back(
        {49,
         "every columnwise layer gathers its input anew",
         "mesh",
         {},
         fmt::format("{} gathers of {} bytes in every forward for {} inputs, and as many reduce-scatters in backward",
                     gathers.count, gathers.bytes, distinct(gathers)),
         "mesh.plan with the style gather for the module around them (PrepareModuleInput)",
         false});
  }
  return traps;
}

}  // namespace foreshard
