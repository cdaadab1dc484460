// Attention of the model families: which kernel PyTorch chooses, and the operators around it; masks.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "core/model/families/family.h"
#include "core/model/json_input.h"

namespace foreshard::families {
namespace {

/// use_gqa_in_sdpa of the library.
constexpr std::int64_t kWidestGroupedHead = 256;

/// Expanded and copied so that every head of the queries has its own keys (repeat_interleave of grouped heads).
/// `in_python`: the library's own repeat_kv, whose reshape copies, unless there is one head to repeat.
Tensor repeat_heads(ProgramWriter& w, const Tensor& x, std::int64_t times, bool in_python) {
  const std::int64_t batch = x.sizes[0], heads = x.sizes[1], seq = x.sizes[2], dim = x.sizes[3];
  const Tensor all = w.expand(w.unsqueeze(x, 2), {batch, heads, times, seq, dim});
  const Dims sizes{batch, heads * times, seq, dim};
  if (in_python && ProgramWriter::can_view(all, sizes)) return w.view(all, sizes);
  const Tensor copies = w.clone(all);
  return in_python ? w.unsafe_view(copies, sizes) : w.view(copies, sizes);
}

/// What a mask of truth values becomes before any kernel of F.scaled_dot_product_attention (convert_boolean_attn_mask).
Tensor additive_mask(ProgramWriter& w, const Tensor& seen, DType dtype) {
  const Tensor low = w.scalar(-std::numeric_limits<double>::infinity(), dtype, false);
  const Tensor zero = w.scalar(0.0, dtype, true);
  return w.where(seen, zero, low);
}

/// _scaled_dot_product_attention_math: what remains when no fused kernel can run. Half precision computes in float32.
Tensor write_math(ProgramWriter& w, const AttentionShape& shape, Tensor q, Tensor k, Tensor v, const Tensor* mask) {
  const DType dtype = q.dtype;
  const bool half = dtype == DType::BFloat16 || dtype == DType::Float16;
  const double root = std::sqrt(shape.scale);
  const std::int64_t seq_q = q.sizes[2], seq_k = k.sizes[2];
  if (half) {
    q = w.to(q, DType::Float32);
    k = w.to(k, DType::Float32);
    v = w.to(v, DType::Float32);
  }
  q = w.with_scalar("aten.mul.Scalar", q, Arg{root});
  std::optional<Tensor> bias;
  if (mask != nullptr) {
    bias = *mask;
  } else if (shape.causal && seq_q > 1) {
    bias = additive_mask(w, w.unary("aten.tril.default", w.ones({seq_q, seq_k}, DType::Bool)), q.dtype);
  }
  if (shape.heads != k.sizes[1]) {
    k = repeat_heads(w, k, shape.heads / k.sizes[1], false);
    v = repeat_heads(w, v, shape.heads / v.sizes[1], false);
  }
  const Tensor keys = w.with_scalar("aten.mul.Scalar", w.transpose(k, -2, -1), Arg{root});
  Tensor p = w.matmul(q, keys);
  if (bias) p = w.add(p, *bias);
  p = w.softmax("aten._safe_softmax.default", p, {Arg{std::int64_t{-1}}});
  p = w.dropout(p, shape.dropout);
  if (half) w.to(p, dtype);  // the second result of the operator, thrown away by its caller
  return w.to(w.matmul(p, v), dtype);
}

/// dropout_p and is_causal as a recording shows them: what equals the schema's defaults at the end is left out.
void put_dropout_and_causal(ArgList& args, double dropout, bool causal) {
  if (dropout > 0.0 || causal) args.push_back(Arg{dropout});
  if (causal) args.push_back(Arg{true});
}

/// transpose(1, 2) of an empty_like of the transposed queries: the layout that flash kernels give their result.
Tensor flash_result(const Tensor& q) {
  Tensor rows = q;
  std::swap(rows.sizes[1], rows.sizes[2]);
  std::swap(rows.strides[1], rows.strides[2]);
  Tensor out = q;
  out.strides = ProgramWriter::like_strides(rows);
  std::swap(out.strides[1], out.strides[2]);
  return out;
}

Tensor write_flash(ProgramWriter& w, const AttentionShape& shape, Tensor q, Tensor k, Tensor v) {
  const std::int64_t dim = q.sizes[3], padding = (8 - dim % 8) % 8;
  if (padding > 0) {
    q = w.pad(q, {0, padding}, 0.0);
    k = w.pad(k, {0, padding}, 0.0);
    v = w.pad(v, {0, padding}, 0.0);
  }
  const Tensor out = flash_result(q);
  const Dims rows{q.sizes[0], q.sizes[1], q.sizes[2]};
  ArgList args{ProgramWriter::arg(q), ProgramWriter::arg(k), ProgramWriter::arg(v)};
  put_dropout_and_causal(args, shape.dropout, shape.causal && q.sizes[2] > 1);
  const auto results =
      w.emit("aten._scaled_dot_product_flash_attention.default", std::move(args), {{"scale", Arg{shape.scale}}},
             {{out.sizes, out.strides, q.dtype},
              {rows, ProgramWriter::contiguous_strides(rows), DType::Float32},
              {.tensor = false},
              {.tensor = false},
              {.tensor = false},
              {.tensor = false},         // cumulative and greatest lengths
              {{2}, {1}, DType::Int64},  // random state (unsigned)
              {{}, {}, DType::Int64},
              {{0}, {1}, q.dtype}});
  return padding > 0 ? w.slice(results[0], 3, 0, dim) : results[0];
}

Tensor write_efficient(ProgramWriter& w, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor* mask) {
  Tensor bias;
  if (mask != nullptr) {
    bias = *mask;
    if (const std::int64_t n = bias.sizes[-1]; n % 8 != 0) {  // rows of the bias must be aligned
      bias = w.slice(w.pad(bias, {0, 8 - n % 8}, 0.0), -1, 0, n);
    }
    bias = w.expand(bias, {q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]});
  }
  const Dims sizes{q.sizes[0], q.sizes[1], q.sizes[2], v.sizes[3]};
  const Dims strides{sizes[1] * sizes[2] * sizes[3], sizes[3], sizes[1] * sizes[3], 1};
  const Dims rows{sizes[0], sizes[1], round_up(sizes[2], 32)};
  ArgList args{ProgramWriter::arg(q), ProgramWriter::arg(k), ProgramWriter::arg(v),
               mask != nullptr ? ProgramWriter::arg(bias) : Arg{}, Arg{true}};
  put_dropout_and_causal(args, shape.dropout, shape.causal && mask == nullptr && q.sizes[2] > 1);
  const auto results =
      w.emit("aten._scaled_dot_product_efficient_attention.default", std::move(args), {{"scale", Arg{shape.scale}}},
             {{sizes, strides, q.dtype},
              {rows, ProgramWriter::contiguous_strides(rows), DType::Float32},
              {{}, {}, DType::Int64},
              {{}, {}, DType::Int64}});
  return results[0];
}

Tensor write_cpu_flash(ProgramWriter& w, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor* mask) {
  const Tensor out = flash_result(q);
  const Dims rows{q.sizes[0], q.sizes[1], q.sizes[2]};
  const Dims row_strides{q.sizes[1] * q.sizes[2], 1, q.sizes[1]};
  std::vector<NamedArg> kwargs;
  if (mask != nullptr) kwargs.push_back({"attn_mask", ProgramWriter::arg(*mask)});
  kwargs.push_back({"scale", Arg{shape.scale}});
  ArgList args{ProgramWriter::arg(q), ProgramWriter::arg(k), ProgramWriter::arg(v)};
  put_dropout_and_causal(args, shape.dropout, shape.causal && mask == nullptr && q.sizes[2] > 1);
  return w.emit("aten._scaled_dot_product_flash_attention_for_cpu.default", std::move(args), std::move(kwargs),
                {{out.sizes, out.strides, q.dtype}, {rows, row_strides, DType::Float32}})[0];
}

/// eager_attention_forward of the library: softmax in float32.
Tensor write_eager(ProgramWriter& w, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                   const Tensor* mask) {
  Tensor p = w.with_scalar("aten.mul.Tensor", w.matmul(q, w.transpose(k, 2, 3)), Arg{shape.scale});
  p = write_soft_cap(w, p, shape.score_cap);
  if (mask != nullptr) p = w.add(p, *mask);
  const Tensor scores = p;  // its name is given to the narrow result
  if (shape.wide_softmax) p = w.to(p, DType::Float32, true);
  p = w.softmax("aten._softmax.default", p, {Arg{std::int64_t{-1}}, Arg{false}});
  p = w.to(p, q.dtype);
  w.hold_until_here(scores);
  return w.matmul(w.dropout(p, shape.dropout), v);
}

/// flex_attention_forward of the library: the logarithms of the sums are its attention weights, which the block names.
Tensor write_flex(ProgramWriter& w, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v) {
  const Dims rows{q.sizes[0], q.sizes[1], q.sizes[2]};
  Dims sizes = q.sizes;
  sizes[3] = v.sizes[3];
  const Dims strides = sizes == q.sizes ? q.strides : ProgramWriter::contiguous_strides(sizes);
  const Dims row_strides = ProgramWriter::contiguous_strides(rows);
  const auto results =
      w.emit("higher_order.flex_attention", {ProgramWriter::arg(q), ProgramWriter::arg(k), ProgramWriter::arg(v)},
             {{"scale", Arg{shape.scale}}},
             {{sizes, strides, q.dtype}, {rows, row_strides, DType::Float32}, {rows, row_strides, DType::Float32}});
  const Tensor natural = w.with_scalar("aten.mul.Tensor", results[1], Arg{std::log(2.0)});
  w.hold(w.to(natural, v.dtype));
  return results[0];
}

/// create_block_mask of a causal mask, which every layer's backward keeps: to the end of the last, here to that of all.
void write_block_mask(ProgramWriter& w, std::int64_t batch, std::int64_t seq) {
  constexpr std::int64_t kBlock = 128;
  const std::int64_t blocks = ceil_div(seq, kBlock);
  const Dims counts{batch, 1, blocks}, indices{batch, 1, blocks, blocks};
  std::vector<ProgramWriter::Described> results;
  for (int k = 0; k < 4; ++k) {
    results.push_back({counts, ProgramWriter::contiguous_strides(counts), DType::Int32});
    results.push_back({indices, ProgramWriter::contiguous_strides(indices), DType::Int32});
  }
  for (const Tensor& each :
       w.emit("higher_order.create_block_mask", {ProgramWriter::arg(Dims{batch, seq, seq})}, {}, results))
    w.hold(each, Hold::Until::Step);
}

/// find_packed_sequence_indices: do the positions start anew inside a row? If they do, the sequence of each token
/// [batch, seq].
std::optional<Tensor> write_packed_question(ProgramWriter& w, const FamilyInput& input, const Tensor& positions,
                                            std::int64_t batch, std::int64_t seq) {
  if (!input.program.asks_for_packed_rows && !input.options.packed) return std::nullopt;
  const Arg one{std::int64_t{1}};
  const Tensor rows = positions.sizes[0] == batch ? positions : w.expand(positions, {batch, -1});
  const Tensor before = w.with_scalar("aten.sub.Tensor", w.slice(rows, 1, 0, 1), one);
  const Tensor all = w.cat({before, rows}, -1);
  const Tensor left = w.slice(all, -1, 0, seq);
  const Tensor right = w.slice(all, -1, 1, seq + 1);
  const Tensor jumps = w.with_scalar("aten.ne.Scalar", w.sub(right, left), one, DType::Bool);
  const Tensor sequences = w.cumsum(jumps, -1);
  const Tensor last = w.select(sequences, 1, -1);
  const Tensor answer = w.all(w.with_scalar("aten.eq.Scalar", last, Arg{std::int64_t{0}}, DType::Bool));
  if (!input.program.recorded) w.read_to_host(answer);
  if (!input.options.packed) return std::nullopt;
  return sequences;
}

/// x as the one dimension `dim` of four.
Tensor spread(ProgramWriter& w, Tensor x, int dim) {
  for (int i = 0; i < 4; ++i) {
    if (i != dim) x = w.unsqueeze(x, i);
  }
  return x;
}

/// and_masks of the library: a one, and whatever is seen.
class AndMasks {
 public:
  AndMasks(ProgramWriter& writer, const Tensor& queries) : w_(writer) {
    seen_ = w_.emit("aten.new_ones.default", {ProgramWriter::arg(queries), ProgramWriter::arg(Dims{})},
                    {{"dtype", Arg{DType::Bool}}}, {{{}, {}, DType::Bool}})[0];
  }
  void add(const Tensor& mask) { seen_ = w_.binary("aten.bitwise_and.Tensor", seen_, mask, DType::Bool); }
  const Tensor& seen() const { return seen_; }

 private:
  ProgramWriter& w_;
  Tensor seen_;
};

/// table[batches, places], of indices that are spread over four dimensions.
Tensor write_looked_up(ProgramWriter& w, const Tensor& table, const Tensor& batches, const Tensor& places) {
  const Dims sizes{batches.sizes[0], 1, places.sizes[2], places.sizes[3]};
  return w.emit("aten.index.Tensor",
                {ProgramWriter::arg(table), Arg{ArgList{ProgramWriter::arg(batches), ProgramWriter::arg(places)}}}, {},
                {{sizes, ProgramWriter::contiguous_strides(sizes), table.dtype}})[0];
}

/// What the script or its positions say of the rows.
struct Rows {
  std::optional<Tensor> padding;    // [batch, seq]: which tokens are there
  std::optional<Tensor> sequences;  // [batch, seq]: which sequence a token belongs to
  Tensor positions;                 // [batch, seq], where there are `sequences`
};

/// The mask functions of the library over places of queries [.., seq, 1] and keys [.., 1, seq].
Tensor write_causal_seen(ProgramWriter& w, const Tensor& queries, const Tensor& keys, std::int64_t window) {
  const auto causal = [&] { return w.binary("aten.le.Tensor", keys, queries, DType::Bool); };
  if (window == 0) return causal();
  AndMasks near(w, queries);
  const Tensor first = w.with_scalar("aten.sub.Tensor", queries, Arg{std::max<std::int64_t>(window, 0)});
  near.add(w.binary("aten.gt.Tensor", keys, first, DType::Bool));
  near.add(causal());
  return near.seen();
}

/// [1 or batch, 1, seq, seq]: which keys a query sees.
Tensor write_seen(ProgramWriter& w, const Rows& told, std::int64_t batch, std::int64_t seq, std::int64_t window) {
  const Arg zero{std::int64_t{0}};
  const Tensor batches = w.arange(batch), heads = w.arange(1);
  const Tensor query_places = w.with_scalar("aten.add.Tensor", w.arange(seq), zero);
  const Tensor key_places = w.with_scalar("aten.add.Tensor", w.arange(seq), zero);
  const Tensor rows = spread(w, batches, 0);
  spread(w, heads, 1);  // made for mask functions that look at it
  const Tensor queries = spread(w, query_places, 2);
  const Tensor keys = spread(w, key_places, 3);
  if (told.sequences) {  // packed_sequence_compatibility_function: places count within each sequence
    const auto looked_up = [&](const Tensor& table, const Tensor& at) { return write_looked_up(w, table, rows, at); };
    AndMasks both(w, queries);
    const Tensor own = looked_up(*told.sequences, queries);
    both.add(w.binary("aten.eq.Tensor", own, looked_up(*told.sequences, keys), DType::Bool));
    const Tensor from = looked_up(told.positions, queries);
    both.add(write_causal_seen(w, from, looked_up(told.positions, keys), window));
    return both.seen();
  }
  if (!told.padding) return write_causal_seen(w, queries, keys, window);
  AndMasks both(w, queries);
  both.add(write_causal_seen(w, queries, keys, window));
  both.add(write_looked_up(w, *told.padding, rows, keys));
  return both.seen();
}

/// fast_all of the library, read by the host.
void ask_for_all(ProgramWriter& w, const FamilyInput& input, const Tensor& padding) {
  const Tensor count = w.emit("aten.sum.default", {ProgramWriter::arg(padding)}, {}, {{{}, {}, DType::Int64}})[0];
  const Tensor answer = w.with_scalar("aten.eq.Scalar", count, Arg{padding.sizes.product()}, DType::Bool);
  if (!input.program.recorded) w.read_to_host(answer);
}

Error cannot_run(const FamilyInput& input, std::string why) {
  return {ErrorCode::Inconsistent,
          "the attention kernel that is asked for cannot run here: " + why,
          input.config.file(),
          "model.attention",
          "a kernel that takes these tensors",
          input.options.attention,
          "use \"sdpa\": PyTorch's own choice"};
}

}  // namespace

Tensor write_soft_cap(ProgramWriter& w, const Tensor& x, double cap) {
  if (cap <= 0.0) return x;
  const Tensor curve = w.unary("aten.tanh.default", w.with_scalar("aten.div.Tensor", x, Arg{cap}));
  return w.with_scalar("aten.mul.Tensor", curve, Arg{cap});
}

double lowest_value(DType dtype) {
  if (dtype == DType::BFloat16) return -3.3895313892515355e+38;
  if (dtype == DType::Float16) return -65504.0;
  return -static_cast<double>(std::numeric_limits<float>::max());
}

Result<AttentionKernel> choose_attention(const FamilyInput& input, const AttentionShape& shape, DType given,
                                         bool masked) {
  const std::string& asked = input.options.attention;
  const DType dtype = input.program.autocast.value_or(given);
  const bool half = dtype == DType::BFloat16 || dtype == DType::Float16;
  const bool grouped = shape.heads != shape.key_value_heads && !masked &&
                       shape.head_dim <= kWidestGroupedHead;  // else they are repeated
  const bool cpu = input.program.device == ProgramDevice::Cpu;
  const std::int64_t value_dim = shape.value_dim > 0 ? shape.value_dim : shape.head_dim;
  const bool alike = value_dim == shape.head_dim;
  const bool flash = half && !masked && shape.head_dim <= 256 && alike;
  const std::int64_t alignment = half ? 8 : 4;
  const bool efficient =
      (half || dtype == DType::Float32) && !grouped && shape.head_dim % alignment == 0 && value_dim % alignment == 0;
  const bool cpu_flash = shape.dropout == 0.0 && alike;  // use_flash_attention_cpp
  if (asked == "eager") return AttentionKernel::Eager;
  if (asked == "sdpa_math" || (asked == "sdpa" && input.program.device == ProgramDevice::Meta))
    return AttentionKernel::Math;
  if (asked == "sdpa_flash") {
    if (cpu) {
      if (!cpu_flash)
        return fail(cannot_run(input, "flash attention on a CPU takes no dropout, and values of the size of keys"));
      return AttentionKernel::CpuFlash;
    }
    if (flash) return AttentionKernel::Flash;
    return fail(cannot_run(input, "flash attention takes half precision, no mask and heads of one size, at most 256"));
  }
  if (asked == "sdpa_efficient") {
    if (efficient && !cpu) return AttentionKernel::Efficient;
    return fail(cannot_run(
        input, "memory-efficient attention takes as many key as query heads, an aligned head size, on a GPU"));
  }
  if (asked == "flex_attention" || asked == kUnfusedFlex) {
    const bool plain = !masked && shape.causal && shape.dropout == 0.0 && shape.score_cap == 0.0 && alike;
    if (plain && !cpu && asked == kUnfusedFlex) return AttentionKernel::Flex;
    if (plain && flash) return AttentionKernel::Flash;  // the compiled kernel keeps what flash attention keeps
    return fail(cannot_run(
        input,
        "flex attention is planned for a causal model on a GPU without padding, packed rows, windows, "
        "dropout (which it refuses) and caps on scores, each of which is a mask_mod or score_mod of its own; "
        "compiled in half precision alone"));
  }
  if (asked != "sdpa") {
    return fail({ErrorCode::OutOfRange,
                 "model.attention names no kind of attention",
                 {},
                 "model.attention",
                 "sdpa, sdpa_flash, sdpa_efficient, sdpa_math, eager, flex_attention or flex_attention_unfused",
                 in_quotes(asked),
                 {}});
  }
  if (cpu) return cpu_flash ? AttentionKernel::CpuFlash : AttentionKernel::Math;
  return flash ? AttentionKernel::Flash : efficient ? AttentionKernel::Efficient : AttentionKernel::Math;
}

Tensor write_attention_kernel(ProgramWriter& w, AttentionKernel kernel, const AttentionShape& shape,
                              const Tensor& queries, const Tensor& keys, const Tensor& values, const Tensor* mask) {
  if (kernel == AttentionKernel::Eager) return write_eager(w, shape, queries, keys, values, mask);
  std::optional<Tensor> bias;
  if (mask != nullptr) bias = w.narrowed(*mask);
  const Tensor v = w.narrowed(values), k = w.narrowed(keys), q = w.narrowed(queries);
  const BelowAutocast below(w);
  if (bias && bias->dtype == DType::Bool) bias = additive_mask(w, *bias, q.dtype);
  const Tensor* given = bias ? &*bias : nullptr;
  switch (kernel) {
    case AttentionKernel::Flash: return write_flash(w, shape, q, k, v);
    case AttentionKernel::Efficient: return write_efficient(w, shape, q, k, v, given);
    case AttentionKernel::CpuFlash: return write_cpu_flash(w, shape, q, k, v, given);
    case AttentionKernel::Flex: return write_flex(w, shape, q, k, v);
    default: return write_math(w, shape, q, k, v, given);
  }
}

Tensor write_attention(ProgramWriter& w, AttentionKernel kernel, const AttentionShape& shape, const Tensor& q,
                       const Tensor& k_in, const Tensor& v_in, const Tensor* mask) {
  const std::int64_t batch = q.sizes[0], heads = q.sizes[1], seq = q.sizes[2], dim = v_in.sizes[3];
  const bool eager = kernel == AttentionKernel::Eager;
  Tensor k = k_in, v = v_in;
  // The library asks PyTorch for grouped heads only where flash attention takes them, else it repeats them itself; flex
  // attention of heads that are no power of two gets them repeated.
  const bool repeats = kernel == AttentionKernel::Flex && !std::has_single_bit(static_cast<std::uint64_t>(heads));
  if ((repeats || mask != nullptr || eager || (kernel != AttentionKernel::Flex && k.sizes[3] > kWidestGroupedHead)) &&
      k.sizes[1] != heads) {
    k = repeat_heads(w, k, heads / k.sizes[1], true);
    v = repeat_heads(w, v, heads / v.sizes[1], true);
  }
  if (eager) return w.contiguous(w.transpose(write_eager(w, shape, q, k, v, mask), 1, 2));
  if (kernel == AttentionKernel::Flex)
    return w.contiguous(w.transpose(write_attention_kernel(w, kernel, shape, q, k, v, mask), 1, 2));
  Tensor out = write_attention_kernel(w, kernel, shape, q, k, v, mask);
  // reshape(batch, -1, seq, dim): at::reshape hands the open size on only where the tensor is contiguous
  out = w.view(out, out.is_contiguous() ? Dims{batch, -1, seq, dim} : Dims{batch, heads, seq, dim});
  return w.contiguous(w.transpose(out, 1, 2));
}

Tensor write_positions(ProgramWriter& w, std::int64_t seq) {
  return w.unsqueeze(w.with_scalar("aten.add.Tensor", w.arange(seq), Arg{std::int64_t{0}}), 0);
}

bool needs_mask(const FamilyInput& input, std::int64_t seq, std::int64_t window) {
  const bool hides = input.options.attention_mask && !input.program.full_mask;
  return input.options.attention == "eager" || (window != 0 && seq >= window) || hides || input.options.packed;
}

std::optional<Tensor> write_mask(ProgramWriter& w, const FamilyInput& input, const std::optional<Tensor>& padding,
                                 const Tensor& positions, std::int64_t window) {
  const std::int64_t batch = input.options.batch, seq = positions.sizes[1];
  std::optional<Tensor> kept, sequences;
  if (padding) {
    kept = w.to(*padding, DType::Bool);
    // _ignore_causal_mask_sdpa: is nothing hidden? If something is, the same is asked of the queries' part.
    const bool asks = input.options.attention != "eager" && (window == 0 || seq < window);
    if (asks) ask_for_all(w, input, *kept);
    if (asks && !input.program.full_mask) ask_for_all(w, input, w.alias(*kept));
  } else {
    sequences = write_packed_question(w, input, positions, batch, seq);
  }
  if (input.options.attention == kUnfusedFlex) write_block_mask(w, batch, seq);
  if (!needs_mask(input, seq, window)) return std::nullopt;
  const Tensor seen = w.expand(write_seen(w, {kept, sequences, positions}, batch, seq, window), {batch, -1, seq, seq});
  if (input.options.attention != "eager") return seen;
  const Tensor zero = w.zeros({}, w.dtype());
  return w.where(seen, zero, w.scalar(lowest_value(w.dtype()), w.dtype(), true));
}

}  // namespace foreshard::families
