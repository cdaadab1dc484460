// In which call of a module its operators run, where a model lists its modules' calls as they began (Model::
// module_calls of a captured program). A value made of a model; looked up from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/model/model.h"

namespace foreshard {

class CallOrder {
 public:
  explicit CallOrder(const Model& model);

  /// Whether two operators (their modules, and which calls of these), both inside `outer`, run in two of its calls,
  /// the second directly behind the first. Where the model does not list them: whether one module has another count.
  bool are_apart(ModuleId outer, const Op& first, const Op& second) const;
  /// First operators (Model::ops) of the second and later calls of `outer`, rising.
  std::vector<std::size_t> later_calls_of(ModuleId outer) const;

 private:
  /// Of the calls of `outer`, by number in the list; -1: not listed.
  std::int32_t call_of(ModuleId outer, const Op& op) const;

  const Model& model_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> place_;  // by module and count: in the list
  std::vector<std::vector<std::int32_t>> places_;                        // by module, rising
};

}  // namespace foreshard
