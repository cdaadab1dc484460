#include "core/plan/autograd.h"

#include <algorithm>
#include <limits>

#include "core/result.h"

namespace foreshard::autograd {

void Graph::clear() {
  FORESHARD_CHECK(running_ == 0, "the graph is cleared while a backward pass runs");
  nodes_.clear();
  edges_.clear();
  hooks_.clear();
  slot_total_ = 0;
}

NodeIndex Graph::add_node(std::int32_t kind, std::int32_t data, Stream stream, std::int32_t slots,
                          std::span<const Edge> edges) {
  Node node;
  node.sequence = sequence_[static_cast<std::size_t>(thread_)]++;
  node.kind = kind;
  node.data = data;
  node.stream = stream;
  node.slots = slots;
  node.slot_begin = slot_total_;
  node.edge_begin = static_cast<std::int32_t>(edges_.size());
  node.edge_count = static_cast<std::int32_t>(edges.size());
  slot_total_ += slots;
  edges_.insert(edges_.end(), edges.begin(), edges.end());
  nodes_.push_back(node);
  return static_cast<NodeIndex>(nodes_.size() - 1);
}

NodeIndex Graph::add_accumulation(std::int32_t kind, std::int32_t data, Stream stream) {
  const std::uint64_t keep = sequence_[static_cast<std::size_t>(thread_)];
  const NodeIndex index = add_node(kind, data, stream, 1, {});
  sequence_[static_cast<std::size_t>(thread_)] = keep;
  nodes_[at(index)].sequence = std::numeric_limits<std::uint64_t>::max();  // runs as soon as it is ready
  nodes_[at(index)].leaf = true;
  return index;
}

void Graph::add_hook(NodeIndex node, Hook hook) {
  const auto index = static_cast<std::int32_t>(hooks_.size());
  hooks_.push_back({hook, -1});
  Node& n = nodes_[at(node)];
  (n.hook_tail < 0 ? n.hook_head : hooks_[static_cast<std::size_t>(n.hook_tail)].next) = index;
  n.hook_tail = index;
}

PassId Graph::begin_pass(std::span<const Edge> roots, Stream from) {
  if (running_ == passes_.size()) passes_.emplace_back();
  Pass& pass = passes_[running_++];
  pass.pending.assign(nodes_.size(), -1);
  pass.slots.assign(static_cast<std::size_t>(slot_total_), Slot{});
  pass.ready.clear();
  pass.leaf_streams = 0;
  for (const Edge& root : roots) count_producers(pass, root.node);
  for (std::size_t r = 0; r < roots.size(); ++r) {
    const Edge& root = roots[r];
    Slot& slot = pass.slots[static_cast<std::size_t>(nodes_[at(root.node)].slot_begin + root.slot)];
    slot = {tick_[static_cast<std::size_t>(from)], -1, from, true};
    // A root that another root reaches waits for that one too; a node of which two outputs are roots runs once.
    const bool again =
        std::ranges::any_of(roots.first(r), [&](const Edge& earlier) { return earlier.node == root.node; });
    if (!again && pass.pending[at(root.node)] == 0) push_ready(pass, root.node);
  }
  return static_cast<PassId>(running_ - 1);
}

void Graph::count_producers(Pass& pass, NodeIndex root) {
  if (pass.pending[at(root)] >= 0) return;
  pass.pending[at(root)] = 0;
  stack_.assign(1, root);
  while (!stack_.empty()) {
    const NodeIndex node = stack_.back();
    stack_.pop_back();
    for (const Edge& edge : edges(node)) {
      if (edge.node == kNoNode) continue;
      std::int32_t& pending = pass.pending[at(edge.node)];
      if (pending < 0) {
        pending = 0;
        stack_.push_back(edge.node);
      }
      ++pending;
    }
  }
}

void Graph::push_ready(Pass& pass, NodeIndex node) {
  pass.ready.push_back({nodes_[at(node)].sequence, node});
  std::push_heap(pass.ready.begin(), pass.ready.end());
}

NodeIndex Graph::next(PassId pass_id, std::vector<Action>& actions) {
  Pass& pass = passes_[static_cast<std::size_t>(pass_id)];
  if (pass.ready.empty()) return kNoNode;
  std::pop_heap(pass.ready.begin(), pass.ready.end());
  const NodeIndex index = pass.ready.back().node;
  pass.ready.pop_back();
  const Node& node = nodes_[at(index)];
  for (std::int32_t i = 0; i < node.slots; ++i) {
    const Slot& slot = pass.slots[static_cast<std::size_t>(node.slot_begin + i)];
    if (slot.defined && slot.ready_stream != node.stream) {
      wait(node.stream, slot.ready_stream, slot.tick, slot.event, actions);
    }
  }
  if (node.leaf) pass.leaf_streams |= 1U << static_cast<unsigned>(node.stream);
  return index;
}

void Graph::wait(Stream stream, Stream other, std::uint64_t tick, std::int32_t event, std::vector<Action>& actions) {
  Action action;
  action.stream = stream;
  action.other = other;
  action.kind = tick == tick_[static_cast<std::size_t>(other)] ? Action::Kind::WaitTail : Action::Kind::WaitEvent;
  if (action.kind == Action::Kind::WaitEvent) action.event = EventId(event);
  actions.push_back(action);
}

std::int32_t Graph::record(Stream stream, std::vector<Action>& actions) {
  const auto s = static_cast<std::size_t>(stream);
  // Two events with nothing launched between them are one.
  if (recorded_tick_[s] == tick_[s] + 1) return recorded_event_[s];
  recorded_tick_[s] = tick_[s] + 1;
  recorded_event_[s] = (*next_event_)++;
  Action action;
  action.kind = Action::Kind::Record;
  action.stream = stream;
  action.event = EventId(recorded_event_[s]);
  actions.push_back(action);
  return recorded_event_[s];
}

void Graph::send(PassId pass_id, NodeIndex node, std::size_t index, bool defined, std::vector<Action>& actions) {
  Pass& pass = passes_[static_cast<std::size_t>(pass_id)];
  const Edge edge = edges(node)[index];
  if (edge.node == kNoNode) return;
  if (defined) deliver(pass, nodes_[at(node)].stream, edge, actions);
  if (--pass.pending[at(edge.node)] == 0) push_ready(pass, edge.node);
}

// The gradient is added, if there is one already, on the consumer's stream; that stream waits for both first (R26).
void Graph::deliver(Pass& pass, Stream producer, Edge edge, std::vector<Action>& actions) {
  const Stream consumer = nodes_[at(edge.node)].stream;
  Slot& slot = pass.slots[static_cast<std::size_t>(nodes_[at(edge.node)].slot_begin + edge.slot)];
  if (!slot.defined) {
    slot.event = consumer == producer ? -1 : record(producer, actions);
    slot.tick = tick_[static_cast<std::size_t>(producer)];
    slot.ready_stream = producer;
    slot.defined = true;
    return;
  }
  if (consumer != producer) wait(consumer, producer, tick_[static_cast<std::size_t>(producer)], -1, actions);
  if (slot.ready_stream != consumer) wait(consumer, slot.ready_stream, slot.tick, slot.event, actions);
  Action add;
  add.kind = Action::Kind::Add;
  add.stream = consumer;
  add.node = edge.node;
  add.slot = edge.slot;
  actions.push_back(add);
  launch(consumer);
  slot.ready_stream = consumer;
  slot.tick = tick_[static_cast<std::size_t>(consumer)];
}

bool Graph::received(PassId pass, NodeIndex node, std::int32_t slot) const {
  return passes_[static_cast<std::size_t>(pass)]
      .slots[static_cast<std::size_t>(nodes_[at(node)].slot_begin + slot)]
      .defined;
}

bool Graph::contains(PassId pass, NodeIndex node) const {
  const std::vector<std::int32_t>& pending = passes_[static_cast<std::size_t>(pass)].pending;
  return at(node) < pending.size() && pending[at(node)] >= 0;
}

void Graph::end_pass(PassId pass_id, Stream caller, std::vector<Action>& actions) {
  FORESHARD_CHECK(static_cast<std::size_t>(pass_id) + 1 == running_,
                  "an outer backward pass ends before its inner one");
  const Pass& pass = passes_[static_cast<std::size_t>(pass_id)];
  for (std::size_t s = 0; s < kStreamCount; ++s) {
    const auto stream = static_cast<Stream>(s);
    if ((pass.leaf_streams >> s & 1U) != 0 && stream != caller) wait(caller, stream, tick_[s], -1, actions);
  }
  --running_;
}

}  // namespace foreshard::autograd
