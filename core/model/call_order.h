// In which call of a module its operators run, where a model lists its modules' calls as they began (Model::
// module_calls of a captured program). A value made of a model; looked up from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
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
  /// By operator: which of `modules` (by module) have a function running around it although its own module is none of
  /// theirs (a bias that several attentions are handed and call), outermost first. Empty where nothing of the kind
  /// happens or is listed.
  std::vector<std::vector<ModuleId>> calls_around(const std::vector<bool>& modules) const;

 private:
  struct Extent {
    std::int32_t first = -1, last = -1;  // operators of the call's own module and its children
  };
  std::vector<Extent> extents(const std::vector<bool>& modules) const;

  /// Of the calls of `outer`, by number in the list; -1: not listed.
  std::int32_t call_of(ModuleId outer, const Op& op) const;
  /// Where a module's call of this count stands in the list; -1: nowhere.
  std::int32_t place_of(ModuleId module, std::int32_t count) const;

  const Model& model_;
  std::size_t listed_ = 0;                                                    // calls
  std::vector<std::vector<std::int32_t>> places_;                             // by module, rising
  std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>> by_count_;  // by module: (count, place), rising
};

}  // namespace foreshard
