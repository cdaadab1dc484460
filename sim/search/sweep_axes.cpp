#include "sim/search/sweep_axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "sim/device/kernel_cost.h"
#include "sim/search/mesh_degrees.h"

namespace foreshard {
namespace {

Error usage(std::string message, std::string expected, std::string got, std::string hint) {
  return {.code = ErrorCode::Usage,
          .message = std::move(message),
          .file = {},
          .place = "--over",
          .expected = std::move(expected),
          .got = std::move(got),
          .hint = std::move(hint)};
}

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(' ') - begin + 1));
}

/// Parts between commas at the outermost level.
std::vector<std::string> split_values(std::string_view text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth <= 0) {
      parts.emplace_back();
      continue;
    }
    parts.back() += c;
  }
  for (std::string& part : parts) part = trimmed(part);
  return parts;
}

/// A key that the value is not right for is told now, not at every point.
Result<SweepValue> parse_value(const std::string& key, const std::string& text) {
  auto settings = parse_setting(key + "=" + text);
  if (!settings) return fail(settings.error());
  Job probe;
  for (const JobSetting& setting : *settings) {
    if (auto applied = apply_setting(setting, probe); !applied) {
      Error error = applied.error();
      error.place = "--over " + error.place;
      return fail(std::move(error));
    }
  }
  return SweepValue{text, std::move(*settings)};
}

/// How much is made anew when the key changes: 3 the model, 2 the plan, 1 the plan but not what the allocator does on
/// the compute stream, 0 the simulation only.
int weight_of(const std::string& key) {
  if (key == "train.optimizer.name") return 2;
  if (key.starts_with("model.") || key.starts_with("mesh.") || key.starts_with("fsdp.mixed_precision") ||
      key == "cluster.profile")
    return 3;
  if (key.starts_with("allocator.") || key == "cluster.memory" || key == "cluster.init" ||
      key.starts_with("train.optimizer")) {
    return 0;
  }
  return key.starts_with("fsdp.prefetch.") ? 1 : 2;
}

/// Another model and lowered program, but mostly the same plan.
bool sizes_only(const std::string& key) { return key == "model.batch" || key == "model.seq"; }

/// Collects the axes of --auto.
class AxisChoice {
 public:
  AxisChoice(const Job& job, const Model& model, const HardwareProfile& profile, const std::vector<SweepAxis>& given)
      : job_(job), model_(model), profile_(profile), given_(given) {}

  Result<ChosenAxes> choose() {
    batches();
    if (!model_.block_class.empty()) {
      add("checkpointing.policy", {"none", "block", "every_k"});
      add("checkpointing.k", {"2", "4"});
    }
    strategies();
    if (job_.fsdp.runtime == Runtime::Fsdp1) fsdp1();
    if (job_.fsdp.runtime == Runtime::Fsdp2) fsdp2();
    meshes();
    if (state_is_large()) add("fsdp.cpu_offload", {"false", "true"});
    if (error_) return fail(*error_);
    return ChosenAxes{std::move(axes_), std::move(refused_)};
  }

 private:
  bool is_given(const std::string& key) const {
    return std::any_of(given_.begin(), given_.end(), [&](const SweepAxis& axis) { return axis.key == key; });
  }

  void add(const std::string& key, const std::vector<std::string>& values) {
    if (is_given(key)) return;
    SweepAxis axis{key, {}};
    for (const std::string& text : values) {
      auto value = parse_value(key, text);
      if (!value) {
        error_ = value.error();
        return;
      }
      axis.values.push_back(std::move(*value));
    }
    axes_.push_back(std::move(axis));
  }

  void batches() {
    std::vector<std::string> values;
    for (std::int64_t batch = 1; batch <= std::max<std::int64_t>(8, job_.model.batch); batch *= 2) {
      values.push_back(std::to_string(batch));
      if (batch < job_.model.batch && job_.model.batch < 2 * batch) values.push_back(std::to_string(job_.model.batch));
    }
    if (!model_.ops.empty()) add("model.batch", values);
  }

  void strategies() {
    if (job_.fsdp.runtime == Runtime::None || job_.cluster.world_size == 1) return;
    std::vector<std::string> values{"FULL_SHARD"};
    const bool nodes = job_.cluster.world_size > job_.cluster.ranks_per_node;
    if (job_.fsdp.runtime == Runtime::Fsdp1) values.emplace_back("SHARD_GRAD_OP");
    if (nodes || job_.cluster.shard_group > 0) {
      values.emplace_back("HYBRID_SHARD");
      if (job_.fsdp.runtime == Runtime::Fsdp1) values.emplace_back("_HYBRID_SHARD_ZERO2");
    }
    add("fsdp.strategy", values);
  }

  void fsdp1() {
    add("fsdp.backward_prefetch", {"BACKWARD_PRE", "BACKWARD_POST"});
    add("fsdp.forward_prefetch", {"false", "true"});
    add("fsdp.limit_all_gathers", {"true", "false"});
  }

  void fsdp2() {
    add("fsdp.reshard_after_forward", {"true", "false"});
    add("fsdp.prefetch.forward_depth", {"0", "2"});
    add("fsdp.prefetch.backward_depth", {"0", "2"});
  }

  void meshes() {
    if (is_given("mesh.tensor") && is_given("mesh.context") && is_given("mesh.expert")) return;
    MeshDegrees degrees = mesh_degrees(job_, model_, profile_);
    for (const MeshAxis& axis : degrees.axes) {
      std::vector<std::string> values{"1"};
      for (const std::int64_t degree : axis.degrees) values.push_back(std::to_string(degree));
      add(axis.key, values);
    }
    refused_ = std::move(degrees.refused);
    std::erase_if(refused_, [&](const std::string& text) { return is_given(text.substr(0, text.find(' '))); });
  }

  /// Parameters, gradients and two moments of this rank against the memory.
  bool state_is_large() const {
    if (job_.fsdp.runtime == Runtime::None) return false;
    Bytes bytes = 0;
    for (const ParamInfo& param : model_.params) {
      if (!param.shares.valid()) bytes += numel_of(param.shape) * itemsize(param.dtype);
    }
    const Bytes memory = job_.cluster.memory > 0 ? job_.cluster.memory : profile_.memory_bytes;
    return 4 * bytes / std::max<std::int64_t>(job_.cluster.world_size, 1) > memory / 2;
  }

  const Job& job_;
  const Model& model_;
  const HardwareProfile& profile_;
  const std::vector<SweepAxis>& given_;
  std::vector<SweepAxis> axes_;
  std::vector<std::string> refused_;
  std::optional<Error> error_;
};

}  // namespace

Result<SweepAxis> parse_sweep_axis(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return fail(usage("an axis has the form section.key=value,value", "section.key=value,value", "\"" + text + "\"",
                      "for example model.batch=1,2,4"));
  }
  SweepAxis axis{trimmed(text.substr(0, equals)), {}};
  for (const std::string& part : split_values(std::string_view(text).substr(equals + 1))) {
    if (part.empty()) {
      return fail(usage(fmt::format("an axis of {} has an empty value", axis.key), "values divided by commas",
                        "\"" + text + "\"", "quote an empty text: \"\""));
    }
    const bool twice = std::any_of(axis.values.begin(), axis.values.end(),
                                   [&](const SweepValue& value) { return value.text == part; });
    if (twice) {
      return fail(
          usage(fmt::format("{} has the value {} twice", axis.key, part), "each value once", "\"" + text + "\"", ""));
    }
    auto value = parse_value(axis.key, part);
    if (!value) return fail(value.error());
    axis.values.push_back(std::move(*value));
  }
  return axis;
}

Result<ChosenAxes> choose_sweep_axes(const Job& job, const Model& model, const HardwareProfile& profile,
                                     const std::vector<SweepAxis>& given) {
  return AxisChoice(job, model, profile, given).choose();
}

Result<SweepGrid> SweepGrid::make(std::vector<SweepAxis> axes) {
  SweepGrid grid;
  grid.axes_ = std::move(axes);
  if (grid.axes_.empty()) {
    return fail(usage("a sweep needs something to vary", "--over key=v1,v2, or --auto", "no axis",
                      "for example --over model.batch=1,2,4"));
  }
  for (std::size_t a = 0; a < grid.axes_.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (grid.axes_[a].key != grid.axes_[b].key) continue;
      return fail(usage(fmt::format("{} is varied twice", grid.axes_[a].key), "one --over a key", "two", ""));
    }
    grid.size_ *= grid.axes_[a].values.size();
    if (grid.size_ > kMostSweepPoints) {
      Error error = usage("the sweep has too many points", fmt::format("at most {}", kMostSweepPoints), "more",
                          "fewer values, or several sweeps");
      error.code = ErrorCode::TooLarge;
      return fail(std::move(error));
    }
  }
  return grid;
}

std::vector<std::size_t> SweepGrid::values_of(std::size_t index) const {
  std::vector<std::size_t> values(axes_.size());
  for (std::size_t a = axes_.size(); a-- > 0;) {
    values[a] = index % axes_[a].values.size();
    index /= axes_[a].values.size();
  }
  return values;
}

std::size_t SweepGrid::index_of(const std::vector<std::size_t>& values) const {
  std::size_t index = 0;
  for (std::size_t a = 0; a < axes_.size(); ++a) index = index * axes_[a].values.size() + values[a];
  return index;
}

Result<Job> SweepGrid::job_of(std::size_t index, const Job& base) const {
  Job job = base;
  const std::vector<std::size_t> values = values_of(index);
  // Overrides take what they do not give from fsdp.mixed_precision: they are read after it, as in a job file.
  for (const bool late : {false, true}) {
    for (std::size_t a = 0; a < axes_.size(); ++a) {
      if ((axes_[a].key == "fsdp.overrides") != late) continue;
      for (const JobSetting& setting : axes_[a].values[values[a]].settings) {
        if (auto applied = apply_setting(setting, job); !applied) return fail(applied.error());
      }
    }
  }
  if (auto valid = validate_job(job); !valid) return fail(valid.error());
  return job;
}

std::size_t SweepGrid::same_job(std::size_t index, const Job& job) const {
  std::vector<std::size_t> values = values_of(index);
  for (std::size_t a = 0; a < axes_.size(); ++a) {
    if (values[a] != 0 && !has_meaning(axes_[a].key, job)) values[a] = 0;
  }
  return index_of(values);
}

std::vector<std::string> SweepGrid::axes_without_meaning(const Job& base) const {
  std::vector<std::string> keys;
  if (size_ > kMostPointsAsked) return keys;
  for (const SweepAxis& axis : axes_) keys.push_back(axis.key);
  bool judged = false;
  for (std::size_t index = 0; index < size_ && !keys.empty(); ++index) {
    const auto job = job_of(index, base);
    if (!job) continue;  // refused, and told so
    judged = true;
    std::erase_if(keys, [&](const std::string& key) { return has_meaning(key, *job); });
  }
  return judged ? keys : std::vector<std::string>();
}

int SweepGrid::sharing_weight(const SweepAxis& axis) const {
  std::size_t light = 1;
  for (const SweepAxis& one : axes_) light *= sizes_only(one.key) || weight_of(one.key) == 0 ? one.values.size() : 1;
  return light <= kTogether && sizes_only(axis.key) ? 0 : weight_of(axis.key);
}

std::size_t SweepGrid::sharing_row() const {
  std::size_t row = 1;
  for (const SweepAxis& axis : axes_) row *= sharing_weight(axis) <= 1 ? axis.values.size() : 1;
  return row;
}

std::vector<std::size_t> SweepGrid::sharing_order() const {
  std::vector<std::size_t> axes(axes_.size());
  std::iota(axes.begin(), axes.end(), std::size_t{0});
  const auto weight = [&](std::size_t a) { return sharing_weight(axes_[a]); };
  std::stable_sort(axes.begin(), axes.end(), [&](std::size_t a, std::size_t b) { return weight(a) > weight(b); });
  std::vector<std::size_t> stride(axes_.size(), 1);
  for (std::size_t a = axes_.size(); a-- > 1;) stride[a - 1] = stride[a] * axes_[a].values.size();
  std::vector<std::size_t> order(size_), at(axes_.size(), 0);
  std::size_t index = 0;
  for (std::size_t& next : order) {
    next = index;
    for (std::size_t k = axes.size(); k-- > 0;) {
      const std::size_t a = axes[k];
      index += stride[a];
      if (++at[a] < axes_[a].values.size()) break;
      index -= stride[a] * at[a];
      at[a] = 0;
    }
  }
  return order;
}

}  // namespace foreshard
