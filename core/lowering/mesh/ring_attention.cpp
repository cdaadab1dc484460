#include "core/lowering/mesh/ring_attention.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/lowering/kernels/kernel_shape.h"
#include "core/lowering/lowering_machine.h"

namespace foreshard::lowering {
namespace {

constexpr std::int32_t kSequence = 2;  // of [batch, heads, sequence, head]
constexpr const char* kFlash = "aten._scaled_dot_product_flash_attention.default";
constexpr const char* kCpuFlash = "aten._scaled_dot_product_flash_attention_for_cpu.default";

bool on_cpu(const Op& op) { return op.name.ends_with("_for_cpu"); }

std::string text_arg(const Op& op, std::string_view name) {
  for (const NamedArg& named : op.kwargs)
    if (named.name == name) return std::get<std::string>(named.arg.value);
  return {};
}

/// Operators of the ring; every one names its results as Python does, so that they live as long.
class Ring {
 public:
  Ring(Emitter& e, const Op& op)
      : e_(e),
        dimension_(static_cast<std::int32_t>(int_arg(op, op.args.size(), "mesh", 0))),
        ranks_(e.machine().ranks_along(dimension_)),
        place_(e.machine().place_along(dimension_)),
        gathers_(text_arg(op, "rotate") != "alltoall") {}

  std::int64_t ranks() const { return ranks_; }
  std::int64_t place() const { return place_; }
  bool gathers() const { return gathers_; }

  Ref contiguous(const Ref& x) {
    const Layout from = e_.layout(x);
    if (from.contiguous()) return x;
    return e_.fresh("aten.clone.default", KernelClass::Copy, contiguous_layout(from.sizes, from.dtype), {&x});
  }
  /// torch.cat([a.flatten(), b.flatten()])
  Ref joined(const Ref& a, const Ref& b) {
    Ref first = contiguous(a), second = contiguous(b);
    const Layout like = e_.layout(a);
    return e_.fresh("aten.cat.default", KernelClass::Copy,
                    contiguous_layout(Dims{like.numel() + e_.layout(b).numel()}, like.dtype), {&first, &second});
  }
  Ref part(const Ref& flat, const Dims& sizes) {
    return e_.tape().alias(flat, contiguous_layout(sizes, e_.layout(flat).dtype));
  }
  /// x.chunk(2, dim=2)[...]
  Ref half(const Ref& x) {
    Layout layout = e_.layout(x);
    layout.sizes[kSequence] /= 2;
    return e_.tape().alias(x, layout);
  }
  Ref zeros(const Ref& like) {
    const Layout from = e_.layout(like);
    const Layout* one[] = {&from};
    return e_.fresh("aten.zeros_like.default", KernelClass::Elementwise,
                    elementwise_layout(one, from.sizes, DType::Float32), {});
  }
  void add_to(const Ref& sum, const Ref& x) {
    Kernel kernel = e_.start("aten.add_.Tensor", KernelClass::Elementwise, e_.layout(sum).dtype);
    e_.finish(kernel, {&sum, &x}, {&sum});
  }
  /// _partial_update: one half replaced, or added to in place; the result is a new tensor.
  Ref updated(const Ref& whole, const Ref& x, bool adds) {
    Ref own = half(whole);
    if (adds) add_to(own, x);
    const Layout from = e_.layout(whole);
    return e_.fresh("aten.cat.default", KernelClass::Copy, contiguous_layout(from.sizes, from.dtype), {&own, &x});
  }

  Ref gathered(const Ref& x) {
    Layout all = e_.layout(x);
    all.sizes[0] *= ranks_;
    Ref out = e_.tape().make(contiguous_layout(all.sizes, all.dtype), e_.category());
    meet("_c10d_functional.all_gather_into_tensor", KernelCollective::AllGather, x, out, e_.layout(out).bytes());
    return out;
  }
  /// permute_tensor: to the next rank, from the one before.
  Ref passed_on(const Ref& x) {
    Ref out = e_.tape().make(e_.layout(x), e_.category());
    meet("_c10d_functional.all_to_all_single", KernelCollective::Exchange, x, out, e_.layout(x).bytes());
    return out;
  }

 private:
  void meet(const char* name, KernelCollective what, const Ref& in, const Ref& out, Bytes bytes) {
    Kernel kernel = e_.start(name, KernelClass::Copy, e_.layout(out).dtype);
    kernel.collective = what;
    kernel.dimension = dimension_;
    kernel.vector_bytes = bytes;
    e_.finish(kernel, {&in}, {&out});
  }

  Emitter& e_;
  std::int32_t dimension_;
  std::int64_t ranks_, place_;
  bool gathers_;
};

/// _RingRotater: gathers all at once, or passes on what it is handed.
class Rotater {
 public:
  Rotater(Ring& ring, bool gathers) : ring_(ring), gathers_(gathers) {}

  void exchange(const Ref& buffer) {
    if (gathers_ && buffer_) return;
    sent_ = buffer;  // until somebody waits for the result
    Ref made = gathers_ ? ring_.gathered(buffer) : ring_.passed_on(buffer);
    buffer_ = std::move(made);
  }
  const Ref& next() {
    sent_.reset();
    return buffer_;
  }

 private:
  Ring& ring_;
  bool gathers_;
  Ref buffer_, sent_;
};

/// _SDPAMerger, in float32.
class Merger {
 public:
  Merger(Emitter& e, Ring& ring) : e_(e), ring_(ring) {}

  void step(const Ref& out, const Ref& statistics, bool partial) {
    Ref block = e_.cast(out, DType::Float32);
    Layout column = e_.layout(statistics);
    column.sizes.push(1);
    column.strides.push(1);
    Ref block_lse = e_.tape().alias(statistics, column);
    if (!out_) {
      out_ = std::move(block);
      lse_ = std::move(block_lse);
      return;
    }
    const Ref whole_lse = partial ? ring_.half(lse_) : lse_;
    const Ref whole_out = partial ? ring_.half(out_) : out_;
    Ref new_out, new_lse;
    {
      Ref difference = e_.elementwise("aten.sub.Tensor", {&block_lse, &whole_lse});
      Ref share = e_.elementwise("aten.sigmoid.default", {&difference});
      difference.reset();
      Ref change = e_.elementwise("aten.sub.Tensor", {&whole_out, &block});
      Ref scaled = e_.elementwise("aten.mul.Tensor", {&share, &change});
      share.reset();
      change.reset();
      new_out = e_.elementwise("aten.sub.Tensor", {&whole_out, &scaled});
    }
    {
      Ref difference = e_.elementwise("aten.sub.Tensor", {&whole_lse, &block_lse});
      Ref share = e_.elementwise("aten.log_sigmoid_forward.default", {&difference});
      difference.reset();
      new_lse = e_.elementwise("aten.sub.Tensor", {&whole_lse, &share});
    }
    if (!partial) {
      lse_ = std::move(new_lse);
      out_ = std::move(new_out);
      return;
    }
    lse_ = ring_.updated(lse_, new_lse, false);
    out_ = ring_.updated(out_, new_out, false);
    new_lse.reset();
    new_out.reset();
  }
  Ref out(DType dtype) { return e_.cast(out_, dtype); }
  Ref statistics() {
    Layout row = e_.layout(lse_);
    --row.sizes.n;
    --row.strides.n;
    return e_.tape().alias(lse_, row);
  }

 private:
  Emitter& e_;
  Ring& ring_;
  Ref out_, lse_;
};

/// Which parts of queries and keys a turn of the ring works on (head-tail load balancing of a causal mask).
struct Turn {
  bool half_keys = false;     // the first half of what another rank has sent
  bool half_queries = false;  // the second half of its own
};
Turn turn_of(std::int64_t i, std::int64_t place) { return {i > 0 && i <= place, i > place}; }

/// What a turn of the ring calls. Keys of other ranks lie before the queries, or are left out: the mask is of the first
/// turn alone.
Op of_turn(const Op& op, std::int64_t i) {
  constexpr std::size_t kCausal = 4;
  Op turn = op;
  turn.name = on_cpu(op) ? kCpuFlash : kFlash;
  std::erase_if(turn.kwargs, [&](const NamedArg& named) { return i > 0 || named.name != "is_causal"; });
  if (i > 0 && turn.args.size() > kCausal) turn.args[kCausal].value = false;
  return turn;
}

struct Gradients {
  Ref q, k, v;
};

/// aten._scaled_dot_product_flash_attention_backward with its workspace (backward/attention.cpp).
Gradients flash_backward(Emitter& e, const Op& op, const Ref& q, const Ref& k, const Ref& v,
                         const std::array<const Ref*, 3>& kept) {
  Tape& tape = e.tape();
  const Layout ql = e.layout(q), kl = e.layout(k);
  Kernel kernel =
      e.start("aten._scaled_dot_product_flash_attention_backward.default", KernelClass::Attention, ql.dtype);
  kernel.launches = 3;
  describe_attention(kernel, op, ql, kl, /*backward=*/true);
  const bool cpu = op.name == kCpuFlash;
  const auto like = [&](const Ref& x) {
    const Layout from = e.layout(x);
    const Layout* one[] = {&from};
    return tape.make(elementwise_layout(one, from.sizes, from.dtype), e.category());
  };
  Gradients made{like(q), like(k), like(v)};
  const std::int64_t batch = ql.sizes[0], heads = ql.sizes[1], head = ql.sizes[3];
  const std::int64_t rows = round_up(ql.sizes[kSequence], 128), padded = head <= 192 ? round_up(head, 32) : 256;
  kernel.flops = 10 * batch * heads * ql.sizes[kSequence] * kl.sizes[kSequence] * head;
  std::vector<Ref> workspace;
  if (!cpu) {
    workspace.push_back(tape.make_bytes(4 * batch * heads * rows, SlotCategory::Workspace));
    workspace.push_back(tape.make_bytes(4 * batch * rows * heads * padded, SlotCategory::Workspace));
  }
  if (!cpu && heads != kl.sizes[1]) {
    for (int i = 0; i < 2; ++i)
      workspace.push_back(
          tape.make_bytes(itemsize(kl.dtype) * batch * kl.sizes[kSequence] * heads * head, SlotCategory::Workspace));
  }
  std::vector<Ref> inputs{q, k, v};
  for (const Ref* one : kept) inputs.push_back(*one);
  for (const Ref& input : inputs) kernel.read += e.layout(input).bytes();
  const std::vector<Ref> outputs{made.q, made.k, made.v};
  for (const Ref& output : outputs) kernel.written += e.layout(output).bytes();
  e.launch(kernel, inputs, outputs);
  while (!workspace.empty()) workspace.pop_back();
  return made;
}

}  // namespace

std::vector<Ref> ring_attention_forward(Emitter& e, const Op& op, const std::vector<Ref>& args,
                                        const std::vector<Layout>& results) {
  Ring ring(e, op);
  const OpRule* const rule = find_op_rule(on_cpu(op) ? kCpuFlash : kFlash);
  const Dims sizes = e.layout(args[1]).sizes;
  Ref key = ring.contiguous(args[1]), value = ring.contiguous(args[2]);
  Merger merger(e, ring);
  Rotater rotater(ring, ring.gathers());
  std::vector<Ref> made;  // of the latest turn
  for (std::int64_t i = 0; i < ring.ranks(); ++i) {
    if (i > 0) {
      const Ref& received = rotater.next();
      key = ring.part(received, sizes);
      value = ring.part(received, sizes);
    }
    if (i + 1 < ring.ranks()) {
      Ref sent = ring.joined(key, value);
      rotater.exchange(sent);
    }
    const Turn turn = turn_of(i, ring.place());
    std::vector<Ref> inputs{turn.half_queries ? ring.half(args[0]) : args[0], turn.half_keys ? ring.half(key) : key,
                            turn.half_keys ? ring.half(value) : value};
    std::vector<Layout> layouts = results;
    if (turn.half_queries) {
      for (std::size_t k = 0; k < 2; ++k) {
        layouts[k].sizes[kSequence] /= 2;
        layouts[k] = contiguous_layout(layouts[k].sizes, layouts[k].dtype);
      }
    }
    std::vector<Ref> next = forward_op(e, *rule, of_turn(op, i), inputs, layouts);
    made = std::move(next);
    merger.step(made[0], made[1], turn.half_queries);
  }
  std::vector<Ref> out = made;
  out[0] = merger.out(results[0].dtype);
  out[1] = merger.statistics();
  return out;
}

// One long function on purpose: it reads beside _templated_ring_attention_backward, statement by statement.
std::vector<Ref> ring_attention_backward(Emitter& e, BackwardInput& in, const Ref& g) {
  Ring ring(e, *in.node.op);
  const Ref query = in.saved_arg(0), statistics = in.saved_result(1), result = in.saved_result(0);
  const Dims sizes = in.node.in[1].sizes;
  const DType dtype = e.layout(query).dtype;
  Ref grad_query = ring.zeros(query);
  Ref grad_key, grad_value, key, value;
  {
    const Ref k = in.saved_arg(1), v = in.saved_arg(2);
    grad_key = ring.zeros(k);
    grad_value = ring.zeros(v);
    key = ring.contiguous(k);
    value = ring.contiguous(v);
  }
  Rotater rotater(ring, ring.gathers()), gradients(ring, false);
  Ref sent, summed;  // next_kv, next_grad_kv
  Gradients own;
  for (std::int64_t i = 0; i < ring.ranks(); ++i) {
    if (i > 0) {
      const Ref& received = rotater.next();
      key = ring.part(received, sizes);
      value = ring.part(received, sizes);
    }
    if (i + 1 < ring.ranks()) {
      Ref joined = ring.joined(key, value);
      sent = std::move(joined);
      rotater.exchange(sent);
    }
    const Turn turn = turn_of(i, ring.place());
    {
      const Ref q = turn.half_queries ? ring.half(query) : query;
      const Ref k = turn.half_keys ? ring.half(key) : key, v = turn.half_keys ? ring.half(value) : value;
      const Ref out = turn.half_queries ? ring.half(result) : result, dout = turn.half_queries ? ring.half(g) : g;
      const Ref lse = turn.half_queries ? ring.contiguous(ring.half(statistics)) : statistics;
      Gradients next = flash_backward(e, of_turn(*in.node.op, i), q, k, v, {&out, &dout, &lse});
      own = std::move(next);
    }
    if (i == 0) {
      ring.add_to(grad_key, own.k);
      ring.add_to(grad_value, own.v);
    } else {
      summed = gradients.next();
      grad_key = ring.part(summed, sizes);
      grad_value = ring.part(summed, sizes);
      if (turn.half_keys) {
        grad_key = ring.updated(grad_key, own.k, true);
        grad_value = ring.updated(grad_value, own.v, true);
      } else {
        ring.add_to(grad_key, own.k);
        ring.add_to(grad_value, own.v);
      }
    }
    Ref joined = ring.joined(grad_key, grad_value);
    summed = std::move(joined);
    gradients.exchange(summed);
    if (turn.half_queries)
      grad_query = ring.updated(grad_query, own.q, true);
    else
      ring.add_to(grad_query, own.q);
  }
  grad_query = e.cast(grad_query, dtype);
  summed = e.cast(gradients.next(), dtype);
  std::vector<Ref> made(in.node.in.size());
  made[0] = grad_query;
  made[1] = ring.part(summed, sizes);
  made[2] = ring.part(summed, sizes);
  return made;
}

}  // namespace foreshard::lowering
