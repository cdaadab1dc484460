#include "exec/operators/unit_precision.h"

#include <fmt/format.h>

#include <algorithm>

namespace foreshard::exec {
namespace {

/// What crosses the borders of one unit's calls; neither: nothing is cast.
CallPrecision borders_of(const Job& job, const MixedPrecision& precision) {
  const bool fsdp2 = job.fsdp.runtime == Runtime::Fsdp2;
  CallPrecision borders;
  if (precision.param && precision.cast_forward_inputs.value_or(fsdp2)) borders.inputs = precision.param;
  if (fsdp2) borders.outputs = precision.output;
  return borders;
}

bool is_inside(const Model& model, ModuleId module, ModuleId outer) {
  while (module.valid() && module != outer) module = model.modules[module.index()].parent;
  return module.valid();
}

void add_calls(const Model& model, ModuleId module, CallPrecision borders, std::vector<CallPrecision>& calls) {
  const auto count = static_cast<std::int32_t>(model.ops.size());
  std::int32_t begin = -1;
  for (std::int32_t i = 0; i <= count; ++i) {
    const bool inside = i < count && is_inside(model, model.ops[static_cast<std::size_t>(i)].module, module);
    if (inside && begin < 0) begin = i;
    if (inside || begin < 0) continue;
    borders.begin = begin;
    borders.end = i;
    calls.push_back(borders);
    begin = -1;
  }
}

Error lower_unit(const std::string& unit, DType written, DType own) {
  Error error;
  error.code = ErrorCode::Unsupported;
  error.place = fmt::format("unit \"{}\", fsdp.mixed_precision.param", unit);
  error.message = "a unit of a lower type inside a program of a higher one is not run";
  error.expected = std::string(dtype_name(written));
  error.got = std::string(dtype_name(own));
  error.hint = "give fsdp.mixed_precision the low type, and the other units the high one by fsdp.overrides";
  return error;
}

}  // namespace

Result<ProgramPrecision> program_precision(const Model& model, const Job& job, const UnitTable& table) {
  ProgramPrecision program;
  if (job.fsdp.runtime == Runtime::None) return program;
  program.written = job.fsdp.mixed_precision.param;
  bool own = model_input_dtype(job, table) != program.written;
  for (std::size_t u = 1; u < table.units.size(); ++u) {  // the root's inputs are the runner's, its outputs the loss
    const MixedPrecision& precision = table.precision[u];
    const DType written = program.written.value_or(table.units[u].orig_dtype);
    if (precision.param && itemsize(*precision.param) < itemsize(written)) {
      return fail(lower_unit(table.units[u].name, written, *precision.param));
    }
    const CallPrecision borders = borders_of(job, precision);
    own = own || precision.param != program.written || borders.outputs;
    if (!borders.inputs && !borders.outputs) continue;
    for (const ModuleId module : table.units[u].modules) add_calls(model, module, borders, program.calls);
  }
  if (!own) program.calls.clear();
  std::stable_sort(program.calls.begin(), program.calls.end(), [](const CallPrecision& a, const CallPrecision& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  return program;
}

std::optional<DType> model_input_dtype(const Job& job, const UnitTable& table) {
  if (job.fsdp.runtime == Runtime::None || table.precision.empty()) return std::nullopt;
  const MixedPrecision& root = table.precision.front();
  const bool casts = job.fsdp.runtime == Runtime::Fsdp1 || root.cast_forward_inputs.value_or(true);
  return casts ? root.param : std::nullopt;
}

}  // namespace foreshard::exec
