#include "exec/run/weight_source.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "core/model/pt2/payload.h"
#include "exec/checkpoint/checkpoint_manifest.h"
#include "exec/checkpoint/checkpoint_reader.h"
#include "exec/checkpoint/safetensors.h"
#include "exec/torch/torch_types.h"
#include "exec/units/unit_tensors.h"

namespace foreshard::exec {
namespace {

Error weight_error(ErrorCode code, const std::string& file, std::string place, std::string message) {
  Error error;
  error.expected = "weights of every parameter, in its shape and an element type that LibTorch has";
  error.code = code;
  error.file = file;
  error.place = std::move(place);
  error.message = std::move(message);
  return error;
}

Error no_such(const std::string& file, std::string_view name) {
  return weight_error(ErrorCode::MissingKey, file, std::string(name), "the weights hold no tensor of this name");
}

/// One or several files, all mapped.
class SafetensorsSource final : public WeightSource {
 public:
  SafetensorsSource(std::string path, NamedTensors tensors) : path_(std::move(path)), tensors_(std::move(tensors)) {}

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  bool contains(std::string_view name) const override { return tensors_.contains(name); }
  Result<at::Tensor> tensor(std::string_view name) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return fail(no_such(path_, name));
    return found->second;
  }

 private:
  std::string path_;
  NamedTensors tensors_;
};

class Pt2Source final : public WeightSource {
 public:
  using Payloads = std::map<std::string, Pt2Payload, std::less<>>;
  Pt2Source(std::string path, Payloads payloads) : path_(std::move(path)), payloads_(std::move(payloads)) {}

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, payload] : payloads_) names.push_back(name);
    return names;
  }
  bool contains(std::string_view name) const override { return payloads_.contains(name); }

  bool has_values(std::string_view name) const override {
    const auto found = payloads_.find(name);
    return found != payloads_.end() && found->second.bytes > 0;
  }

  Result<at::Tensor> tensor(std::string_view name) const override {
    const auto found = payloads_.find(name);
    if (found == payloads_.end()) return fail(no_such(path_, name));
    const Pt2Payload& payload = found->second;
    if (payload.pickled) {
      return fail(
          weight_error(ErrorCode::Refused, path_, std::string(name), "the tensor is a pickle, which is not read"));
    }
    const auto options = at::dtype(scalar_type_of(payload.dtype));
    if (numel_of(payload.sizes) == 0) return at::empty(payload.sizes, options);
    if (payload.bytes == 0) {
      Error error = weight_error(ErrorCode::MissingKey, path_, std::string(name),
                                 "the archive was exported without this tensor's values (meta or fake tensors)");
      error.hint = "model.weights names the values; without it all parameters start as train.init says";
      return fail(std::move(error));
    }
    auto bytes = read_pt2_payload(path_, payload.member, payload.bytes);
    if (!bytes) return fail(std::move(bytes.error()));
    auto storage = std::make_shared<std::string>(std::move(*bytes));
    auto* data = storage->data() + payload.offset * itemsize(payload.dtype);
    return at::from_blob(
               data, payload.sizes, payload.strides, [storage](void*) {}, options)
        .contiguous();
  }

 private:
  std::string path_;
  Payloads payloads_;
};

/// Parameters and buffers of a checkpoint, put together from the ranks' pieces when they are asked for.
class CheckpointSource final : public WeightSource {
 public:
  CheckpointSource(std::string folder, CheckpointManifest manifest)
      : folder_(std::move(folder)), manifest_(std::move(manifest)), reader_(manifest_, folder_) {}

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const CheckpointTensor& tensor : manifest_.tensors) {
      if (is_weight(tensor)) names.push_back(tensor.fqn);
    }
    for (const auto& [name, owner] : manifest_.shared) names.push_back(name);
    std::sort(names.begin(), names.end());
    return names;
  }
  bool contains(std::string_view name) const override { return find(name) != nullptr; }
  Result<at::Tensor> tensor(std::string_view name) const override {
    const CheckpointTensor* found = find(name);
    if (found == nullptr) return fail(no_such(folder_, name));
    const std::lock_guard lock(one_at_a_time_);
    return reader_.read_whole(*found);
  }

 private:
  static bool is_weight(const CheckpointTensor& tensor) { return tensor.slot == "param" || tensor.slot == "buffer"; }
  const CheckpointTensor* find(std::string_view name) const {
    const auto shared = manifest_.shared.find(std::string(name));
    const std::string_view own = shared == manifest_.shared.end() ? name : shared->second;
    const CheckpointTensor* param = manifest_.find(own, "param");
    return param != nullptr ? param : manifest_.find(own, "buffer");
  }

  std::string folder_;
  CheckpointManifest manifest_;
  mutable CheckpointReader reader_;
  mutable std::mutex one_at_a_time_;
};

using Source = Result<std::shared_ptr<const WeightSource>>;

Source open_archive(const std::string& path, std::string_view program) {
  auto payloads = list_pt2_payloads(path, program);
  if (!payloads) return fail(std::move(payloads.error()));
  return std::make_shared<Pt2Source>(path, std::move(*payloads));
}

Source open_checkpoint(const std::string& folder) {
  auto manifest = read_manifest(folder);
  if (!manifest) return fail(std::move(manifest.error()));
  return std::make_shared<CheckpointSource>(folder, std::move(*manifest));
}

/// "transformer.h.0.ln_1.weight" as "h.0.ln_1.weight".
std::string without_first(const std::string& name) {
  const auto dot = name.find('.');
  return dot == name.npos ? name : name.substr(dot + 1);
}

}  // namespace

Result<std::shared_ptr<const WeightSource>> open_weights(const std::string& path, std::string_view program) {
  if (path.ends_with(".pt2")) return open_archive(path, program);
  std::error_code code;
  if (has_checkpoints(path) || std::filesystem::exists(std::filesystem::path(path) / kManifestName, code)) {
    const auto checkpoint = locate_checkpoint(path);
    return checkpoint ? open_checkpoint(*checkpoint) : fail(checkpoint.error());
  }
  auto tensors = read_weights(path);
  if (!tensors) return fail(std::move(tensors.error()));
  return std::make_shared<SafetensorsSource>(path, std::move(*tensors));
}

Result<at::Tensor> whole_param(const Model& model, ParamId param, const WeightSource& source) {
  const ParamId owner = model.storage_of(param);
  std::vector<std::string> names{model.params[param.index()].fqn};
  for (std::size_t i = 0; i < model.params.size(); ++i) {
    if (model.storage_of(ParamId(i)) == owner && model.params[i].fqn != names.front())
      names.push_back(model.params[i].fqn);
  }
  const std::size_t count = names.size();
  for (std::size_t i = 0; i < count; ++i) names.push_back(without_first(names[i]));
  const Shape& shape = model.params[owner.index()].shape;
  for (const std::string& name : names) {
    if (!source.contains(name)) continue;
    auto tensor = source.tensor(name);
    if (!tensor) return fail(std::move(tensor.error()));
    if (tensor->sizes().vec() == shape) return tensor;
    Error error = weight_error(ErrorCode::Inconsistent, "", name, "the weights have another shape than the model");
    error.expected = fmt::format("[{}]", fmt::join(shape, ", "));
    error.got = fmt::format("[{}]", fmt::join(tensor->sizes().vec(), ", "));
    return fail(std::move(error));
  }
  Error error = no_such("", names.front());
  error.expected = fmt::format("one of {}", fmt::join(names, ", "));
  return fail(std::move(error));
}

OperatorInterpreter::ParamTensors own_parts(const Model& model, OperatorInterpreter::ParamTensors whole) {
  return [&model, whole = std::move(whole)](ParamId id) {
    const ParamInfo& param = model.params[id.index()];
    return own_part_of(model, param, whole(id));
  };
}

}  // namespace foreshard::exec
