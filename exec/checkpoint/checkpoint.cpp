#include "exec/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "core/model/untied.h"
#include "core/output_file.h"
#include "exec/checkpoint/checkpoint_manifest.h"
#include "exec/checkpoint/checkpoint_peers.h"
#include "exec/checkpoint/safetensors_writer.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartial = ".partial";
constexpr const char* kRngName = "rng";

Error state_error(const std::string& place, std::string message, std::string expected, std::string got) {
  Error error;
  error.place = place;
  error.message = std::move(message);
  error.expected = std::move(expected);
  error.got = std::move(got);
  return error;
}

/// "param/layers.0.weight": distinct, since slots have no slash.
std::string entry_name(const StateTensor& tensor) { return tensor.slot + "/" + tensor.fqn; }

/// What a rank tells the others: for each tensor the runs that it holds, and the size of its generator state.
nlohmann::json layout_of(const TrainState& state, std::size_t rng_bytes) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const StateTensor& tensor : state.tensors) {
    nlohmann::json runs = nlohmann::json::array();
    const auto held = held_extents(tensor.pieces, numel_of(tensor.shape));
    for (const PieceRun& run : runs_of(held.value_or(std::vector<Extent>{}))) {
      runs.insert(runs.end(), {run.offset, run.numel, run.count, run.stride});
    }
    tensors.push_back({tensor.fqn, tensor.slot, tensor.shape, std::move(runs)});
  }
  return {{"tensors", std::move(tensors)}, {"rng", rng_bytes}};
}

std::vector<Extent> extents_from(const nlohmann::json& fields) {
  std::vector<PieceRun> runs;
  for (std::size_t i = 0; i < fields.size(); i += 4) {
    runs.push_back(
        {fields[i].get<Numel>(), fields[i + 1].get<Numel>(), fields[i + 2].get<Numel>(), fields[i + 3].get<Numel>()});
  }
  return extents_of(runs);
}

DType dtype_of(const at::Tensor& tensor) {
  for (std::size_t value = 0; value < kDTypeCount; ++value) {
    if (scalar_type_of(static_cast<DType>(value)) == tensor.scalar_type()) return static_cast<DType>(value);
  }
  return DType::Float32;
}

bool persistent(const Model& model, const StateTensor& tensor) {
  if (tensor.slot != "buffer") return true;
  const auto found =
      std::ranges::find_if(model.buffers, [&](const BufferInfo& buffer) { return buffer.fqn == tensor.fqn; });
  return found == model.buffers.end() || found->persistent;
}

/// A config.json says of the weights beside it whether they are tied; a mesh may have untied what the job's own ties.
std::string config_of_weights(const Model& model, const std::string& text) {
  const bool untied =
      std::ranges::any_of(model.parallel, [](const auto& row) { return row.style.starts_with(kUntied); });
  nlohmann::json config = untied ? nlohmann::json::parse(text, nullptr, false) : nlohmann::json();
  if (!config.is_object()) return text;
  config["tie_word_embeddings"] = false;
  return config.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// One save on one rank. Every rank has the same layout of all files: it follows from what all told each other.
class Save {
 public:
  Save(const std::string& dir, const TrainState& state, const CheckpointContents& contents, Communicator* world)
      : state_(state),
        contents_(contents),
        world_(world),
        rank_(rank_of(world)),
        final_(dir + "/" + checkpoint_folder_name(contents.progress.step)),
        partial_(final_ + kPartial) {}

  Result<void> run() {
    if (const auto same = lay_out(); !same) return same;
    if (const auto made = agree(world_, prepare_folder()); !made) return made;
    Result<void> mine = write_documents();
    auto wrote = mine ? write_rank_file() : Result<WrittenFile>(fail(mine.error()));
    if (!wrote) mine = fail(wrote.error());
    if (const auto all = agree(world_, mine); !all) return abandon(all);
    const auto sums = gather_texts(world_, packed(*wrote));
    if (!sums) return abandon(fail(sums.error()));
    const auto committed = agree(world_, rank_ == 0 ? commit(*sums) : Result<void>());
    return committed ? committed : abandon(committed);
  }

  const std::string& folder() const { return final_; }

 private:
  Result<void> lay_out() {
    if (const auto fine = agree(world_, check_pieces(state_)); !fine) return fine;
    const auto texts = gather_texts(world_, layout_of(state_, contents_.rng.size()).dump());
    if (!texts) return fail(texts.error());
    std::vector<nlohmann::json> layouts;
    for (const std::string& text : *texts) {
      layouts.push_back(nlohmann::json::parse(text));
      rng_bytes_.push_back(layouts.back()["rng"].get<Bytes>());
    }
    for (const nlohmann::json& layout : layouts) {
      if (layout["tensors"].size() != state_.tensors.size()) return fail(different_states(""));
    }
    std::vector<Numel> written(layouts.size(), 0);
    for (std::size_t t = 0; t < state_.tensors.size(); ++t) {
      const StateTensor& tensor = state_.tensors[t];
      std::vector<std::vector<Extent>> held;
      for (const nlohmann::json& layout : layouts) {
        const nlohmann::json& listed = layout["tensors"];
        if (listed[t][0] != tensor.fqn || listed[t][1] != tensor.slot || listed[t][2] != nlohmann::json(tensor.shape)) {
          return fail(different_states(entry_name(tensor)));
        }
        held.push_back(extents_from(listed[t][3]));
      }
      WriteShares shares = share_out(held, numel_of(tensor.shape), written);
      if (shares.missing) {
        return fail(
            state_error(entry_name(tensor), "no rank holds a part of this tensor", "every element on some rank",
                        fmt::format("elements {} to {} missing", shares.missing->offset, shares.missing->end() - 1)));
      }
      shares_.push_back(std::move(shares.by_rank));
    }
    describe();
    return {};
  }

  /// All of the manifest but what the files hold, which is not known yet.
  void describe() {
    manifest_.model = contents_.model.name;
    manifest_.architecture = contents_.model.architecture;
    manifest_.progress = contents_.progress;
    manifest_.optimizer_steps = state_.optimizer_steps;
    manifest_.scaler = state_.scaler;
    manifest_.world_size = size_of(world_);
    for (const StateTensor& tensor : state_.tensors) {
      manifest_.tensors.push_back(
          {tensor.fqn, tensor.slot, dtype_of(tensor.local), tensor.shape, persistent(contents_.model, tensor), {}});
    }
    for (const ParamInfo& param : contents_.model.params) {
      if (param.shares.valid()) manifest_.shared[param.fqn] = contents_.model.params[param.shares.index()].fqn;
    }
  }

  static Error different_states(const std::string& place) {
    return state_error(place, "the ranks hold states of different models",
                       "the same tensors in the same order on every rank", "");
  }

  Result<void> prepare_folder() const {
    if (rank_ != 0) return {};
    std::error_code code;
    fs::remove_all(partial_, code);  // of a writer that was killed
    return make_folder(partial_);
  }

  std::vector<SafetensorsEntry> entries_of(std::size_t rank) const {
    std::vector<SafetensorsEntry> entries;
    for (std::size_t t = 0; t < state_.tensors.size(); ++t) {
      Numel numel = 0;
      for (const Extent& extent : shares_[t][rank]) numel += extent.numel;
      if (numel > 0) entries.push_back({entry_name(state_.tensors[t]), manifest_.tensors[t].dtype, {numel}});
    }
    if (rng_bytes_[rank] > 0) entries.push_back({kRngName, DType::UInt8, {rng_bytes_[rank]}});
    return entries;
  }

  /// Before rank 0's file, whose header says what they are.
  Result<void> write_documents() {
    if (rank_ != 0) return {};
    for (const auto& [name, text] : contents_.documents) {
      const bool config = name == "config.json";
      auto written =
          write_file_durably(partial_ + "/" + name, config ? config_of_weights(contents_.model, text) : text);
      if (!written) return fail(written.error());
      manifest_.documents[name] = std::move(*written);
    }
    return {};
  }

  Result<WrittenFile> write_rank_file() {
    const auto rank = static_cast<std::size_t>(rank_);
    auto file = SafetensorsWriter::create(partial_ + "/" + rank_file_name(rank_, size_of(world_)), entries_of(rank),
                                          manifest_marks(manifest_, rank_));
    if (!file) return fail(file.error());
    for (std::size_t t = 0; t < state_.tensors.size(); ++t) {
      for (const Extent& extent : shares_[t][rank]) {
        if (const auto written = write_extent(*file, state_.tensors[t], extent); !written) return fail(written.error());
      }
    }
    if (const auto written = file->write(std::as_bytes(std::span(contents_.rng))); !written)
      return fail(written.error());
    auto closed = file->close();
    if (!closed) return closed;
    if (const auto synced = sync_folder(partial_); !synced) return fail(synced.error());
    return closed;
  }

  static Result<void> write_extent(SafetensorsWriter& file, const StateTensor& tensor, const Extent& extent) {
    const auto itemsize = static_cast<Bytes>(tensor.local.element_size());
    const auto* data = static_cast<const std::byte*>(tensor.local.const_data_ptr());
    auto piece = std::ranges::upper_bound(tensor.pieces, extent.offset, {}, &StatePiece::global_offset) - 1;
    for (Numel at = extent.offset; at < extent.end(); ++piece) {
      const Numel inside = at - piece->global_offset;
      const Numel numel = std::min(extent.end() - at, piece->numel - inside);
      const auto begin = static_cast<std::size_t>((piece->local_offset + inside) * itemsize);
      const auto written = file.write({data + begin, static_cast<std::size_t>(numel * itemsize)});
      if (!written) return written;
      at += numel;
    }
    return {};
  }

  /// The file as written, and the element types of what is in it: a rank that holds nothing of a tensor cannot know.
  std::string packed(const WrittenFile& file) const {
    nlohmann::json dtypes = nlohmann::json::array();
    for (std::size_t t = 0; t < state_.tensors.size(); ++t) {
      const bool mine = !shares_[t][static_cast<std::size_t>(rank_)].empty();
      dtypes.push_back(mine ? static_cast<int>(manifest_.tensors[t].dtype) : -1);
    }
    return nlohmann::json{{"bytes", file.bytes}, {"sums", file.sums}, {"dtypes", dtypes}}.dump();
  }

  /// Rank 0: the manifest, and the one rename that makes it a checkpoint.
  Result<void> commit(const std::vector<std::string>& packed_files) {
    add_files(packed_files);
    auto written = write_file_durably(partial_ + "/" + std::string(kManifestName), manifest_text(manifest_));
    if (!written) return fail(written.error());
    if (const auto synced = sync_folder(partial_); !synced) return synced;
    return rename_to_final();
  }

  void add_files(const std::vector<std::string>& packed_files) {
    for (std::size_t rank = 0; rank < packed_files.size(); ++rank) {
      const auto told = nlohmann::json::parse(packed_files[rank]);
      manifest_.files.push_back({rank_file_name(static_cast<int>(rank), manifest_.world_size),
                                 {told["bytes"].get<Bytes>(), told["sums"].get<std::vector<std::uint32_t>>()},
                                 {}});
      for (std::size_t t = 0; t < manifest_.tensors.size(); ++t) {
        if (const int dtype = told["dtypes"][t].get<int>(); dtype >= 0)
          manifest_.tensors[t].dtype = static_cast<DType>(dtype);
      }
    }
    for (std::size_t rank = 0; rank < packed_files.size(); ++rank) place_parts(rank);
  }

  /// Where the parts of one file lie: entries in order behind the header.
  void place_parts(std::size_t rank) {
    const auto entries = entries_of(rank);
    const auto marks = manifest_marks(manifest_, static_cast<int>(rank));
    auto begin = static_cast<Bytes>(safetensors_header(entries, marks).size());
    std::size_t entry = 0;
    for (std::size_t t = 0; t < state_.tensors.size(); ++t) {
      if (shares_[t][rank].empty()) continue;
      manifest_.tensors[t].parts.push_back({static_cast<std::int32_t>(rank), begin, runs_of(shares_[t][rank])});
      begin += entries[entry++].bytes();
    }
    if (rng_bytes_[rank] > 0) manifest_.files[rank].rng = {begin, rng_bytes_[rank]};
  }

  Result<void> rename_to_final() const {
    // An older checkpoint of this step changes places with ours, in one step of the file system, and then goes.
    bool renamed = ::rename(partial_.c_str(), final_.c_str()) == 0;
    if (!renamed && (errno == ENOTEMPTY || errno == EEXIST)) {
      renamed = ::syscall(SYS_renameat2, AT_FDCWD, partial_.c_str(), AT_FDCWD, final_.c_str(), 1U << 1) == 0;
      if (!renamed) {  // a file system that cannot
        std::error_code code;
        fs::remove_all(final_, code);
        renamed = ::rename(partial_.c_str(), final_.c_str()) == 0;
      }
    }
    if (!renamed) {
      Error error = state_error("", "the checkpoint cannot be renamed", "", std::strerror(errno));
      error.file = final_;
      return fail(std::move(error));
    }
    return sync_folder(fs::path(final_).parent_path());
  }

  /// The partial folder is of no use to anybody. Other ranks are past their writing: all have agreed.
  Result<void> abandon(Result<void> why) const {
    std::error_code code;
    if (rank_ == 0) fs::remove_all(partial_, code);
    why.error().hint +=
        (why.error().hint.empty() ? "" : "; ") + std::string("the last complete checkpoint is untouched");
    return why;
  }

  const TrainState& state_;
  const CheckpointContents& contents_;
  Communicator* world_;
  int rank_;
  std::string final_, partial_;
  std::vector<std::vector<std::vector<Extent>>> shares_;  // [tensor][rank]
  std::vector<Bytes> rng_bytes_;                          // by rank
  CheckpointManifest manifest_;  // element types of what other ranks alone hold, and the files, come last
};

bool has_manifest(const std::string& folder) {
  std::error_code code;
  return fs::exists(folder + "/" + std::string(kManifestName), code);
}

/// Only what is complete counts against `keep`; what is damaged or partial is nobody's any more.
void prune(const std::string& dir, std::int64_t keep) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(dir, code)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-") && name.ends_with(kPartial)) fs::remove_all(entry.path(), code);
  }
  if (keep <= 0) return;
  std::int64_t kept = 0;
  for (const std::string& folder : checkpoint_folders(dir)) {
    if (kept < keep) {
      if (read_manifest(folder)) ++kept;
      continue;
    }
    // The manifest first: what is left of it, if we are killed here, is no checkpoint.
    fs::remove(folder + "/" + std::string(kManifestName), code);
    fs::remove_all(folder, code);
  }
}

}  // namespace

Result<std::string> save_checkpoint(const std::string& dir, const TrainState& state, const CheckpointContents& contents,
                                    Communicator* world, std::int64_t keep) {
  Save save(dir, state, contents, world);
  const auto saved = save.run();
  if (!saved) return fail(saved.error());
  if (rank_of(world) == 0) prune(dir, keep);
  return save.folder();
}

bool has_checkpoints(const std::string& dir) {
  const auto folders = checkpoint_folders(dir);
  return std::ranges::any_of(folders, has_manifest);
}

std::vector<std::string> partial_checkpoints(const std::string& dir) {
  std::vector<std::string> partial;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(dir, code)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("step-") || !entry.is_directory(code)) continue;
    if (name.ends_with(kPartial) || !has_manifest(entry.path())) partial.push_back(entry.path());
  }
  std::ranges::sort(partial);
  return partial;
}

Result<void> try_checkpoint_folder(const std::string& dir) {
  if (auto made = make_folder(dir); !made) return made;
  return try_outputs({dir + "/.writable"});
}

}  // namespace foreshard::exec
