// The Plan: units, layouts and, per iteration, numbered instructions in host issue order. A plain value.
//
// `sim` and `exec` are two interpreters of it; both stamp the instruction's id on every span they make. Whatever cannot
// be said here cannot be simulated and cannot be run. Kinds and fields are those of docs/formats/plan.md; rule numbers
// (R6, F2-8, ...) are those of the FSDP semantics page. Sizes in elements (numel) or bytes; events are numbered from 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/ids.h"
#include "core/job.h"
#include "core/units.h"

namespace foreshard {

using CommunicatorId = Id<struct CommunicatorTag>;  // Plan::communicators

/// Streams by the letters of the semantics page, section 0. FSDP1: D U G Q H; FSDP2: D C A S H.
/// X: the user's, of an fsdp2 all-reduce hook. M: what the groups of a mesh run functional collectives on.
/// O: copies of activation offload; no instruction names it, kernels of segments do (OffloadStep).
enum class Stream : std::uint8_t { Host, D, U, G, Q, C, A, S, H, X, M, O };
inline constexpr std::size_t kStreamCount = 12;
std::string_view stream_name(Stream stream);  // "host", "D", "U", ...

enum class InstructionKind : std::uint8_t {
  WaitStream,
  RecordEvent,
  WaitEvent,
  HostWait,
  LimiterPush,
  LimiterCheck,
  Alloc,
  Resize,
  Free,
  NoteUse,
  UseFull,
  UseShard,
  Cast,
  CopyIn,
  CopyOut,
  Concat,
  Add,
  Fill,
  Pad,
  Divide,
  Accumulate,
  H2d,
  D2h,
  AllGather,
  ReduceScatter,
  AllReduce,
  Broadcast,
  Forward,
  Backward,
  Recompute,
  Clip,
  Zero,
  ScaleLoss,  // of a gradient scaler: what backward begins with, the gradients' way back, the next step's scale
  Unscale,
  UpdateScale,
  OptimizerStep,
  Mark,
};
std::string_view instruction_kind_name(InstructionKind kind);  // "wait_stream", "all_gather", ...

enum class Phase : std::uint8_t {
  None,
  RootPreForward,
  PreForward,
  Forward,
  PostForward,
  PreBackward,
  Backward,
  PostBackward,
  FrozenPostBackward,
  Final,
  Clip,
  Optimizer,
  Summon,
  Init,
  Save,
  Load,
};
std::string_view phase_name(Phase phase);  // "root_pre_forward", ...

enum class Origin : std::uint8_t { Fsdp, Autograd };
enum class ReduceOp : std::uint8_t { None, Sum, Avg, PremulSum, Max };

/// What a buffer holds; with the unit or parameter it belongs to, its name ("full:layers.0").
enum class BufferWhat : std::uint8_t {
  None,
  Shard,           // resident local shard
  Full,            // gathered parameters (fsdp1: the flat one; fsdp2: one per parameter)
  FullPrecision,   // fsdp1: gathered in the original dtype (summon, eval toggle)
  CastShard,       // fsdp1: low-precision shard
  H2dCopy,         // shard brought from the host
  Grad,            // fsdp1: flat unsharded gradient; fsdp2: unsharded gradient of one parameter
  GradPiece,       // fsdp1: gradient of one parameter before the concatenation; allocated inside the backward segment
  GradReduce,      // fsdp1: copy in the reduce dtype
  GradPadded,      // fsdp1: copy padded to the world size
  ReduceOut,       // fsdp1: reduce-scatter output (gshard)
  CompressedGrad,  // fsdp1: a compressing hook's copy of the gradient, and of the reduce-scatter output (G5)
  CompressedOut,
  SavedGrad,  // sharded gradient held between micro-batches
  ShardGrad,  // final sharded gradient (.grad)
  HostGrad,   // gradient on the host
  AgBuffer,
  CastBuffer,
  Cast,
  PostForwardShard,
  AccumulatedGrad,
  RsInput,
  RsOutput,
  GradCast,
  ShardDimTemp,
  ShardDimGrad,
  OptimizerState,
  OptimizerTemp,
  ClipTemp,
  Input,
  Bucket,
  Param,         // a parameter as created, before it is sharded (init) or outside FSDP
  ModuleBuffer,  // a module's buffer; `arg` is its index in Model::buffers
  Flat,          // fsdp1: flat copy of a unit's parameters while it is wrapped (I6), or of their optimizer state (K6)
  StateCopy,     // a tensor that a state dict holds; of an optimizer's state `arg` is the moment, counted from 1
  MeshGrad,      // fsdp2: gradient of one parameter, brought to the parameter's own placement on the mesh
  ScaledShard,   // fsdp2: a shard on its way to 8 bits (narrow_shards.h)
  GatherScale,   // fsdp2: the scale of a matrix gathered in 8 bits, or of all of them
  ViewedCopy,    // fsdp1: NO_SHARD's flat parameter brought from the host for a forward, whose views keep it
};
std::string_view buffer_what_name(BufferWhat what);  // "full", "cast_shard", ...

struct BufferName {
  BufferWhat what = BufferWhat::None;
  UnitId unit;
  ParamId param;  // invalid if the buffer belongs to the unit as a whole
  bool operator==(const BufferName&) const = default;
};

/// One instruction. Only the fields that its kind uses are set; the rest keep their defaults.
struct Instruction {
  InstructionKind kind = InstructionKind::Mark;
  Stream stream = Stream::Host;  // the device's truth: where the work runs, or which pool owns a buffer
  Stream other = Stream::Host;   // wait_stream: waited for; note_use: the stream that uses the buffer
  Phase phase = Phase::None;
  Origin origin = Origin::Fsdp;
  DType dtype = DType::Float32;
  ReduceOp reduce_op = ReduceOp::None;
  bool blocking = false;  // h2d, d2h
  bool pinned = false;    // h2d, d2h
  bool on_host = false;   // clip, zero, optimizer_step, ...: runs on the CPU
  UnitId unit;
  EventId event;
  BufferName buffer;
  SegmentId segment;            // forward, backward, recompute
  NameId name;                  // mark's name, kernel's op, event's label; see Plan::name_of
  std::int32_t arg = 0;         // small number that a mark carries
  CommunicatorId communicator;  // of a collective: whom it meets
  Bytes bytes = 0;
  Numel numel = 0;
  double factor = 0.0;  // divide
  bool operator==(const Instruction&) const = default;
};

/// One parameter's place in the shard of one rank (H6). start and end are inclusive, inside the parameter.
struct ParamShard {
  bool in_shard = false;
  Numel offset_in_shard = 0;
  Numel numel_in_shard = 0;
  Numel start = 0;
  Numel end = 0;
  bool operator==(const ParamShard&) const = default;
};

/// One entry of the flat parameter (H3): a parameter, or alignment / world padding where param is invalid.
struct FlatEntry {
  ParamId param;
  Numel offset = 0;
  Numel numel = 0;
  bool operator==(const FlatEntry&) const = default;
};

/// fsdp2: one parameter of a unit (F2-1), for the plan's rank.
struct ShardedParam {
  ParamId param;
  std::int32_t shard_dim = 0;
  std::vector<std::int64_t> local_shape;
  std::vector<std::int64_t> padded_local_shape;
  bool operator==(const ShardedParam&) const = default;
};

struct SharedName {
  ParamId name;  // a later registration
  ParamId of;    // the first one, which owns the storage
  bool operator==(const SharedName&) const = default;
};

struct PlanUnit {
  std::string name;               // module fqn; "" = root
  std::vector<ModuleId> modules;  // one; several for an fsdp2 list
  Strategy strategy = Strategy::FullShard;
  std::vector<ParamId> params;  // distinct parameters in flat (fsdp1) or group (fsdp2) order
  std::vector<SharedName> shared;
  bool requires_grad = true;
  DType orig_dtype = DType::Float32;    // e_o
  DType param_dtype = DType::Float32;   // e_c
  DType reduce_dtype = DType::Float32;  // e_r
  bool keep_low_precision_grads = false;
  std::int32_t shard_size = 1;  // ranks that one shard group spans for this unit
  Numel numel = 0;              // distinct parameter elements
  Numel flat_numel = 0;         // n: with alignment padding (fsdp1, and world padding under use_orig_params)
  Numel padded_numel = 0;       // F = c * shard_size; fsdp2: sum of padded shards * shard_size
  Numel shard_numel = 0;        // c; fsdp2: sum of padded local numels
  Numel align_padding = 0;
  Numel world_padding = 0;
  std::vector<FlatEntry> flat;                // fsdp1
  std::vector<ShardedParam> sharded;          // fsdp2
  ReshardAfterForward reshard_after_forward;  // fsdp2, resolved
  bool wrapped_twice = false;                 // fsdp1: in a wrapper that has nothing to gather and is its root
  bool operator==(const PlanUnit&) const = default;
};

/// A part of the compute program between two unit boundaries: what one forward, backward or recompute instruction runs.
struct Segment {
  std::string label;  // module that runs ("layers.0"), or the leaf's name
  ModuleId module;
  UnitId unit;                // whose parameters it uses
  std::int32_t op_begin = 0;  // range in Model::ops; empty range without an operator program
  std::int32_t op_end = 0;
  std::vector<ParamId> params;  // used here, in order of first use
  bool checkpointed = false;    // runs again in backward
  bool operator==(const Segment&) const = default;
};

struct PlanIteration {
  std::int32_t index = 0;
  std::int32_t micro_batches = 1;
  std::vector<std::string> actions;  // the script's actions that this iteration covers
  std::vector<Instruction> instructions;
  // State at the end, for people and for the checks (O1, R22).
  std::vector<UnitId> pre_order, post_order;
  std::vector<EventId> limiter_queue;
  bool operator==(const PlanIteration&) const = default;
};

enum class CheckStatus : std::uint8_t { Pass, Fail, NotApplicable };
struct PlanCheck {
  std::string name;  // "V1" .. "V15"
  CheckStatus status = CheckStatus::NotApplicable;
  std::string where;  // plan, sim or run: who decides it
  std::string text;
  bool operator==(const PlanCheck&) const = default;
};

/// A trap of the semantics page, section 24, that this job walks into.
struct Trap {
  std::int32_t number = 0;
  std::string name;
  std::string rules;
  std::vector<std::string> units;
  std::string text;
  std::string remedy;
  bool refused = false;  // the plan must not be used unless fsdp.allow_traps lists the number
  bool operator==(const Trap&) const = default;
};

struct StreamInfo {
  Stream stream = Stream::D;
  std::int32_t priority = 0;
  bool operator==(const StreamInfo&) const = default;
};

struct PlanGroups {
  std::vector<std::int32_t> shard;      // ranks of this rank's shard group
  std::vector<std::int32_t> replicate;  // ranks of this rank's replicate group; one entry if there is none
  bool operator==(const PlanGroups&) const = default;
};

/// Dimensions of ranks that communicators span; a mesh adds names of its own.
inline constexpr std::string_view kShardDimension = "shard";
inline constexpr std::string_view kReplicateDimension = "replicate";
inline constexpr std::string_view kWorldDimension = "world";

/// A process group in which this rank's collectives meet. Those of one communicator run one after the other, in the
/// order in which the host issues them, whatever their streams are (R4). Ids follow the first use, on all ranks alike,
/// as PyTorch makes them.
struct PlanCommunicator {
  std::string name;  // one of its own in the plan, the same on every rank; "world": torch's default group
  std::string kind;  // the dimension: "shard", "replicate", "world", or one of a mesh
  std::vector<std::int32_t> ranks;  // of the world, in the order of the group; the plan's own among them
  bool operator==(const PlanCommunicator&) const = default;
};

/// Per iteration; bytes are not counted here (simulate does).
struct PlanCounts {
  std::int64_t all_gather = 0, reduce_scatter = 0, all_reduce = 0, broadcast = 0, h2d = 0, d2h = 0, limiter_waits = 0;
  bool operator==(const PlanCounts&) const = default;
};

/// Where the run stopped because PyTorch itself would raise (a script may ask for that; T2).
struct PlanFailure {
  std::int32_t iteration = 0;
  std::string action;
  std::string error_class;  // "RuntimeError", ...
  std::string text;
  bool operator==(const PlanFailure&) const = default;
};

struct Plan {
  Runtime runtime = Runtime::Fsdp2;
  std::int32_t world_size = 1;
  std::int32_t rank = 0;
  std::vector<PlanUnit> units;      // handle order: registration DFS, root first (W9)
  std::vector<StreamInfo> streams;  // in creation order, D left out
  PlanGroups groups;
  std::vector<PlanCommunicator> communicators;
  double pre_divide = 1.0, post_divide = 1.0;
  std::vector<Segment> segments;
  std::vector<PlanIteration> iterations;  // the last one is the steady one
  bool steady = false;                    // the last two iterations are equal but for event names
  std::vector<PlanCheck> checks;
  std::vector<Trap> traps;
  std::vector<std::string> warnings;     // what PyTorch would warn of, in our words
  std::vector<std::string> names;        // interned texts, see Instruction::name
  std::vector<std::string> param_names;  // Model::params' fqns, so that a plan is read without its model
  std::optional<PlanFailure> failure;

  // Out of line: dozens of sources copy and drop one.
  Plan();
  Plan(const Plan&);
  Plan(Plan&&) noexcept;
  Plan& operator=(const Plan&);
  Plan& operator=(Plan&&) noexcept;
  ~Plan();
  bool operator==(const Plan&) const = default;

  std::string_view name_of(NameId id) const {
    return id.valid() ? std::string_view(names[id.index()]) : std::string_view();
  }
  UnitId find_unit(std::string_view name) const;
  /// Ranks that a collective meets, its own included; 0: the instruction names no communicator.
  std::int32_t group_size(const Instruction& instruction) const {
    if (!instruction.communicator.valid()) return 0;
    return static_cast<std::int32_t>(communicators[instruction.communicator.index()].ranks.size());
  }
};

/// "full:layers.0", "grad_piece:layers.0.mlp.weight"; the root's unit is spelt "full:".
std::string buffer_name(const Plan& plan, const BufferName& buffer);

/// Whether ranks meet in instructions of this kind.
constexpr bool is_collective(InstructionKind kind) {
  return kind >= InstructionKind::AllGather && kind <= InstructionKind::Broadcast;
}

/// Counts of one iteration's instructions.
PlanCounts count_instructions(const PlanIteration& iteration);

}  // namespace foreshard
