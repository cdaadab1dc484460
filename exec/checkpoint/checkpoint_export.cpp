#include "exec/checkpoint/checkpoint_export.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "core/adapters/adapter_names.h"
#include "core/model/json_input.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/checkpoint_manifest.h"
#include "exec/checkpoint/checkpoint_reader.h"
#include "exec/checkpoint/safetensors.h"
#include "exec/checkpoint/safetensors_writer.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

namespace fs = std::filesystem;

struct ExportTensor {
  const CheckpointTensor* saved = nullptr;
  SafetensorsEntry entry;
};

/// Of a run that trained adapters these alone are exported: the rest is the model that it began with.
bool of_adapters(const CheckpointManifest& manifest) {
  return manifest.documents.contains(std::string(kPeftConfigFile));
}

std::vector<ExportTensor> tensors_of(const CheckpointManifest& manifest, bool optimizer, const ExportOptions& options) {
  std::vector<ExportTensor> tensors;
  const bool adapters = of_adapters(manifest);
  for (const CheckpointTensor& saved : manifest.tensors) {
    const bool state = saved.slot != "param" && saved.slot != "buffer";
    if (state != optimizer || !saved.persistent) continue;
    if (adapters && adapter_part(saved.fqn) == AdapterPart::None) continue;
    const std::string name = adapters ? peft_name(saved.fqn) : saved.fqn;
    const bool converted = options.dtype && saved.slot == "param" && is_floating(saved.dtype);
    tensors.push_back(
        {&saved, {state ? name + "." + saved.slot : name, converted ? *options.dtype : saved.dtype, saved.shape}});
  }
  return tensors;
}

/// In order, a file is closed when the next tensor would not fit (as Transformers does it).
std::vector<std::vector<ExportTensor>> in_files(const std::vector<ExportTensor>& tensors, Bytes limit) {
  std::vector<std::vector<ExportTensor>> files(1);
  Bytes bytes = 0;
  for (const ExportTensor& tensor : tensors) {
    if (!files.back().empty() && bytes + tensor.entry.bytes() > limit) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(tensor);
    bytes += tensor.entry.bytes();
  }
  // Wide types first, so that every tensor is aligned in its file.
  for (auto& file : files) {
    std::ranges::stable_sort(file, std::greater{}, [](const ExportTensor& t) { return itemsize(t.entry.dtype); });
  }
  return files;
}

/// One file of an export, whole on the disk but for its name.
Result<SafetensorsWriter> write_weights(const std::string& path, const std::vector<ExportTensor>& tensors,
                                        CheckpointReader& reader) {
  std::vector<SafetensorsEntry> entries;
  for (const ExportTensor& tensor : tensors) entries.push_back(tensor.entry);
  auto file = SafetensorsWriter::create(path, std::move(entries), {{"format", "pt"}});
  if (!file) return fail(file.error());
  for (const ExportTensor& tensor : tensors) {
    auto whole = reader.read_whole(*tensor.saved);
    if (!whole) return fail(whole.error());
    const at::Tensor out = whole->to(scalar_type_of(tensor.entry.dtype));
    const auto bytes = static_cast<std::size_t>(tensor.entry.bytes());
    const auto written = file->write({static_cast<const std::byte*>(out.const_data_ptr()), bytes});
    if (!written) return fail(written.error());
  }
  return file;
}

/// Weights of an earlier export that this one does not replace: a reader might take those.
Result<void> check_stale(const std::string& out, const std::set<std::string>& names) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(out, code)) {
    const std::string name = entry.path().filename();
    const bool ours = name.starts_with("model") || name.starts_with("adapter_model");
    const bool weights = ours && (name.ends_with(".safetensors") || name.ends_with(".index.json"));
    if (!weights || names.contains(name)) continue;
    Error error;
    error.code = ErrorCode::Refused;
    error.file = out + "/" + name;
    error.message = "the folder holds other weights, which a reader might take for these";
    error.expected = "no other weights in the folder";
    error.hint = "name an empty folder";
    return fail(std::move(error));
  }
  return {};
}

std::string index_text(const std::vector<std::vector<ExportTensor>>& files, const std::vector<std::string>& names,
                       Bytes bytes) {
  nlohmann::json map = nlohmann::json::object();
  for (std::size_t f = 0; f < files.size(); ++f) {
    for (const ExportTensor& tensor : files[f]) map[tensor.entry.name] = names[f];
  }
  const nlohmann::json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(map)}};
  return index.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<void> copy_config(const CheckpointManifest& manifest, const std::string& folder, const std::string& out) {
  const std::string name = of_adapters(manifest) ? std::string(kPeftConfigFile) : "config.json";
  if (!manifest.documents.contains(name)) return {};
  const auto text = read_text_file(folder + "/" + name, 64 * kMiB);
  if (!text) return fail(text.error());
  const auto written = write_file_durably(out + "/" + name, *text);
  if (!written) return fail(written.error());
  return {};
}

/// Names of the file for names of the model: as they are, without our first word, or behind a word of theirs.
class WeightNames {
 public:
  WeightNames(const NamedTensors& weights, const std::vector<std::string>& wanted) : weights_(weights) {
    std::set<std::string> prefixes;
    for (const auto& [name, tensor] : weights) {
      if (const auto dot = name.find('.'); dot != std::string::npos) prefixes.insert(name.substr(0, dot + 1));
    }
    std::size_t best = matches(wanted);
    const auto attempt = [&](bool strip, const std::string& prefix) {
      const auto before = std::pair(strip_, prefix_);
      strip_ = strip;
      prefix_ = prefix;
      const std::size_t found = matches(wanted);
      if (found > best) {
        best = found;
      } else {
        std::tie(strip_, prefix_) = before;
      }
    };
    attempt(true, "");
    for (const std::string& prefix : prefixes) attempt(false, prefix);
  }

  /// weights.end() if there is none. A head beside the base model has its own name in either case.
  NamedTensors::const_iterator find(const std::string& name) const {
    const auto found = weights_.find(translated(name));
    return found != weights_.end() ? found : weights_.find(name);
  }

 private:
  std::string translated(const std::string& name) const {
    const auto dot = name.find('.');
    return prefix_ + (strip_ && dot != std::string::npos ? name.substr(dot + 1) : name);
  }
  std::size_t matches(const std::vector<std::string>& wanted) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(wanted, [&](const std::string& name) { return weights_.contains(translated(name)); }));
  }

  const NamedTensors& weights_;
  bool strip_ = false;
  std::string prefix_;
};

struct MatchedWeights {
  std::map<std::string, at::Tensor> params, buffers;  // by the model's own names (owners)
  std::vector<std::string> notes;
};

std::string shape_text(at::IntArrayRef shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Result<void> check_shape(const std::string& source, const std::string& name, const Shape& shape,
                         const at::Tensor& found) {
  if (found.sizes() == at::IntArrayRef(shape)) return {};
  Error error;
  error.file = source;
  error.place = name;
  error.message = "the weights are another model's";
  error.expected = shape_text(shape);
  error.got = shape_text(found.sizes());
  return fail(std::move(error));
}

Result<MatchedWeights> match_weights(const std::string& source, const Model& model) {
  const auto weights = read_weights(source);
  if (!weights) return fail(weights.error());
  std::vector<std::string> wanted;
  for (const ParamInfo& param : model.params) wanted.push_back(param.fqn);
  const WeightNames names(*weights, wanted);
  MatchedWeights matched;
  std::set<std::string> used, missing;
  for (std::size_t p = 0; p < model.params.size(); ++p) {
    const ParamInfo& param = model.params[p];
    const std::string owner = model.params[model.storage_of(ParamId(p)).index()].fqn;
    const auto found = names.find(param.fqn);
    if (found == weights->end()) {
      if (!matched.params.contains(owner)) missing.insert(owner);
      continue;
    }
    if (const auto fits = check_shape(source, param.fqn, param.shape, found->second); !fits) return fail(fits.error());
    used.insert(found->first);
    missing.erase(owner);
    matched.params.emplace(owner, found->second);
  }
  for (const BufferInfo& buffer : model.buffers) {
    const auto found = names.find(buffer.fqn);
    if (found == weights->end()) continue;
    if (const auto fits = check_shape(source, buffer.fqn, buffer.shape, found->second); !fits)
      return fail(fits.error());
    used.insert(found->first);
    matched.buffers.emplace(buffer.fqn, found->second);
  }
  if (!missing.empty()) {
    Error error;
    error.code = ErrorCode::MissingKey;
    error.file = source;
    error.message = fmt::format("{} of the model's weights are missing", missing.size());
    error.expected = fmt::format("{}", fmt::join(missing, ", "));
    return fail(std::move(error));
  }
  for (const auto& [name, tensor] : *weights) {
    if (!used.contains(name)) matched.notes.push_back("not used: " + name);
  }
  return matched;
}

std::string describe_text(const CheckpointManifest& m, const std::string& folder) {
  std::map<std::string, std::pair<std::int64_t, Bytes>> slots;
  for (const CheckpointTensor& tensor : m.tensors) {
    auto& [count, bytes] = slots[tensor.slot];
    ++count;
    bytes += numel_of(tensor.shape) * itemsize(tensor.dtype);
  }
  std::string text =
      fmt::format("checkpoint {}\n  model      {}{}\n  step       {}, {} samples, seed {}\n  written by {} rank{}\n",
                  folder, m.model, m.architecture.empty() ? "" : " (" + m.architecture + ")", m.progress.step,
                  m.progress.samples, m.progress.seed, m.world_size, m.world_size == 1 ? "" : "s");
  for (const auto& [slot, held] : slots) {
    text += fmt::format("  {:<16} {} tensors, {} bytes\n", slot, held.first, held.second);
  }
  for (const CheckpointFile& file : m.files) text += fmt::format("  {:<34} {} bytes\n", file.name, file.written.bytes);
  for (const auto& [name, written] : m.documents) text += fmt::format("  {:<34} {} bytes\n", name, written.bytes);
  for (const CheckpointTensor& tensor : m.tensors) {
    if (tensor.slot != "param" && tensor.slot != "buffer") continue;
    text +=
        fmt::format("  {} {} {}{} in {} file{}\n", tensor.fqn, dtype_short_name(tensor.dtype), shape_text(tensor.shape),
                    tensor.slot == "buffer" ? " buffer" : "", tensor.parts.size(), tensor.parts.size() == 1 ? "" : "s");
  }
  for (const auto& [name, owner] : m.shared) text += fmt::format("  {} is {}\n", name, owner);
  return text;
}

Result<void> verify_files(const CheckpointManifest& manifest, const std::string& folder) {
  std::map<std::string, WrittenFile> files = manifest.documents;
  for (const CheckpointFile& file : manifest.files) files[file.name] = file.written;
  if (const auto same = CheckpointReader(manifest, folder).check_headers(); !same) return same;
  std::vector<std::byte> block(static_cast<std::size_t>(kBlockBytes));
  for (const auto& [name, written] : files) {
    auto reader = BlockReader::open(folder + "/" + name, written);
    if (!reader) return fail(reader.error());
    for (Bytes at = 0; at < written.bytes; at += kBlockBytes) {
      const auto size = static_cast<std::size_t>(std::min(kBlockBytes, written.bytes - at));
      if (const auto read = reader->read(at, std::span(block).first(size)); !read) return read;
    }
  }
  return {};
}

}  // namespace

Result<ExportedFiles> export_checkpoint(const std::string& checkpoint, const std::string& out,
                                        const ExportOptions& options) {
  const auto folder = locate_checkpoint(checkpoint);
  if (!folder) return fail(folder.error());
  const auto manifest = read_manifest(*folder);
  if (!manifest) return fail(manifest.error());
  if (const auto made = make_folder(out); !made) return fail(made.error());
  CheckpointReader reader(*manifest, *folder);
  if (const auto same = reader.check_headers(); !same) return fail(same.error());
  ExportedFiles exported;
  std::vector<SafetensorsWriter> unnamed;  // all get their names when the last of them is written
  const auto write = [&](const std::string& name, const std::vector<ExportTensor>& tensors) -> Result<void> {
    auto written = write_weights(out + "/" + name, tensors, reader);
    if (!written) return fail(written.error());
    unnamed.push_back(std::move(*written));
    exported.files.push_back(name);
    exported.tensors += static_cast<std::int64_t>(tensors.size());
    for (const ExportTensor& tensor : tensors) exported.bytes += tensor.entry.bytes();
    return {};
  };

  const bool adapters = of_adapters(*manifest);  // which PEFT reads from one file
  const auto files = in_files(tensors_of(*manifest, false, options),
                              adapters ? std::numeric_limits<Bytes>::max() : options.max_shard_size);
  const std::string index = "model.safetensors.index.json";
  std::vector<std::string> names;
  for (std::size_t f = 0; f < files.size(); ++f) {
    names.push_back(adapters            ? std::string(kPeftWeightsFile)
                    : files.size() == 1 ? "model.safetensors"
                                        : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, files.size()));
  }
  std::set<std::string> all(names.begin(), names.end());
  if (files.size() > 1) all.insert(index);
  if (const auto clean = check_stale(out, all); !clean) return fail(clean.error());
  for (std::size_t f = 0; f < files.size(); ++f) {
    if (const auto written = write(names[f], files[f]); !written) return fail(written.error());
  }
  const std::string listed = files.size() > 1 ? index_text(files, names, exported.bytes) : std::string();
  if (!listed.empty()) exported.files.push_back(index);
  if (options.optimizer) {
    const auto written = write("optimizer.safetensors", tensors_of(*manifest, true, options));
    if (!written) return fail(written.error());
  }
  for (SafetensorsWriter& file : unnamed) {
    if (const auto named = file.close(); !named) return fail(named.error());
  }
  if (!listed.empty()) {
    if (const auto written = write_file_durably(out + "/" + index, listed); !written) return fail(written.error());
  }
  if (const auto copied = copy_config(*manifest, *folder, out); !copied) return fail(copied.error());
  if (const auto synced = sync_folder(out); !synced) return fail(synced.error());
  return exported;
}

Result<std::vector<std::string>> import_weights(const std::string& source, const Model& model, TrainState& state) {
  auto matched = match_weights(source, model);
  if (!matched) return fail(matched.error());
  bool converted = false;
  for (StateTensor& tensor : state.tensors) {
    const bool param = tensor.slot == "param";
    if (!param && tensor.slot != "buffer") continue;
    const auto& found = param ? matched->params : matched->buffers;
    const auto weight = found.find(tensor.fqn);
    if (weight == found.end()) continue;  // a buffer keeps what the model made of it
    const at::Tensor whole = weight->second.reshape({-1});
    const at::Tensor local = tensor.local.defined() ? tensor.local.view({-1}) : at::Tensor();
    for (const StatePiece& piece : tensor.pieces) {
      converted = converted || local.scalar_type() != whole.scalar_type();
      local.narrow(0, piece.local_offset, piece.numel).copy_(whole.narrow(0, piece.global_offset, piece.numel));
    }
  }
  if (converted) matched->notes.emplace_back("element types were converted");
  return std::move(matched->notes);
}

Result<std::string> import_checkpoint(const std::string& source, const Model& model, const std::string& dir) {
  const auto matched = match_weights(source, model);
  if (!matched) return fail(matched.error());
  TrainState state;  // over the mapped files: nothing is copied
  const auto add = [&state](const std::string& fqn, const char* slot, const at::Tensor& tensor) {
    StateTensor entry{fqn, slot, tensor.sizes().vec(), tensor.contiguous(), {}};
    if (tensor.numel() > 0) entry.pieces = {{0, 0, tensor.numel()}};
    state.tensors.push_back(std::move(entry));
  };
  for (const ParamInfo& param : model.params) {
    if (!param.shares.valid()) add(param.fqn, "param", matched->params.at(param.fqn));
  }
  for (const BufferInfo& buffer : model.buffers) {
    const auto found = matched->buffers.find(buffer.fqn);
    if (found != matched->buffers.end()) add(buffer.fqn, "buffer", found->second);
  }
  CheckpointContents contents{model, {}, {}, {}};
  const std::string config =
      (fs::is_directory(source) ? fs::path(source) : fs::path(source).parent_path()) / "config.json";
  if (const auto text = read_text_file(config, 64 * kMiB)) contents.documents["config.json"] = *text;
  return save_checkpoint(dir, state, contents, nullptr);
}

Result<std::string> describe_checkpoint(const std::string& checkpoint, bool verify, bool json) {
  const auto folder = locate_checkpoint(checkpoint);
  if (!folder) return fail(folder.error());
  const auto manifest = read_manifest(*folder);
  if (!manifest) return fail(manifest.error());
  if (verify) {
    if (const auto verified = verify_files(*manifest, *folder); !verified) return fail(verified.error());
  }
  if (!json) return describe_text(*manifest, *folder) + (verify ? "  every block has its checksum\n" : "");
  nlohmann::json document = nlohmann::json::parse(manifest_text(*manifest));
  for (auto& file : document["files"]) file.erase("crc32");
  for (auto& file : document["documents"]) file.erase("crc32");
  document.erase("checksum");
  document["folder"] = *folder;
  document["verified"] = verify;
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace foreshard::exec
