// Reading: each rank its own pieces, by their place in the whole tensor.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <utility>

#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/checkpoint_manifest.h"
#include "exec/checkpoint/checkpoint_peers.h"
#include "exec/checkpoint/checkpoint_reader.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

Error other_model(const std::string& folder, const std::string& place, std::string expected, std::string got) {
  Error error;
  error.code = ErrorCode::Refused;  // damaged ones are skipped, this one is not
  error.file = folder + "/" + std::string(kManifestName);
  error.place = place;
  error.message = "the checkpoint is another model's";
  error.expected = std::move(expected);
  error.got = std::move(got);
  error.hint = "name the folder of this model's checkpoints";
  return error;
}

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// Archives name none; what python/foreshard/capture writes may be of any.
bool is_family(const std::string& architecture) { return !architecture.empty() && architecture != "captured"; }

/// A later name of a parameter that was tied is what its owner is: the run that loads it may have untied them.
const CheckpointTensor* find_saved(const CheckpointManifest& manifest, const StateTensor& tensor) {
  const CheckpointTensor* saved = manifest.find(tensor.fqn, tensor.slot);
  const auto owner = manifest.shared.find(tensor.fqn);
  return saved == nullptr && owner != manifest.shared.end() ? manifest.find(owner->second, tensor.slot) : saved;
}

Error untied(const std::string& folder, const std::string& name, const std::string& owner) {
  Error error;
  error.code = ErrorCode::Refused;
  error.file = folder + "/" + std::string(kManifestName);
  error.place = name;
  error.message = "the checkpoint is of a run that untied this parameter, and one of the two would be lost";
  error.expected = "the values of " + owner + ", which this run ties it to";
  error.got = "other values";
  error.hint = "set tie_word_embeddings = false in the model's config.json, or resume on a mesh that unties them too";
  return error;
}

/// Architecture, names and shapes, before anything is read.
Result<void> check_tensors(const CheckpointManifest& manifest, const Model& model, const TrainState& state,
                           const std::string& folder) {
  const std::string &theirs = manifest.architecture, &ours = model.architecture;
  if (is_family(theirs) && is_family(ours) && theirs != ours)
    return fail(other_model(folder, "architecture", ours, theirs));
  std::set<std::string_view> params, buffers;
  for (const ParamInfo& param : model.params) params.insert(param.fqn);
  for (const BufferInfo& buffer : model.buffers) buffers.insert(buffer.fqn);
  for (const CheckpointTensor& saved : manifest.tensors) {
    const bool is_buffer = saved.slot == "buffer";
    if ((is_buffer ? buffers : params).contains(saved.fqn)) continue;
    const char* kind = is_buffer ? "a buffer of " : "a parameter of ";
    return fail(other_model(folder, saved.slot + "/" + saved.fqn, kind + model.name, "none of that name"));
  }
  for (const StateTensor& tensor : state.tensors) {
    const CheckpointTensor* saved = find_saved(manifest, tensor);
    if (saved == nullptr) {
      if (tensor.slot != "param") continue;
      return fail(other_model(folder, tensor.fqn, shape_text(tensor.shape), "no such parameter"));
    }
    if (saved->shape != tensor.shape) {
      return fail(other_model(folder, tensor.fqn, shape_text(tensor.shape), shape_text(saved->shape)));
    }
  }
  return {};
}

class Load {
 public:
  Load(const CheckpointManifest& manifest, const std::string& folder, TrainState& state)
      : reader_(manifest, folder), manifest_(manifest), folder_(folder), state_(state) {}

  /// Names that this model ties and the checkpoint holds apart: they must say the same. Compares this rank's pieces.
  Result<void> tied(const Model& model) {
    for (const ParamInfo& param : model.params) {
      const CheckpointTensor* apart = param.shares.valid() ? manifest_.find(param.fqn, "param") : nullptr;
      if (apart == nullptr) continue;
      const std::string& owner = model.params[param.shares.index()].fqn;
      for (const StateTensor& tensor : state_.tensors) {
        if (tensor.fqn != owner || tensor.slot != "param" || tensor.pieces.empty()) continue;
        StateTensor other = tensor;
        other.local = tensor.local.clone();
        if (const auto read = reader_.read(*apart, other); !read) return read;
        if (!other.local.equal(tensor.local)) return fail(untied(folder_, param.fqn, owner));
      }
    }
    return {};
  }

  Result<void> tensors(std::vector<std::string>& notes) {
    std::set<std::string> absent;  // slots
    for (StateTensor& tensor : state_.tensors) {
      const CheckpointTensor* saved = find_saved(manifest_, tensor);
      if (saved == nullptr) {  // a buffer keeps what the model made of it
        if (tensor.slot == "buffer") continue;
        absent.insert(tensor.slot);
        if (tensor.local.defined()) tensor.local.zero_();
        continue;
      }
      if (tensor.pieces.empty()) continue;
      if (scalar_type_of(saved->dtype) != tensor.local.scalar_type()) converted_ = true;
      if (const auto read = reader_.read(*saved, tensor); !read) return read;
    }
    for (const std::string& slot : absent)
      notes.push_back(fmt::format("{} starts at zero: not in the checkpoint", slot));
    for (const std::string& slot : left_behind())
      notes.push_back(fmt::format("{} of the checkpoint is not taken: this optimizer keeps none", slot));
    if (converted_) notes.push_back("element types were converted");
    state_.optimizer_steps = manifest_.optimizer_steps;
    if (state_.scaler && !manifest_.scaler) notes.push_back("the gradient scaler starts anew: not in the checkpoint");
    if (state_.scaler && manifest_.scaler) state_.scaler = manifest_.scaler;
    return {};
  }

  Result<std::vector<std::uint8_t>> rng(int rank) {
    const Extent place = manifest_.files[static_cast<std::size_t>(rank)].rng;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(place.numel));
    const auto read = reader_.bytes(rank, place.offset, std::as_writable_bytes(std::span(bytes)));
    if (!read) return fail(read.error());
    return bytes;
  }

 private:
  /// Slots that nothing in the state asks for.
  std::set<std::string> left_behind() const {
    std::set<std::string> slots;
    for (const CheckpointTensor& saved : manifest_.tensors) slots.insert(saved.slot);
    slots.erase("buffer");
    for (const StateTensor& tensor : state_.tensors) slots.erase(tensor.slot);
    return slots;
  }

  CheckpointReader reader_;
  const CheckpointManifest& manifest_;
  const std::string& folder_;
  TrainState& state_;
  bool converted_ = false;
};

bool is_damage(const Error& error) { return error.code != ErrorCode::Refused; }

}  // namespace

Result<LoadedCheckpoint> load_checkpoint(const std::string& folder, const Model& model, TrainState& state, int rank,
                                         int world_size) {
  const auto manifest = read_manifest(folder);
  if (!manifest) return fail(manifest.error());
  if (const auto whole = check_pieces(state); !whole) return fail(whole.error());
  if (const auto fits = check_tensors(*manifest, model, state, folder); !fits) return fail(fits.error());
  LoadedCheckpoint loaded;
  loaded.folder = folder;
  loaded.progress = manifest->progress;
  loaded.saved_world_size = manifest->world_size;
  Load load(*manifest, folder, state);
  if (const auto read = load.tensors(loaded.notes); !read) return fail(read.error());
  if (const auto same = load.tied(model); !same) return fail(same.error());
  if (world_size != manifest->world_size) {
    loaded.notes.push_back(fmt::format("saved by {} ranks, loaded by {}", manifest->world_size, world_size));
    return loaded;
  }
  auto rng = load.rng(rank);
  if (!rng) return fail(rng.error());
  loaded.rng = std::move(*rng);
  return loaded;
}

Result<LoadedCheckpoint> resume_checkpoint(const std::string& dir, const Model& model, TrainState& state,
                                           Communicator* world) {
  std::vector<std::string> folders;  // rank 0's view, so that all try the same
  const auto listed = gather_texts(
      world, rank_of(world) == 0 ? fmt::format("{}", fmt::join(checkpoint_folders(dir), "\n")) : std::string());
  if (!listed) return fail(listed.error());
  for (std::size_t begin = 0; begin < listed->front().size();) {
    const std::size_t end = std::min(listed->front().find('\n', begin), listed->front().size());
    folders.push_back(listed->front().substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<std::string> skipped;
  for (const std::string& folder : folders) {
    auto mine = load_checkpoint(folder, model, state, rank_of(world), size_of(world));
    Result<void> outcome;
    if (!mine) outcome = fail(mine.error());
    const auto all = agree(world, outcome);
    if (all) {
      mine->notes.insert(mine->notes.begin(), skipped.begin(), skipped.end());
      return mine;
    }
    if (!is_damage(all.error())) return fail(all.error());
    skipped.push_back("skipped " + to_text(all.error()));
  }
  Error error;
  error.code = ErrorCode::NotFound;
  error.file = dir;
  error.message = skipped.empty() ? "there is no checkpoint" : "no checkpoint can be loaded";
  error.got = fmt::format("{}", fmt::join(skipped, "; "));
  error.expected = "a folder step-N with its manifest";
  return fail(std::move(error));
}

}  // namespace foreshard::exec
