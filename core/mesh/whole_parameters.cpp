#include "core/mesh/whole_parameters.h"

#include <algorithm>
#include <map>
#include <variant>
#include <vector>

#include "core/mesh/program_cutter.h"
#include "core/model/mesh_dimension.h"

namespace foreshard::mesh {

void note_once(Model& model, const ParallelStyle& row) {
  const bool known = std::any_of(model.parallel.begin(), model.parallel.end(), [&](const ParallelStyle& one) {
    return one.modules == row.modules && one.style == row.style;
  });
  if (!known) model.parallel.push_back(row);
}

void note_partial(Model& model, ParamId param) { note_once(model, {model.params[param.index()].fqn, "partial"}); }

void WholeParameters::read(Model& model, Op& op, const std::vector<CutTensor>& args, std::int32_t dimension) {
  if (model.mesh[static_cast<std::size_t>(dimension)].name != kTensorDimension) return;
  const bool cut = std::any_of(args.begin(), args.end(), [](const CutTensor& x) { return x.cut.cut() || x.cut.term; });
  std::vector<ParamId> params;
  bool others = false;
  each_arg(op, [&](Arg& arg) {
    if (const auto* param = std::get_if<ParamRef>(&arg.value)) {
      const ParamInfo& info = model.params[param->id.index()];
      const bool plain = info.requires_grad && info.part.dimension < 0 &&
                         info.part.gradient == MeshPart::Gradient::Part;  // no style of the plan touches it
      if (plain) params.push_back(param->id);
      others = others || !plain;
    } else if (const auto* value = std::get_if<ValueRef>(&arg.value)) {
      const auto made = made_of_.find(value->id.value);
      if (made != made_of_.end()) params.insert(params.end(), made->second.begin(), made->second.end());
      others = others || made == made_of_.end();
    }
  });
  if (params.empty()) return;
  for (const ParamId param : params)
    if (cut) note_partial(model, param);
  if (cut || others) return;
  for (const ValueId id : op.out)
    if (id.valid()) made_of_[id.value] = params;
}

std::vector<bool> embedding_tables(const Model& model) {
  std::vector<bool> tables(model.params.size(), false);
  std::map<std::int32_t, ParamId> seen;
  for (const Op& op : model.ops) {
    const bool detaches = op.name == "aten.detach.default";
    if ((!detaches && op.name != "aten.embedding.default") || op.args.empty()) continue;
    const auto* value = std::get_if<ValueRef>(&op.args.front().value);
    const auto* ref = std::get_if<ParamRef>(&op.args.front().value);
    const auto known = value == nullptr ? seen.end() : seen.find(value->id.value);
    const ParamId param = ref != nullptr ? ref->id : known != seen.end() ? known->second : ParamId();
    if (!param.valid()) continue;
    if (detaches)
      seen.emplace(op.out.front().value, param);
    else
      tables[param.index()] = true;
  }
  return tables;
}

}  // namespace foreshard::mesh
