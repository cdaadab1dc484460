#include "core/lowering/graph/graph_life.h"

#include <algorithm>

namespace foreshard::lowering {

GraphLife::Count* GraphLife::find(std::int32_t node) {
  if (node < 0 || static_cast<std::size_t>(node) >= counts_.size()) return nullptr;
  Count& count = counts_[static_cast<std::size_t>(node)];
  return count.tracked ? &count : nullptr;
}

void GraphLife::add(std::int32_t node) {
  if (node < 0) return;
  if (counts_.size() < nodes_.size()) counts_.resize(nodes_.size());
  counts_[static_cast<std::size_t>(node)] = {0, true};
  for (const Edge& edge : nodes_[static_cast<std::size_t>(node)].next) name(edge.node);
}

void GraphLife::settle(std::int32_t node) {
  const Count* const count = find(node);
  if (count == nullptr || count->holders > 0) return;
  name(node);
  unname(node);
}

void GraphLife::name(std::int32_t node) {
  if (Count* const count = find(node)) ++count->holders;
}

void GraphLife::let_go(std::int32_t node) {
  Count* const count = find(node);
  if (count == nullptr || --count->holders > 0) return;
  count->tracked = false;
  going_.push_back(node);
}

void GraphLife::unname(std::int32_t node) {
  let_go(node);
  while (!going_.empty()) {
    const std::int32_t id = going_.back();
    going_.pop_back();
    gone_(id);
    for (const Edge& edge : nodes_[static_cast<std::size_t>(id)].next) let_go(edge.node);
  }
}

void GraphLife::redirect(std::int32_t node, std::size_t edge, std::int32_t to) {
  if (find(node) == nullptr) return;
  name(to);
  unname(nodes_[static_cast<std::size_t>(node)].next[edge].node);
}

void NamedValues::bind(std::int32_t value, Ref tensor, std::int32_t node) {
  life_.name(node);
  unbind(value);
  made_by_[static_cast<std::size_t>(value)] = node;
  refs_[value] = std::move(tensor);
}

void NamedValues::unbind(std::int32_t value) {
  refs_.erase(value);
  life_.unname(std::exchange(made_by_[static_cast<std::size_t>(value)], -1));
}

void NamedValues::continue_through(std::int32_t value, std::int32_t node) {
  life_.name(node);
  life_.unname(std::exchange(made_by_[static_cast<std::size_t>(value)], node));
}

std::vector<std::int32_t> NamedValues::sorted() const {
  std::vector<std::int32_t> values;
  for (const auto& [value, ref] : refs_) values.push_back(value);
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace foreshard::lowering
