// Lowering: from the operator program to kernels with their memory, segment by segment.
//
// For every segment of a plan (a range of Model::ops) this gives the kernels that forward, recompute and backward run
// on the compute stream, in order, each with the storages it allocates before and frees after it runs. Derived from the
// operator rules (core/lowering/op_rules.h). Equal segments share one template: an 80-layer model is lowered once per
// kind of layer.
//
// A *slot* is one storage. Slots of a template are local to one instance of it; storages made by another segment are
// *imports*, bound per instance. Parameters and FSDP's own buffers are not slots: the plan's instructions own them.
// Gradients of parameters are slots of category ParamGrad, freed by the plan (grad_piece, grad) and not here.
//
// Notes for interpreters of the lists:
// - A segment's frees at its end are those of Python's references that go when its function has returned; they are in
//   the `after` range of its last kernel. A list that only frees holds one kernel with launches 0: no device work.
// - Model inputs (token ids, labels) are no slots: the step's input buffers are the caller's.
// - Matrix products need cuBLAS's workspace, allocated once by the first Gemm of forward and once more
//   by the first Gemm of backward (autograd's thread has its own handle), never freed. It is in no list.
//   Since PyTorch 2.15 each product has its own while it runs, in the lists (LoweringOptions::blas_workspace).
// - Slots of category Output (the loss, the engine's first gradient) and `held` live until the caller drops them after
//   backward. With LoweringOptions::hold_outputs the logits do too; without it they go with the forward's return.
// - Slot::param and FinishedGradient::param number the distinct parameters (storage owners) of the segment in order of
//   first use.
// - A backward list of a checkpointed segment runs after the recompute lists of its whole region.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/cpu/cpu_isa.h"
#include "core/dtype.h"
#include "core/model/model.h"
#include "core/result.h"
#include "core/units.h"

namespace foreshard {

/// What decides how long a kernel takes.
enum class KernelClass : std::uint8_t { Gemm, Attention, Elementwise, Reduction, Copy, Gather, Loss, Optimizer };

/// Whose kernel computes attention.
enum class AttentionKind : std::uint8_t { Flash, Efficient, Cudnn };

/// Activation offload: what a kernel is to the copies' stream. ToHost and ToDevice run on it; the others order it and
/// the compute stream.
enum class OffloadStep : std::uint8_t {
  None,
  ToHost,
  ToDevice,
  AwaitCompute,  // the copies' stream waits for all of the compute stream
  AwaitCopies,   // ... the compute stream for all copies
  AwaitCopy,     // ... for the copy to the host that was `offload_back` before the last
  NoteUse,       // the compute stream's place is noted
  AwaitUse,      // the copies' stream waits for the place that was noted `offload_back` before the last
};

/// A kernel in which the ranks of a mesh dimension meet. AllToAll: equal parts for every rank. Exchange: to the next
/// rank of a ring and from the one before.
enum class KernelCollective : std::uint8_t { None, AllGather, ReduceScatter, AllReduce, AllToAll, Exchange };

enum class SlotCategory : std::uint8_t { Activation, Temporary, ActivationGrad, ParamGrad, Output, Workspace };

struct Slot {
  Bytes bytes = 0;  // requested, unrounded
  SlotCategory category = SlotCategory::Activation;
  ParamId param;    // ParamGrad: whose, relative to the template's parameter list (index into SegmentTemplate::params)
  ParamId foreign;  // ParamGrad of a parameter that another segment uses (its sum's other addend is made here):
                    // Model::params
  bool aside = false;  // lies in the pool of the stream of activation offload
  bool operator==(const Slot&) const = default;
};

/// slot >= 0: a slot of this instance; slot < 0: import number -slot-1.
struct MemoryEvent {
  std::int32_t slot = 0;
  bool alloc = true;   // imports are only ever freed
  bool noted = false;  // neither: a use by the compute stream is noted (record_stream)
  bool operator==(const MemoryEvent&) const = default;
};

struct Kernel {
  std::int32_t op = -1;  // ATen name, index into LoweredProgram::op_names
  KernelClass kind = KernelClass::Elementwise;
  DType dtype = DType::Float32;
  bool convolution = false;  // Gemm by cuDNN, which takes TF32 for float32 unless told not to (cudnn.allow_tf32)
  bool unknown = false;      // the default rule was used
  Flops flops = 0;
  Bytes read = 0, written = 0;
  std::int32_t launches =
      1;  // kernels that the device really runs; 0 for pure host work (views are not kernels at all)
  std::int64_t m = 0, n = 0, k = 0, batch = 0;  // Gemm; Attention: queries, keys, size of a head
  std::int32_t alignment = 16;                  // Gemm: bytes that all rows of its matrices begin at; more count as 16
  AttentionKind attention = AttentionKind::Flash;
  bool causal = false, backward = false;  // Attention (causal: on keys before alone); Gemm: on the engine's thread
  std::int32_t before_begin = 0, before_end = 0;  // MemoryEvents when the host issues it, before the launch
  std::int32_t after_begin = 0, after_end = 0;    // ... and after the launch
  KernelCollective collective = KernelCollective::None;
  bool maximum = false;         // AllReduce: of the largest, else of the sum
  std::int32_t dimension = -1;  // Model::mesh: whom a collective meets
  Bytes vector_bytes = 0;       // of a collective: the whole vector (gathered, or before it is scattered)
  OffloadStep offload = OffloadStep::None;
  std::int32_t offload_back = 0;  // OffloadStep
  std::int32_t model_op = -1;     // forward operator it stems from, relative to the segment's first
  bool waits = false;             // the host goes on when it is done: it reads values that the operator makes
  bool operator==(const Kernel&) const = default;
};

/// Whether cuBLASLt makes a product, by the numbers that the program's operators have: _scaled_mm, and addmm but into
/// one column or from one (isInputCompliesAddmmCudaLt).
inline bool through_cublas_lt(const Kernel& kernel, std::int32_t addmm, std::int32_t scaled_mm) {
  if (kernel.op < 0 || (kernel.op == addmm && (kernel.n == 1 || kernel.k == 1))) return false;
  return kernel.op == addmm || kernel.op == scaled_mm;
}

/// One pass over a segment.
struct KernelList {
  std::vector<Kernel> kernels;
  std::vector<MemoryEvent> events;
  bool operator==(const KernelList&) const = default;
};

/// A parameter's gradient is final, and autograd's node takes it: keeps it, or adds it to the one that is there.
struct FinishedGradient {
  std::int32_t param = -1;   // among the segment's; -1: not one of its own
  std::int32_t kernels = 0;  // of backward that have run
  std::int32_t events = 0;   // ... and its memory events that have happened
  bool copied = false;       // the last of these kernels copies it to be kept: not where it is added instead
  bool operator==(const FinishedGradient&) const = default;
};

struct SegmentTemplate {
  KernelList forward;    // as first run (without saving, when checkpointed)
  KernelList recompute;  // empty unless checkpointed
  KernelList backward;
  std::vector<Slot> slots;
  std::int32_t import_count = 0;
  std::vector<FinishedGradient> gradients;  // in order
  /// Kernels of backward that need nothing saved and come before the region is computed again.
  std::int32_t early_backward = 0;
  bool operator==(const SegmentTemplate&) const = default;
};

struct ImportBinding {
  std::int32_t instance = 0;
  std::int32_t slot = 0;
  bool operator==(const ImportBinding&) const = default;
};

struct SegmentInstance {
  std::int32_t lowered = 0;  // index into LoweredProgram::templates
  std::vector<ImportBinding> imports;
  bool operator==(const SegmentInstance&) const = default;
};

struct LoweredProgram {
  std::vector<SegmentTemplate> templates;
  std::vector<SegmentInstance> instances;  // parallel to the segments given
  std::vector<ImportBinding> held;         // storages still alive after backward: the loss, logits held by the caller
  std::vector<ImportBinding> held_until_next;  // of these, what lives until the next forward makes it again
  std::vector<std::int32_t> replaced;          // beside them: the buffer whose place the first of it takes, or -1
  std::vector<Bytes> kept_for_run;             // made in the first step alone: caches of modules
  std::vector<std::string> op_names;
  bool offloads = false;                 // activations travel: kernels have offload steps
  std::vector<std::string> unknown_ops;  // operators that fell back to the default rule, distinct
  bool operator==(const LoweredProgram&) const = default;
};

/// What lowering must know about a segment; the plan's segments carry exactly this.
struct SegmentRange {
  std::int32_t op_begin = 0, op_end = 0;
  bool checkpointed = false;
  std::int32_t region = -1;  // segments of one checkpointed region share a number: recomputed together
  bool reentrant =
      false;             // recomputed to the end, results kept until the region's backward is done; else stopped early
  ModuleId module;       // whose call is checkpointed; invalid: not a module's call, or not known
  std::int32_t use = 0;  // FSDP1 makes views of a flat parameter for every call of its unit: which call's they are here
  bool operator==(const SegmentRange&) const = default;
};

/// Operator-level selective checkpointing: the results that a checkpointed region keeps although all else runs again.
struct SavedOps {
  std::vector<std::string> names;  // as Model::ops spells them, sorted; empty: nothing is kept
  std::int64_t rerun_product = 0;  // every so many-th aten.mm of a region runs again although listed; 0: none
  bool none() const { return names.empty(); }
  bool lists(std::string_view name) const { return std::binary_search(names.begin(), names.end(), name); }
  bool operator==(const SavedOps&) const = default;
};

/// Activation offload: whether, and what its hooks see of parameters.
struct OffloadedActivations {
  bool on = false;
  bool knows_params = false;  // it was given the storages of the parameters that the program uses: these stay
  bool flat_params = false;   // they are views of flat ones, plain tensors to the hooks (fsdp1)
  bool operator==(const OffloadedActivations&) const = default;
};

/// The operator as a dispatch mode below autograd sees it: F.linear is mm, with a bias addmm; of what an opaque
/// operator makes, the operator inside that made it (keyword `dispatched`).
std::string_view dispatched_name(const Op& op);

struct LoweringOptions {
  std::int64_t multiprocessors = 132;  // of the device: large reductions split over thread blocks take buffers by it
  std::int64_t cpu_threads = 0;        // > 0: LibTorch's CPU kernels, with so many threads inside an operator
  CpuIsa cpu_isa = CpuIsa::Avx512;     // ... of a processor with these instructions
  Bytes cpu_l2_bytes = 2 * kMiB;       // ... and this second cache a core: oneDNN cuts matrices to it
  bool hold_outputs = false;           // the caller keeps all of the model's outputs (logits), not only the first
  SavedOps saved = {};                 // selective checkpointing by operator: what every checkpointed region keeps
  OffloadedActivations offload = {};
  bool keeps_casts = true;        // autocast keeps casts of trained parameters: they are no views of a flat one
  bool named_stay = false;        // what reentrant regions are called with by name goes with the graph, not before
  bool keep_only_needed = false;  // ... of these only what backward reads, as a compiler's partitioner does
  Bytes blas_workspace = 0, blas_lt_workspace = 0;  // of each product while it runs; 0: each thread's has its own
  bool operator==(const LoweringOptions&) const = default;
};

/// `segments` in forward order, covering all of model.ops. `trainable[p]` says which parameters receive gradients.
Result<LoweredProgram> lower(const Model& model, const std::vector<SegmentRange>& segments,
                             const std::vector<bool>& trainable, const LoweringOptions& options = {});

}  // namespace foreshard
