// The Model: a module tree and, where the source gives one, an operator program. A plain value; every source builds it.
//
// Sources: config.json (core/model/families/config_model.h), model.json (core/model/model_json.h), later .pt2 archives.
// Names are fully qualified names (fqn) as PyTorch prints them; the root module's fqn is "". Shapes are in elements.
// A Model without `ops` has `calls` instead: it can be planned (units, layouts, counts) but carries no times.
//
// Who plans asks for facts and never for names: what a class, a parameter or an input is called decides nothing below
// the sources (core/model/families, the readers). What it would stand for is data here.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/dtype.h"
#include "core/ids.h"
#include "core/units.h"

namespace foreshard {

using Shape = std::vector<std::int64_t>;

/// Product of the sizes; 1 for a scalar.
Numel numel_of(const Shape& shape);

struct ModuleInfo {
  std::string fqn;
  std::string class_name;
  std::vector<std::string> bases;  // names of the Python base classes that wrap policies may ask for
  ModuleId parent;                 // invalid for the root
  ModuleId alias_of;               // this registration is the same object as that one (which stands earlier)
  std::vector<ModuleId> children;  // registration order
  std::vector<ParamId> params;     // own parameters (recurse=False), registration order, shared names included
  bool operator==(const ModuleInfo&) const = default;
};

/// What one rank of a device mesh has of a parameter that it holds together with others (a DTensor). Plain tensors have
/// no dimension.
struct MeshPart {
  std::int32_t dimension = -1;  // Model::mesh; -1: a plain tensor
  std::int32_t dim = -1;        // of the tensor, cut over the ranks of that dimension; -1: every rank has all of it
  std::int64_t whole = 0;       // its size over all ranks
  std::int64_t begin = 0;       // where this rank's part of it begins
  /// What backward leaves as gradient: laid out as the parameter, a term of a sum over the ranks, or of the whole dim.
  enum class Gradient : std::uint8_t { Part, Term, Whole } gradient = Gradient::Part;
  bool operator==(const MeshPart&) const = default;
};

struct ParamInfo {
  std::string fqn;
  Shape shape;                   // on this rank
  DType dtype = DType::Float32;  // as created
  bool requires_grad = true;
  ModuleId owner;
  ParamId shares;  // the same tensor as that one (its first registration); invalid if distinct
  MeshPart part = {};
  std::optional<DType> gathered;  // its shards are cast to that before FSDP2 gathers them; nullopt: as its unit says
  bool operator==(const ParamInfo&) const = default;
};

struct BufferInfo {
  std::string fqn;
  Shape shape;
  DType dtype = DType::Float32;
  ModuleId owner;
  bool persistent = true;
  bool operator==(const BufferInfo&) const = default;
};

/// Until when Python names a value although no operator reads it any more. What autograd saves is another matter.
struct Hold {
  enum class Until : std::uint8_t {
    LastUse,   // no longer
    Op,        // until that operator has run
    Call,      // until a call of `by` returns: the one that is running when the value is made
    Forward,   // until the model's forward returns
    Step,      // until the script lets go of it, after backward
    Autocast,  // a parameter's cast, kept for its next use until the outermost torch.autocast exits, behind `op`
    Next,      // a module keeps it until the next step has put another in its place
    Run        // a module keeps it from the first step on, the only one that makes it: a cache
  } until = Until::LastUse;
  std::int32_t op = -1;  // Until::Op, Autocast: index into Model::ops; Next: of the buffer whose place it takes, or -1
  ModuleId by;           // Until::Call: whose call; invalid: of the innermost module running. Otherwise who names it,
                         // invalid: the script
  bool operator==(const Hold&) const = default;
};
/// Whether somebody names the value when backward has run.
constexpr bool outlives_backward(const Hold& hold) {
  return hold.until == Hold::Until::Step || hold.until == Hold::Until::Next || hold.until == Hold::Until::Run;
}

/// A tensor of the program: a model input or the output of an operator.
struct ValueInfo {
  std::string name;
  Shape shape;
  DType dtype = DType::Float32;
  bool requires_grad = false;  // of model inputs; of the others it follows from the operators
  Shape strides = {};          // in elements, one for each dimension; empty: contiguous, or as the operator makes them
  Hold held = {};
  ValueId alias_of = {};  // of inputs: the same storage as that earlier one; invalid: one of its own
  bool operator==(const ValueInfo&) const = default;
};

/// References inside operator arguments.
struct ValueRef {
  ValueId id;
  bool operator==(const ValueRef&) const = default;
};
struct ParamRef {
  ParamId id;  // the registered name that the module uses, which may share its tensor: see Model::storage_of
  bool operator==(const ParamRef&) const = default;
};
struct BufferRef {
  std::int32_t index = -1;  // Model::buffers
  bool operator==(const BufferRef&) const = default;
};

struct Arg;
using ArgList = std::vector<Arg>;

/// One operator argument: a reference, a constant, or a list of arguments. monostate is Python's None.
struct Arg {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, DType, ValueRef, ParamRef, BufferRef, ArgList>
      value;
  bool operator==(const Arg&) const = default;
};

struct NamedArg {
  std::string name;
  Arg arg;
  bool operator==(const NamedArg&) const = default;
};

/// One ATen operator of the forward pass, in PyTorch's spelling: "aten.linear.default", "aten.mm.default".
struct Op {
  std::string name;
  ModuleId module;        // innermost module that was running
  std::int32_t call = 0;  // counts the calls of that module so far: two calls of one module differ here
  ArgList args;
  std::vector<NamedArg> kwargs;
  std::vector<ValueId> out;  // invalid ids stand for results that are no tensors or None
  std::int32_t region = -1;  // Model::regions: the checkpointed region that it runs in; -1: none
  std::int32_t opaque = -1;  // Model::opaques; -1: its name says what it does
  bool operator==(const Op&) const = default;
};

/// What an operator does that nobody can look into: an autograd.Function, a kernel without a rule. Named
/// "opaque.<qualified name>" in Model::ops; its arguments and results are the operator's.
struct OpaqueOp {
  struct Saved {
    ValueId value;  // an argument or a result; invalid: a tensor of its own, as described
    Shape shape = {};
    DType dtype = DType::Float32;
    bool operator==(const Saved&) const = default;
  };
  struct Gradient {
    enum class Storage : std::uint8_t { Own, Saved, Given };
    bool made = true;  // false: no gradient for this argument
    Shape shape = {};
    DType dtype = DType::Float32;
    Storage storage = Storage::Own;  // Saved, Given: written over what was saved, or over a gradient that arrived
    std::int32_t of = 0;             // which of `saved`; of a result that is a tensor, which
    bool operator==(const Gradient&) const = default;
  };
  std::vector<Saved> saved;        // for backward
  std::vector<Gradient> backward;  // one for each tensor argument, in order; fewer: none for the rest
  Bytes bytes_moved = 0;           // read and written by one forward; 0: arguments and results, each once
  Flops flops = 0;                 // of one forward
  Flops backward_flops = -1;       // of one backward; -1: not said, twice the forward's
  Bytes workspace_bytes = 0;       // allocated while it runs
  bool operator==(const OpaqueOp&) const = default;
};

/// What a module was called with, as far as it is tensors of the program: what a checkpointed call keeps.
struct ModuleCall {
  ModuleId module;
  std::int32_t call = 0;      // counts the calls of that module
  std::vector<ValueId> args;  // positional and keyword arguments, each once, in order
  bool operator==(const ModuleCall&) const = default;
};

/// A stretch of the forward that the model itself runs under activation checkpointing.
struct Region {
  enum class Kind : std::uint8_t { NonReentrant, Reentrant, Operators } kind = Kind::NonReentrant;
  ModuleId module;  // whose call it is, or in whose call it lies
  std::int32_t call = 0;
  std::vector<ValueId> args;       // what the region was called with
  std::vector<std::int32_t> save;  // Kind::Operators: operators (Model::ops) whose results are kept, not recomputed
  std::vector<std::string> save_collectives;  // and collectives, should the model be cut: PyTorch's names of them
  bool early_stop = true;                     // Kind::Reentrant aside: what runs again ends where nothing more is saved
  bool operator==(const Region&) const = default;
};

enum class CheckpointKind : std::uint8_t { None, NonReentrant, Reentrant };

/// What a leaf module's forward does to autograd where there are no operators to tell: the nodes that it makes.
enum class LeafAutograd : std::uint8_t {
  Opaque,       // one node that saves one tensor
  Linear,       // a transposed weight, then a matrix product
  Scale,        // x times a parameter
  Embedding,    // rows of a table: saves the indices alone
  LayerNorm,    // saves its input, mean, rstd and weight
  LinearTimes,  // a linear layer's result times the second input
};

/// One step of a container's forward in a model without operators: a call of a child, or a plain operator.
struct CallStep {
  enum class Kind : std::uint8_t { Call, Add, Relu, Detach, Identity } kind = Kind::Call;
  ModuleId module;               // Call: the module called
  std::vector<std::string> in;   // value names of the enclosing container
  std::vector<std::string> out;  // usually one
  CheckpointKind checkpoint = CheckpointKind::None;
  std::vector<std::int32_t> iterations;          // run in these iterations only; empty = in all
  LeafAutograd autograd = LeafAutograd::Opaque;  // Call of a leaf
  bool operator==(const CallStep&) const = default;
};

/// The forward of one container. A module with parameters and no CallGraph of its own is a leaf.
struct CallGraph {
  ModuleId module;
  std::vector<std::string> inputs;  // names of its arguments
  std::vector<CallStep> steps;
  std::vector<std::string> outputs;
  bool operator==(const CallGraph&) const = default;
};

/// How the modules of an architecture are cut for tensor parallelism: torchtitan's plan in the words of mesh.plan.
struct ParallelStyle {
  std::string modules;  // pattern of fqns
  std::string style;    // colwise, rowwise, sequence, gather, ... (core/mesh/parallel_plan.h)
  bool operator==(const ParallelStyle&) const = default;
};

/// A dimension of the device mesh that the program itself communicates over.
struct MeshDimension {
  std::string name;                 // "tensor", "context", "expert"
  std::vector<std::int32_t> ranks;  // of the world, in the order of the group; this rank's own among them
  std::int32_t place = 0;           // of this rank among them
  bool operator==(const MeshDimension&) const = default;
};

/// Where ValueInfo::held comes from.
enum class Lifetimes : std::uint8_t {
  Built,     // a builder knows the Python that it writes down: a value handed to a module is named until that returns
  Recorded,  // measured while Python ran: nothing is held but as `held` says
  Assumed,   // by one rule, from the boundaries of modules' calls and the lines of the source
};

/// What one step of an optimizer was seen to take from the allocator and to give back. Above 0: bytes that are taken;
/// below: -1 - the number of what goes, counted over what was `there` before, then what this step has taken.
struct WatchedStep {
  std::int64_t there = 0;
  std::vector<std::int64_t> events;
  bool operator==(const WatchedStep&) const = default;
};
/// An optimizer of the script's that no job names.
struct WatchedOptimizer {
  std::string name;  // its class
  Bytes params = 0;  // of what it stepped on its rank
  WatchedStep first, steady;
  bool operator==(const WatchedOptimizer&) const = default;
};

struct Model {
  std::string name;
  std::vector<ModuleInfo> modules;  // registration order, parents before children; modules[0] is the root
  std::vector<ParamInfo> params;    // order of named_parameters(remove_duplicate=False)
  std::vector<BufferInfo> buffers;
  std::vector<ValueInfo> values;  // inputs first
  std::vector<ValueId> inputs;
  std::vector<Op> ops;
  // The loss first, if the program has one; then what the forward returns beside it (logits): alive until the forward
  // has ended, held no longer unless somebody keeps it.
  std::vector<ValueId> outputs;
  std::vector<CallGraph> calls;  // only without ops
  std::vector<ModuleCall> module_calls;
  std::vector<Region> regions;
  std::vector<OpaqueOp> opaques;
  // The first operator that the training script runs after the forward has returned: it works the loss out of the
  // outputs. -1: the loss is the model's own, or there is none.
  std::int32_t loss_begin = -1;
  Lifetimes lifetimes = Lifetimes::Built;
  bool assumes_choices = false;  // sizes hang on choices that nobody computed (routers, masks): balanced, or as told
  std::map<std::string, std::string> job;    // what the source saw of the script: job key, value as --set takes it
  std::vector<ParallelStyle> parallel;       // empty: nobody knows how to cut it
  std::vector<WatchedOptimizer> optimizers;  // of the script, as they were seen to step
  std::vector<MeshDimension> mesh;           // of a model that was cut: shapes are those of one rank (core/mesh)

  // What the source knows beside the program; not needed to plan.
  std::string architecture;              // "llama", "gpt2", ...; empty if unknown
  std::string block_class;               // class of the repeated block, the default of fsdp.wrap.classes
  std::int64_t tokens_per_batch = 0;     // batch x seq: for tokens/s and MFU; 0 if the model has no tokens
  bool has_loss = false;                 // outputs[0] is a scalar loss
  DType compute_dtype = DType::Float32;  // dtype that the operator program was written in (parameters cast to it)
  bool params_cast = false;              // ... all of them, though they were created in several

  // Out of line: dozens of sources copy and drop one.
  Model();
  Model(const Model&);
  Model(Model&&) noexcept;
  Model& operator=(const Model&);
  Model& operator=(Model&&) noexcept;
  ~Model();
  bool operator==(const Model&) const = default;

  /// Invalid id if there is no such module / parameter. Linear in the number of names.
  ModuleId find_module(std::string_view fqn) const;
  ParamId find_param(std::string_view fqn) const;

  /// The call of `module` with that number; nullptr if its arguments are not known. Linear in the number of calls.
  const ModuleCall* find_call(ModuleId module, std::int32_t call) const;

  /// The parameter that holds the storage: itself, or what it shares.
  ParamId storage_of(ParamId id) const { return params[id.index()].shares.valid() ? params[id.index()].shares : id; }
};

}  // namespace foreshard
