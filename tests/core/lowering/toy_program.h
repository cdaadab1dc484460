// Operator programs in a few words: names of values, parameters spelt "%fqn".
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/model/model.h"

namespace foreshard::testing {

class ToyProgram {
 public:
  struct Result {
    std::string name;
    Shape shape;
    DType dtype = DType::Float32;
  };

  ToyProgram() { model_.modules.push_back({"", "Root", {}, {}, {}, {}, {}}); }

  std::string input(const std::string& name, Shape shape, DType dtype = DType::Float32) {
    model_.inputs.push_back(add({name, std::move(shape), dtype}));
    return name;
  }

  /// Operators that follow belong to it; its parent must be there or is the root.
  void module(const std::string& fqn, const std::string& class_name) {
    const ModuleId known = model_.find_module(fqn);
    if (known.valid()) {
      at_ = known;
      return;
    }
    const std::size_t dot = fqn.rfind('.');
    ModuleInfo info;
    info.fqn = fqn;
    info.class_name = class_name;
    info.parent = dot == std::string::npos ? ModuleId(0) : model_.find_module(fqn.substr(0, dot));
    if (!info.parent.valid()) info.parent = ModuleId(0);
    model_.modules.push_back(info);
    at_ = ModuleId(model_.modules.size() - 1);
  }

  void param(const std::string& fqn, Shape shape, DType dtype = DType::Float32) {
    ParamInfo info;
    info.fqn = fqn;
    info.shape = std::move(shape);
    info.dtype = dtype;
    info.owner = at_;
    params_[fqn] = ParamId(model_.params.size());
    model_.params.push_back(info);
  }

  void op(const std::string& name, const std::vector<std::string>& args, const std::vector<Result>& results,
          const std::vector<Arg>& constants = {}) {
    Op op;
    op.name = name;
    op.module = at_;
    for (const std::string& arg : args) {
      if (arg[0] == '%')
        op.args.push_back({ParamRef{params_.at(arg.substr(1))}});
      else
        op.args.push_back({ValueRef{values_.at(arg)}});
    }
    for (const Arg& constant : constants) op.args.push_back(constant);
    for (const Result& result : results) op.out.push_back(add(result));
    model_.ops.push_back(std::move(op));
  }

  Model finish(const std::string& loss) {
    model_.outputs = {values_.at(loss)};
    model_.has_loss = true;
    return model_;
  }

 private:
  ValueId add(const Result& result) {
    const ValueId id(model_.values.size());
    model_.values.push_back({result.name, result.shape, result.dtype, false});
    values_[result.name] = id;
    return id;
  }

  Model model_;
  ModuleId at_ = ModuleId(0);
  std::map<std::string, ValueId> values_;
  std::map<std::string, ParamId> params_;
};

}  // namespace foreshard::testing
