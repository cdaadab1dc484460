// The module tree of a .pt2 program: modules, parameters, buffers, and which names share one tensor.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "core/model/model.h"
#include "core/model/pt2/program.h"
#include "core/result.h"

namespace foreshard {

/// What the operators need to find again.
struct Pt2Tree {
  std::unordered_map<std::string, ModuleId> modules;      // by fqn
  std::unordered_map<std::string, ParamId> params;        // by graph name
  std::unordered_map<std::string, std::int32_t> buffers;  // by graph name; Model::buffers
};

/// A path as strict export may write it ("layers._modules['x']") as a fully qualified name.
std::string module_fqn(std::string_view path);

/// Fills modules, params and buffers of an empty model. `file` only names it in errors.
Result<Pt2Tree> build_pt2_tree(const Pt2Program& program, const std::string& file, Model& model);

}  // namespace foreshard
