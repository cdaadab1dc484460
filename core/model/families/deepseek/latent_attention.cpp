#include "core/model/families/deepseek/latent_attention.h"

#include <utility>
#include <vector>

namespace foreshard::families {
namespace {

constexpr double kLatentEps = 1e-6;  // the norms of the latents do not ask the configuration

/// torch.split(x, [first, second], dim=-1)
std::pair<Tensor, Tensor> write_parts(ProgramWriter& w, const Tensor& x, std::int64_t first, std::int64_t second) {
  Dims a = x.sizes, b = x.sizes;
  a[-1] = first;
  b[-1] = second;
  const auto parts = w.emit("aten.split_with_sizes.default",
                            {ProgramWriter::arg(x), ProgramWriter::arg(Dims{first, second}), Arg{std::int64_t{-1}}}, {},
                            {{a, x.strides, x.dtype}, {b, x.strides, x.dtype}});
  return {parts[0], parts[1]};
}

/// x [batch, heads, seq, n] -> its pairs as complex numbers [batch, heads, seq, n / 2], computed in float32.
Tensor write_complex(ProgramWriter& w, const Tensor& x) {
  const Tensor wide = w.to(x, DType::Float32);
  const std::int64_t pairs = wide.sizes[3] / 2;
  // reshape(*shape[:-1], -1, 2): at::reshape hands the open size on only where the tensor is contiguous
  const Tensor rows = w.view(wide, {wide.sizes[0], wide.sizes[1], wide.sizes[2], wide.is_contiguous() ? -1 : pairs, 2});
  const Dims sizes{rows.sizes[0], rows.sizes[1], rows.sizes[2], pairs};
  Dims strides{rows.strides[0] / 2, rows.strides[1] / 2, rows.strides[2] / 2, rows.strides[3] / 2};
  return w.emit("aten.view_as_complex.default", {ProgramWriter::arg(rows)}, {},
                {{sizes, strides, DType::Complex64}})[0];
}

/// view_as_real(z * angles).flatten(3).type_as(...)
Tensor write_turned(ProgramWriter& w, const Tensor& z, const Tensor& angles, DType dtype) {
  const Tensor turned = w.binary("aten.mul.Tensor", z, angles, DType::Complex64);
  Dims sizes = turned.sizes, strides = turned.strides;
  for (int i = 0; i < strides.rank(); ++i) strides[i] *= 2;
  sizes.insert(4, 2);
  strides.insert(4, 1);
  const Tensor real =
      w.emit("aten.view_as_real.default", {ProgramWriter::arg(turned)}, {}, {{sizes, strides, DType::Float32}})[0];
  return w.to(w.view(real, {sizes[0], sizes[1], sizes[2], sizes[3] * 2}), dtype, true);
}

/// apply_rotary_emb of V2
std::pair<Tensor, Tensor> turn_complex(ProgramWriter& w, const Tensor& q, const Tensor& k, const Tensor& numbers) {
  const Tensor zq = write_complex(w, q), zk = write_complex(w, k);
  const Tensor angles = w.unsqueeze(numbers, 1);
  const Tensor turned_q = write_turned(w, zq, angles, q.dtype);
  const Tensor turned_k = write_turned(w, zk, angles, k.dtype);
  w.hold_until_here(zq);  // named by the function that turns both
  w.hold_until_here(zk);
  return {turned_q, turned_k};
}

/// apply_rotary_pos_emb_interleave of V3: every second element is the other half.
std::pair<Tensor, Tensor> turn_interleaved(ProgramWriter& w, const Tensor& q, const Tensor& k, const Rotation& all) {
  const std::int64_t half = all.cos.sizes[2] / 2;
  const Tensor cos = w.unsqueeze(w.slice(all.cos, 2, 0, half), 1);
  const Tensor sin = w.unsqueeze(w.slice(all.sin, 2, 0, half), 1);
  const Tensor q1 = w.slice(q, 3, 0, kSliceEnd, 2), q2 = w.slice(q, 3, 1, kSliceEnd, 2);
  const Tensor k1 = w.slice(k, 3, 0, kSliceEnd, 2), k2 = w.slice(k, 3, 1, kSliceEnd, 2);
  const auto turned = [&](const Tensor& a, const Tensor& b) {
    const Tensor ac = w.mul(a, cos);
    const Tensor first = w.sub(ac, w.mul(b, sin));
    const Tensor bc = w.mul(b, cos);
    return w.cat({first, w.add(bc, w.mul(a, sin))}, -1);
  };
  const Tensor turned_q = turned(q1, q2);
  return {turned_q, turned(k1, k2)};
}

/// apply_rotary_pos_emb, as Llama.
std::pair<Tensor, Tensor> turn_halves(ProgramWriter& w, const Tensor& q, const Tensor& k, const Rotation& all) {
  const Rotation rotation = write_head_rotation(w, all);
  const Tensor turned_q = write_rotated(w, q, rotation);
  return {turned_q, write_rotated(w, k, rotation)};
}

std::pair<Tensor, Tensor> write_turning(ProgramWriter& w, const LatentConfig& c, const Tensor& q, const Tensor& k,
                                        const LatentRotation& rotation) {
  switch (c.turn) {
    case LatentConfig::Turn::Complex: return turn_complex(w, q, k, rotation.complex);
    case LatentConfig::Turn::Interleaved: return turn_interleaved(w, q, k, rotation.halves);
    default: return turn_halves(w, q, k, rotation.halves);
  }
}

Tensor write_queries(ProgramWriter& w, const LatentModules& m, const Tensor& x) {
  if (m.q) return write_linear(w, *m.q, x);
  return write_linear(w, m.q_up, write_rms_norm(w, m.q_norm, write_linear(w, m.q_down, x), kLatentEps));
}

/// expand_kv: keys and values [batch, heads, seq, ...] of the latent [batch, 1, seq, rank] and the turned part.
std::pair<Tensor, Tensor> write_keys_and_values(ProgramWriter& w, const LatentConfig& c, const LatentModules& m,
                                                const Tensor& latent, const Tensor& turned) {
  const std::int64_t batch = latent.sizes[0], seq = latent.sizes[2];
  const Tensor wide = write_linear(w, m.kv_up, latent);
  w.enter(m.attention);
  const Tensor both = w.transpose(w.view(wide, {batch, seq, -1, c.still + c.value}), 1, 2);
  const auto [still, values] = write_parts(w, both, c.still, c.value);
  const Tensor shared = w.expand(turned, {-1, c.heads, -1, -1});
  const Dims sizes{batch, c.heads, seq, c.head_dim()};
  const Tensor keys = w.emit("aten.new_empty.default", {ProgramWriter::arg(both), ProgramWriter::arg(sizes)}, {},
                             {{sizes, ProgramWriter::contiguous_strides(sizes), both.dtype}})[0];
  w.copy_in_place(w.slice(keys, 3, 0, c.still), still);
  w.copy_in_place(w.slice(keys, 3, c.still, kSliceEnd), shared);
  return {keys, values};
}

}  // namespace

LatentModules add_latent_attention(ModelTree& tree, const LatentConfig& c, ModuleId block) {
  LatentModules m;
  const std::string norm = c.prefix + "RMSNorm";
  const std::int64_t queries = c.heads * c.head_dim();
  m.attention = tree.module(block, "self_attn", c.prefix + "Attention");
  if (c.query_rank == 0) {
    m.q = tree.linear(m.attention, "q_proj", c.hidden, queries, false);
  } else {
    m.q_down = tree.linear(m.attention, "q_a_proj", c.hidden, c.query_rank, c.bias);
    m.q_norm = add_rms_norm(tree, m.attention, "q_a_layernorm", norm, c.query_rank);
    m.q_up = tree.linear(m.attention, "q_b_proj", c.query_rank, queries, false);
  }
  m.kv_down = tree.linear(m.attention, "kv_a_proj_with_mqa", c.hidden, c.latent_rank + c.turning, c.bias);
  m.kv_norm = add_rms_norm(tree, m.attention, "kv_a_layernorm", norm, c.latent_rank);
  m.kv_up = tree.linear(m.attention, "kv_b_proj", c.latent_rank, c.heads * (c.still + c.value), false);
  m.out = tree.linear(m.attention, "o_proj", c.heads * c.value, c.hidden, c.bias);
  return m;
}

LatentRotation write_latent_rotation(ProgramWriter& w, const LatentConfig& c, const RotaryModule& rotary,
                                     const Tensor& positions) {
  LatentRotation rotation;
  if (c.turn != LatentConfig::Turn::Complex) {
    rotation.halves = write_rotation(w, rotary, positions);
    return rotation;
  }
  const Tensor angles = write_rotary_angles(w, rotary, positions);
  const Tensor ones = w.unary("aten.ones_like.default", angles);
  const Tensor numbers = w.binary("aten.polar.default", ones, angles, DType::Complex64);
  rotation.complex = w.with_scalar("aten.mul.Tensor", numbers, Arg{rotary.scaling.factor});
  return rotation;
}

Tensor write_latent_attention(ProgramWriter& w, const LatentConfig& c, const LatentModules& m, const Tensor& x,
                              const LatentRotation& rotation, const LatentKernel& how) {
  const std::int64_t batch = x.sizes[0], seq = x.sizes[1];
  const Tensor flat = write_queries(w, m, x);
  w.enter(m.attention);
  const Tensor q = w.transpose(w.view(flat, {batch, seq, -1, c.head_dim()}), 1, 2);
  w.hold(q);
  const auto [q_still, q_turning] = write_parts(w, q, c.still, c.turning);
  const Tensor compressed = write_linear(w, m.kv_down, x);
  w.hold(compressed, Hold::Until::Call, m.attention);
  w.enter(m.attention);
  const auto [narrow, k_part] = write_parts(w, compressed, c.latent_rank, c.turning);
  const Tensor normed = write_rms_norm(w, m.kv_norm, narrow, kLatentEps);
  w.enter(m.attention);
  const Tensor latent = w.view(normed, {batch, 1, seq, c.latent_rank});
  const Tensor k_turning = w.view(k_part, {batch, 1, seq, c.turning});
  const auto [turned_q, turned_k] = write_turning(w, c, q_turning, k_turning, rotation);
  w.hold(turned_q);
  w.hold(turned_k);
  const Tensor queries = w.cat({q_still, turned_q}, -1);
  w.hold(queries);
  const auto [keys, values] = write_keys_and_values(w, c, m, latent, turned_k);
  w.hold(keys);
  w.hold(values);
  const Tensor out = write_attention(w, how.kernel, how.shape, queries, keys, values, how.mask);
  return write_linear(w, m.out, w.view(out, {batch, seq, -1}));
}

}  // namespace foreshard::families
