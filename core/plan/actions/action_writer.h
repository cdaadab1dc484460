// Appends the instructions of one action to its iteration: the words of core/plan.h with the action's phase, interned
// names. Private to core/plan/actions; one writer per plan.
#pragma once

#include <string_view>

#include "core/plan/actions/state_dict.h"
#include "core/plan/process_groups.h"

namespace foreshard::actions {

class ActionWriter {
 public:
  /// `plan` and what `source` names outlive the writer.
  ActionWriter(Plan& plan, const StateSource& source);

  /// A new iteration with this phase; what follows is appended to it.
  void start(const ActionRequest& request, Phase phase);
  /// Appends what another runtime made for this action: its phase becomes ours, its names are interned here.
  void adopt(const Plan& other, const Instruction& instruction);
  /// What fsdp1's runtime makes of these actions after all that it was asked before: its limiter and its gradients are
  /// those of one process, and its events count on. Only the new iterations. Errors: what PyTorch raises (U2).
  Result<Plan> play(const std::vector<std::vector<std::string>>& script);
  /// Takes over what stands beside the instructions: streams, warnings, the limiter's queue at the end.
  void adopt_end(const Plan& other);

  NameId intern(std::string_view text);
  Instruction& add(InstructionKind kind, Stream stream, UnitId unit = {});
  void mark(std::string_view name, UnitId unit = {}, std::int32_t arg = 0);
  void host_wait(UnitId unit = {});  // for the whole device
  Instruction& alloc(Stream pool, BufferName buffer, Numel numel, DType dtype, std::int32_t instance = 0);
  void free(Stream pool, BufferName buffer, std::int32_t instance = 0);
  /// Work on a buffer: a copy, a fill, a transfer, a collective.
  Instruction& work(InstructionKind kind, Stream stream, BufferName buffer, Numel numel, DType dtype,
                    std::string_view kernel = {});
  Instruction& gather(UnitId unit, BufferName buffer, Numel numel, DType dtype);
  /// One tensor between host and device; the state dict's tensors are not pinned, so the host waits.
  Instruction& transfer(InstructionKind kind, BufferName buffer, Numel numel, DType dtype);

  /// Whom a unit's ranks share its parameters with; all ranks where they are not sharded, and for no unit.
  CommunicatorId group_of(UnitId unit);
  CommunicatorId replicas() { return groups_.replicate(plan_); }
  CommunicatorId world() { return groups_.world(plan_); }

  const StateSource& source() const { return source_; }
  Plan& plan() { return plan_; }
  const PlanUnit& unit(UnitId id) const { return plan_.units[id.index()]; }

 private:
  Plan& plan_;
  StateSource source_;
  ProcessGroups groups_;
  Phase phase_ = Phase::None;
  std::vector<std::vector<std::string>> played_;
};

/// Writers of one action each, into the iteration that was started.
Result<void> write_init(ActionWriter& out, const ActionRequest& request);
Result<void> write_summon(ActionWriter& out, const ActionRequest& request);
Result<void> write_save(ActionWriter& out, const ActionRequest& request);
Result<void> write_load(ActionWriter& out, const ActionRequest& request);
/// K5, K6: the optimizer's part of saving and loading.
void write_optimizer_save(ActionWriter& out, const ActionRequest& request);
void write_optimizer_load(ActionWriter& out, const ActionRequest& request);

/// A tensor of `dtype` of one tensor list: what is broadcast together (I5).
struct BroadcastTensor {
  BufferName buffer;
  std::int32_t instance = 0;
  Numel numel = 0;
  DType dtype = DType::Float32;
  Bytes bytes() const { return numel * itemsize(dtype); }
};
inline constexpr Bytes kBroadcastBucketBytes = 250LL * 1024 * 1024;

/// I5: by dtype, a bucket closes as soon as it reaches the limit (the crossing tensor is in it); buckets in the order
/// of their first tensor. Indices into `tensors`.
std::vector<std::vector<std::size_t>> broadcast_buckets(const std::vector<BroadcastTensor>& tensors, Bytes limit);

/// I5: flattened, sent from rank 0, copied back; at most two broadcasts in flight.
void broadcast(ActionWriter& out, const std::vector<BroadcastTensor>& tensors, UnitId unit,
               CommunicatorId communicator);

/// Units in the order in which state dict hooks enter them (pre-order), and for each the unit around it.
std::vector<UnitId> enclosing_units(const StateSource& source);

Error refused(const ActionRequest& request, std::string message, std::string expected, std::string hint);

}  // namespace foreshard::actions
