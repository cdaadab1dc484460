// The job: what is to be trained, how it is sharded, and on what. A plain value with PyTorch's defaults.
//
// Its text form is the job file (TOML, docs/formats/job.md), read and written by core/job/job_file.h. Field names and
// defaults are those of the public face; sections of the file are the structs below.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/units.h"

namespace foreshard {

struct ModelOptions {
  std::string source;  // config.json | directory | archive.pt2 | model.json
  std::int64_t batch = 1;
  std::int64_t seq = 2048;  // clamped to the model's maximum when not given (seq_given is false)
  bool seq_given = false;
  std::int64_t target_seq = 0;  // encoder/decoder; 0 = seq
  std::optional<DType> dtype =
      DType::Float32;              // dtype of the parameters as created; nullopt = "config", the file's own
  std::string attention = "sdpa";  // sdpa | sdpa_flash | sdpa_efficient | sdpa_math | eager
  std::string loss = "auto";       // auto | [chunked_ | fused_linear_]cross_entropy | cross_entropy_fp32 | none
  std::int64_t loss_chunks = 8;    // chunked_cross_entropy: logits of one chunk of the sequence at a time
  bool attention_mask = false;     // the script hands a padding mask
  bool packed = false;             // rows hold several sequences; the script hands the positions that tell them apart
  std::optional<DType> autocast;   // torch.autocast around the forward; nullopt = none
  bool autocast_cache = true;      // its cache_enabled: casts of parameters are kept until it exits
  bool float32_outputs = false;    // what it returns is cast to float32 behind it, as accelerate does
  bool compile = false;            // torch.compile of each block
  std::string float8 = "none";     // none | tensorwise | rowwise | rowwise_with_gw_hp: linear layers
  std::string weights;             // safetensors file or folder, or a checkpoint: values for a model without
  std::string program;             // .pt2 of several programs: which one
  std::map<std::string, std::int64_t> dims;  // .pt2: symbolic sizes, by symbol ("s27") or place ("tokens.1")
  bool operator==(const ModelOptions&) const = default;
};

/// Low-rank adapters beside frozen weights. Absent (kind "none"): full training.
struct AdapterOptions {
  std::string kind = "none";  // none | lora
  std::int64_t rank = 16;
  double alpha = 32.0;
  std::vector<std::string> targets{"q_proj", "v_proj"};  // leaf names or patterns; "all-linear"
  double dropout = 0.0;                                  // of what goes into an adapter
  std::vector<std::string> modules_to_save;              // copied, and trained whole beside the adapters
  std::optional<DType> dtype = DType::Float32;           // of the adapters; nullopt = the base's
  std::string base = "model.dtype";                      // model.dtype | nf4 | int8: how the frozen base is stored
  bool operator==(const AdapterOptions&) const = default;
};

/// Dimensions beside data parallelism; what is left of cluster.world_size is sharded and replicated as [fsdp] says.
struct MeshOptions {
  std::int64_t tensor = 1;
  bool sequence_parallel = true;  // norms and the residual stream sharded over `tensor`
  bool loss_parallel = true;
  std::int64_t context = 1;
  std::int64_t expert = 1;
  std::map<std::string, std::string> plan;   // module pattern -> colwise, rowwise, ...; empty = auto, by architecture
  std::string context_rotate = "allgather";  // | alltoall: keys and values go round a ring of ranks
  std::string context_buffers = "resized";   // | whole: what the script does with buffers as long as the sequence
  double expert_imbalance = 1.0;             // token choice: what this rank's experts receive, over an even spread
  // Of the experts' gradients: 0 = the data ranks, as torchtitan sets it; -1 = FSDP's own, the ranks that shard them.
  std::int64_t expert_divide_factor = 0;
  bool async_tensor = false;  // compiled blocks: what sequence parallelism moves goes piece by piece beside products
  bool flattened = false;     // data and tensor are one dimension of the script too: norms completed in one all-reduce
  bool operator==(const MeshOptions&) const = default;
};

/// fsdp.runtime = "planned": what the search for a schedule is held to.
struct PlannedOptions {
  Bytes budget = 0;                           // of reserved memory; 0 = the card's
  std::string objective = "time";             // time | memory | given (a schedule file's keys stand in the job)
  bool separate_reduce_communicator = false;  // fsdp2 too, PyTorch of 2026: set_separate_reduce_scatter_group
  bool arena = false;                         // the plan's buffers at offsets chosen before the run
  bool operator==(const PlannedOptions&) const = default;
};

enum class Runtime : std::uint8_t { Fsdp1, Fsdp2, None, Planned };
enum class Strategy : std::uint8_t { FullShard, ShardGradOp, NoShard, HybridShard, HybridShardZero2 };
enum class BackwardPrefetch : std::uint8_t { Pre, Post, None };

/// PyTorch's spelling: "FULL_SHARD", "_HYBRID_SHARD_ZERO2", "BACKWARD_PRE", "fsdp1", ...
std::string_view strategy_name(Strategy strategy);
/// Sharding within groups, replication across them.
bool is_hybrid(Strategy strategy);
std::optional<Strategy> parse_strategy(std::string_view text);
std::string_view runtime_name(Runtime runtime);
std::string_view backward_prefetch_name(BackwardPrefetch prefetch);

/// nullopt everywhere means "keep the dtype" ("none" in the file).
struct MixedPrecision {
  std::optional<DType> param = DType::BFloat16;
  std::optional<DType> reduce = DType::Float32;
  std::optional<DType> buffer;
  std::optional<DType> output;  // fsdp2
  bool keep_low_precision_grads = false;
  std::optional<bool> cast_forward_inputs;  // nullopt = PyTorch's default: fsdp1 false, fsdp2 true
  bool operator==(const MixedPrecision&) const = default;

  static MixedPrecision none() { return {std::nullopt, std::nullopt, std::nullopt, std::nullopt, false, std::nullopt}; }
};

/// fsdp2: true, false, or the size of the smaller mesh kept after forward (F2-12, F2-13). nullopt = PyTorch's default.
struct ReshardAfterForward {
  enum class Kind : std::uint8_t { True, False, GroupSize } kind = Kind::True;
  std::int64_t group_size = 0;
  bool operator==(const ReshardAfterForward&) const = default;
};

/// What differs for the units whose names match one of the patterns. The root is "".
struct UnitOverride {
  std::vector<std::string> units;
  std::optional<Strategy> strategy;
  std::optional<ReshardAfterForward> reshard_after_forward;
  std::optional<MixedPrecision> mixed_precision;
  std::optional<BackwardPrefetch> backward_prefetch;  // fsdp1
  std::map<std::string, std::int64_t> shard_dim;      // fsdp2: parameter pattern -> dimension
  bool operator==(const UnitOverride&) const = default;
};

/// fsdp2 explicit prefetching (F2-16): lists by unit name, or a depth applied along the execution order.
struct PrefetchOptions {
  std::map<std::string, std::vector<std::string>> forward;
  std::map<std::string, std::vector<std::string>> backward;
  std::int64_t forward_depth = 0;
  std::int64_t backward_depth = 0;
  bool operator==(const PrefetchOptions&) const = default;
};

enum class WrapPolicyKind : std::uint8_t { ModuleClass, Size, Always, None, Custom, Units, Auto };

struct WrapOptions {
  WrapPolicyKind policy = WrapPolicyKind::ModuleClass;
  std::vector<std::string> classes;    // module_class; empty = the architecture's repeated block
  Numel min_num_params = 100'000'000;  // size
  std::vector<std::vector<std::string>>
      units;         // units: one entry a unit; several patterns in one entry group modules (fsdp2)
  bool root = true;  // false (fsdp2): the root is no unit, the outermost units are roots of FSDP's each by itself
  bool operator==(const WrapOptions&) const = default;
};

struct FsdpOptions {
  Runtime runtime = Runtime::Fsdp2;
  Strategy strategy = Strategy::FullShard;
  std::vector<UnitOverride> overrides;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::Pre;  // fsdp1
  bool forward_prefetch = false;                               // fsdp1
  bool limit_all_gathers = true;                               // fsdp1
  bool use_orig_params = true;                                 // fsdp1
  bool full_precision_in_eval = false;                         // fsdp1: FSDP_USE_FULL_PREC_IN_EVAL (H16, M6)
  std::string comm_hook = "none";             // fsdp1 (G5): none | fp16_compress | bf16_compress | own:NAME
  ReshardAfterForward reshard_after_forward;  // fsdp2, blocks; the root as PyTorch does, or by overrides
  PrefetchOptions prefetch;                   // fsdp2
  bool symmetric_memory = false;              // fsdp2, PyTorch of 2026: set_symm_mem_for_comm
  std::string float8_all_gather = "auto";     // fsdp2, float8 by tensors: auto | none | dynamic | precomputed
  bool cpu_offload = false;
  bool offload_pin_memory = true;  // fsdp2: CPUOffloadPolicy(pin_memory)
  std::vector<std::string> ignored;
  std::vector<std::string> frozen;
  std::map<std::string, std::string> tied;  // fsdp2: parameter -> one of another unit whose shards it has been given
  std::vector<std::int64_t> allow_traps;
  std::string quirks = "torch-2.11";
  WrapOptions wrap;
  MixedPrecision mixed_precision;
  bool operator==(const FsdpOptions&) const = default;
};

enum class CheckpointPolicy : std::uint8_t { None, Block, EveryK, Selective, Ops };

struct CheckpointingOptions {
  CheckpointPolicy policy = CheckpointPolicy::None;
  std::int64_t k = 1;
  std::vector<std::string> units;                                // selective: patterns
  std::vector<std::string> save{"mm:2", "sdpa", "collectives"};  // ops: what a block keeps
  bool offload_activations = false;
  bool reentrant = false;
  bool outside = false;  // placement = "outside": the checkpoint wrapper is around the unit
  bool operator==(const CheckpointingOptions&) const = default;
};

enum class OptimizerKind : std::uint8_t {
  AdamW,
  Sgd,
  Adafactor,
  Muon,
  AdamW8bit,
  Adagrad,
  RMSprop,
  NAdam,
  RAdam,
  Adamax,
  Watched,  // none of these: what it takes and keeps was seen (Model::optimizers)
};
enum class OptimizerLibrary : std::uint8_t { Auto, Torch, Transformers };
enum class OptimizerImpl : std::uint8_t { ForLoop, Foreach, Fused, InBackward, InBackwardForeach };

/// An optimizer for each parameter, stepped where its gradient becomes ready. PyTorch takes a loop for a DTensor unless
/// the script asks for foreach.
constexpr bool steps_in_backward(OptimizerImpl impl) {
  return impl == OptimizerImpl::InBackward || impl == OptimizerImpl::InBackwardForeach;
}

struct OptimizerOptions {
  OptimizerKind name = OptimizerKind::AdamW;
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.0;                // sgd, rmsprop
  double alpha = 0.99;                  // rmsprop: of the average of squares
  bool centered = false;                // rmsprop: squares around the average gradient
  bool amsgrad = false;                 // adamw: the largest of its second moments is kept too
  bool decoupled_weight_decay = false;  // nadam, radam: the parameter decays, not its gradient
  OptimizerImpl impl = OptimizerImpl::Foreach;
  OptimizerLibrary library = OptimizerLibrary::Auto;  // adafactor: of two with one name
  std::string class_name;                             // watched: which of the model's
  bool operator==(const OptimizerOptions&) const = default;
};

/// train.optimizer.parts: of parameters that another optimizer steps in the same step, or none in this one.
struct OptimizerPart {
  std::vector<std::string> params;  // patterns
  bool steps = true;                // false: they wait for a step of their own, with their gradients
  OptimizerOptions options;
  bool operator==(const OptimizerPart&) const = default;
};

/// Whether Adafactor is Transformers' (scale_parameter and relative_step off): that is a loop, and what a loop means
/// where no library is named.
constexpr bool is_transformers(const OptimizerOptions& options) {
  return options.library == OptimizerLibrary::Transformers ||
         (options.library == OptimizerLibrary::Auto && options.impl == OptimizerImpl::ForLoop);
}

/// train.grad_scaler: torch.amp.GradScaler's; under fsdp1 ShardedGradScaler's.
struct GradScalerOptions {
  bool enabled = false;
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  bool operator==(const GradScalerOptions&) const = default;
};

struct ScheduleOptions {
  std::string name = "constant";  // constant | cosine
  std::int64_t warmup = 0;
  double min_ratio = 0.0;
  bool operator==(const ScheduleOptions&) const = default;
};

struct DataOptions {
  std::string kind = "synthetic";  // synthetic | tokens | text
  std::string file;
  std::string tokenizer;
  bool operator==(const DataOptions&) const = default;
};

struct EvalOptions {         // train.eval
  std::int64_t every = 0;    // steps; 0 = no evaluation
  std::int64_t batches = 8;  // per rank and evaluation
  std::string file;          // empty: the last `share` of train.data
  double share = 0.05;
  bool operator==(const EvalOptions&) const = default;
};

struct SaveOptions {  // train.checkpoint
  std::string dir;    // empty = no checkpoints
  std::int64_t every = 0;
  std::int64_t keep = 0;
  bool operator==(const SaveOptions&) const = default;
};

struct TrainOptions {
  std::int64_t steps = 100;
  std::int64_t micro_batches = 1;
  bool no_sync = false;
  std::string init = "default";  // values of parameters without: default | normal:STD | zeros
  OptimizerOptions optimizer;
  std::vector<OptimizerPart> optimizer_parts;  // the first that names a parameter has it
  ScheduleOptions schedule;
  double clip_grad_norm = 1.0;  // 0 = off
  GradScalerOptions grad_scaler;
  std::string zero_grad = "set_to_none";
  bool keeps_outputs = false;  // names of the loop hold a step's loss and outputs until the next forward has returned
  Bytes beside = 0;        // on the device all the time, and no part of the model: a teacher, a reference, an average
  Bytes beside_later = 0;  // ... from the end of the first step on
  DataOptions data;
  std::int64_t seed = 0;
  EvalOptions eval;
  SaveOptions checkpoint;
  std::vector<std::vector<std::string>> script;  // explicit actions, one list an iteration; empty = the usual loop
  bool operator==(const TrainOptions&) const = default;
};

struct ClusterOptions {
  std::string profile = "h100-sxm-80";
  std::int64_t world_size = 8;
  std::int64_t ranks_per_node = 8;
  std::int64_t shard_group = 0;  // hybrid: ranks of one shard group; 0 = ranks_per_node
  std::int64_t rank = 0;
  std::string init = "meta";       // meta | device | host
  Bytes memory = 0;                // 0 = the profile's
  std::int64_t nccl_max_ctas = 0;  // thread blocks of a collective at most (ncclConfig_t::maxCTAs); 0 = NCCL's choice
  bool operator==(const ClusterOptions&) const = default;
};

struct AllocatorOptions {
  bool expandable_segments = false;
  std::int64_t max_split_size_mb = 0;
  std::int64_t roundup_power2_divisions = 0;
  double garbage_collection_threshold = 0.0;
  bool operator==(const AllocatorOptions&) const = default;
};

struct Job {
  ModelOptions model;
  AdapterOptions adapters;
  MeshOptions mesh;
  FsdpOptions fsdp;
  PlannedOptions schedule;
  CheckpointingOptions checkpointing;
  TrainOptions train;
  ClusterOptions cluster;
  AllocatorOptions allocator;

  // Out of line: dozens of sources copy and drop one.
  Job();
  Job(const Job&);
  Job(Job&&) noexcept;
  Job& operator=(const Job&);
  Job& operator=(Job&&) noexcept;
  ~Job();
  bool operator==(const Job&) const = default;
};

/// Ranks that one copy of the parameters is sharded over, as [cluster], [mesh] and fsdp.strategy say.
std::int64_t shard_ranks(const Job& job);
/// Whether fsdp2 gathers the matrices of float8 layers in 8 bits (torchao's enable_fsdp_float8_all_gather, which knows
/// scales by tensors alone). "auto": where it can; not beside partial reshards, nor matrices of uneven shards.
bool gathers_float8(const Job& job);

/// True if the whole of `text` matches `pattern`: `*` any run of characters, `?` any one, the rest itself (fnmatch).
bool matches_pattern(std::string_view pattern, std::string_view text);

}  // namespace foreshard
