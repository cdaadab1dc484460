// Starting values of parameters where no weights are given, drawn as core/model/starting_values.h says.
//
// A value depends on the seed and the parameter's name alone: the same on every rank, at every world size, in whatever
// order they are asked for. Immutable; usable from any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/model.h"
#include "core/model/starting_values.h"
#include "core/result.h"

namespace foreshard::exec {

class ParamInitializer {
 public:
  /// `model_source` is ModelOptions::source; its config.json, if it is one, gives the spread (initializer_range, ...).
  /// `init` is TrainOptions::init: "default", "zeros", or "normal:STD", which draws parameters of two dimensions and
  /// more so and leaves the others (scales, biases) to the default. Error: another word.
  static Result<ParamInitializer> create(const Model& model, const std::string& model_source, std::uint64_t seed,
                                         const std::string& init = "default");

  /// The whole parameter in its own dtype, a fresh tensor. The storage's owner decides for all its names.
  at::Tensor whole(ParamId param) const;

 private:
  ParamInitializer(const Model& model, std::uint64_t seed) : model_(&model), seed_(seed) {}

  const Model* model_;
  std::uint64_t seed_;
  std::vector<ParamStart> starts_;  // by ParamId
};

}  // namespace foreshard::exec
