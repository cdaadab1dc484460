// Parts that several decoder families have in common: RMSNorm, rotary embedding, gated MLP, the language head.
//
// As Transformers writes them (modeling_llama.py and its kin), operator by operator.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/families/family.h"
#include "core/model/families/losses.h"
#include "core/model/families/rope.h"

namespace foreshard::families {

struct RmsNormModule {
  ModuleId module;
  ParamId weight;  // [width]
};
RmsNormModule add_rms_norm(ModelTree& tree, ModuleId parent, std::string_view name, std::string_view class_name,
                           std::int64_t width);
/// The statistics in float32, the weight applied in the dtype of x.
Tensor write_rms_norm(ProgramWriter& writer, const RmsNormModule& norm, const Tensor& x, double eps);
/// Gemma's: all in float32, the weight kept as its distance from one.
Tensor write_shifted_rms_norm(ProgramWriter& writer, const RmsNormModule& norm, const Tensor& x, double eps);
/// x / sqrt(mean(x^2) + eps) in float32: what is left when the weight is applied by the caller.
Tensor write_rms_scaled(ProgramWriter& writer, const Tensor& x, double eps);

struct RotaryModule {
  ModuleId module;
  RopeScaling scaling;
  std::int32_t inverse_frequencies = -1, original = -1;  // buffers [dims / 2]
  std::int32_t long_frequencies = -1;                    // longrope: the library keeps them as a plain attribute
};
/// `dims`: elements of a head that turn.
RotaryModule add_rotary(ModelTree& tree, ModuleId parent, std::string_view class_name, std::int64_t dims,
                        const RopeScaling& scaling, const ProgramOptions& program);

/// Positions times frequencies [1, seq, dims / 2], in float32; the writer stays in the rotary module.
Tensor write_rotary_angles(ProgramWriter& writer, const RotaryModule& rotary, const Tensor& positions);

struct Rotation {
  Tensor cos, sin;  // [1, seq, dims]; [1, 1, seq, dims] per head
};
Rotation write_rotation(ProgramWriter& writer, const RotaryModule& rotary, const Tensor& positions);
/// With a dimension for the heads.
Rotation write_head_rotation(ProgramWriter& writer, const Rotation& rotation);
/// x cos + rotate_half(x) sin of x [batch, heads, seq, dims].
Tensor write_rotated(ProgramWriter& writer, const Tensor& x, const Rotation& per_head);

/// How a decoder begins: token ids, their rows of the table, and the positions that the model makes itself.
struct DecoderEmbedding {
  ModuleId model, embedding;
  ParamId weight;
  std::int64_t padding_index = -1;
  std::int32_t scale = -1;  // buffer that rows are multiplied by; -1: none
};
struct DecoderStart {
  TokenInputs tokens;
  Tensor x;          // [batch, seq, width]
  Tensor positions;  // write_row_positions
};
DecoderStart write_decoder_start(ProgramWriter& writer, const FamilyInput& input, std::int64_t seq,
                                 const DecoderEmbedding& embedding);
/// Positions that the script hands, [batch, seq], else those that the model makes, [1, seq].
Tensor write_row_positions(ProgramWriter& writer, const TokenInputs& tokens, std::int64_t seq);

/// down(activation(gate(x)) up(x))
struct GatedMlpModules {
  ModuleId mlp, activation;
  LinearModule gate, up, down;
};
struct GatedMlpShape {
  std::int64_t hidden = 0, intermediate = 0;
  bool bias = false;
  Activation activation = Activation::Silu;
  std::string_view name = "mlp";
};
GatedMlpModules add_gated_mlp(ModelTree& tree, ModuleId block, std::string_view class_name, const GatedMlpShape& shape);
Tensor write_gated_mlp(ProgramWriter& writer, const GatedMlpModules& mlp, Activation activation, const Tensor& x);

/// `lm_head` without a bias; its weight is the embedding's where they are tied.
LinearModule add_language_head(ModelTree& tree, ModuleId root, std::int64_t vocabulary, std::int64_t width, bool tied,
                               ParamId embedding);
/// Logits of every position; `root` is the module that asks for them.
Tensor write_language_head(ProgramWriter& writer, ModuleId root, const LinearModule& head, const Tensor& x);

/// torchtitan's plan for a decoder over tensor ranks, in Transformers' names. `attention`: what is between an
/// attention's input and o_proj; `shared`: the MLP beside experts, empty where there is none. Both as they are called
/// in self_attn and mlp.
std::vector<ParallelStyle> decoder_plan(const std::vector<ParallelStyle>& attention, const std::string& shared);

/// What stands around the layers of Transformers' causal models.
struct DecoderModules {
  ModuleId root, model, embedding;
  ParamId embedding_weight;
  RmsNormModule norm;
  RotaryModule rotary;
  LinearModule head;
};

}  // namespace foreshard::families
