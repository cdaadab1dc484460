// Graphs that the engine has run in the midst of a forward (torch.autograd.grad) and that nobody keeps (retain_graph).
#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "core/lowering/lowering_machine.h"
#include "core/model/op_keywords.h"

namespace foreshard::lowering {

std::vector<std::int32_t> released_by(const Model& model, const Op& op, const Program& program,
                                      const std::unordered_map<std::int32_t, std::int32_t>& made_at) {
  std::vector<std::int32_t> out;
  const ArgList* const names = keyword_list(op, "releases");
  for (std::size_t i = 0; names != nullptr && i < names->size(); ++i) {
    const auto* name = std::get_if<std::string>(&(*names)[i].value);
    const auto value = std::find_if(model.values.begin(), model.values.end(),
                                    [&](const ValueInfo& info) { return name != nullptr && info.name == *name; });
    if (value == model.values.end()) continue;
    const auto made = made_at.find(program.resolve(ValueId(static_cast<std::int32_t>(value - model.values.begin()))));
    if (made != made_at.end()) out.push_back(made->second);
  }
  return out;
}

}  // namespace foreshard::lowering
