#include "exec/checkpoint/checkpoint_reader.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>

#include "exec/torch/torch_types.h"

namespace foreshard::exec {

Result<void> CheckpointReader::bytes(int file, Bytes offset, std::span<std::byte> into) {
  auto found = files_.find(file);
  if (found == files_.end()) {
    const CheckpointFile& facts = manifest_.files[static_cast<std::size_t>(file)];
    auto opened = BlockReader::open(folder_ + "/" + facts.name, facts.written);
    if (!opened) return fail(opened.error());
    found = files_.emplace(file, std::move(*opened)).first;
  }
  return found->second.read(offset, into);
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
