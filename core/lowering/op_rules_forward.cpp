// Operators at work, forward: which storages a result takes and which kernel makes it.
#include <algorithm>
#include <cmath>

#include "core/lowering/backward/backward.h"
#include "core/lowering/composed/composed.h"
#include "core/lowering/cpu_workspace.h"
#include "core/lowering/float8/float8_products.h"
#include "core/lowering/kernels/kernel_shape.h"
#include "core/lowering/lowering_autograd.h"
#include "core/lowering/lowering_machine.h"
#include "core/lowering/mesh_rules.h"
#include "core/lowering/views/views.h"
#include "core/model/op_keywords.h"

namespace foreshard::lowering {

namespace {

/// Flash attention of `q` [b, h, s, d] on `k` [b, hk, t, d]; PyTorch's counter, which leaves causality out.
Flops attention_flops(const Layout& q, const Layout& k, const Layout& v) {
  if (q.sizes.n != 4 || k.sizes.n != 4 || v.sizes.n != 4) return 0;
  const std::int64_t scores = q.sizes[0] * q.sizes[1] * q.sizes[2] * k.sizes[2];
  return 2 * scores * q.sizes[3] + 2 * scores * v.sizes[3];
}

}  // namespace

std::string_view convolution_backend(const Op& op) {
  for (const NamedArg& named : op.kwargs) {
    const auto* const backend = std::get_if<std::string>(&named.arg.value);
    if (named.name == "backend" && backend != nullptr) return *backend;
  }
  return {};
}

bool unfolds_into_memory(const Op* op) { return op != nullptr && convolution_backend(*op).starts_with("slow"); }

bool copies_its_input(const Op& op) {
  return unfolds_into_memory(&op) || convolution_backend(op).starts_with("cudadepthwise");
}

Bytes unfolded_bytes(const Op& op, const Layout& input, const Layout& filter, const Layout& result, Unfolds when) {
  const std::int32_t n = filter.sizes.n;
  if (!unfolds_into_memory(&op) || n < 3 || input.sizes.n != n || result.sizes.n != n) return 0;
  const bool transposed = bool_arg(op, 6, "transposed", false);
  const std::int64_t groups = std::max<std::int64_t>(int_arg(op, 8, "groups", 1), 1);
  std::int64_t columns = (transposed ? result.sizes[1] : input.sizes[1]) / groups, places = 1;
  bool plain = !transposed;
  const auto strides = list_arg(op, 3, "stride"), padding = list_arg(op, 4, "padding"),
             dilation = list_arg(op, 5, "dilation");
  for (std::int32_t i = 2; i < n; ++i) {
    columns *= filter.sizes[i];
    places *= transposed ? input.sizes[i] : result.sizes[i];
    plain = plain && filter.sizes[i] == 1;
  }
  const auto all = [](const std::vector<std::int64_t>& given, std::int64_t value) {
    return std::all_of(given.begin(), given.end(), [value](std::int64_t x) { return x == value; });
  };
  const bool asked = when == Unfolds::Always && convolution_backend(op) == "slow2d";
  if (!asked && plain && (n == 4 || convolution_backend(op) == "slow2d") && all(strides, 1) && all(padding, 0) &&
      all(dilation, 1))
    return 0;  // it lies right as it is
  return columns * places * itemsize(input.dtype);
}

namespace {

/// Of a grouped product: one for each end of a group's rows.
std::int64_t groups_of(Emitter& emit, const std::vector<Ref>& args) {
  return args.size() > 2 ? emit.layout(args[2]).numel() : 1;
}

void describe(Emitter& emit, Kernel& kernel, const Op& op, const std::vector<Ref>& args, const OpRule& rule) {
  for (const Ref& arg : args) kernel.read += emit.layout(arg).bytes();
  if (!args.empty()) kernel.read = loss_reads(rule.formula, emit.layout(args[0]), kernel.read);
  if (rule.kind == KernelClass::Gather && args.size() == 2) kernel.read = emit.layout(args[1]).bytes();
  if (rule.kind == KernelClass::Attention && args.size() >= 3) {
    kernel.dtype = emit.layout(args[0]).dtype;
    kernel.flops = attention_flops(emit.layout(args[0]), emit.layout(args[1]), emit.layout(args[2]));
    describe_attention(kernel, op, emit.layout(args[0]), emit.layout(args[1]), /*backward=*/false);
  }
  const bool convolution = rule.formula == OpFormula::Convolution;
  kernel.convolution = convolution && !unfolds_into_memory(emit.op());
  if (rule.formula == OpFormula::OwnKernel && rule.kind == KernelClass::Gemm && !args.empty()) {  // recurrent networks
    const Layout& x = emit.layout(args[0]);
    for (const Ref& arg : args)
      if (const Layout& weight = emit.layout(arg); weight.sizes.n == 2 && x.sizes.n == 3)
        kernel.flops += 2 * x.sizes[0] * x.sizes[1] * weight.numel();
    return;
  }
  if (rule.formula == OpFormula::GroupedMm && args.size() >= 2)
    return describe_grouped_product(kernel, emit.layout(args[0]), emit.layout(args[1]), groups_of(emit, args));
  if (rule.formula == OpFormula::TriangularSolve && args.size() >= 2)
    return describe_triangular_solve(kernel, emit.layout(args[0]), emit.layout(args[1]));
  if (rule.kind == KernelClass::Gemm && !convolution && args.size() >= 2) {
    const std::size_t first = args.size() >= 3 && rule.formula != OpFormula::Linear ? 1 : 0;
    const Layout a = emit.layout(args[first]), b = emit.layout(args[first + 1]);
    const bool linear = rule.formula == OpFormula::Linear;
    kernel.dtype = a.dtype;
    kernel.k = a.sizes.n > 0 ? a.sizes[a.sizes.n - 1] : 1;
    kernel.batch = !linear && a.sizes.n == 3 ? a.sizes[0] : 1;
    kernel.m = kernel.k > 0 ? a.numel() / std::max<std::int64_t>(1, kernel.k * kernel.batch) : 0;
    kernel.n = b.sizes.n > 0 ? (linear ? b.sizes[0] : b.sizes[b.sizes.n - 1]) : 1;
    kernel.flops = 2 * kernel.batch * kernel.m * kernel.n * kernel.k;
    kernel.alignment = product_alignment(a, b, kernel.n);
  }
}

Layout result_layout(Emitter& emit, OpForm form, const Op& op, const std::vector<Ref>& args, const Layout& result) {
  if (op.name == "aten.linalg_solve_triangular.default" && result.sizes.n >= 2) return in_columns(result);
  if (args.empty() || form == OpForm::Contiguous || form == OpForm::LayerNorm || form == OpForm::CopyIfNeeded)
    return contiguous_layout(result.sizes, result.dtype);
  if (form == OpForm::Attention && op.name.starts_with("aten._scaled_dot_product_efficient") && result.sizes.n == 4) {
    Layout made = contiguous_layout(result.sizes, result.dtype);  // [b, s, h, d] in memory, whatever the query's layout
    made.strides[1] = result.sizes[3];
    made.strides[2] = result.sizes[1] * result.sizes[3];
    return made;
  }
  if (form == OpForm::LikeFirst || form == OpForm::Attention) {
    const Layout& first = emit.layout(args[0]);
    const Layout* one[] = {&first};
    if (result.sizes.n == first.sizes.n) return elementwise_layout(one, result.sizes, result.dtype);
    return contiguous_layout(result.sizes, result.dtype);
  }
  for (const NamedArg& named : op.kwargs)
    if (const auto* format = std::get_if<std::string>(&named.arg.value);
        named.name == "memory_format" && format != nullptr && format->find("contiguous_format") != std::string::npos)
      return contiguous_layout(result.sizes, result.dtype);
  std::vector<Layout> layouts;
  std::vector<const Layout*> pointers;
  for (const Ref& arg : args) layouts.push_back(emit.layout(arg));
  for (const Layout& layout : layouts) pointers.push_back(&layout);
  return elementwise_layout(pointers, result.sizes, result.dtype);
}

/// mse_loss and its like work out every element in the result's storage, then shrink the result to their mean: the
/// scalar goes on holding all of it.
bool keeps_all_elements(const OpRule& rule, const Layout& result) {
  return result.sizes.n == 0 &&
         (rule.name == "aten.mse_loss.default" || rule.name == "aten.smooth_l1_loss.default" ||
          rule.name == "aten.binary_cross_entropy.default" || rule.name == "aten.soft_margin_loss.default");
}

/// The CPU kernel's statistics lie as its threads write them: [batch, rows, heads].
Layout statistics_layout(const OpRule& rule, const Layout& result) {
  Layout layout = contiguous_layout(result.sizes, result.dtype);
  if (rule.name != "aten._scaled_dot_product_flash_attention_for_cpu.default" || layout.sizes.n != 3) return layout;
  layout.strides[1] = 1;
  layout.strides[2] = layout.sizes[1];
  return layout;
}

/// An operator at work: what it takes, what it makes.
struct Call {
  const OpRule& rule;
  const Op& op;
  const std::vector<Ref>& args;
  const std::vector<Layout>& results;
};

/// Results that look at a tensor's memory in another way.
std::vector<Ref> views_of(Emitter& emit, const Call& call, OpForm form) {
  const bool is_view = call.rule.name != "aten._unsafe_view.default";
  std::vector<Ref> out;
  for (std::size_t i = 0; i < call.results.size(); ++i) {
    const Ref& of = call.args[form == OpForm::ExpandEach ? std::min(i, call.args.size() - 1) : 0];
    Layout layout = call.results[i];
    layout.strides = strides_of_view(call.op, form, emit.layout(of), call.results[i]);
    out.push_back(emit.tape().alias(of, layout, is_view));
    Tensor& made = emit.tape().at(out.back());
    made.offset = view_offset(call.op, form, emit.layout(of), call.results, i, made.offset);
  }
  return out;
}

Flops convolution_flops(Emitter& emit, const Call& call) {
  const Layout& filter = emit.layout(call.args[1]);  // each element of the result is a product over one filter
  const Layout& input = emit.layout(call.args[0]);
  const bool transposed = bool_arg(call.op, 6, "transposed", false);  // ... each element of the input spreads over one
  const std::int64_t products = filter.numel() / std::max<std::int64_t>(filter.sizes[0], 1);
  return 2 * (transposed ? input.numel() : call.results[0].numel()) * products;
}

/// Flash attention splits the keys where batch, heads and rows alone leave most multiprocessors idle
/// (num_splits_heuristic of flash_api.cpp, whose floats these are): how many parts.
std::int64_t key_splits(std::int64_t blocks, std::int64_t multiprocessors, std::int64_t key_blocks) {
  const float places = static_cast<float>(multiprocessors);
  if (static_cast<float>(blocks) >= 0.8F * places) return 1;
  const std::int64_t most = std::min({std::int64_t{128}, multiprocessors, key_blocks});
  // A further split that leaves the longest part as long is none.
  const auto eligible = [&](std::int64_t n) {
    return n == 1 || ceil_div(key_blocks, n) != ceil_div(key_blocks, n - 1);
  };
  const auto efficiency = [&](std::int64_t n) {
    const float waves = static_cast<float>(blocks * n) / places;
    return waves / std::ceil(waves);
  };
  float best = 0;
  for (std::int64_t n = 1; n <= most; ++n)
    if (eligible(n)) best = std::max(best, efficiency(n));
  for (std::int64_t n = 1; n <= most; ++n)
    if (eligible(n) && efficiency(n) >= 0.85F * best) return n;
  return 1;
}

/// What the parts of split keys are summed up from: statistics and results of each, in float32 (set_params_splitkv).
std::vector<Ref> split_keys_workspace(Emitter& emit, const Call& call) {
  constexpr std::size_t kDropout = 3;  // argument
  const LoweringOptions& machine = emit.machine().options;
  const bool flash = call.rule.name == "aten._scaled_dot_product_flash_attention.default";
  if (!flash || machine.cpu_threads > 0 || machine.multiprocessors <= 0 || call.args.size() < 2) return {};
  const double* dropout = call.op.args.size() > kDropout ? std::get_if<double>(&call.op.args[kDropout].value) : nullptr;
  const Layout q = emit.layout(call.args[0]), k = emit.layout(call.args[1]);
  if ((dropout != nullptr && *dropout > 0) || q.sizes.n != 4 || k.sizes.n != 4) return {};
  const std::int64_t rows = q.sizes[0] * q.sizes[1] * q.sizes[2], head = q.sizes[3];
  const std::int64_t keys_in_block = head <= 64 ? 256 : head <= 128 ? 128 : 64;
  const std::int64_t blocks = q.sizes[0] * q.sizes[1] * ceil_div(q.sizes[2], std::int64_t{64});
  // Blocks of 128 threads: two on a multiprocessor.
  const std::int64_t splits = key_splits(blocks, 2 * machine.multiprocessors, ceil_div(k.sizes[2], keys_in_block));
  if (splits < 2) return {};
  const std::int64_t padded = head <= 192 ? round_up(head, 32) : 256;
  std::vector<Ref> made;
  made.push_back(emit.tape().make_bytes(4 * splits * rows, SlotCategory::Workspace));
  made.push_back(emit.tape().make_bytes(4 * splits * rows * padded, SlotCategory::Workspace));
  return made;
}

/// New tensors for the results, in the order in which the operator allocates them.
std::vector<Ref> results_of(Emitter& emit, const Call& call, OpForm form, Kernel& kernel, std::vector<Ref>& workspace) {
  const auto& [rule, op, args, results] = call;
  Tape& tape = emit.tape();
  std::vector<Ref> out;
  const bool backwards = rule.formula == OpFormula::Dropout;  // its mask is made before its result
  for (std::size_t k = 0; k < results.size(); ++k) {
    const std::size_t i = backwards ? results.size() - 1 - k : k;
    const bool like_first = i == 0 || rule.formula == OpFormula::Dropout;
    const Layout layout =
        like_first ? result_layout(emit, form, op, args, results[i]) : statistics_layout(rule, results[i]);
    const bool no_storage = layout.numel() == 0 && i > 0;  // flash attention's debug mask
    if (no_storage || form == OpForm::Host) {
      out.push_back(tape.external(layout));
      continue;
    }
    if (keeps_all_elements(rule, layout) && args.size() >= 2) {
      const Layout a = emit.layout(args[0]), b = emit.layout(args[1]);
      Ref elements =
          tape.make(contiguous_layout(a.numel() >= b.numel() ? a.sizes : b.sizes, layout.dtype), emit.category());
      out.push_back(tape.alias(elements, layout, false));
    } else if ((op.name == "aten.col2im.default" || op.name == "aten.im2col.default") && !args.empty()) {
      out.push_back(resized_like(emit, emit.layout(args[0]), layout));
    } else {
      out.push_back(tape.make(layout, emit.category()));
    }
    kernel.written += layout.bytes();
    if (i == 1) workspace = split_keys_workspace(emit, call);  // behind the statistics, before the generator's state
  }
  if (backwards) std::reverse(out.begin(), out.end());
  return out;
}

/// Whether a GPU's kernel takes `input.contiguous()` first.
bool reads_without_gaps(std::string_view name) {
  return name == "aten._softmax.default" || name == "aten._safe_softmax.default" ||
         name == "aten._log_softmax.default" || name == "aten.cumsum.default" || name == "aten.max.default" ||
         name == "aten.min.default";
}

/// The same of those that take it before they make their results: they are no structured kernels.
bool reads_without_gaps_first(std::string_view name) {
  return name == "aten.native_layer_norm.default" || name == "aten._fused_rms_norm.default";
}

/// AdvancedIndex (TensorAdvancedIndexing.cpp): a GPU's kernel wants indices of the same steps, so that those which are
/// not whole once they are expanded are copied where they differ.
std::vector<Ref> copied_indices(Emitter& emit, const Call& call) {
  const std::span<const Ref> indices = std::span(call.args).subspan(1);
  Dims sizes;
  for (const Ref& index : indices) {
    if (emit.layout(index).dtype == DType::Bool && indices.size() == 1) {  // a mask becomes places first (nonzero)
      const std::int64_t chosen = chosen_by(emit.layout(index), emit.layout(call.args[0]), call.results[0]);
      return {emit.tape().make_bytes(8 * chosen * emit.layout(index).sizes.n, SlotCategory::Workspace)};
    }
    if (emit.layout(index).dtype != DType::Int64) return {};
    sizes = broadcast_sizes(sizes, emit.layout(index).sizes);
  }
  std::vector<Layout> expanded;
  for (const Ref& index : indices)
    expanded.push_back({sizes, broadcast_strides(emit.layout(index), sizes), DType::Int64});
  std::vector<Ref> copies;
  if (std::all_of(expanded.begin(), expanded.end(), [&](const Layout& l) { return l.strides == expanded[0].strides; }))
    return copies;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (expanded[i].contiguous()) continue;
    const Layout whole = contiguous_layout(sizes, DType::Int64);
    copies.push_back(emit.fresh("aten.clone.default", KernelClass::Copy, whole, {&indices[i]}));
  }
  return copies;
}

/// What an operator makes of its arguments before its results, on a GPU.
std::vector<Ref> made_before(Emitter& emit, const Call& call) {
  const auto& [rule, op, args, results] = call;
  if (emit.machine().options.cpu_threads > 0 || args.empty()) return {};
  if (rule.formula == OpFormula::Convolution && copies_its_input(op)) return {whole_gradient(emit, args[0])};
  if (op.name == "aten.index.Tensor") return copied_indices(emit, call);
  if (reads_without_gaps_first(op.name)) {
    std::vector<Ref> whole;
    if (Ref copy = whole_gradient(emit, args[0])) whole.push_back(std::move(copy));
    return whole;
  }
  if (op.name == "aten.cumsum.default" && emit.layout(args[0]).dtype != results[0].dtype)
    return {emit.fresh("aten._to_copy.default", KernelClass::Copy, results[0], {&args[0]})};
  return {};
}

/// cub's buffer where a cumulative sum is one row; 0: it is several. A state for each tile and for a warp of them
/// before the first. Tiles and states as the bytes that rows of 1,024 to 262,144 numbers take say.
Bytes row_scan_workspace(const Op& op, const Layout& result) {
  const std::int64_t numel = result.numel();
  const bool row =
      result.sizes.n > 0 && numel > 1 && result.sizes[wrap_dim(int_arg(op, 1, "dim", 0), result.sizes.n)] == numel;
  if (!row) return 0;
  const Bytes itemsize = foreshard::itemsize(result.dtype);
  const std::int64_t tile = itemsize >= 8 ? 896 : itemsize >= 4 ? 1920 : 8192;
  const Bytes state = itemsize == 4 ? 8 : 16;
  return (((numel + tile - 1) / tile + 32) * state + 255) / 256 * 256 + 511;
}

bool is_native_batch_norm(const Op& op) {
  const bool native =
      op.name.starts_with("aten.native_batch_norm") || op.name.starts_with("aten._native_batch_norm_legit");
  return native && op.name.find("no_training") == op.name.npos && bool_arg(op, 5, "training", true);
}

/// Of index_put with accumulation; `args`: what it puts into, indices, values.
std::vector<Bytes> put_workspace(Emitter& emit, const std::vector<Ref>& args) {
  Dims places;
  for (std::size_t i = 1; i + 1 < args.size(); ++i) {
    const Layout& index = emit.layout(args[i]);
    if (index.dtype == DType::Bool || is_floating(index.dtype)) return {};
    places = broadcast_sizes(places, index.sizes);
  }
  return accumulated_put_workspace(places.product());
}

/// What operators that are written with others have of theirs at their peak: logsumexp its maxima and the differences
/// to them; scatter_reduce's mean as many ones as there are sources, counts, and which of these are none; a median of
/// all elements their sorted values and places, places in order, and what the sort writes to by turns;
/// repeat_interleave the sums of its counts (Repeat.h).
std::vector<Bytes> composed_workspace(Emitter& emit, const Call& call) {
  const auto& [rule, op, args, results] = call;
  if (op.name == "aten.logsumexp.default" && !args.empty())
    return {results[0].bytes(), emit.layout(args[0]).numel() * itemsize(results[0].dtype)};
  if (op.name == "aten.repeat_interleave.Tensor" && !args.empty()) return {8 * emit.layout(args[0]).numel()};
  if (const bool on_gpu = emit.machine().options.cpu_threads == 0; on_gpu && !args.empty()) {
    if (op.name == "aten.topk.default")
      return topk_workspace(op, emit.layout(args[0]), emit.machine().options.multiprocessors);
    if (op.name.starts_with("aten.sort.") || op.name.starts_with("aten.argsort."))
      return sort_workspace(op, emit.layout(args[0]));
    if (op.name.starts_with("aten.index_put") && bool_arg(op, 3, "accumulate", false)) return put_workspace(emit, args);
    if (const bool mean = op.name == "aten.mse_loss.default" || op.name == "aten.smooth_l1_loss.default";
        mean && args.size() > 1 && results[0].sizes.n == 0)  // the elements, which are read where the mean is written
      return {broadcast_sizes(emit.layout(args[0]).sizes, emit.layout(args[1]).sizes).product() *
              itemsize(results[0].dtype)};
    if (op.name.starts_with("aten.masked_scatter")) return masked_scatter_workspace(results[0]);
  }
  if (op.name == "aten.median.default" && !args.empty()) {
    const Bytes values = emit.layout(args[0]).bytes(), places = 8 * emit.layout(args[0]).numel();
    return {values, places, places, values + places};
  }
  if (op.name != "aten.scatter_reduce.two" || args.size() < 3) return {};
  const auto is_mean = [](const Arg& arg) {
    const auto* how = std::get_if<std::string>(&arg.value);
    return how != nullptr && *how == "mean";
  };
  const bool mean =
      std::any_of(op.args.begin(), op.args.end(), is_mean) ||
      std::any_of(op.kwargs.begin(), op.kwargs.end(), [&](const NamedArg& named) { return is_mean(named.arg); });
  if (!mean) return {};
  return {emit.layout(args[2]).bytes(), results[0].bytes(), results[0].numel()};
}

/// A sum's or mean's: its converted input, and the buffers of blocks that meet.
void reduction_workspace(Emitter& emit, const Call& call, Kernel& kernel, std::vector<Ref>& workspace) {
  const auto& [rule, op, args, results] = call;
  Tape& tape = emit.tape();
  Layout in = emit.layout(args[0]);
  if (rule.formula == OpFormula::Sum && converts_to_sum(in.dtype, results[0].dtype)) {
    in = contiguous_layout(in.sizes, results[0].dtype);
    workspace.push_back(tape.make_bytes(in.bytes(), SlotCategory::Temporary));
    ++kernel.launches;
  }
  std::vector<std::int32_t> dims;
  for (const std::int64_t dim : list_arg(op, 1, "dim")) dims.push_back(wrap_dim(dim, in.sizes.n));
  const ReduceWorkspace extra = reduce_workspace(op.name, in, dims, emit.machine().options.multiprocessors);
  if (extra.buffer > 0) {
    workspace.push_back(tape.make_bytes(extra.buffer, SlotCategory::Workspace));
    workspace.push_back(tape.make_bytes(extra.semaphores, SlotCategory::Workspace));
    ++kernel.launches;
  }
}

/// What an operator takes beside its results while it runs on a GPU, and the kernels that this adds.
std::vector<Ref> workspace_of(Emitter& emit, const Call& call, Kernel& kernel) {
  const auto& [rule, op, args, results] = call;
  Tape& tape = emit.tape();
  std::vector<Ref> workspace;
  if (rule.formula == OpFormula::Convolution && args.size() >= 2 && !results.empty()) {
    const Bytes columns = unfolded_bytes(op, emit.layout(args[0]), emit.layout(args[1]), results[0]);
    if (columns > 0) workspace.push_back(tape.make_bytes(columns, SlotCategory::Workspace));
    if (columns > 0 && args.size() >= 3 && bool_arg(op, 6, "transposed", false))  // ones that spread the bias
      workspace.push_back(
          tape.make_bytes(results[0].bytes() / std::max<std::int64_t>(results[0].sizes[0] * results[0].sizes[1], 1),
                          SlotCategory::Workspace));
  }
  if (rule.name == "aten.native_group_norm.default" && args.size() >= 2 && emit.machine().options.cpu_threads == 0 &&
      results[0].sizes.n > 2) {
    const Bytes channels = 4 * results[0].sizes[0] * results[0].sizes[1];  // factor and offset of every channel
    for (int i = 0; i < 2; ++i) workspace.push_back(tape.make_bytes(channels, SlotCategory::Workspace));
  }
  if (rule.kind == KernelClass::Reduction && (rule.formula == OpFormula::Sum || rule.formula == OpFormula::Mean) &&
      !args.empty())
    reduction_workspace(emit, call, kernel, workspace);
  const bool on_cpu = emit.machine().options.cpu_threads > 0;
  if (!args.empty() && (reads_without_gaps(rule.name) || (on_cpu && reads_without_gaps_first(rule.name)))) {
    if (Ref whole = whole_gradient(emit, args[0])) workspace.push_back(std::move(whole));
  }
  if (rule.name == "aten._safe_softmax.default" && emit.machine().options.cpu_threads == 0) {
    // Rows without any finite element become zeros: which elements, which rows, the zero.
    const Layout all = emit.layout(args[0]);
    const Bytes rows = all.sizes.n > 0 ? all.numel() / std::max<std::int64_t>(all.sizes[all.sizes.n - 1], 1) : 1;
    for (const Bytes bytes : {Bytes{all.numel()}, rows, itemsize(all.dtype)})
      workspace.push_back(tape.make_bytes(bytes, SlotCategory::Temporary));
    kernel.launches = 5;
  }
  if (is_native_batch_norm(op) && !args.empty()) {
    const Bytes staging = batch_norm_staging(emit.layout(args[0]), 4);
    if (staging > 0) workspace.push_back(tape.make_bytes(staging, SlotCategory::Workspace));
  }
  if (op.name == "aten.cumsum.default" && emit.machine().options.cpu_threads == 0) {
    const Bytes scan = row_scan_workspace(op, results[0]);
    if (scan > 0) workspace.push_back(tape.make_bytes(scan, SlotCategory::Workspace));
  }
  const bool grown = rule.formula == OpFormula::Addmm || rule.formula == OpFormula::Baddbmm;
  const std::size_t left = grown ? 1 : 0;
  if ((grown || rule.formula == OpFormula::Mm || rule.formula == OpFormula::Bmm) && args.size() > left + 1)
    return emit.cublas_copies_of(emit.layout(args[left]), emit.layout(args[left + 1]), kernel);
  if (rule.formula == OpFormula::GroupedMm)
    return held(tape, grouped_product_workspace(groups_of(emit, args), emit.machine().options));
  if (rule.formula == OpFormula::TriangularSolve && !args.empty())
    return held(tape, triangular_solve_workspace(emit.layout(args[0]), emit.machine().options));
  for (const Bytes bytes : composed_workspace(emit, call)) {
    workspace.push_back(tape.make_bytes(bytes, SlotCategory::Temporary));
    ++kernel.launches;
  }
  if (op.name == "aten._trilinear.default" && args.size() == 3) {
    const TrilinearWorkspace slice =
        trilinear_workspace(op, {emit.layout(args[0]), emit.layout(args[1]), emit.layout(args[2])});
    for (const Bytes bytes : {slice.first, slice.second})
      if (bytes > 0) workspace.push_back(tape.make_bytes(bytes, SlotCategory::Workspace));
  }
  return workspace;
}

/// The same on a CPU; empty where its kernels take what they would on a GPU.
std::vector<Ref> cpu_workspace_of(Emitter& emit, const Call& call, const Kernel& kernel) {
  const auto& [rule, op, args, results] = call;
  Tape& tape = emit.tape();
  const LoweringOptions& machine = emit.machine().options;
  if (rule.kind == KernelClass::Attention)
    return held(tape, cpu_attention_workspace(emit.layout(args[0]), emit.layout(args[1]), machine.cpu_threads));
  const std::size_t first = rule.formula != OpFormula::Linear && args.size() >= 3 ? 1 : 0;
  Layout right = emit.layout(args[first + 1]);
  if (rule.formula == OpFormula::Linear && right.sizes.n == 2) std::swap(right.strides[0], right.strides[1]);
  return held(tape, cpu_product_workspace(kernel, emit.layout(args[first]), right, machine));
}

}  // namespace

std::int64_t chosen_by(const Layout& mask, const Layout& from, const Layout& picked) {
  const std::int64_t row = mask.numel() > 0 ? from.numel() / mask.numel() : 0;
  return row > 0 ? picked.numel() / row : 0;
}

std::vector<Ref> forward_op(Emitter& emit, const OpRule& rule, const Op& op, const std::vector<Ref>& args,
                            const std::vector<Layout>& results) {
  const Call call{rule, op, args, results};
  OpForm form = rule.form;
  if (form == OpForm::Mesh) return mesh_forward(emit, op, args, results);
  if (form == OpForm::Reshape && !args.empty() && !results.empty()) {
    Dims strides;
    form = view_strides(emit.layout(args[0]), results[0].sizes, strides) ? OpForm::View : OpForm::Contiguous;
  }
  if (form == OpForm::CopyIfNeeded && !args.empty())
    form = emit.layout(args[0]).contiguous() ? OpForm::Alias : OpForm::Contiguous;
  if (is_view_form(form) && !args.empty()) return views_of(emit, call, form);
  if (rule.formula == OpFormula::QuantisedLinear) return quantised_linear(emit, args, results[0]);
  if (rule.formula == OpFormula::IntegerLinear) return integer_linear(emit, args, results[0]);
  if (rule.formula == OpFormula::Float8Linear) return float8_linear(emit, args, results[0]);
  if (rule.formula == OpFormula::FusedLoss) return fused_loss(emit, args, results);
  if (rule.formula == OpFormula::EuclideanDist) return euclidean_distances(emit, args);
  if (rule.formula == OpFormula::AffineGrid) return affine_grid(emit, args, results[0]);
  if (rule.formula == OpFormula::FlexAttention) return flex_attention(emit, args, results);
  if (rule.formula == OpFormula::FlexBlockMask) return flex_block_mask(emit, op, results);
  if (rule.kind == KernelClass::Attention && args.size() > 5 && rule.name.find("_backward.") != std::string_view::npos)
    return attention_backward_in_forward(emit, op, args);
  if (rule.formula == OpFormula::ConvolutionBackward && args.size() == 3)
    return convolution_backward_in_forward(emit, op, args);
  Kernel kernel = emit.start(op.name, rule.kind, results.empty() ? DType::Float32 : results[0].dtype);
  kernel.launches = rule.launches;
  kernel.unknown = rule.formula == OpFormula::Unknown;
  describe(emit, kernel, op, args, rule);
  if (rule.kind == KernelClass::Gemm) kernel.backward = is_run_by_engine(op);
  if (rule.formula == OpFormula::Convolution && args.size() >= 2 && !results.empty())
    kernel.flops = convolution_flops(emit, call);
  if (form == OpForm::InPlace && !args.empty()) {
    std::vector<Ref> out;
    for (std::size_t i = 0; i < results.size(); ++i)
      out.push_back(emit.tape().alias(args[0], emit.layout(args[0]), false));
    kernel.written = emit.layout(args[0]).bytes();
    std::vector<Ref> workspace;
    if (op.name.starts_with("aten.index_put")) workspace = workspace_of(emit, call, kernel);
    emit.launch(kernel, args, out);
    return out;
  }
  const std::vector<Ref> before = made_before(emit, call);
  std::vector<Ref> split;
  const std::vector<Ref> out = results_of(emit, call, form, kernel, split);
  if (!split.empty()) ++kernel.launches;  // the parts are combined
  if (rule.kind == KernelClass::Gather) kernel.read += kernel.written;
  std::vector<Ref> workspace = workspace_of(emit, call, kernel);
  const bool on_cpu = emit.machine().options.cpu_threads > 0 && args.size() >= 2;
  if (on_cpu && (rule.kind == KernelClass::Attention || (rule.kind == KernelClass::Gemm && kernel.m > 0)))
    workspace = cpu_workspace_of(emit, call, kernel);
  emit.launch(kernel, args, out);
  std::reverse(split.begin(), split.end());
  while (!split.empty()) split.pop_back();  // statistics first
  return out;
}

}  // namespace foreshard::lowering
