#include "core/model/families/rope.h"

#include <cmath>
#include <string>

#include "core/model/families/family.h"
#include "core/model/json_input.h"

namespace foreshard::families {
namespace {

constexpr double kLeastTheta = 1e-6;  // frequencies are its negative powers

/// 0.1 m ln(factor) + 1, of YaRN's paper.
double yarn_scale(double factor, double m) { return factor > 1.0 ? 0.1 * m * std::log(factor) + 1.0 : 1.0; }

double yarn_factor(ConfigReader& rope, double factor) {
  const double all = rope.number_or("mscale_all_dim", 0.0, 0.0, 1e9), own = rope.number_or("mscale", 0.0, 0.0, 1e9);
  const double usual =
      all > 0.0 && own > 0.0 ? yarn_scale(factor, own) / yarn_scale(factor, all) : yarn_scale(factor, 1.0);
  return rope.number_or("attention_factor", usual, 0.0, 1e9);
}

void read_longrope(ConfigReader& rope, double stretch, RopeScaling& out) {
  out.update = RopeUpdate::Select;
  const std::int64_t shorts = rope.numbers("short_factor"), longs = rope.numbers("long_factor");
  for (const char* key : {"short_factor", "long_factor"}) {
    if (!rope.has(key))
      rope.fail_with(ErrorCode::MissingKey, key, in_quotes(key) + " is missing: longrope divides by it",
                     "a list of numbers", "nothing");
  }
  if (shorts != longs)
    rope.fail_with(ErrorCode::Inconsistent, "long_factor", "long_factor and short_factor differ in length",
                   std::to_string(shorts) + " numbers", std::to_string(longs));
  out.factors = longs;
  const double factor = rope.number_or("factor", stretch, 0.0, 1e9);
  const double usual =
      factor > 1.0 ? std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(out.original_positions))) : 1.0;
  out.factor = rope.number_or("attention_factor", usual, 0.0, 1e9);
}

void read_factor(ConfigReader& rope) {
  if (!rope.has("factor")) {
    rope.fail_with(ErrorCode::MissingKey, "factor", "\"factor\" is missing: this rope_type stretches by it",
                   "a number of at least 1", "nothing");
  }
  rope.number_or("factor", 1.0, 1.0, 1e9);
}

}  // namespace

RopeScaling read_rope(ConfigReader& config, const RopeDefaults& family) {
  RopeScaling out;
  out.share = family.share;
  config.number_or("rope_theta", 1e4, kLeastTheta, 1e18);  // no shape depends on it, but a model without it is none
  std::optional<ConfigReader> rope = config.inside(config.has("rope_scaling") ? "rope_scaling" : "rope_parameters");
  if (!rope) return out;
  std::string kind = rope->text_or(rope->has("rope_type") ? "rope_type" : "type", "default");
  if (family.only_longrope && (kind == "su" || kind == "yarn")) kind = "longrope";
  out.share = rope->number_or("partial_rotary_factor", family.share, 0.0, 1.0);
  rope->number_or("rope_theta", 1e4, kLeastTheta, 1e18);
  // The length of pretraining: the model's own key is asked before that of the scaling.
  const std::int64_t otherwise = family.original_positions > 0 ? family.original_positions : family.positions;
  const std::int64_t inner = rope->integer_or("original_max_position_embeddings", otherwise, 2, kMaxPositions);
  out.original_positions = config.integer_or("original_max_position_embeddings",
                                             family.original_positions > 0 ? otherwise : inner, 2, kMaxPositions);
  const double stretch = static_cast<double>(family.positions) / static_cast<double>(out.original_positions);
  if (kind == "longrope") {
    read_longrope(*rope, stretch, out);
  } else if (kind != "default" && family.only_longrope) {
    rope->fail_with(ErrorCode::Unsupported, "rope_type", "the library has no such rope_type for this model",
                    "default or longrope", in_quotes(kind));
  } else if (kind == "linear" || kind == "llama3") {
    read_factor(*rope);
  } else if (kind == "dynamic") {
    read_factor(*rope);
    out.update = RopeUpdate::Grow;
    out.original_positions = family.positions;
  } else if (kind == "yarn") {
    out.factor = yarn_factor(*rope, rope->number_or("factor", stretch, 0.0, 1e9));
  } else if (kind != "default") {
    rope->fail_with(ErrorCode::Unsupported, "rope_type", "this rope_type is not built",
                    "default, linear, dynamic, yarn, longrope or llama3", in_quotes(kind),
                    "export the model: foreshard export-script");
  }
  if (const double all = rope->number_or("mscale_all_dim", 0.0, 0.0, 1e9); all > 0.0 && kind != "default")
    out.stretch = yarn_scale(rope->number_or("factor", 1.0, 0.0, 1e9), all);
  config.adopt(*rope);
  return out;
}

void check_rope_factors(ConfigReader& config, const RopeScaling& rope, std::int64_t dims) {
  if (rope.factors == 0 || rope.factors == dims / 2) return;
  config.fail_with(ErrorCode::Inconsistent, "rope_scaling", "longrope's lists do not fit the heads",
                   "one number for every two elements that turn: " + std::to_string(dims / 2),
                   std::to_string(rope.factors));
}

}  // namespace foreshard::families
