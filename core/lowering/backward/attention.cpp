// Backward of the fused attention kernels, with the workspace that each takes; see backward.h.
#include <algorithm>
#include <string>
#include <string_view>
#include <variant>

#include "core/lowering/backward/backward.h"
#include "core/lowering/cpu_workspace.h"
#include "core/lowering/kernels/kernel_shape.h"
#include "core/lowering/lowering_machine.h"

namespace foreshard::lowering {

namespace {

/// What a block of the kernel that is taken works on: rows of the query, and columns of a gradient's tile.
struct EfficientTile {
  std::int64_t rows, columns;
  bool in_registers;  // the gradients of key and value; else they are summed in float
};

/// The kernels that are built for cards from sm80 on (kernels/cutlassB.h), by the widest head that they take.
EfficientTile efficient_tile(std::int64_t head, bool full) {
  if (head <= 64) return {64, 64, true};
  if (head <= 128) return {128, full ? 64 : 128, true};
  return {128, 64, full};
}

/// Of one head: the query's gradient is summed over keys in tiles of floats with 16 bytes of lock each, the key's and
/// the value's beside it where registers do not hold them (kernel_backward.h: workspace_strideBH).
Bytes efficient_workspace(const Layout& q, const Layout& k, const Layout& v) {
  constexpr std::int64_t kLock = 16;
  const std::int64_t head = q.sizes[3], value = v.sizes[3];
  const EfficientTile tile = efficient_tile(std::max(head, value), q.dtype == DType::Float32);
  const Bytes bytes =
      ceil_div(q.sizes[2], tile.rows) * ceil_div(head, tile.columns) * (4 * tile.rows * tile.columns + kLock);
  if (tile.in_registers) return bytes;
  return bytes + 4 * round_up(k.sizes[2], tile.columns) * (round_up(head, tile.rows) + round_up(value, tile.rows));
}

std::vector<Bytes> efficient_workspaces(const Layout& q, const Layout& k, const Layout& v, bool cudnn) {
  const std::int64_t batch = q.sizes[0], heads = q.sizes[1];
  std::vector<Bytes> all{4 * batch * heads * q.sizes[2]};  // delta
  if (!cudnn) all.push_back(batch * heads * efficient_workspace(q, k, v));
  return all;
}

std::vector<Bytes> flash_workspace(const Layout& q, const Layout& k) {
  const std::int64_t batch = q.sizes[0], heads = q.sizes[1], head = q.sizes[3];
  const std::int64_t rows = round_up(q.sizes[2], 128), padded = head <= 192 ? round_up(head, 32) : 256;
  std::vector<Bytes> all{4 * batch * heads * rows,            // softmax_d
                         4 * batch * rows * heads * padded};  // dq accumulated in float
  if (heads != k.sizes[1])                                    // grouped heads: dk, dv per query head, summed afterwards
    all.insert(all.end(), 2, itemsize(k.dtype) * batch * k.sizes[2] * heads * head);
  return all;
}

/// Of [b, h, s, d]: whether it lies in memory as [b, s, h, d], which is how the kernels take it.
bool lies_by_tokens(const Layout& layout) {
  if (layout.sizes.n != 4) return true;
  Layout turned = layout;
  std::swap(turned.sizes[1], turned.sizes[2]);
  std::swap(turned.strides[1], turned.strides[2]);
  return turned.contiguous();
}

/// A tensor as `contiguous()` makes it in the kernels' own order of dimensions. Empty: it lies so.
Ref by_tokens(Emitter& e, const Ref& tensor) {
  const Layout& given = e.layout(tensor);
  if (lies_by_tokens(given)) return {};
  Layout made = contiguous_layout(given.sizes, given.dtype);
  made.strides[1] = given.sizes[3];
  made.strides[2] = given.sizes[1] * given.sizes[3];
  return e.fresh("aten.clone.default", KernelClass::Elementwise, made, {&tensor});
}

/// Flash and efficient attention on a GPU take `grad_out.contiguous()`, flash attention also `out.contiguous()`, whose
/// memory is in the order of the queries' (_flash_attention_backward, _efficient_attention_backward of
/// aten/src/ATen/native/transformers/cuda/attention_backward.cu).
std::vector<Ref> copies_by_tokens(Emitter& e, const std::string& name, const Ref& g, const Ref& result) {
  const bool flash = name.starts_with("aten._scaled_dot_product_flash_attention_backward");
  std::vector<Ref> copies;
  if (flash || name.starts_with("aten._scaled_dot_product_efficient_attention_backward"))
    copies.push_back(by_tokens(e, g));
  if (flash && result) copies.push_back(by_tokens(e, result));
  return copies;
}

}  // namespace

std::vector<Ref> backward_of_attention(Emitter& e, BackwardInput& in, const Ref& g) {
  std::vector<Ref> out(in.node.in.size());
  const bool flash = in.node.rule->formula == OpFormula::FlashAttention;
  const Ref q = in.saved_arg(0), k = in.saved_arg(1), v = in.saved_arg(2), lse = in.saved_result(1),
            result = in.saved_result(0);
  const Layout ql = in.node.in[0], kl = in.node.in[1], vl = in.node.in[2];
  Tape& tape = e.tape();
  std::string name = in.node.op->name;  // "..._attention.default", "..._for_cpu.default"
  name.insert(std::min(name.rfind('.'), name.size()), "_backward");
  const std::vector<Ref> turned = copies_by_tokens(e, name, g, result);
  Kernel kernel = e.start(name, KernelClass::Attention, ql.dtype);
  const std::int64_t threads = e.machine().options.cpu_threads;
  // Beside the kernel itself: sums over its gradients, their conversion; grouped keys and values get theirs by sums.
  const bool grouped = ql.sizes.n == 4 && kl.sizes.n == 4 && ql.sizes[1] != kl.sizes[1];
  kernel.launches = !flash ? 1 : grouped && threads == 0 ? 5 : 3;
  describe_attention(kernel, *in.node.op, ql, kl, /*backward=*/true);
  // FlashAttention and cuDNN give gradients that lie in memory as what they are of; LibTorch's CPU kernel and efficient
  // attention lay them out [b, s, h, d].
  const bool as_given = name.starts_with("aten._scaled_dot_product_flash_attention_backward") ||
                        name.starts_with("aten._scaled_dot_product_cudnn");
  const auto like = [&](const Layout& layout) {
    const Layout* one[] = {&layout};
    if (as_given) return elementwise_layout(one, layout.sizes, layout.dtype);
    if (layout.sizes.n != 4) return contiguous_layout(layout.sizes, layout.dtype);
    Layout made = layout;
    made.strides[3] = 1;
    made.strides[1] = layout.sizes[3];
    made.strides[2] = layout.sizes[1] * layout.sizes[3];
    made.strides[0] = layout.sizes[2] * made.strides[2];
    return made;
  };
  const Layout* order[] = {&ql, &kl, &vl};
  std::vector<Ref> gradients;
  for (const Layout* layout : order) gradients.push_back(tape.make(like(*layout), e.category()));
  Ref bias_gradient;  // efficient attention: as large as the bias that it was given, which may be a broadcast one
  if (!flash && in.wants(3))
    bias_gradient = tape.make(contiguous_layout(in.node.in[3].sizes, in.node.in[3].dtype), e.category());
  const bool known = ql.sizes.n == 4 && kl.sizes.n == 4 && vl.sizes.n == 4;
  if (known) {
    const std::int64_t scores = ql.sizes[0] * ql.sizes[1] * ql.sizes[2] * kl.sizes[2];
    kernel.flops = 2 * scores * (3 * ql.sizes[3] + 2 * vl.sizes[3]);  // five products
  }
  std::vector<Bytes> extra;
  if (threads > 0) {
    extra = cpu_attention_backward_workspace(ql, kl, threads);
  } else if (known) {
    extra = flash ? flash_workspace(ql, kl) : efficient_workspaces(ql, kl, vl, as_given);
  }
  std::vector<Ref> workspace = held(tape, extra);
  for (const Ref* input : {&g, &q, &k, &v, &result, &lse})
    if (*input) kernel.read += e.layout(*input).bytes();
  for (const Ref& gradient : gradients) kernel.written += e.layout(gradient).bytes();
  if (bias_gradient) gradients.push_back(bias_gradient);
  e.launch(kernel, taken(g, in), gradients);
  while (!workspace.empty()) workspace.pop_back();
  for (std::size_t i = 0; i < 3; ++i)
    if (in.wants(i)) out[i] = gradients[i];
  if (bias_gradient) out[3] = bias_gradient;
  return out;
}

// The same kernel where the engine runs it in the midst of a forward: grad_out, query, key, value, a bias or none, out
// and logsumexp are its arguments.
std::vector<Ref> attention_backward_in_forward(Emitter& e, const Op& op, const std::vector<Ref>& args) {
  constexpr std::string_view kWord = "_backward";
  const bool flash = op.name.find("_flash_") != std::string::npos;
  Op forward;
  forward.name = op.name;
  forward.name.erase(forward.name.rfind(kWord), kWord.size());
  forward.args.resize(flash ? 5 : 7);
  forward.args.back().value = bool_arg(op, 11, "is_causal", false);
  const bool biased = !flash && op.args.size() > 4 && std::holds_alternative<ValueRef>(op.args[4].value);
  Node node;
  node.rule = find_op_rule(forward.name);
  node.op = &forward;
  std::vector<Ref> saved;
  const auto keep = [&](std::size_t arg, bool result, std::int32_t index) {
    node.saved.push_back({{}, false, result, index, 0, {}});
    saved.push_back(args[arg]);
  };
  for (std::int32_t i = 0; i < 3; ++i) {
    node.in.push_back(e.layout(args[static_cast<std::size_t>(i) + 1]));
    node.next.push_back({0, 0});
    keep(static_cast<std::size_t>(i) + 1, false, i);
  }
  const std::size_t out = biased ? 5 : 4;
  keep(out, true, 0);
  keep(out + 1, true, 1);
  std::vector<Ref> grads{args[0]};
  BackwardInput in{node, grads, saved};
  return backward_of_attention(e, in, args[0]);
}

}  // namespace foreshard::lowering
