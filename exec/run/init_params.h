// Starting values of parameters where no weights are given: those of Transformers' own initialisation (5.x) for the
// families of core/model, of torch.nn's modules (by class or base class) for other models.
//
// A value depends on the seed and the parameter's name alone: the same on every rank, at every world size, in whatever
// order they are asked for. Immutable; usable from any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/model.h"
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
  /// How the elements of one parameter are drawn.
  struct Rule {
    enum class Kind : std::uint8_t { Constant, Normal, TruncatedNormal, Uniform } kind = Kind::Constant;
    double value = 0.0;          // the constant, the standard deviation, or the bound of a uniform distribution
    std::int64_t zero_row = -1;  // of an embedding: the row of the padding token
  };
  ParamInitializer(const Model& model, std::uint64_t seed) : model_(&model), seed_(seed) {}
  struct Settings;
  static Rule family_rule(const Model& model, const ParamInfo& param, const Settings& settings);
  static Rule module_rule(const Model& model, const ParamInfo& param);
  static Rule projection_rule(const Model& model, const ModuleInfo& module, const ParamInfo& param);
  void keep_padding_rows_zero();

  const Model* model_;
  std::uint64_t seed_;
  std::vector<Rule> rules_;  // by ParamId
};

}  // namespace foreshard::exec
