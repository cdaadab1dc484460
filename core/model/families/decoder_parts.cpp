#include "core/model/families/decoder_parts.h"

namespace foreshard::families {

RmsNormModule add_rms_norm(ModelTree& tree, ModuleId parent, std::string_view name, std::string_view class_name,
                           std::int64_t width) {
  RmsNormModule norm;
  norm.module = tree.module(parent, name, class_name);
  norm.weight = tree.param(norm.module, "weight", {width});
  return norm;
}

Tensor write_rms_scaled(ProgramWriter& w, const Tensor& x, double eps) {
  const Tensor wide = w.to(x, DType::Float32);
  const Tensor variance = w.mean_last(w.with_scalar("aten.pow.Tensor_Scalar", wide, Arg{std::int64_t{2}}));
  w.hold(variance);
  const Tensor scale = w.unary("aten.rsqrt.default", w.with_scalar("aten.add.Tensor", variance, Arg{eps}));
  const Tensor normed = w.mul(wide, scale);
  w.hold(normed);
  return normed;
}

Tensor write_rms_norm(ProgramWriter& w, const RmsNormModule& norm, const Tensor& x, double eps) {
  w.enter(norm.module);
  return w.mul(w.param(norm.weight), w.to(write_rms_scaled(w, x, eps), x.dtype));
}

Tensor write_shifted_rms_norm(ProgramWriter& w, const RmsNormModule& norm, const Tensor& x, double eps) {
  w.enter(norm.module);
  const Tensor normed = write_rms_scaled(w, x, eps);
  const Tensor weight = w.with_scalar("aten.add.Tensor", w.to(w.param(norm.weight), DType::Float32), Arg{1.0});
  const Tensor scaled = w.mul(normed, weight);
  w.hold(scaled);
  return w.to(scaled, x.dtype, true);
}

RotaryModule add_rotary(ModelTree& tree, ModuleId parent, std::string_view class_name, std::int64_t dims,
                        const RopeScaling& scaling, const ProgramOptions& program) {
  RotaryModule rotary;
  rotary.scaling = scaling;
  rotary.module = tree.module(parent, "rotary_emb", class_name);
  const DType dtype = program.buffer_dtype.value_or(DType::Float32);
  rotary.inverse_frequencies = tree.buffer(rotary.module, "inv_freq", {dims / 2}, dtype, false);
  rotary.original = tree.buffer(rotary.module, "original_inv_freq", {dims / 2}, dtype, false);
  if (scaling.update == RopeUpdate::Select)  // no buffer to FSDP, which would cast it
    rotary.long_frequencies = tree.buffer(rotary.module, "long_inv_freq", {dims / 2}, DType::Float32, false);
  return rotary;
}

namespace {

/// dynamic_rope_update, from its second call on: the first one of longrope also makes the long frequencies.
void write_rope_update(ProgramWriter& w, const RotaryModule& rotary, const Tensor& positions) {
  const RopeScaling& scaling = rotary.scaling;
  if (scaling.update == RopeUpdate::None) return;
  const Tensor last = w.emit("aten.max.default", {ProgramWriter::arg(positions)}, {}, {{{}, {}, positions.dtype}})[0];
  const Tensor length = w.with_scalar("aten.add.Tensor", last, Arg{std::int64_t{1}});
  const auto asked = [&](std::string_view op) {
    return w.with_scalar(op, length, Arg{scaling.original_positions}, DType::Bool);
  };
  if (scaling.update == RopeUpdate::Grow) {
    w.read_to_host(asked("aten.gt.Scalar"));
    w.read_to_host(asked("aten.lt.Scalar"));
    return;
  }
  const Tensor chosen = w.where(asked("aten.gt.Scalar"), w.buffer(rotary.long_frequencies), w.buffer(rotary.original));
  const Tensor held = w.buffer(rotary.inverse_frequencies);
  w.emit("aten.copy_.default", {ProgramWriter::arg(held), ProgramWriter::arg(chosen)}, {},
         {{held.sizes, held.strides, held.dtype}});
}

}  // namespace

Tensor write_rotary_angles(ProgramWriter& w, const RotaryModule& rotary, const Tensor& positions) {
  w.enter(rotary.module);
  write_rope_update(w, rotary, positions);
  const Tensor places = w.to(w.unsqueeze(positions, 2), DType::Float32);
  const Tensor angles = w.mul(places, w.to(w.buffer(rotary.inverse_frequencies), DType::Float32));
  w.hold(angles);
  return angles;
}

Rotation write_rotation(ProgramWriter& w, const RotaryModule& rotary, const Tensor& positions) {
  const Tensor angles = write_rotary_angles(w, rotary, positions);  // freqs, emb, cos, sin have names
  const Tensor both = w.cat({angles, angles}, -1);
  w.hold(both);
  const double factor = rotary.scaling.factor;
  const Tensor cos = w.with_scalar("aten.mul.Tensor", w.unary("aten.cos.default", both), Arg{factor});
  const Tensor sin = w.with_scalar("aten.mul.Tensor", w.unary("aten.sin.default", both), Arg{factor});
  w.hold(cos);
  w.hold(sin);
  Rotation rotation;
  rotation.cos = w.to(cos, w.dtype());
  rotation.sin = w.to(sin, w.dtype());
  return rotation;
}

Rotation write_head_rotation(ProgramWriter& w, const Rotation& rotation) {
  Rotation heads;
  heads.cos = w.unsqueeze(rotation.cos, 1);
  heads.sin = w.unsqueeze(rotation.sin, 1);
  return heads;
}

Tensor write_rotated(ProgramWriter& w, const Tensor& x, const Rotation& per_head) {
  const std::int64_t half = x.sizes[3] / 2;
  const Tensor straight = w.mul(x, per_head.cos);
  const Tensor first = w.slice(x, 3, 0, half);
  const Tensor second = w.slice(x, 3, half, kSliceEnd);
  const Tensor turned = w.cat({w.unary("aten.neg.default", second), first}, -1);
  return w.add(straight, w.mul(turned, per_head.sin));
}

DecoderStart write_decoder_start(ProgramWriter& w, const FamilyInput& input, std::int64_t seq,
                                 const DecoderEmbedding& embedding) {
  DecoderStart start;
  start.tokens = write_token_inputs(w, input, seq);
  w.enter(embedding.embedding);
  start.x = w.embedding(w.param(embedding.weight), start.tokens.ids, embedding.padding_index);
  if (embedding.scale >= 0) start.x = w.mul(start.x, w.to(w.buffer(embedding.scale), w.dtype()));
  w.hold(start.x, Hold::Until::Call, embedding.model);
  w.enter(embedding.model);
  start.positions = write_row_positions(w, start.tokens, seq);
  return start;
}

Tensor write_row_positions(ProgramWriter& w, const TokenInputs& tokens, std::int64_t seq) {
  if (tokens.positions) return *tokens.positions;
  const Tensor positions = write_positions(w, seq);
  w.hold(positions);
  return positions;
}

GatedMlpModules add_gated_mlp(ModelTree& tree, ModuleId block, std::string_view class_name,
                              const GatedMlpShape& shape) {
  GatedMlpModules m;
  m.mlp = tree.module(block, shape.name, class_name);
  m.gate = tree.linear(m.mlp, "gate_proj", shape.hidden, shape.intermediate, shape.bias);
  m.up = tree.linear(m.mlp, "up_proj", shape.hidden, shape.intermediate, shape.bias);
  m.down = tree.linear(m.mlp, "down_proj", shape.intermediate, shape.hidden, shape.bias);
  m.activation = tree.module(m.mlp, "act_fn", activation_class(shape.activation));
  return m;
}

Tensor write_gated_mlp(ProgramWriter& w, const GatedMlpModules& m, Activation activation, const Tensor& x) {
  const Tensor gate = write_linear(w, m.gate, x);
  w.enter(m.activation);
  const Tensor active = write_activation(w, activation, gate);
  const Tensor up = write_linear(w, m.up, x);
  w.enter(m.mlp);
  return write_linear(w, m.down, w.mul(active, up));
}

LinearModule add_language_head(ModelTree& tree, ModuleId root, std::int64_t vocabulary, std::int64_t width, bool tied,
                               ParamId embedding) {
  LinearModule head;
  head.module = tree.module(root, "lm_head", "Linear");
  head.weight =
      tied ? tree.shared(head.module, "weight", embedding) : tree.param(head.module, "weight", {vocabulary, width});
  return head;
}

Tensor write_language_head(ProgramWriter& w, ModuleId root, const LinearModule& head, const Tensor& x) {
  w.enter(root);
  return write_output_layer(w, head, w.alias(x));  // hidden_states[:, slice_indices, :]
}

std::vector<ParallelStyle> decoder_plan(const std::vector<ParallelStyle>& attention, const std::string& shared) {
  const std::string layer = "model.layers.*.";
  std::vector<ParallelStyle> rows = {
      {"model.embed_tokens", "rowwise"}, {layer + "input_layernorm", "sequence"}, {layer + "self_attn", "gather"}};
  for (const auto& [name, style] : attention) rows.push_back({layer + "self_attn." + name, style});
  rows.push_back({layer + "self_attn.o_proj", "rowwise"});
  rows.push_back({layer + "post_attention_layernorm", "sequence"});
  rows.push_back({layer + "mlp", "gather"});
  for (const std::string& mlp :
       shared.empty() ? std::vector<std::string>{""} : std::vector{std::string(), shared + "."}) {
    rows.push_back({layer + "mlp." + mlp + "gate_proj", "colwise"});
    rows.push_back({layer + "mlp." + mlp + "up_proj", "colwise"});
    rows.push_back({layer + "mlp." + mlp + "down_proj", "rowwise"});
  }
  rows.push_back({"model.norm", "sequence"});
  rows.push_back({"lm_head", "head"});
  return rows;
}

}  // namespace foreshard::families
