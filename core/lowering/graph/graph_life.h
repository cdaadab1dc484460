// Which of autograd's nodes anybody can still reach: by a name of Python's for one of their results, or by an edge of a
// node that can be reached. What a node saved goes with the last of these, so a branch that ends in `detach` keeps
// nothing behind it (straight-through estimators, watched values). Internal to lowering.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/lowering/lowering_autograd.h"

namespace foreshard::lowering {

class GraphLife {
 public:
  /// Numbers are places in `nodes`, which may grow. `gone` is told of each node that nobody reaches any more.
  GraphLife(const std::vector<Node>& nodes, std::function<void(std::int32_t node)> gone)
      : nodes_(nodes), gone_(std::move(gone)) {}

  /// A node that may go; those that were not added (accumulation of gradients) stay. -1: none, here and below.
  void add(std::int32_t node);
  /// Nobody has named it since it was added.
  void settle(std::int32_t node);
  void name(std::int32_t node);
  void unname(std::int32_t node);
  /// Before the node's edge number `edge` is set to another node.
  void redirect(std::int32_t node, std::size_t edge, std::int32_t to);

 private:
  struct Count {
    std::int32_t holders = 0;  // names and edges
    bool tracked = false;
  };
  Count* find(std::int32_t node);
  void let_go(std::int32_t node);

  const std::vector<Node>& nodes_;
  std::function<void(std::int32_t node)> gone_;
  std::vector<Count> counts_;
  std::vector<std::int32_t> going_;
};

/// What Python names in the forward, by value, and the nodes that live by these names.
class NamedValues {
 public:
  NamedValues(std::size_t values, const std::vector<Node>& nodes, std::function<void(std::int32_t node)> gone)
      : made_by_(values, -1), life_(nodes, std::move(gone)) {}

  Ref* find(std::int32_t value) {
    const auto at = refs_.find(value);
    return at == refs_.end() ? nullptr : &at->second;
  }
  /// What no node made.
  Ref& add(std::int32_t value, Ref tensor) { return refs_.emplace(value, std::move(tensor)).first->second; }
  /// In the place of what had the name before. `node`: that made it; -1: none.
  void bind(std::int32_t value, Ref tensor, std::int32_t node);
  void unbind(std::int32_t value);
  /// The value's history goes through `node` from now on.
  void continue_through(std::int32_t value, std::int32_t node);
  /// Somebody beside Python's name has it: its node stays.
  void hand_on(std::int32_t value) { life_.name(made_by_[static_cast<std::size_t>(value)]); }
  std::vector<std::int32_t> sorted() const;
  GraphLife& life() { return life_; }

 private:
  std::unordered_map<std::int32_t, Ref> refs_;
  std::vector<std::int32_t> made_by_;
  GraphLife life_;
};

}  // namespace foreshard::lowering
