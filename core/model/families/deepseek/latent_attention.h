// Multi-head latent attention, of DeepSeek V2 and V3: keys and values come from a narrow latent that all heads share,
// and a part of each head turns with the position.
//
// As Transformers writes it (modeling_deepseek_v2.py, modeling_deepseek_v3.py). The two differ in how they turn: V2 by
// complex numbers, V3 by cosines and sines of every second element, or of halves as Llama.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/model/families/decoder_parts.h"

namespace foreshard::families {

struct LatentConfig {
  std::string prefix;  // of class names: "DeepseekV2"
  std::int64_t hidden = 0, heads = 0;
  std::int64_t query_rank = 0;  // 0: queries are projected at once
  std::int64_t latent_rank = 0;
  std::int64_t still = 0, turning = 0;  // elements of a head of queries and keys
  std::int64_t value = 0;               // ... of values
  double dropout = 0.0;
  bool bias = false;
  enum class Turn : std::uint8_t { Complex, Interleaved, Halves } turn = Turn::Complex;

  std::int64_t head_dim() const { return still + turning; }
};

struct LatentModules {
  ModuleId attention;
  std::optional<LinearModule> q;  // ... or by way of a narrow one:
  LinearModule q_down, q_up;
  RmsNormModule q_norm;
  LinearModule kv_down, kv_up, out;
  RmsNormModule kv_norm;
};
LatentModules add_latent_attention(ModelTree& tree, const LatentConfig& config, ModuleId block);

/// What turns by position: complex numbers [1, seq, turning / 2], or cosines and sines [1, seq, turning].
struct LatentRotation {
  Tensor complex;
  Rotation halves;
};
LatentRotation write_latent_rotation(ProgramWriter& writer, const LatentConfig& config, const RotaryModule& rotary,
                                     const Tensor& positions);

/// How a layer attends: the kernel, its shape, and a mask where one is given.
struct LatentKernel {
  AttentionKernel kernel = AttentionKernel::Math;
  AttentionShape shape;
  const Tensor* mask = nullptr;
};
/// [batch, seq, hidden] -> the same
Tensor write_latent_attention(ProgramWriter& writer, const LatentConfig& config, const LatentModules& modules,
                              const Tensor& x, const LatentRotation& rotation, const LatentKernel& how);

}  // namespace foreshard::families
