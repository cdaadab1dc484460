#include "core/plan/checks/plan_dag.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/strong_components.hpp>
#include <functional>
#include <iterator>
#include <map>
#include <queue>

#include "core/plan/checks/check_parts.h"
#include "core/plan/form/plan_writer.h"

namespace foreshard {
namespace {

using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::bidirectionalS>;

Graph to_graph(const PlanDag& dag) {
  Graph graph(dag.nodes.size());
  for (const Dependency& d : dag.dependencies)
    boost::add_edge(static_cast<std::size_t>(d.from), static_cast<std::size_t>(d.to), graph);
  return graph;
}

/// Instructions that stand in a stream's FIFO; the others only change what the host knows.
bool works_on_device(const Instruction& i) {
  if (i.stream == Stream::Host || i.on_host || detail::is_memory(i.kind)) return false;
  switch (i.kind) {
    case InstructionKind::HostWait:
    case InstructionKind::LimiterCheck:
    case InstructionKind::UseFull:
    case InstructionKind::UseShard:
    case InstructionKind::Mark: return false;
    default: return true;
  }
}

/// Builds the graph in one pass over the iteration.
class DagMaker {
 public:
  DagMaker(const PlanIteration& iteration, PlanDag& dag) : iteration_(iteration), dag_(dag) { tails_.fill(-1); }

  void make() {
    const std::vector<Instruction>& all = iteration_.instructions;
    for (std::size_t i = 0; i < all.size(); ++i) add_nodes(static_cast<std::int32_t>(i), all[i]);
    for (std::size_t i = 0; i < all.size(); ++i) add_dependencies(static_cast<std::int32_t>(i), all[i]);
  }

 private:
  void add_nodes(std::int32_t index, const Instruction& i) {
    dag_.issue_node.push_back(static_cast<std::int32_t>(dag_.nodes.size()));
    dag_.nodes.push_back({index, false});
    dag_.device_node.push_back(-1);
    if (!works_on_device(i)) return;
    dag_.device_node.back() = static_cast<std::int32_t>(dag_.nodes.size());
    dag_.nodes.push_back({index, true});
    // R7: a push on a stream records the event that it queues.
    if (i.kind == InstructionKind::RecordEvent || i.kind == InstructionKind::LimiterPush)
      records_[i.event.value].push_back(index);
  }

  void add_dependencies(std::int32_t index, const Instruction& i) {
    const std::int32_t issue = dag_.issue_node[static_cast<std::size_t>(index)];
    if (host_tail_ >= 0) add(host_tail_, issue, DependencyKind::HostOrder);
    for (const std::int32_t node : host_blocks_on_) add(node, issue, DependencyKind::HostWait);
    host_blocks_on_.clear();
    host_tail_ = issue;
    if (i.kind == InstructionKind::HostWait) add_host_wait(index, i, issue);
    const std::int32_t device = dag_.device_node[static_cast<std::size_t>(index)];
    if (device < 0) return;
    add(issue, device, DependencyKind::Issue);
    std::int32_t& tail = tails_[static_cast<std::size_t>(i.stream)];
    if (tail >= 0) add(tail, device, DependencyKind::StreamOrder);
    if (i.kind == InstructionKind::WaitStream) {
      const std::int32_t other = tails_[static_cast<std::size_t>(i.other)];
      if (other >= 0 && i.other != i.stream) add(other, device, DependencyKind::WaitStream);
    }
    if (i.kind == InstructionKind::WaitEvent) {
      if (const std::int32_t record = record_of(i.event, index); record >= 0)
        add(record, device, DependencyKind::WaitEvent);
    }
    if (i.communicator.valid()) add_turn(i, device);
    tail = device;
    if (i.blocking) host_blocks_on_.push_back(device);
  }

  void add_turn(const Instruction& i, std::int32_t device) {
    const auto [last, first] = turns_.try_emplace(i.communicator, Turn{i.stream, device});
    if (!first && last->second.stream != i.stream) add(last->second.device, device, DependencyKind::Communicator);
    last->second = {i.stream, device};
  }

  void add_host_wait(std::int32_t index, const Instruction& i, std::int32_t issue) {
    if (i.event.valid()) {
      if (const std::int32_t record = record_of(i.event, index); record >= 0)
        add(record, issue, DependencyKind::HostWait);
      return;
    }
    const Stream one = i.other != Stream::Host ? i.other : i.stream;  // one stream, or the whole device
    for (std::size_t s = 0; s < kStreamCount; ++s) {
      if (tails_[s] >= 0 && (one == Stream::Host || s == static_cast<std::size_t>(one))) {
        add(tails_[s], issue, DependencyKind::HostWait);
      }
    }
  }

  /// The last record before `index`, else the first one after it; -1 if the iteration has none.
  std::int32_t record_of(EventId event, std::int32_t index) const {
    const auto found = records_.find(event.value);
    if (found == records_.end()) return -1;
    const auto after = std::upper_bound(found->second.begin(), found->second.end(), index);
    const std::int32_t record = after == found->second.begin() ? *after : *std::prev(after);
    return dag_.device_node[static_cast<std::size_t>(record)];
  }

  void add(std::int32_t from, std::int32_t to, DependencyKind kind) { dag_.dependencies.push_back({from, to, kind}); }

  const PlanIteration& iteration_;
  PlanDag& dag_;
  std::array<std::int32_t, kStreamCount> tails_;  // last device node by stream
  struct Turn {
    Stream stream = Stream::Host;
    std::int32_t device = -1;
  };
  std::map<CommunicatorId, Turn> turns_;  // the last collective of each
  std::int32_t host_tail_ = -1;
  std::vector<std::int32_t> host_blocks_on_;  // blocking copies: the next issue waits
  std::map<std::int32_t, std::vector<std::int32_t>> records_;
};

std::int64_t first_id(const Plan& plan, std::size_t iteration) {
  std::int64_t id = 0;
  for (std::size_t k = 0; k < iteration; ++k) id += static_cast<std::int64_t>(plan.iterations[k].instructions.size());
  return id;
}

std::string show_node(const Plan& plan, std::size_t iteration, const PlanDag& dag, std::int32_t node) {
  const std::int32_t index = dag.nodes[static_cast<std::size_t>(node)].instruction;
  return detail::show(plan, first_id(plan, iteration) + index,
                      plan.iterations[iteration].instructions[static_cast<std::size_t>(index)]);
}

/// Names the instructions of the first strongly connected component of more than one node, in issue order.
Error cycle_error(const Plan& plan, std::size_t iteration, const PlanDag& dag, const Graph& graph) {
  std::vector<int> component(dag.nodes.size());
  const int count = boost::strong_components(
      graph, boost::make_iterator_property_map(component.begin(), boost::get(boost::vertex_index, graph)));
  std::vector<int> sizes(static_cast<std::size_t>(count));
  for (const int c : component) ++sizes[static_cast<std::size_t>(c)];
  const auto first =
      std::find_if(component.begin(), component.end(), [&](int c) { return sizes[static_cast<std::size_t>(c)] > 1; });
  std::vector<std::string> names;
  std::int32_t last = -1;
  std::size_t more = 0;
  for (std::size_t n = 0; first != component.end() && n < component.size(); ++n) {
    if (component[n] != *first || dag.nodes[n].instruction == last) continue;
    last = dag.nodes[n].instruction;
    if (names.size() < 12) {
      names.push_back(show_node(plan, iteration, dag, static_cast<std::int32_t>(n)));
    } else {
      ++more;
    }
  }
  std::string cycle = fmt::format("{}", fmt::join(names, ", "));
  if (more > 0) cycle += fmt::format(" and {} more", more);
  return {.code = ErrorCode::Inconsistent,
          .message = "instructions wait for each other",
          .file = {},
          .place = fmt::format("iteration {}", plan.iterations[iteration].index),
          .expected = "a plan whose waits can all end",
          .got = cycle,
          .hint = "this plan would hang"};
}

constexpr std::array<const char*, kStreamCount> kColours{"#888888", "#4e79a7", "#f28e2b", "#59a14f",
                                                         "#b07aa1", "#edc948", "#f28e2b", "#59a14f",
                                                         "#e15759", "#76b7b2", "#9c755f", "#bab0ac"};

const char* edge_style(DependencyKind kind) {
  switch (kind) {
    case DependencyKind::WaitStream: return " [style=dashed]";
    case DependencyKind::WaitEvent: return " [style=dotted]";
    case DependencyKind::HostWait: return " [color=red]";
    case DependencyKind::Communicator: return " [style=dashed, color=blue]";
    default: return "";
  }
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

bool is_drawn(const PlanIteration& iteration, const DagNode& node) {
  return node.device ||
         iteration.instructions[static_cast<std::size_t>(node.instruction)].kind == InstructionKind::HostWait;
}

}  // namespace

Result<PlanDag> build_dag(const Plan& plan, std::size_t iteration) {
  if (iteration >= plan.iterations.size()) {
    return fail({.code = ErrorCode::OutOfRange,
                 .message = "the plan has no such iteration",
                 .file = {},
                 .place = "iterations",
                 .expected = fmt::format("0 to {}", static_cast<std::int64_t>(plan.iterations.size()) - 1),
                 .got = fmt::format("{}", iteration),
                 .hint = "iterations are counted from 0"});
  }
  PlanDag dag;
  DagMaker(plan.iterations[iteration], dag).make();
  return dag;
}

Result<std::vector<std::int32_t>> topological_order(const Plan& plan, std::size_t iteration, const PlanDag& dag) {
  const Graph graph = to_graph(dag);
  std::vector<std::size_t> waits(dag.nodes.size());
  std::priority_queue<std::int32_t, std::vector<std::int32_t>, std::greater<>> ready;
  for (std::size_t n = 0; n < waits.size(); ++n) {
    waits[n] = boost::in_degree(n, graph);
    if (waits[n] == 0) ready.push(static_cast<std::int32_t>(n));
  }
  std::vector<std::int32_t> order;
  order.reserve(waits.size());
  while (!ready.empty()) {
    order.push_back(ready.top());
    ready.pop();
    const auto [begin, end] = boost::out_edges(static_cast<std::size_t>(order.back()), graph);
    for (auto edge = begin; edge != end; ++edge) {
      const std::size_t to = boost::target(*edge, graph);
      if (--waits[to] == 0) ready.push(static_cast<std::int32_t>(to));
    }
  }
  if (order.size() != dag.nodes.size()) return fail(cycle_error(plan, iteration, dag, graph));
  return order;
}

Result<CriticalPath> critical_path(const Plan& plan, std::size_t iteration, const PlanDag& dag,
                                   const std::vector<InstructionCost>& costs) {
  FORESHARD_CHECK(costs.size() == plan.iterations[iteration].instructions.size(), "one cost for each instruction");
  const Result<std::vector<std::int32_t>> order = topological_order(plan, iteration, dag);
  if (!order) return fail(order.error());
  const Graph graph = to_graph(dag);
  const auto duration = [&](std::size_t n) {
    const InstructionCost& cost = costs[static_cast<std::size_t>(dag.nodes[n].instruction)];
    return dag.nodes[n].device ? cost.device : cost.issue;
  };
  CriticalPath path;
  path.start.assign(dag.nodes.size(), 0);
  std::vector<std::int32_t> before(dag.nodes.size(), -1);
  std::int32_t last = -1;
  for (const std::int32_t node : *order) {
    const auto n = static_cast<std::size_t>(node);
    const auto [begin, end] = boost::in_edges(n, graph);
    for (auto edge = begin; edge != end; ++edge) {
      const std::size_t from = boost::source(*edge, graph);
      const SimDuration at = path.start[from] + duration(from);
      if (at > path.start[n] || (before[n] < 0 && at == path.start[n])) {
        path.start[n] = at;
        before[n] = static_cast<std::int32_t>(from);
      }
    }
    if (last < 0 || path.start[n] + duration(n) > path.length) {
      path.length = path.start[n] + duration(n);
      last = node;
    }
  }
  for (; last >= 0; last = before[static_cast<std::size_t>(last)]) path.path.push_back(last);
  std::reverse(path.path.begin(), path.path.end());

  std::vector<SimDuration> latest_end(dag.nodes.size(), path.length);
  path.slack.assign(dag.nodes.size(), 0);
  for (auto node = order->rbegin(); node != order->rend(); ++node) {
    const auto n = static_cast<std::size_t>(*node);
    const auto [begin, end] = boost::out_edges(n, graph);
    for (auto edge = begin; edge != end; ++edge) {
      const std::size_t to = boost::target(*edge, graph);
      latest_end[n] = std::min(latest_end[n], latest_end[to] - duration(to));
    }
    path.slack[n] = latest_end[n] - path.start[n] - duration(n);
  }
  return path;
}

std::string dag_to_dot(const Plan& plan, std::size_t iteration, const PlanDag& dag) {
  const PlanIteration& it = plan.iterations[iteration];
  const std::int64_t id0 = first_id(plan, iteration);
  fmt::memory_buffer out;
  const auto line = [&](const std::string& text) {
    out.append(text.data(), text.data() + text.size());
    out.push_back('\n');
  };
  line("digraph plan {");
  line("  rankdir=LR; node [shape=box, style=filled, fontsize=10];");
  // One cluster a unit, in handle order; -1: instructions that belong to no unit.
  std::map<std::int32_t, std::vector<std::size_t>> clusters;
  for (std::size_t n = 0; n < dag.nodes.size(); ++n) {
    if (!is_drawn(it, dag.nodes[n])) continue;
    clusters[it.instructions[static_cast<std::size_t>(dag.nodes[n].instruction)].unit.value].push_back(n);
  }
  for (const auto& [unit, nodes] : clusters) {
    const std::string name = unit < 0    ? "no unit"
                             : unit == 0 ? "root"
                                         : plan.units[static_cast<std::size_t>(unit)].name;
    line(fmt::format("  subgraph cluster_{} {{\n    label=\"{}\";", unit + 1, escaped(name)));
    for (const std::size_t n : nodes) {
      const Instruction& i = it.instructions[static_cast<std::size_t>(dag.nodes[n].instruction)];
      line(fmt::format("    n{} [label=\"{} {}\\n{}\", fillcolor=\"{}\"];", n, id0 + dag.nodes[n].instruction,
                       stream_name(i.stream), instruction_kind_name(i.kind),
                       kColours[static_cast<std::size_t>(i.stream)]));
    }
    line("  }");
  }
  for (const Dependency& d : dag.dependencies) {
    const auto from = static_cast<std::size_t>(d.from), to = static_cast<std::size_t>(d.to);
    if (d.kind == DependencyKind::HostOrder || !is_drawn(it, dag.nodes[from]) || !is_drawn(it, dag.nodes[to])) continue;
    line(fmt::format("  n{} -> n{}{};", d.from, d.to, edge_style(d.kind)));
  }
  line("}");
  return fmt::to_string(out);
}

}  // namespace foreshard
