// A symbolic model of PyTorch's autograd engine (rules R16, R26), for runtimes that must know in which order backward
// runs.
//
// A runtime adds nodes while it walks the forward pass and drives a backward pass itself:
//
//   const PassId pass = graph.begin_pass(roots);
//   while ((node = graph.next(pass, actions)) != kNoNode) {   // actions: waits that this node's stream does first
//     ... hooks of the node, its kernels (graph.launch(stream)), a nested pass for reentrant checkpointing ...
//     for (i : edges of node) graph.send(pass, node, i, actions);  // actions: event records, waits, additions
//   }
//   graph.end_pass(pass, Stream::D, actions);                  // actions: waits for the streams of leaf nodes
//
// What the engine decides: among ready nodes the one created last runs first, accumulation at once; a node runs on the
// stream on which it was made, after waits for producers on other streams; two gradients for one input are added on the
// consumer's stream. What a node computes is the runtime's business: `kind` and `data` are opaque here. Indices and
// plain vectors only; one Graph belongs to one builder.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/plan.h"

namespace foreshard::autograd {

using NodeIndex = std::int32_t;
using PassId = std::int32_t;
inline constexpr NodeIndex kNoNode = -1;

/// The gradient of one output goes to input `slot` of `node`; kNoNode: nobody wants it.
struct Edge {
  NodeIndex node = kNoNode;
  std::int32_t slot = 0;
};

/// Nodes are numbered by the thread that makes them (R16): forward in Main, whatever is recomputed during backward in
/// Device.
enum class Thread : std::uint8_t { Main, Device };

struct Hook {
  std::int32_t kind = 0;  // the runtime's
  std::int32_t data = 0;
};

/// What the engine does on the device around a node.
struct Action {
  enum class Kind : std::uint8_t {
    Record,     // `event` is recorded at the tail of `stream`
    WaitTail,   // `stream` waits for all work so far on `other`
    WaitEvent,  // `stream` waits for `event`, recorded earlier on `other`; more work has been launched there since
    Add,        // two gradients for (`node`, `slot`) are added on `stream`
  } kind = Kind::WaitTail;
  Stream stream = Stream::D;
  Stream other = Stream::D;
  EventId event;
  NodeIndex node = kNoNode;
  std::int32_t slot = 0;
};

class Graph {
 public:
  /// Events are numbered with `next_event`, which the runtime shares. It must outlive the graph.
  explicit Graph(std::int32_t& next_event) : next_event_(&next_event) {}

  /// Forgets all nodes; sequence numbers go on. REQUIRES no pass is running.
  void clear();

  void set_thread(Thread thread) { thread_ = thread; }
  Thread thread() const { return thread_; }

  /// A node with `slots` outputs in forward, so as many incoming gradients. Edges in the order of the forward inputs.
  NodeIndex add_node(std::int32_t kind, std::int32_t data, Stream stream, std::int32_t slots,
                     std::span<const Edge> edges);
  /// A gradient-accumulation node: outranks all others, and its stream is waited for at the end of a pass.
  NodeIndex add_accumulation(std::int32_t kind, std::int32_t data, Stream stream);
  /// A node that the engine numbers but that nobody reaches (an expand, a saver of inputs).
  void skip_number(std::size_t count = 1) { sequence_[static_cast<std::size_t>(thread_)] += count; }

  /// Hooks on the tensor (node, slot) run before the node, in order of registration.
  void add_hook(NodeIndex node, Hook hook);

  std::int32_t kind(NodeIndex node) const { return nodes_[at(node)].kind; }
  std::int32_t data(NodeIndex node) const { return nodes_[at(node)].data; }
  Stream stream(NodeIndex node) const { return nodes_[at(node)].stream; }
  std::int32_t slot_count(NodeIndex node) const { return nodes_[at(node)].slots; }
  std::span<const Edge> edges(NodeIndex node) const {
    return {edges_.data() + nodes_[at(node)].edge_begin, static_cast<std::size_t>(nodes_[at(node)].edge_count)};
  }
  /// Calls f(hook) for each hook of the node; hooks that f adds to other nodes are fine.
  template <class F>
  void for_each_hook(NodeIndex node, F f) const {
    for (std::int32_t i = nodes_[at(node)].hook_head; i >= 0; i = hooks_[static_cast<std::size_t>(i)].next) {
      f(Hook(hooks_[static_cast<std::size_t>(i)].hook));
    }
  }
  bool has_hooks(NodeIndex node) const { return nodes_[at(node)].hook_head >= 0; }

  /// Something was launched on the stream: what was its tail is so no longer.
  void launch(Stream stream) { ++tick_[static_cast<std::size_t>(stream)]; }

  /// Starts a pass from these roots; their gradients come from `from`. Passes nest: an inner one ends before its outer
  /// goes on.
  PassId begin_pass(std::span<const Edge> roots, Stream from);
  /// The next ready node, or kNoNode. Its waits are appended to `actions`.
  NodeIndex next(PassId pass, std::vector<Action>& actions);
  /// Hands over the gradient of edge `index` of `node`; `defined` is false if there is none (the consumer still counts
  /// down).
  void send(PassId pass, NodeIndex node, std::size_t index, bool defined, std::vector<Action>& actions);
  /// True if the slot received a gradient. REQUIRES the node belongs to the pass.
  bool received(PassId pass, NodeIndex node, std::int32_t slot) const;
  /// True if this pass will run, or has run, the node.
  bool contains(PassId pass, NodeIndex node) const;
  /// The stream that started the pass waits for the streams of the leaves that ran (R26).
  void end_pass(PassId pass, Stream caller, std::vector<Action>& actions);

 private:
  struct Node {
    std::uint64_t sequence = 0;
    std::int32_t kind = 0;
    std::int32_t data = 0;
    std::int32_t edge_begin = 0;
    std::int32_t edge_count = 0;
    std::int32_t slot_begin = 0;
    std::int32_t slots = 1;
    std::int32_t hook_head = -1;
    std::int32_t hook_tail = -1;
    Stream stream = Stream::D;
    bool leaf = false;
  };
  struct HookEntry {
    Hook hook;
    std::int32_t next = -1;
  };
  /// The gradient that lies in one input of a node.
  struct Slot {
    std::uint64_t tick = 0;   // of ready_stream when it was ready
    std::int32_t event = -1;  // recorded then, if another stream will wait
    Stream ready_stream = Stream::D;
    bool defined = false;
  };
  struct Ready {
    std::uint64_t sequence;
    NodeIndex node;
    bool operator<(const Ready& o) const { return sequence != o.sequence ? sequence < o.sequence : node < o.node; }
  };
  struct Pass {
    std::vector<std::int32_t> pending;  // by node: producers still to come; -1 = not of this pass
    std::vector<Slot> slots;
    std::vector<Ready> ready;  // heap
    std::uint32_t leaf_streams = 0;
  };

  static std::size_t at(NodeIndex node) { return static_cast<std::size_t>(node); }
  void count_producers(Pass& pass, NodeIndex root);
  void push_ready(Pass& pass, NodeIndex node);
  void wait(Stream stream, Stream other, std::uint64_t tick, std::int32_t event, std::vector<Action>& actions);
  std::int32_t record(Stream stream, std::vector<Action>& actions);
  void deliver(Pass& pass, Stream producer, Edge edge, std::vector<Action>& actions);

  std::int32_t* next_event_;
  Thread thread_ = Thread::Main;
  std::array<std::uint64_t, 2> sequence_{};
  std::array<std::uint64_t, kStreamCount> tick_{};
  std::array<std::uint64_t, kStreamCount> recorded_tick_{};  // tick + 1 of the last event of each stream
  std::array<std::int32_t, kStreamCount> recorded_event_{};
  std::int32_t slot_total_ = 0;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<HookEntry> hooks_;
  std::vector<Pass> passes_;  // kept for their storage; the first running_ are in use
  std::size_t running_ = 0;
  std::vector<NodeIndex> stack_;
};

}  // namespace foreshard::autograd
