#include "core/plan/fsdp2/products.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "core/model/module_kind.h"
#include "core/plan/graph/references.h"

namespace foreshard::fsdp2 {
namespace {

/// Operators that take operands of one dtype only.
bool needs_one_dtype(std::string_view op) {
  constexpr std::string_view kProducts[] = {"aten.linear.", "aten.mm.",     "aten.addmm.",
                                            "aten.bmm.",    "aten.matmul.", "aten.convolution."};
  return std::any_of(std::begin(kProducts), std::end(kNames),
                     [&](std::string_view name) { return op.starts_with(name); });
}

/// It multiplies this value by a parameter.
bool multiplies(const Op& op, ValueId value) {
  bool reads = false, by_param = false;
  for_each_reference(
      op, [&](ValueId id) { reads = reads || id == value; }, [&](ParamId) { by_param = true; });
  return reads && by_param;
}

bool has_matrix(const ModuleInfo& module) {
  const ModuleKind kind = kind_of(module);
  return kind == ModuleKind::Linear || kind == ModuleKind::Convolution;
}

tl::unexpected<Error> two_dtypes(const std::string& module, DType expected, DType got, std::string hint) {
  return fail({ErrorCode::Inconsistent,
               "a matrix product would get operands of two dtypes",
               {},
               "module \"" + module + "\"",
               std::string(dtype_name(expected)) + ", the dtype of its parameters",
               std::string(dtype_name(got)),
               std::move(hint)});
}

}  // namespace

Products::Products(const Run& run) : run_(run), uses_matrix_(run.model.modules.size(), false) {
  const std::vector<ModuleInfo>& modules = run.model.modules;
  for (std::size_t m = modules.size(); m-- > 0;) {  // parents stand before their children
    if (has_matrix(modules[m])) uses_matrix_[m] = true;
    if (uses_matrix_[m] && modules[m].parent.valid()) uses_matrix_[modules[m].parent.index()] = true;
  }
}

Result<void> Products::check_inputs(const GraphNode& node, const std::vector<std::int8_t>& inputs, DType params) const {
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (inputs[i] < 0 || inputs[i] == static_cast<std::int8_t>(params)) continue;
    bool clashes = node.kind == GraphNode::Kind::Leaf && uses_matrix_[node.module.index()];
    const ValueId value = run_.graph.tensors[static_cast<std::size_t>(node.inputs[i])].value;
    for (std::int32_t at = node.op_begin; at < node.op_end && !clashes; ++at) {
      const Op& op = run_.model.ops[static_cast<std::size_t>(at)];
      clashes = needs_one_dtype(op.name) && multiplies(op, value);
    }
    if (clashes)
      return two_dtypes(node.label, params, static_cast<DType>(inputs[i]),
                        "give the units one param dtype, or an output dtype that fits (F2-27)");
  }
  return {};
}

DType Products::dtype_of(ParamId param) const {
  const ParamSlot& place = run_.slots[static_cast<std::size_t>(run_.slot_of_param[param.index()])];
  if (!place.unit.valid()) return run_.model.params[param.index()].dtype;
  return run_.units[place.unit.index()].params[static_cast<std::size_t>(place.index)].dtype;
}

ParamId Products::clash(const std::vector<ParamId>& params) const {
  for (const ParamId param : params) {
    const DType dtype = dtype_of(param), first = dtype_of(params.front());
    if (dtype != first && is_floating(dtype) && is_floating(first)) return param;
  }
  return {};
}

Result<void> Products::check(const std::string& module, const std::vector<ParamId>& params) const {
  const ParamId other = clash(params);
  if (!other.valid()) return {};
  return two_dtypes(module, dtype_of(params.front()), dtype_of(other),
                    "leave parameter \"" + run_.model.params[other.index()].fqn +
                        "\" in the unit of its matrix, or ignore both (fsdp.ignored)");
}

Result<void> Products::check_params(const GraphNode& node) const {
  std::vector<ModuleId> open;
  if (node.kind == GraphNode::Kind::Leaf && uses_matrix_[node.module.index()]) open.push_back(node.module);
  while (!open.empty()) {
    const ModuleInfo& module = run_.model.modules[open.back().index()];
    open.pop_back();
    open.insert(open.end(), module.children.begin(), module.children.end());
    if (!has_matrix(module)) continue;
    if (Result<void> fits = check(module.fqn, module.params); !fits) return fits;
  }
  for (std::int32_t at = node.op_begin; at < node.op_end; ++at) {
    const Op& op = run_.model.ops[static_cast<std::size_t>(at)];
    if (!needs_one_dtype(op.name)) continue;
    std::vector<ParamId> params;
    for_each_reference(
        op, [](ValueId) {}, [&](ParamId param) { params.push_back(param); });
    if (Result<void> fits = check(run_.model.modules[op.module.index()].fqn, params); !fits) return fits;
  }
  return {};
}

}  // namespace foreshard::fsdp2
