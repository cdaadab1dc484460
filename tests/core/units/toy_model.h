// Small models for the tests of units: a list of modules in registration order, then ties and aliases.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"

namespace foreshard::testing {

struct ToyParam {
  std::string name;
  Shape shape;
  DType dtype = DType::Float32;
  bool requires_grad = true;
};

struct ToyModule {
  std::string fqn;
  std::string class_name;
  std::vector<ToyParam> params = {};
  std::vector<std::string> bases = {};
};

inline ModuleId register_module(Model& model, ModuleInfo info) {
  const ModuleId id(model.modules.size());
  if (!info.fqn.empty()) {
    const std::size_t dot = info.fqn.rfind('.');
    info.parent = model.find_module(dot == std::string::npos ? "" : info.fqn.substr(0, dot));
    model.modules.at(info.parent.index()).children.push_back(id);
  }
  model.modules.push_back(std::move(info));
  return id;
}

inline Model toy_model(const std::vector<ToyModule>& modules) {
  Model model;
  model.name = "toy";
  for (const ToyModule& one : modules) {
    ModuleInfo info;
    info.fqn = one.fqn, info.class_name = one.class_name, info.bases = one.bases;
    const ModuleId id = register_module(model, std::move(info));
    for (const ToyParam& param : one.params) {
      const std::string fqn = (one.fqn.empty() ? "" : one.fqn + ".") + param.name;
      model.modules[id.index()].params.push_back(ParamId(model.params.size()));
      model.params.push_back({fqn, param.shape, param.dtype, param.requires_grad, id, {}});
    }
  }
  return model;
}

/// The parameter `later` is the same tensor as `first`.
inline void tie(Model& model, const std::string& later, const std::string& first) {
  model.params.at(model.find_param(later).index()).shares = model.storage_of(model.find_param(first));
}

/// The module `of` is registered again as `fqn`, with names of its own for its parameters.
inline void alias(Model& model, const std::string& fqn, const std::string& of) {
  const ModuleId object = model.find_module(of);
  ModuleInfo info;
  info.fqn = fqn, info.class_name = model.modules.at(object.index()).class_name, info.alias_of = object;
  const ModuleId id = register_module(model, std::move(info));
  for (ParamId param : std::vector<ParamId>(model.modules[object.index()].params)) {
    ParamInfo copy = model.params[param.index()];
    copy.fqn = fqn + copy.fqn.substr(of.size());
    copy.owner = id, copy.shares = model.storage_of(param);
    model.modules[id.index()].params.push_back(ParamId(model.params.size()));
    model.params.push_back(std::move(copy));
  }
}

inline ToyModule linear(const std::string& fqn, std::int64_t in, std::int64_t out) {
  return {fqn, "Linear", {{"weight", {out, in}}}};
}

/// embed (20), B0..B2 (100 each), head (20).
inline Model chain() {
  Model model = toy_model({{"", "Graph"},
                           linear("embed", 2, 10),
                           {"B0", "Block"},
                           linear("B0.f", 10, 10),
                           {"B1", "Block"},
                           linear("B1.f", 10, 10),
                           {"B2", "Block"},
                           linear("B2.f", 10, 10),
                           linear("head", 10, 2)});
  model.block_class = "Block";
  return model;
}

inline Job fsdp1_job(std::int64_t world_size = 4) {
  Job job;
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.use_orig_params = false;
  job.fsdp.mixed_precision = MixedPrecision::none();
  job.cluster.world_size = world_size;
  return job;
}

inline Job fsdp2_job(std::int64_t world_size = 4) {
  Job job = fsdp1_job(world_size);
  job.fsdp.runtime = Runtime::Fsdp2;
  return job;
}

inline Job with_units(Job job, std::vector<std::vector<std::string>> units) {
  job.fsdp.wrap.policy = WrapPolicyKind::Units;
  job.fsdp.wrap.units = std::move(units);
  return job;
}

}  // namespace foreshard::testing
