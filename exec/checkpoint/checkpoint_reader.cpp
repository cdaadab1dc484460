#include "exec/checkpoint/checkpoint_reader.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "exec/checkpoint/safetensors_writer.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

struct MarkDifference {
  std::string place, file_says, manifest_says;
};

/// Where a mark lists many, the first of them that differs.
MarkDifference mark_difference(const std::string& key, const nlohmann::json& mark, const std::string& told) {
  const auto listed = [](const std::string& text) { return nlohmann::json::parse(text, nullptr, false); };
  const auto in_file = listed(mark.is_string() ? mark.get<std::string>() : std::string()), in_manifest = listed(told);
  if (in_file.is_object() && in_manifest.is_object()) {
    const auto said = [](const nlohmann::json& from, const std::string& name) {
      return from.contains(name) ? from[name].dump() : "none";
    };
    for (const auto* side : {&in_file, &in_manifest}) {
      for (const auto& [name, value] : side->items()) {
        if (said(in_file, name) != said(in_manifest, name))
          return {key + "." + name, said(in_file, name), said(in_manifest, name)};
      }
    }
  }
  return {key, mark.dump(), told};
}

}  // namespace

Result<void> CheckpointReader::bytes(int file, Bytes offset, std::span<std::byte> into) {
  auto found = files_.find(file);
  if (found == files_.end()) {
    const CheckpointFile& facts = manifest_.files[static_cast<std::size_t>(file)];
    auto opened = BlockReader::open(folder_ + "/" + facts.name, facts.written);
    if (!opened) return fail(opened.error());
    if (const auto same = check_header(file, *opened); !same) return same;
    found = files_.emplace(file, std::move(*opened)).first;
  }
  return found->second.read(offset, into);
}

/// The file says itself what lies where, of which type: a manifest that says otherwise is not this file's.
Result<void> CheckpointReader::check_header(int file, BlockReader& reader) const {
  constexpr Bytes kMostHeader = 256 * kMiB;
  const CheckpointFile& facts = manifest_.files[static_cast<std::size_t>(file)];
  const auto bad = [&](const std::string& place, std::string expected, std::string got) {
    Error error;
    error.file = folder_ + "/" + std::string(kManifestName);
    error.place = place;
    error.message = "the manifest does not fit " + facts.name;
    error.expected = std::move(expected);
    error.got = std::move(got);
    error.hint = "use an older checkpoint";
    return fail(std::move(error));
  };
  std::uint64_t length = 0;  // little endian, as every machine that LibTorch runs on
  if (facts.written.bytes < static_cast<Bytes>(sizeof length)) return bad("files", "a safetensors file", "no header");
  if (auto read = reader.read(0, std::as_writable_bytes(std::span(&length, 1))); !read) return read;
  if (length > static_cast<std::uint64_t>(std::min(kMostHeader, facts.written.bytes - 8)))
    return bad("files", "a safetensors file", fmt::format("a header of {} bytes", length));
  std::string text(static_cast<std::size_t>(length), '\0');
  if (auto read = reader.read(8, std::as_writable_bytes(std::span(text))); !read) return read;
  const auto header = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return bad("files", "a safetensors file", "no header");
  if (const auto marks = header.find("__metadata__"); marks != header.end() && marks->is_object()) {
    for (const auto& [key, told] : manifest_marks(manifest_, file)) {
      const auto mark = marks->find(key);
      if (mark == marks->end() || *mark == told) continue;  // files of older writers have fewer
      const MarkDifference differs = mark_difference(key, *mark, told);
      return bad(differs.place, differs.file_says, differs.manifest_says);
    }
  }
  std::set<std::string> known = {"__metadata__"};
  const Bytes data = 8 + static_cast<Bytes>(length);
  if (const auto rng = header.find("rng"); rng != header.end()) {
    const nlohmann::json wanted = {facts.rng.offset - data, facts.rng.end() - data};
    if (rng->value("data_offsets", nlohmann::json()) != wanted) return bad("rng", rng->dump(), wanted.dump());
    known.insert("rng");
  } else if (facts.rng.numel > 0) {
    return bad("rng", "no generator state", "some");
  }
  for (const CheckpointTensor& tensor : manifest_.tensors) {
    for (const CheckpointPart& part : tensor.parts) {
      if (part.file != file) continue;
      Numel numel = 0;
      for (const PieceRun& run : part.runs) numel += run.numel * run.count;
      const Bytes begin = part.begin - data;
      const nlohmann::json wanted = {{"dtype", safetensors_dtype(tensor.dtype)},
                                     {"shape", {numel}},
                                     {"data_offsets", {begin, begin + numel * itemsize(tensor.dtype)}}};
      const std::string name = tensor.slot + "/" + tensor.fqn;
      const auto found = header.find(name);
      if (found == header.end()) return bad(name, "a tensor of the file", "none of that name");
      if (*found != wanted) return bad(name, found->dump(), wanted.dump());
      known.insert(name);
    }
  }
  for (const auto& [name, entry] : header.items()) {
    if (!known.contains(name)) return bad(name, "the entry of the file", "none of that name");
  }
  return {};
}

Result<void> CheckpointReader::check_headers() {
  for (std::size_t file = 0; file < manifest_.files.size(); ++file) {
    if (const auto same = bytes(static_cast<int>(file), 0, {}); !same) return same;
  }
  return {};
}

Bytes CheckpointReader::bytes_read() const {
  Bytes bytes = 0;
  for (const auto& [index, file] : files_) bytes += file.bytes_read();
  return bytes;
}

Result<void> CheckpointReader::read_piece(int file, Bytes begin, const CheckpointTensor& saved, StateTensor& into,
                                          Numel local, Numel numel) {
  const auto span_of = [numel](const at::Tensor& tensor, Numel offset) {
    auto* data =
        static_cast<std::byte*>(tensor.mutable_data_ptr()) + offset * static_cast<Numel>(tensor.element_size());
    return std::span(data, static_cast<std::size_t>(numel) * tensor.element_size());
  };
  if (into.local.scalar_type() == scalar_type_of(saved.dtype)) return bytes(file, begin, span_of(into.local, local));
  const at::Tensor staged = at::empty({numel}, at::dtype(scalar_type_of(saved.dtype)));
  if (const auto read = bytes(file, begin, span_of(staged, 0)); !read) return read;
  into.local.view({-1}).narrow(0, local, numel).copy_(staged);
  return {};
}

Result<void> CheckpointReader::read(const CheckpointTensor& saved, StateTensor& into) {
  Numel wanted = 0, filled = 0;
  for (const StatePiece& piece : into.pieces) wanted += piece.numel;
  const Bytes item = itemsize(saved.dtype);
  for (const CheckpointPart& part : saved.parts) {
    Bytes begin = part.begin;
    for (const Extent& extent : extents_of(part.runs)) {
      auto piece = std::ranges::upper_bound(into.pieces, extent.offset, {}, &StatePiece::global_offset);
      if (piece != into.pieces.begin()) --piece;
      for (; piece != into.pieces.end() && piece->global_offset < extent.end(); ++piece) {
        const Numel from = std::max(extent.offset, piece->global_offset);
        const Numel numel = std::min(extent.end(), piece->global_offset + piece->numel) - from;
        if (numel <= 0) continue;
        const auto read = read_piece(part.file, begin + (from - extent.offset) * item, saved, into,
                                     piece->local_offset + (from - piece->global_offset), numel);
        if (!read) return read;
        filled += numel;
      }
      begin += extent.numel * item;
    }
  }
  if (filled == wanted) return {};
  Error error;
  error.file = folder_ + "/" + std::string(kManifestName);
  error.place = saved.fqn;
  error.message = "the manifest is damaged";
  error.expected = fmt::format("{} elements", wanted);
  error.got = fmt::format("{}", filled);
  return fail(std::move(error));
}

Result<at::Tensor> CheckpointReader::read_whole(const CheckpointTensor& saved) {
  StateTensor whole{
      saved.fqn, saved.slot, saved.shape, at::empty(saved.shape, at::dtype(scalar_type_of(saved.dtype))), {}};
  if (whole.local.numel() > 0) whole.pieces = {{0, 0, whole.local.numel()}};
  if (const auto read = this->read(saved, whole); !read) return fail(read.error());
  return whole.local;
}

}  // namespace foreshard::exec
