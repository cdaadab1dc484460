// How a model begins to train where no weights are given, and what a script feeds it: facts that only names tell. Those
// of Transformers' own initialisation (5.x) for the families of core/model/families, of torch.nn's modules (by class or
// base class) for other models. The numbers are drawn by exec/run. Pure functions of the model and its config.json.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "core/model/model.h"

namespace foreshard {

/// How the elements of one parameter are drawn.
struct ParamStart {
  enum class Kind : std::uint8_t { Constant, Normal, TruncatedNormal, Uniform } kind = Kind::Constant;
  double value = 0.0;          // the constant, the standard deviation, or the bound of a uniform distribution
  std::int64_t zero_row = -1;  // of an embedding: the row of the padding token
};

/// By ParamId. `config`: the model's config.json, whose spread (initializer_range, ...) counts; null: the model comes
/// from elsewhere.
std::vector<ParamStart> param_starts(const Model& model, const nlohmann::json& config);

/// What a buffer that no source holds begins with.
enum class BufferStart : std::uint8_t {
  Unknown,
  // of the families, by their config.json
  RotaryFrequencies,
  LongRotaryFrequencies,
  Rotations,
  EmbeddingScale,
  // everywhere: batch normalisation before its first step, positions that count on
  Positions,
  IntegerZeros,
  Zeros,
  Ones,
};
BufferStart buffer_start(const BufferInfo& buffer);

/// What a training script hands to a language model, by the names that Transformers' models give their arguments.
enum class InputRole : std::uint8_t { Other, Ids, Labels, PaddingMask, Positions, LabelCount };
InputRole input_role(const ValueInfo& input);

}  // namespace foreshard
