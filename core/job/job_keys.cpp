// One long file on purpose: one table of keys, in the order of the page that is printed from it (docs/formats/job.md).
#include "core/job/job_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <type_traits>

#include "core/job/job_values.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

using namespace job_values;  // NOLINT(google-build-using-namespace): the readers and writers of the table

constexpr std::array<std::string_view, 18> kTables{"model",
                                                   "adapters",
                                                   "mesh",
                                                   "fsdp",
                                                   "fsdp.prefetch",
                                                   "fsdp.wrap",
                                                   "fsdp.mixed_precision",
                                                   "schedule",
                                                   "checkpointing",
                                                   "train",
                                                   "train.optimizer",
                                                   "train.schedule",
                                                   "train.data",
                                                   "train.grad_scaler",
                                                   "train.eval",
                                                   "train.checkpoint",
                                                   "cluster",
                                                   "allocator"};
// Tables that are written inline, inside their section.
constexpr std::array<std::string_view, 7> kInline{"fsdp.prefetch",     "train.optimizer", "train.schedule",
                                                  "train.grad_scaler", "train.data",      "train.eval",
                                                  "train.checkpoint"};

std::string_view leaf_of(std::string_view name) { return name.substr(name.rfind('.') + 1); }

struct Rule {
  JobKey key;
  std::function<Failure(const Spot&, Job&)> read;
  std::function<std::string(const Job&)> write;
};

/// The place of a key's value in a job.
template <class T>
using Field = T& (*)(Job&);
template <class T>
const T& value_at(Field<T> field, const Job& job) {
  return field(const_cast<Job&>(job));  // NOLINT(cppcoreguidelines-pro-type-const-cast): read only
}

using Names = std::initializer_list<std::string_view>;

/// Fills the table; one function a type of key. Places are function pointers and texts are literals: a closure or a
/// std::string for each key took most of this file's 21 s of compiling.
class TableMaker {
 public:
  TableMaker& only(std::optional<Runtime> runtime) {
    only_ = runtime;
    return *this;
  }
  void boolean(const char* name, Field<bool> field, const char* doc) {
    add(
        name, "boolean", {"true", "false"}, doc,
        [field](const Spot& spot, Job& job) { return read_bool(spot, field(job)); },
        [field](const Job& job) { return value_at(field, job) ? "true" : "false"; });
  }
  void integer(const char* name, std::int64_t min, std::int64_t max, Field<std::int64_t> field, const char* doc) {
    add(
        name, fmt::format("integer from {} to {}", min, max), {}, doc,
        [field, min, max](const Spot& spot, Job& job) { return read_integer(spot, min, max, field(job)); },
        [field](const Job& job) { return std::to_string(value_at(field, job)); });
  }
  void number(const char* name, double min, double max, Field<double> field, const char* doc) {
    add(
        name, fmt::format("number from {} to {}", min, max), {}, doc,
        [field, min, max](const Spot& spot, Job& job) { return read_number(spot, min, max, field(job)); },
        [field](const Job& job) { return number_text(value_at(field, job)); });
  }
  void text(const char* name, Field<std::string> field, const char* doc) {
    add(
        name, "text", {}, doc, [field](const Spot& spot, Job& job) { return read_text(spot, field(job)); },
        [field](const Job& job) { return quoted_text(value_at(field, job)); });
  }
  void word(const char* name, Names words, Field<std::string> field, const char* doc) {
    std::vector<std::string> known(words.begin(), words.end());
    add(
        name, "word", known, doc,
        [field, known](const Spot& spot, Job& job) { return read_word(spot, known, field(job)); },
        [field](const Job& job) { return quoted_text(value_at(field, job)); });
  }
  template <class E>
  void choice(const char* name, const Words<E>& words, std::type_identity_t<Field<E>> field, const char* doc) {
    add(
        name, "word", words.names(), doc,
        [field, words](const Spot& spot, Job& job) { return read_enum(spot, words, field(job)); },
        [field, words](const Job& job) { return enum_text(words, value_at(field, job)); });
  }
  void dtype(const char* name, std::string_view empty_word, Field<std::optional<DType>> field, const char* doc) {
    add(
        name, fmt::format("dtype or \"{}\"", empty_word), {"float32", "bfloat16", "float16", std::string(empty_word)},
        doc, [field, empty_word](const Spot& spot, Job& job) { return read_dtype(spot, empty_word, field(job)); },
        [field, empty_word](const Job& job) { return dtype_text(value_at(field, job), empty_word); });
  }
  void texts(const char* name, Field<std::vector<std::string>> field, const char* doc) {
    add(
        name, "list of texts", {}, doc, [field](const Spot& spot, Job& job) { return read_texts(spot, field(job)); },
        [field](const Job& job) { return texts_text(value_at(field, job)); });
  }
  void special(const char* name, const char* type, Failure (*read)(const Spot&, Job&), std::string (*write)(const Job&),
               const char* doc) {
    add(name, type, {}, doc, read, write);
  }
  std::vector<Rule> take() { return std::move(rules_); }

 private:
  void add(const char* name, std::string type, std::vector<std::string> choices, const char* doc,
           std::function<Failure(const Spot&, Job&)> read, std::function<std::string(const Job&)> write) {
    Rule rule{{name, std::move(type), {}, std::move(choices), doc, only_}, std::move(read), std::move(write)};
    rule.key.default_text = rule.write(Job{});
    rules_.push_back(std::move(rule));
  }
  std::vector<Rule> rules_;
  std::optional<Runtime> only_;
};

#define FORESHARD_FIELD(field) \
  [](Job & job) -> auto& { return job.field; }

void add_model(TableMaker& t) {
  t.text("model.source", FORESHARD_FIELD(model.source),
         "config.json, a directory holding one (+ safetensors), archive.pt2, model.json, FILE.py:FUNCTION or "
         "timm:NAME; the only required key");
  t.integer("model.batch", 1, 1'000'000, FORESHARD_FIELD(model.batch),
            "sequences (images, ...) per rank and micro-batch");
  t.special(
      "model.seq", "integer from 1 to 100000000",
      [](const Spot& spot, Job& job) {
        Failure failure = read_integer(spot, 1, 100'000'000, job.model.seq);
        if (!failure) job.model.seq_given = true;
        return failure;
      },
      [](const Job& job) { return fmt::format("{}", job.model.seq); },
      "tokens per sequence, at most the model's maximum");
  t.integer("model.target_seq", 0, 100'000'000, FORESHARD_FIELD(model.target_seq),
            "encoder/decoder: tokens per target sequence; 0 = seq");
  t.dtype("model.dtype", "config", FORESHARD_FIELD(model.dtype),
          "dtype the parameters are created in; \"config\" = the file's own");
  t.word(
      "model.attention",
      {"sdpa", "sdpa_flash", "sdpa_efficient", "sdpa_math", "eager", "flex_attention", "flex_attention_unfused"},
      FORESHARD_FIELD(model.attention),
      "sdpa = PyTorch's choice by device, dtype, mask and grouped heads; flex_attention = its compiled kernel, which "
      "keeps what flash attention keeps; unfused = where nothing compiles it: every score");
  t.word("model.loss",
         {"auto", "per_token", "cross_entropy", "cross_entropy_fp32", "cross_entropy_flat", "chunked_cross_entropy",
          "chunked_logits_cross_entropy", "fused_linear_cross_entropy", "none"},
         FORESHARD_FIELD(model.loss),
         "auto = the architecture's own training loss; per_token = that summed, divided by the labels counted over all "
         "micro-batches; cross_entropy_flat = torchtitan's, of flattened logits in float32; chunked_cross_entropy = "
         "head and loss over pieces of the sequence, each checkpointed; "
         "chunked_logits = their logits kept; none = sum of the first output");
  t.integer("model.loss_chunks", 1, 65'536, FORESHARD_FIELD(model.loss_chunks),
            "chunked losses: into how many pieces of the sequence");
  t.boolean("model.attention_mask", FORESHARD_FIELD(model.attention_mask), "the script hands a padding mask");
  t.boolean("model.packed", FORESHARD_FIELD(model.packed),
            "rows hold several sequences, which the script's position_ids tell apart");
  t.dtype("model.autocast", "none", FORESHARD_FIELD(model.autocast),
          "torch.autocast around the forward, beside the parameters' dtype; the script's own loss stands outside");
  t.boolean("model.autocast_cache", FORESHARD_FIELD(model.autocast_cache),
            "its cache_enabled: casts of float32 parameters are kept until it exits");
  t.boolean("model.float32_outputs", FORESHARD_FIELD(model.float32_outputs),
            "what the forward returns is cast to float32 behind autocast, as accelerate does");
  t.boolean("model.compile", FORESHARD_FIELD(model.compile), "torch.compile of each block");
  t.word(
      "model.float8", {"none", "tensorwise", "rowwise", "rowwise_with_gw_hp"}, FORESHARD_FIELD(model.float8),
      "linear layers in float8, the output layer aside; what their matrices are gathered in: fsdp.float8_all_gather");
  t.text("model.weights", FORESHARD_FIELD(model.weights),
         "safetensors file or folder, or a checkpoint, for a model without values");
  t.text("model.program", FORESHARD_FIELD(model.program), ".pt2 of several programs: which one; also --program NAME");
  t.special(
      "model.dims", "table of integers", [](const Spot& spot, Job& job) { return read_sizes(spot, job.model.dims); },
      [](const Job& job) { return sizes_text(job.model.dims); },
      ".pt2: symbolic sizes by name, the symbol's or the input's and dimension's (\"tokens.1\"); also --dim NAME=SIZE");
}

void add_mesh_options(TableMaker& t) {
  t.word("mesh.context_rotate", {"allgather", "alltoall"}, FORESHARD_FIELD(mesh.context_rotate),
         "how keys and values reach the ranks that share a sequence: all at once, or round a ring");
  t.word("mesh.context_buffers", {"resized", "whole"}, FORESHARD_FIELD(mesh.context_buffers),
         "buffers as long as the sequence: resized to their part while a step runs, beside a clone (PyTorch's "
         "context_parallel()), or left whole (torchtitan cuts inputs and positions alone)");
  t.number("mesh.expert_imbalance", 1.0, static_cast<double>(kMaxRanks), FORESHARD_FIELD(mesh.expert_imbalance),
           "of tokens that choose their experts: what this rank's experts receive, over an even spread; at worst "
           "mesh.expert");
  t.integer("mesh.expert_divide_factor", -1, kMaxRanks, FORESHARD_FIELD(mesh.expert_divide_factor),
            "of the experts' gradients; 0 = the data ranks, as torchtitan; -1 = the ranks that FSDP shards them over");
  t.boolean("mesh.async_tensor", FORESHARD_FIELD(mesh.async_tensor),
            "of compiled blocks: gathers and scatters of sequence parallelism go piece by piece beside the products "
            "that they feed, as torchtitan's asynchronous tensor parallelism; only time changes");
  t.boolean("mesh.flattened", FORESHARD_FIELD(mesh.flattened),
            "the script has flattened data and tensor into one dimension: norms are completed in one all-reduce");
}

void add_adapters_and_mesh(TableMaker& t) {
  t.word("adapters.kind", {"none", "lora"}, FORESHARD_FIELD(adapters.kind), "none = full training");
  t.integer("adapters.rank", 1, 1 << 20, FORESHARD_FIELD(adapters.rank), "of the low-rank matrices");
  t.number("adapters.alpha", 0.0, 1e9, FORESHARD_FIELD(adapters.alpha), "adapters count alpha / rank");
  t.texts("adapters.targets", FORESHARD_FIELD(adapters.targets),
          "linear layers by the last part of their names or by patterns; \"all-linear\"");
  t.number("adapters.dropout", 0.0, 1.0, FORESHARD_FIELD(adapters.dropout), "of what goes into an adapter");
  t.texts("adapters.modules_to_save", FORESHARD_FIELD(adapters.modules_to_save),
          "modules by the last part of their names, copied and trained whole beside the adapters");
  t.dtype("adapters.dtype", "model.dtype", FORESHARD_FIELD(adapters.dtype), "dtype the adapters are created in");
  t.word("adapters.base", {"model.dtype", "nf4", "int8"}, FORESHARD_FIELD(adapters.base),
         "how the frozen base is stored, which is what FSDP gathers; int8 without FSDP alone");
  t.integer("mesh.tensor", 1, kMaxRanks, FORESHARD_FIELD(mesh.tensor), "ranks of tensor parallelism");
  t.boolean("mesh.sequence_parallel", FORESHARD_FIELD(mesh.sequence_parallel),
            "norms and the residual stream sharded over tensor");
  t.boolean("mesh.loss_parallel", FORESHARD_FIELD(mesh.loss_parallel), "logits stay sharded over the vocabulary");
  t.integer("mesh.context", 1, kMaxRanks, FORESHARD_FIELD(mesh.context), "ranks that share a sequence");
  t.integer("mesh.expert", 1, kMaxRanks, FORESHARD_FIELD(mesh.expert), "ranks that share the experts");
  add_mesh_options(t);
  t.special(
      "mesh.plan", "\"auto\" or a table of styles by module pattern",
      [](const Spot& spot, Job& job) { return read_mesh_plan(spot, job.mesh.plan); },
      [](const Job& job) { return mesh_plan_text(job.mesh.plan); },
      "auto = by architecture, as torchtitan; else {\"layers.*.wq\" = \"colwise\"}");
}

void add_fsdp(TableMaker& t) {
  t.choice("fsdp.runtime",
           Words<Runtime>{{{"fsdp1", Runtime::Fsdp1},
                           {"fsdp2", Runtime::Fsdp2},
                           {"planned", Runtime::Planned},
                           {"none", Runtime::None}}},
           FORESHARD_FIELD(fsdp.runtime),
           "planned = our own schedule for [schedule].budget; none = plain data parallel, or one rank");
  t.choice("fsdp.strategy", strategies(), FORESHARD_FIELD(fsdp.strategy),
           "fsdp2: FULL_SHARD, and HYBRID_SHARD on a 2-D mesh, only");
  t.special(
      "fsdp.overrides", "list of tables", read_overrides,
      [](const Job& job) { return overrides_text(job.fsdp.overrides); },
      "by unit: [{units = [\"layers.0*\"], strategy = \"SHARD_GRAD_OP\"}]; also reshard_after_forward (fsdp1: true of "
      "a root that is wrapped twice), "
      "mixed_precision (fields not given as in fsdp.mixed_precision), backward_prefetch (fsdp1), shard_dim = {pattern "
      "= dimension} (fsdp2); the root is "
      "\"\"");
  t.only(Runtime::Fsdp1);
  t.choice("fsdp.backward_prefetch", backward_prefetches(), FORESHARD_FIELD(fsdp.backward_prefetch),
           "which unit is gathered ahead in backward, and when");
  t.boolean("fsdp.forward_prefetch", FORESHARD_FIELD(fsdp.forward_prefetch), "gather the next unit ahead in forward");
  t.boolean("fsdp.limit_all_gathers", FORESHARD_FIELD(fsdp.limit_all_gathers),
            "the host waits for free events (rate limiter)");
  t.boolean("fsdp.use_orig_params", FORESHARD_FIELD(fsdp.use_orig_params), "original parameters instead of flat ones");
  t.boolean("fsdp.full_precision_in_eval", FORESHARD_FIELD(fsdp.full_precision_in_eval),
            "FSDP_USE_FULL_PREC_IN_EVAL: evaluation without the parameters' compute dtype");
  t.special(
      "fsdp.comm_hook", "`none`, `fp16_compress`, `bf16_compress` or own:NAME",
      [](const Spot& spot, Job& job) { return read_comm_hook(spot, job.fsdp.comm_hook); },
      [](const Job& job) { return quoted_text(job.fsdp.comm_hook); },
      "register_comm_hook: what reduces gradients; own:NAME = one in C++ that `run --load` brings");
  t.only(Runtime::Fsdp2);
  t.special(
      "fsdp.reshard_after_forward", "true, false or a group size",
      [](const Spot& spot, Job& job) { return read_reshard(spot, job.fsdp.reshard_after_forward); },
      [](const Job& job) { return reshard_text(job.fsdp.reshard_after_forward); },
      "the root as PyTorch does, or by overrides");
  t.special(
      "fsdp.prefetch.forward", "table of lists by unit",
      [](const Spot& spot, Job& job) { return read_prefetch_lists(spot, job.fsdp.prefetch.forward); },
      [](const Job& job) { return prefetch_lists_text(job.fsdp.prefetch.forward); },
      "explicit: {\"layers.0\" = [\"layers.1\"]}");
  t.special(
      "fsdp.prefetch.backward", "table of lists by unit",
      [](const Spot& spot, Job& job) { return read_prefetch_lists(spot, job.fsdp.prefetch.backward); },
      [](const Job& job) { return prefetch_lists_text(job.fsdp.prefetch.backward); }, "the same in backward");
  t.integer("fsdp.prefetch.forward_depth", 0, 1024, FORESHARD_FIELD(fsdp.prefetch.forward_depth),
            "units ahead along the execution order; 0 = no lists");
  t.integer("fsdp.prefetch.backward_depth", 0, 1024, FORESHARD_FIELD(fsdp.prefetch.backward_depth),
            "the same in backward");
}

void add_offload_and_exceptions(TableMaker& t) {
  t.only(Runtime::Fsdp2);
  t.boolean("fsdp.symmetric_memory", FORESHARD_FIELD(fsdp.symmetric_memory),
            "buffers of collectives in symmetric memory (set_symm_mem_for_comm): inside a node gathers run on copy "
            "engines; predicted, not run");
  t.word(
      "fsdp.float8_all_gather", {"auto", "none", "dynamic", "precomputed"}, FORESHARD_FIELD(fsdp.float8_all_gather),
      "model.float8 = \"tensorwise\": matrices are cast to 8 bits before they are gathered, with scales of the moment "
      "or those that precompute_float8_dynamic_scale_for_fsdp makes behind each step; auto: the latter where it can");
  t.only({});
  t.boolean("fsdp.cpu_offload", FORESHARD_FIELD(fsdp.cpu_offload), "parameters, gradients and optimizer on the host");
  t.only(Runtime::Fsdp2);
  t.boolean("fsdp.offload_pin_memory", FORESHARD_FIELD(fsdp.offload_pin_memory), "CPUOffloadPolicy(pin_memory)");
  t.only({});
  t.texts("fsdp.ignored", FORESHARD_FIELD(fsdp.ignored), "module or parameter patterns that FSDP leaves alone");
  t.texts("fsdp.frozen", FORESHARD_FIELD(fsdp.frozen), "parameter patterns without gradient");
  t.special(
      "fsdp.tied", "table of parameters",
      [](const Spot& spot, Job& job) { return read_text_table(spot, job.fsdp.tied); },
      [](const Job& job) { return text_table(job.fsdp.tied); },
      "parameters that the script has tied once more, behind its plan over tensor ranks or when FSDP2 has sharded "
      "them, "
      "each with the one whose part or shards it has: {\"lm_head.weight\" = \"embed_tokens.weight\"}");
  t.special(
      "fsdp.allow_traps", "list of integers from 1 to 64",
      [](const Spot& spot, Job& job) { return read_traps(spot, job.fsdp.allow_traps); },
      [](const Job& job) { return fmt::format("[{}]", fmt::join(job.fsdp.allow_traps, ", ")); },
      "traps that are refused unless listed here by number");
  t.word("fsdp.quirks", {"torch-2.15", "torch-2.14", "torch-2.13", "torch-2.12", "torch-2.11", "torch-2.4"},
         FORESHARD_FIELD(fsdp.quirks),
         "which release's observable behaviour; torch-2.15: products have cuBLAS's workspace only while they run; "
         "torch-2.12 (to 2.14): cuBLASLt shares cuBLAS's; torch-2.4 (and 2.3): fsdp2 copies gradients in on the "
         "reduction's stream");
}

void add_wrap_and_precision(TableMaker& t) {
  t.choice("fsdp.wrap.policy",
           Words<WrapPolicyKind>{{{"module_class", WrapPolicyKind::ModuleClass},
                                  {"size", WrapPolicyKind::Size},
                                  {"always", WrapPolicyKind::Always},
                                  {"none", WrapPolicyKind::None},
                                  {"custom", WrapPolicyKind::Custom},
                                  {"units", WrapPolicyKind::Units},
                                  {"auto", WrapPolicyKind::Auto}}},
           FORESHARD_FIELD(fsdp.wrap.policy), "which modules become units");
  t.texts("fsdp.wrap.classes", FORESHARD_FIELD(fsdp.wrap.classes),
          "module_class; empty = the architecture's repeated block");
  t.integer("fsdp.wrap.min_num_params", 1, std::int64_t{1} << 50, FORESHARD_FIELD(fsdp.wrap.min_num_params), "size");
  t.special(
      "fsdp.wrap.units", "list of patterns or lists of patterns",
      [](const Spot& spot, Job& job) { return read_wrap_units(spot, job.fsdp.wrap.units); },
      [](const Job& job) { return wrap_units_text(job.fsdp.wrap.units); },
      "units; fsdp2: a list inside the list groups modules");
  t.boolean(
      "fsdp.wrap.root", FORESHARD_FIELD(fsdp.wrap.root),
      "false: the root is no unit, the outermost units are roots of FSDP's each by itself; of runtime none: no DDP "
      "around the model, nobody sums its gradients over ranks");
  t.dtype("fsdp.mixed_precision.param", "none", FORESHARD_FIELD(fsdp.mixed_precision.param),
          "compute dtype; none = keep");
  t.dtype("fsdp.mixed_precision.reduce", "none", FORESHARD_FIELD(fsdp.mixed_precision.reduce),
          "dtype of gradient reduction; none = that of the gradient");
  t.dtype("fsdp.mixed_precision.buffer", "none", FORESHARD_FIELD(fsdp.mixed_precision.buffer), "dtype of buffers");
  t.only(Runtime::Fsdp2);
  t.dtype("fsdp.mixed_precision.output", "none", FORESHARD_FIELD(fsdp.mixed_precision.output),
          "dtype of units' outputs");
  t.only(Runtime::Fsdp1);
  t.boolean("fsdp.mixed_precision.keep_low_precision_grads",
            FORESHARD_FIELD(fsdp.mixed_precision.keep_low_precision_grads), "no cast back of reduced gradients");
  t.only({});
  t.special(
      "fsdp.mixed_precision.cast_forward_inputs", "true, false or \"default\"",
      [](const Spot& spot, Job& job) { return read_cast_inputs(spot, job.fsdp.mixed_precision.cast_forward_inputs); },
      [](const Job& job) { return cast_inputs_text(job.fsdp.mixed_precision.cast_forward_inputs); },
      "default: fsdp1 false, fsdp2 true, as PyTorch");
}

void add_schedule(TableMaker& t) {
  t.only(Runtime::Planned);
  t.special(
      "schedule.budget", "\"\" or a size",
      [](const Spot& spot, Job& job) { return read_budget(spot, job.schedule.budget); },
      [](const Job& job) { return quoted_text(job.schedule.budget == 0 ? "" : size_text(job.schedule.budget)); },
      "reserved memory at most (72GiB); empty = the card's");
  t.word("schedule.objective", {"time", "memory", "given"}, FORESHARD_FIELD(schedule.objective),
         "what is made small; given = nothing is searched, overrides, prefetch lists and checkpointing say all");
  t.only(Runtime::Fsdp2);
  t.boolean("schedule.separate_reduce_communicator", FORESHARD_FIELD(schedule.separate_reduce_communicator),
            "reduce-scatters have a communicator of their own (set_separate_reduce_scatter_group)");
  t.only(Runtime::Planned);
  t.boolean("schedule.arena", FORESHARD_FIELD(schedule.arena),
            "the plan's own buffers in one block a stream, at offsets chosen before the run (docs/schedule.md)");
  t.only({});
}

void add_checkpointing(TableMaker& t) {
  t.choice("checkpointing.policy",
           Words<CheckpointPolicy>{{{"none", CheckpointPolicy::None},
                                    {"block", CheckpointPolicy::Block},
                                    {"every_k", CheckpointPolicy::EveryK},
                                    {"selective", CheckpointPolicy::Selective},
                                    {"ops", CheckpointPolicy::Ops}}},
           FORESHARD_FIELD(checkpointing.policy),
           "which blocks recompute their activations; ops = all but what they save");
  t.integer("checkpointing.k", 1, 100'000, FORESHARD_FIELD(checkpointing.k), "every_k: every k-th block");
  t.texts("checkpointing.units", FORESHARD_FIELD(checkpointing.units), "selective: patterns");
  t.texts("checkpointing.save", FORESHARD_FIELD(checkpointing.save),
          "ops: operators whose results every block keeps: mm, mm:K (every K-th is recomputed), addmm, bmm, sdpa, max, "
          "collectives, or aten.NAME");
  t.boolean(
      "checkpointing.offload_activations", FORESHARD_FIELD(checkpointing.offload_activations),
      "saved tensors travel to the host and back on a stream of their own, as in TRL and torchtune (docs/scripts.md)");
  t.boolean("checkpointing.reentrant", FORESHARD_FIELD(checkpointing.reentrant),
            "the old implementation of checkpoint");
  t.choice("checkpointing.placement", Words<bool>{{{"inside", false}, {"outside", true}}},
           FORESHARD_FIELD(checkpointing.outside), "the checkpoint wrapper inside the unit, or outside");
}

void add_optimizer(TableMaker& t) {
  t.choice("train.optimizer.name", optimizer_kinds(), FORESHARD_FIELD(train.optimizer.name), "optimizer");
  t.number("train.optimizer.lr", 0.0, 1e6, FORESHARD_FIELD(train.optimizer.lr), "learning rate");
  t.special(
      "train.optimizer.betas", "list of two numbers",
      [](const Spot& spot, Job& job) { return read_betas(spot, job.train.optimizer); },
      [](const Job& job) {
        return fmt::format("[{}, {}]", number_text(job.train.optimizer.beta1), number_text(job.train.optimizer.beta2));
      },
      "adamw, nadam, radam, adamax");
  t.number("train.optimizer.eps", 0.0, 1.0, FORESHARD_FIELD(train.optimizer.eps), "all but sgd");
  t.number("train.optimizer.weight_decay", 0.0, 1e6, FORESHARD_FIELD(train.optimizer.weight_decay), "weight decay");
  t.number("train.optimizer.momentum", 0.0, 1.0, FORESHARD_FIELD(train.optimizer.momentum), "sgd, rmsprop");
  t.number("train.optimizer.alpha", 0.0, 1.0, FORESHARD_FIELD(train.optimizer.alpha),
           "rmsprop: of the average of squares");
  t.boolean("train.optimizer.centered", FORESHARD_FIELD(train.optimizer.centered),
            "rmsprop: squares around the average gradient, which is one state more");
  t.boolean("train.optimizer.amsgrad", FORESHARD_FIELD(train.optimizer.amsgrad),
            "adamw: the largest of its second moments is kept too, which is one state more");
  t.boolean("train.optimizer.decoupled_weight_decay", FORESHARD_FIELD(train.optimizer.decoupled_weight_decay),
            "nadam, radam: weight decay of the parameter (as adamw), not of its gradient");
  t.choice("train.optimizer.impl", optimizer_impls(), FORESHARD_FIELD(train.optimizer.impl),
           "PyTorch's implementation; in_backward = a step for each parameter when its gradient is ready, as a loop or "
           "as foreach");
  t.choice("train.optimizer.library", optimizer_libraries(), FORESHARD_FIELD(train.optimizer.library),
           "adafactor: torch.optim's, or Transformers'; auto = Transformers' where impl is for_loop");
  t.text("train.optimizer.watched", FORESHARD_FIELD(train.optimizer.class_name),
         "watched: which of the optimizers that the model's script was seen to step");
  t.special(
      "train.optimizer.parts", "list of tables",
      [](const Spot& spot, Job& job) { return read_optimizer_parts(spot, job.train.optimizer_parts); },
      [](const Job& job) { return optimizer_parts_text(job.train.optimizer_parts); },
      "predictions: parameters that another optimizer steps in the same step: [{params = [\"embedding.*\"], name = "
      "\"sgd\", momentum = 0.9}]; also impl, library, watched, weight_decay, centered, amsgrad, "
      "decoupled_weight_decay; name = "
      "\"none\": nothing steps them (another turn does)");
}

void add_train(TableMaker& t) {
  t.integer("train.steps", 1, 1'000'000'000'000, FORESHARD_FIELD(train.steps), "optimizer steps");
  t.integer("train.micro_batches", 1, 1024, FORESHARD_FIELD(train.micro_batches), "gradient accumulation");
  t.boolean("train.no_sync", FORESHARD_FIELD(train.no_sync), "hold gradients between micro-batches");
  t.boolean("train.keeps_outputs", FORESHARD_FIELD(train.keeps_outputs),
            "predictions: the loop's names hold loss and outputs until the next forward has returned");
  t.special(
      "train.init", "`default`, `zeros` or normal:STD",
      [](const Spot& spot, Job& job) { return read_init(spot, job.train.init); },
      [](const Job& job) { return quoted_text(job.train.init); },
      "values of parameters that come without: default = as their modules initialise themselves");
  add_optimizer(t);
  t.word("train.schedule.name", {"constant", "cosine"}, FORESHARD_FIELD(train.schedule.name), "learning-rate schedule");
  t.integer("train.schedule.warmup", 0, 1'000'000'000'000, FORESHARD_FIELD(train.schedule.warmup),
            "steps of linear warm-up");
  t.number("train.schedule.min_ratio", 0.0, 1.0, FORESHARD_FIELD(train.schedule.min_ratio),
           "cosine: end, relative to lr");
  t.number("train.clip_grad_norm", 0.0, 1e30, FORESHARD_FIELD(train.clip_grad_norm), "largest gradient norm; 0 = off");
  t.boolean("train.grad_scaler.enabled", FORESHARD_FIELD(train.grad_scaler.enabled),
            "scales the loss, for float16: fsdp1 ShardedGradScaler, else torch.amp.GradScaler");
  t.number("train.grad_scaler.init_scale", 0.0, 1e30, FORESHARD_FIELD(train.grad_scaler.init_scale), "first scale");
  t.number("train.grad_scaler.growth_factor", 1.0, 1e6, FORESHARD_FIELD(train.grad_scaler.growth_factor),
           "of the scale, after growth_interval good steps in a row");
  t.number("train.grad_scaler.backoff_factor", 0.0, 1.0, FORESHARD_FIELD(train.grad_scaler.backoff_factor),
           "of the scale, after a step with an infinity or NaN, which is skipped");
  t.integer("train.grad_scaler.growth_interval", 1, INT32_MAX, FORESHARD_FIELD(train.grad_scaler.growth_interval),
            "steps");
}

void add_data_and_evaluation(TableMaker& t) {
  t.word("train.zero_grad", {"set_to_none", "zero"}, FORESHARD_FIELD(train.zero_grad), "how gradients are cleared");
  t.special(
      "train.beside", "\"\" or a size", [](const Spot& spot, Job& job) { return read_budget(spot, job.train.beside); },
      [](const Job& job) { return quoted_text(job.train.beside == 0 ? "" : size_text(job.train.beside)); },
      "predictions: what the script holds on the device beside model, batch and optimizer (1.5GiB): a teacher, a "
      "reference model, an average of the weights");
  t.special(
      "train.beside_later", "\"\" or a size",
      [](const Spot& spot, Job& job) { return read_budget(spot, job.train.beside_later); },
      [](const Job& job) { return quoted_text(job.train.beside_later == 0 ? "" : size_text(job.train.beside_later)); },
      "predictions: ... what comes behind the first step: states of another optimizer that steps in turn with this "
      "one");
  t.word("train.data.kind", {"synthetic", "tokens", "text", "tensors"}, FORESHARD_FIELD(train.data.kind),
         "tokens = file of u16/u32 ids; text = file and tokenizer.json; tensors = safetensors by input");
  t.text("train.data.file", FORESHARD_FIELD(train.data.file), "tokens, text, tensors");
  t.text("train.data.tokenizer", FORESHARD_FIELD(train.data.tokenizer), "text: tokenizer.json");
  t.integer("train.seed", 0, INT64_MAX, FORESHARD_FIELD(train.seed), "random numbers");
  t.integer("train.eval.every", 0, 1'000'000'000'000, FORESHARD_FIELD(train.eval.every),
            "steps between evaluations; 0 = none");
  t.integer("train.eval.batches", 1, 4096, FORESHARD_FIELD(train.eval.batches),
            "batches of one evaluation, per rank, of model.batch each");
  t.text("train.eval.file", FORESHARD_FIELD(train.eval.file),
         "as train.data.file; empty = the last share of train.data, which is not trained on");
  t.number("train.eval.share", 0.0, 1.0, FORESHARD_FIELD(train.eval.share), "of train.data, held out");
  t.text("train.checkpoint.dir", FORESHARD_FIELD(train.checkpoint.dir), "where checkpoints go; empty = none");
  t.integer("train.checkpoint.every", 0, 1'000'000'000'000, FORESHARD_FIELD(train.checkpoint.every),
            "steps; 0 = at the end");
  t.integer("train.checkpoint.keep", 0, 1'000'000, FORESHARD_FIELD(train.checkpoint.keep), "how many stay; 0 = all");
  t.special(
      "train.script", "list of lists of actions",
      [](const Spot& spot, Job& job) { return read_script(spot, job.train.script); },
      [](const Job& job) { return script_text(job.train.script); },
      "explicit actions per iteration instead of (zero_grad, forward, backward) x micro_batches, clip, step");
}

void add_cluster_and_allocator(TableMaker& t) {
  t.text("cluster.profile", FORESHARD_FIELD(cluster.profile),
         "id of a shipped profile, or a file written by calibrate");
  t.integer("cluster.world_size", 1, kMaxRanks, FORESHARD_FIELD(cluster.world_size), "ranks");
  t.integer("cluster.ranks_per_node", 1, kMaxRanks, FORESHARD_FIELD(cluster.ranks_per_node),
            "divides world_size, unless all ranks fit on one node");
  t.integer("cluster.shard_group", 0, kMaxRanks, FORESHARD_FIELD(cluster.shard_group),
            "hybrid: ranks of one shard group; 0 = ranks_per_node");
  t.integer("cluster.rank", 0, kMaxRanks - 1, FORESHARD_FIELD(cluster.rank),
            "the rank whose plan is printed and simulated");
  t.word("cluster.init", {"meta", "device", "device_blocks_first", "host", "parts"}, FORESHARD_FIELD(cluster.init),
         "where parameters are made before sharding; of a mesh device = whole on every rank's device, then cut, the "
         "layers around the blocks first, device_blocks_first = behind them, parts = each rank's parts on its device");
  t.special(
      "cluster.memory", "\"profile\" or a size",
      [](const Spot& spot, Job& job) { return read_memory(spot, job.cluster.memory); },
      [](const Job& job) { return quoted_text(job.cluster.memory == 0 ? "profile" : size_text(job.cluster.memory)); },
      "memory of one device: 80GiB, 80GB, bytes");
  t.integer("cluster.nccl_max_ctas", 0, 64, FORESHARD_FIELD(cluster.nccl_max_ctas),
            "thread blocks that a collective may take at most (NCCL_MAX_CTAS); 0 = NCCL's choice");
  t.boolean("allocator.expandable_segments", FORESHARD_FIELD(allocator.expandable_segments),
            "as PYTORCH_CUDA_ALLOC_CONF");
  t.integer("allocator.max_split_size_mb", 0, 1 << 24, FORESHARD_FIELD(allocator.max_split_size_mb),
            "MiB; 0 = no limit");
  t.integer("allocator.roundup_power2_divisions", 0, 64, FORESHARD_FIELD(allocator.roundup_power2_divisions),
            "0 = off");
  t.number("allocator.garbage_collection_threshold", 0.0, 1.0, FORESHARD_FIELD(allocator.garbage_collection_threshold),
           "0 = off");
}

#undef FORESHARD_FIELD

const std::vector<Rule>& rules() {
  static const std::vector<Rule> table = [] {
    TableMaker maker;
    add_model(maker);
    add_adapters_and_mesh(maker);
    add_fsdp(maker);
    add_offload_and_exceptions(maker);
    add_wrap_and_precision(maker);
    add_schedule(maker);
    add_checkpointing(maker);
    add_train(maker);
    add_data_and_evaluation(maker);
    add_cluster_and_allocator(maker);
    std::vector<Rule> made = maker.take();
    made.front().key.default_text.clear();  // model.source is required
    return made;
  }();
  return table;
}

}  // namespace

const std::vector<JobKey>& job_keys() {
  static const std::vector<JobKey> keys = [] {
    std::vector<JobKey> made;
    for (const Rule& rule : rules()) made.push_back(rule.key);
    return made;
  }();
  return keys;
}

bool JobKey::means_in(Runtime runtime) const {
  return !only || *only == runtime || (*only == Runtime::Fsdp2 && has_fsdp2_layouts(runtime));
}

std::optional<std::size_t> find_job_key(std::string_view name) {
  for (std::size_t i = 0; i < rules().size(); ++i) {
    if (rules()[i].key.name == name) return i;
  }
  return std::nullopt;
}

bool is_job_table(std::string_view name) { return std::find(kTables.begin(), kTables.end(), name) != kTables.end(); }

std::string nearest_job_key(std::string_view name) {
  name = name.substr(0, 128);  // bounds the work on hostile names
  std::string best;
  std::size_t distance = std::string_view::npos;
  const auto offer = [&](std::string_view candidate) {
    // A right name in the wrong section beats a wrong name in the right one.
    std::size_t d = 2 * edit_distance(name, candidate);
    d = std::min(d, 2 * edit_distance(leaf_of(name), leaf_of(candidate)) + 1);
    if (d < distance) distance = d, best = candidate;
  };
  for (const Rule& rule : rules()) offer(rule.key.name);
  for (std::string_view table : kTables) offer(table);
  return best;
}

std::optional<Error> read_job_key(std::size_t index, const JobValue& value, Job& job) {
  return rules()[index].read(Spot{value, rules()[index].key.name}, job);
}

std::string write_job_key(std::size_t index, const Job& job) { return rules()[index].write(job); }

std::pair<std::string, std::string> split_job_key(std::size_t index) {
  const std::string& name = rules()[index].key.name;
  std::size_t dot = name.rfind('.');
  if (std::find(kInline.begin(), kInline.end(), std::string_view(name).substr(0, dot)) != kInline.end()) {
    dot = name.rfind('.', dot - 1);
  }
  return {name.substr(0, dot), name.substr(dot + 1)};
}

std::string job_keys_markdown() {
  std::string out = "| key | type | default | meaning |\n|---|---|---|---|\n";
  for (const JobKey& key : job_keys()) {
    std::string type = key.type;
    if (type == "word") type = fmt::format("`{}`", fmt::join(key.choices, "`, `"));
    std::string doc = key.doc;
    if (key.only) doc = fmt::format("{} only: {}", runtime_name(*key.only), doc);
    const std::string shown = key.default_text.empty() ? "required" : "`" + key.default_text + "`";
    out += fmt::format("| `{}` | {} | {} | {} |\n", key.name, type, shown, doc);
  }
  return out;
}

std::optional<Bytes> parse_size(std::string_view text) {
  const auto trim = [](std::string_view t) {
    while (!t.empty() && t.front() == ' ') t.remove_prefix(1);
    while (!t.empty() && t.back() == ' ') t.remove_suffix(1);
    return t;
  };
  text = trim(text);
  double number = 0.0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (ec != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  const std::string_view unit = trim(text.substr(static_cast<std::size_t>(end - text.data())));
  static constexpr std::array<std::pair<std::string_view, double>, 10> kUnits{{{"", 1.0},
                                                                               {"B", 1.0},
                                                                               {"KiB", 0x1p10},
                                                                               {"MiB", 0x1p20},
                                                                               {"GiB", 0x1p30},
                                                                               {"TiB", 0x1p40},
                                                                               {"KB", 1e3},
                                                                               {"MB", 1e6},
                                                                               {"GB", 1e9},
                                                                               {"TB", 1e12}}};
  for (const auto& [name, factor] : kUnits) {
    if (unit == name) {
      const double bytes = number * factor;
      if (bytes > 0x1p50) return std::nullopt;
      return static_cast<Bytes>(std::llround(bytes));
    }
  }
  return std::nullopt;
}

std::string size_text(Bytes bytes) {
  for (const auto& [name, factor] : {std::pair{"TiB", 1024 * kGiB}, {"GiB", kGiB}, {"MiB", kMiB}, {"KiB", kKiB}}) {
    if (bytes != 0 && bytes % factor == 0) return fmt::format("{}{}", bytes / factor, name);
  }
  return fmt::format("{}B", bytes);
}

}  // namespace foreshard
