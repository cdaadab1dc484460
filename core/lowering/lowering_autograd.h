// Autograd as eager PyTorch runs it, on tensors without values: nodes in order of creation, a ready queue that takes
// the newest first, gradients summed where they meet (in place if nobody else holds them), saved tensors dropped as
// nodes finish.
//
// Internal to lowering. Machine knows the program and the tape; forward_op and backward_of are the operator rules at
// work (op_rules_forward.cpp, backward/backward.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/lowering/lowering_tape.h"
#include "core/lowering/op_rules.h"

namespace foreshard::lowering {

struct Edge {
  std::int32_t node = -1;
  std::int32_t input_nr = 0;
};

/// What a node keeps: one tensor, or (under checkpointing) the promise that recomputation brings it.
struct Saved {
  Ref tensor;
  bool promised = false;
  bool result = false;
  std::int32_t index = 0;
  std::int32_t packed = 0;  // activation offload: what it is known by there; 0: it is the tensor
  Dims sizes;               // ... and how the formula sees it
};

struct Node {
  const OpRule* rule = nullptr;  // nullptr: gradient accumulation of `param`
  const Op* op = nullptr;
  std::int32_t position = -1;  // in the program
  std::int64_t number = 0;     // autograd's: the newest runs first
  std::int32_t frame = -1;     // checkpointed region that promised the saved tensors
  ParamId param;
  std::vector<Edge> next;  // per tensor argument
  std::vector<Layout> in, out;
  std::vector<bool> in_view;   // results of views keep their base
  std::optional<Layout> base;  // works in place on a view of that: autograd's CopySlices
  std::vector<Saved> saved;
  std::vector<Ref> grads;  // the engine's input buffer, per result
  std::int32_t waiting_for = 0;
  bool visited = false, queued = false;
  bool gone = false;  // nobody reaches it: a recomputation brings nothing to it
};

class Machine;

/// Makes tensors and kernels of one operator. `name` is the kernel's ATen name.
class Emitter {
 public:
  Emitter(Machine& machine, const Op* op, std::int32_t model_op) : machine_(machine), op_(op), model_op_(model_op) {}

  Ref elementwise(std::string_view name, std::initializer_list<const Ref*> inputs, DType dtype);
  Ref elementwise(std::string_view name, std::initializer_list<const Ref*> inputs);
  Ref fresh(std::string_view name, KernelClass kind, const Layout& layout, std::initializer_list<const Ref*> inputs,
            int launches = 1);
  Ref matmul(std::string_view name, const Ref& a, const Ref& b, const Ref* bias = nullptr);  // mm, bmm and with bias
  Ref sum(const Ref& a, const std::vector<std::int32_t>& dims, bool keepdim, std::string_view name, KernelClass kind,
          DType dtype);
  Ref transpose(const Ref& a, std::int32_t d0, std::int32_t d1);
  Ref view(const Ref& a, const Dims& sizes);     // REQUIRES that a view exists
  Ref reshape(const Ref& a, const Dims& sizes);  // view, or clone
  Ref expand(const Ref& a, const Dims& sizes);
  Ref sum_to(const Ref& a, const Dims& sizes);
  Ref cast(const Ref& a, DType dtype);

  Tape& tape() { return tape_of(machine_); }
  const Layout& layout(const Ref& ref) { return tape().layout(ref); }
  const Op* op() const { return op_; }
  Kernel start(std::string_view name, KernelClass kind, DType dtype);
  /// Of [(batch,) m, k] and [(batch,) k, n]; below two dimensions what is missing counts as 1.
  Kernel start_product(std::string_view name, DType dtype, const Layout& left, const Layout& right);
  /// What cuBLAS gets in the place of operands that it cannot read, and the kernels that this adds.
  std::vector<Ref> cublas_copies_of(const Layout& left, const Layout& right, Kernel& kernel);
  /// Counts what is read and written, and launches.
  void finish(Kernel& kernel, std::initializer_list<const Ref*> inputs, std::initializer_list<const Ref*> outputs);
  /// Every kernel of an operator comes through here, with the tensors that it takes and makes.
  void launch(const Kernel& kernel, std::span<const Ref> inputs, std::span<const Ref> outputs);
  SlotCategory category() const;
  Machine& machine() { return machine_; }

 private:
  static Tape& tape_of(Machine& machine);
  void note(const Kernel& kernel, std::span<const Ref* const> inputs, std::span<const Ref* const> outputs);
  void run(const Kernel& kernel);  // with its own workspace
  Machine& machine_;
  const Op* op_;
  std::int32_t model_op_;
};

/// Whether a sum takes a converted copy of its input.
bool converts_to_sum(DType in, DType out);

/// Buffers of a reduction that is split over thread blocks (PyTorch's reduce kernel on a card with `multiprocessors`).
struct ReduceWorkspace {
  Bytes buffer = 0, semaphores = 0;
};
ReduceWorkspace reduce_workspace(std::string_view name, const Layout& input, const std::vector<std::int32_t>& dims,
                                 std::int64_t multiprocessors);

/// What batch norm's kernels for channels side by side ([rows, channels], too) take to meet over blocks: `values`
/// numbers for each channel and row of blocks (4 forward, 2 backward; Normalization.cuh, flexible_launch_configs). 0:
/// nothing.
Bytes batch_norm_staging(const Layout& input, std::int64_t values);

/// The kernel of a grouped product of [rows, k] with [groups, k, n], of [groups, m, k] with [k, columns], or, where the
/// groups lie along what is summed, of two matrices: as many rows (columns, summands) for each group.
void describe_grouped_product(Kernel& kernel, const Layout& left, const Layout& right, std::int64_t groups);
/// What a grouped product of `groups` matrices takes beside its result while it runs, as Hopper's kernel does.
std::vector<Bytes> grouped_product_workspace(std::int64_t groups, const LoweringOptions& machine);

/// The same of a system with triangular matrices [..., m, m], which lies in columns when it is solved: batched cuBLAS
/// takes addresses of both sides (triangular_solve_kernel).
void describe_triangular_solve(Kernel& kernel, const Layout& system, const Layout& right);
std::vector<Bytes> triangular_solve_workspace(const Layout& system, const LoweringOptions& machine);
Layout in_columns(const Layout& matrices);

/// What _trilinear makes for one index of its unrolled dimension. With a gradient: in the backward pass, for an
/// argument.
struct TrilinearWorkspace {
  Bytes first = 0, second = 0;
};
TrilinearWorkspace trilinear_workspace(const Op& op, std::array<Layout, 3> in, const Layout* grad = nullptr,
                                       std::size_t argument = 0);

/// The results of an operator: allocations, kernels. One Ref per result that is a tensor.
std::vector<Ref> forward_op(Emitter& emit, const OpRule& rule, const Op& op, const std::vector<Ref>& args,
                            const std::vector<Layout>& results);

/// A convolution that capture saw without cuDNN: its columns are multiplied by cuBLAS (ConvUtils.h, ConvBackend).
bool unfolds_into_memory(const Op* op);
/// Which kernel takes it, in capture's words; empty: not said (cuDNN's).
std::string_view convolution_backend(const Op& op);
/// Whether ATen's own kernel takes `input.contiguous()` first.
bool copies_its_input(const Op& op);

/// How many elements of a mask are true, where `picked` is what it alone takes out of `from`: the rows of that.
std::int64_t chosen_by(const Layout& mask, const Layout& from, const Layout& picked);
/// A filter of one point with nothing around it is multiplied as it lies, but slow_conv2d_backward unfolds for the
/// input's gradient.
enum class Unfolds { WhereItMust, Always };
/// What it unfolds one picture of the batch to, forward and backward; 0 where it need not.
Bytes unfolded_bytes(const Op& op, const Layout& input, const Layout& filter, const Layout& result,
                     Unfolds when = Unfolds::WhereItMust);
/// A product with a matrix stored in 4 bits, or in integers of 8 (op_rules_quantised.cpp); args: x, what is stored, a
/// bias or none.
std::vector<Ref> quantised_linear(Emitter& emit, const std::vector<Ref>& args, const Layout& result);
std::vector<Ref> integer_linear(Emitter& emit, const std::vector<Ref>& args, const Layout& result);
/// The head and its cross entropy as one function (op_rules_fused_loss.cpp); args: hidden states in rows, the head's
/// matrix, targets, a bias or none. Results: the loss, then the gradients that it keeps; empty where nothing is
/// trained.
std::vector<Ref> fused_loss(Emitter& emit, const std::vector<Ref>& args, const std::vector<Layout>& results);
/// x as a matrix: [everything before the last dimension, that one].
Ref rows_of(Emitter& emit, const Ref& x);
/// "aten.triu_.default" -> "aten.triu.default".
std::string out_of_place(std::string_view name);
/// The dimensions that a reduction takes together, none for all of them.
std::vector<std::int32_t> reduced_dims(const Op& op, std::int32_t n);

/// Constant arguments of an operator, by position or by name.
std::int64_t int_arg(const Op& op, std::size_t position, std::string_view name, std::int64_t fallback);
double number_arg(const Op& op, std::size_t position, std::string_view name, double fallback);
bool bool_arg(const Op& op, std::size_t position, std::string_view name, bool fallback);
std::vector<std::int64_t> list_arg(const Op& op, std::size_t position, std::string_view name);

}  // namespace foreshard::lowering
