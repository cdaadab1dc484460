// The dependency graph of one iteration: what an instruction waits for, on the host and on the device.
//
// Every instruction is a host event (its issue) and, if it does work on a stream, a device event. An instruction
// depends on the one issued before it (host order), on the one before it on its stream (FIFO), on what its waits name,
// a collective on the one before it on its communicator, and, after a host_wait, on the event that the host waited for.
// Instructions are named by their position in the iteration.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan.h"
#include "core/result.h"
#include "core/units.h"

namespace foreshard {

enum class DependencyKind : std::uint8_t {
  HostOrder,     // issued after
  Issue,         // runs on its stream after it is issued
  StreamOrder,   // behind it on the same stream
  WaitStream,    // waits for the tail of another stream
  WaitEvent,     // waits for a recorded event
  HostWait,      // the host blocks on it (limiter, offload, synchronise)
  Communicator,  // behind it on the same communicator, on another stream (R4)
};

/// A node of the graph: the issue of an instruction by the host, or its work on the device.
struct DagNode {
  std::int32_t instruction = 0;  // position in the iteration
  bool device = false;
  bool operator==(const DagNode&) const = default;
};

struct Dependency {
  std::int32_t from = 0;  // PlanDag::nodes
  std::int32_t to = 0;
  DependencyKind kind = DependencyKind::HostOrder;
  bool operator==(const Dependency&) const = default;
};

struct PlanDag {
  std::vector<DagNode> nodes;
  std::vector<Dependency> dependencies;
  std::vector<std::int32_t> issue_node;   // by instruction
  std::vector<std::int32_t> device_node;  // by instruction; -1 if it does nothing on a stream
};

/// Events that the iteration does not record are those of earlier iterations and count as done. A wait for an event
/// that is recorded only later becomes a dependency all the same; topological_order tells whether it closes a cycle.
/// Errors: the plan has no such iteration.
Result<PlanDag> build_dag(const Plan& plan, std::size_t iteration);

/// Topological order of the nodes, ties by position; an Error that names the instructions of a cycle.
Result<std::vector<std::int32_t>> topological_order(const Plan& plan, std::size_t iteration, const PlanDag& dag);

/// Nanoseconds of one instruction: the host's issue, and its work on the device.
struct InstructionCost {
  SimDuration issue = 0;
  SimDuration device = 0;
};

struct CriticalPath {
  SimDuration length = 0;
  std::vector<std::int32_t> path;  // nodes, first to last
  std::vector<SimDuration> start;  // earliest, by node
  std::vector<SimDuration> slack;  // by node: how much later it may end without lengthening the path
};

/// REQUIRES costs.size() == number of instructions.
Result<CriticalPath> critical_path(const Plan& plan, std::size_t iteration, const PlanDag& dag,
                                   const std::vector<InstructionCost>& costs);

/// Graphviz: units clustered, streams coloured.
std::string dag_to_dot(const Plan& plan, std::size_t iteration, const PlanDag& dag);

}  // namespace foreshard
