// A small chain for schedule tests: embed, three uneven blocks, head; units R, B0, B1, B2 unless the job says
// otherwise.
#pragma once

#include "core/plan/build_plan.h"
#include "core/plan/planned/planned_runtime.h"

namespace foreshard {

inline Model chain_model() {
  Model model;
  model.name = "chain";
  model.modules.push_back({"", "Chain", {}, {}, {}, {}, {}});
  CallGraph root{ModuleId(0), {"ids"}, {}, {"out"}};
  std::string value = "ids";
  const auto add = [&](const std::string& name, const std::string& cls, std::vector<Shape> shapes) {
    const ModuleId id(model.modules.size());
    model.modules.push_back({name, cls, {}, ModuleId(0), {}, {}, {}});
    model.modules[0].children.push_back(id);
    const char* names[] = {"weight", "bias"};
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      model.modules[id.index()].params.push_back(ParamId(model.params.size()));
      model.params.push_back({name + "." + names[i], shapes[i], DType::Float32, true, id, {}});
    }
    root.steps.push_back({CallStep::Kind::Call, id, {value}, {name}, CheckpointKind::None, {}});
    value = name;
  };
  add("embed", "Embedding", {{10, 4}});
  add("b0", "Linear", {{5, 4}, {5}});
  add("b1", "Linear", {{6, 5}, {6}});
  add("b2", "Linear", {{7, 6}, {7}});
  add("head", "Linear", {{3, 7}});
  root.outputs = {value};
  model.calls.push_back(root);
  model.values.push_back({"ids", {2, 3}, DType::Int64, false});
  model.inputs = {ValueId(0)};
  return model;
}

inline Job chain_job(std::int64_t world = 2) {
  Job job;
  job.fsdp.runtime = Runtime::Fsdp2;
  job.fsdp.wrap.policy = WrapPolicyKind::Units;
  job.fsdp.wrap.units = {{"b0"}, {"b1"}, {"b2"}};
  job.fsdp.mixed_precision = MixedPrecision::none();
  job.cluster.world_size = world;
  job.train.clip_grad_norm = 0;
  return job;
}

inline Result<Plan> plan_chain(const Job& job, const Model& model = chain_model()) {
  const UnitTable table = build_units(model, job).value();
  const ModuleGraph graph = build_module_graph(model, {}, {}).value();
  const Script script = script_of(job).value();
  const PlanRequest request{model, job, table, graph, script};
  switch (job.fsdp.runtime) {
    case Runtime::None: return build_unsharded_plan(request);
    case Runtime::Planned: return build_planned_plan(request);
    default: return build_fsdp2_plan(request);
  }
}

}  // namespace foreshard
