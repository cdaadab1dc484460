#include "core/model/model.h"

namespace foreshard {
Model::Model() = default;
Model::Model(const Model&) = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(const Model&) = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Numel numel_of(const Shape& shape) {
  Numel n = 1;
  for (std::int64_t size : shape) n *= size;
  return n;
}

ModuleId Model::find_module(std::string_view fqn) const {
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (modules[i].fqn == fqn) return ModuleId(i);
  }
  return {};
}

ParamId Model::find_param(std::string_view fqn) const {
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].fqn == fqn) return ParamId(i);
  }
  return {};
}

const ModuleCall* Model::find_call(ModuleId module, std::int32_t call) const {
  for (const ModuleCall& at : module_calls) {
    if (at.module == module && at.call == call) return &at;
  }
  return nullptr;
}

}  // namespace foreshard
