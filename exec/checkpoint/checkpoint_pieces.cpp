#include "exec/checkpoint/checkpoint_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

namespace foreshard::exec {
namespace {

void append(std::vector<Extent>& extents, Extent next) {
  if (next.numel == 0) return;
  if (!extents.empty() && extents.back().end() == next.offset) {
    extents.back().numel += next.numel;
  } else {
    extents.push_back(next);
  }
}

/// Where a rank begins or ends to hold elements.
struct Border {
  Numel offset;
  int rank;
  bool begins;
};

std::vector<Border> borders_of(std::span<const std::vector<Extent>> held) {
  std::vector<Border> borders;
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    for (const Extent& extent : held[rank]) {
      borders.push_back({extent.offset, static_cast<int>(rank), true});
      borders.push_back({extent.end(), static_cast<int>(rank), false});
    }
  }
  std::ranges::sort(borders, {}, &Border::offset);
  return borders;
}

}  // namespace

std::vector<PieceRun> runs_of(std::span<const Extent> extents) {
  std::vector<Extent> joined;
  for (const Extent& extent : extents) append(joined, extent);
  std::vector<PieceRun> runs;
  for (const Extent& extent : joined) {
    if (!runs.empty() && runs.back().numel == extent.numel) {
      PieceRun& run = runs.back();
      const Numel stride = extent.offset - (run.offset + (run.count - 1) * run.stride);
      if (run.count == 1 || run.stride == stride) {
        run.stride = stride;
        ++run.count;
        continue;
      }
    }
    runs.push_back({extent.offset, extent.numel, 1, 0});
  }
  return runs;
}

std::vector<Extent> extents_of(std::span<const PieceRun> runs) {
  std::vector<Extent> extents;
  for (const PieceRun& run : runs) {
    for (Numel i = 0; i < run.count; ++i) extents.push_back({run.offset + i * run.stride, run.numel});
  }
  return extents;
}

std::string coverage_flaw(std::span<const std::vector<PieceRun>> parts, Numel whole) {
  // Shards of columns are the most that a writer makes: a piece a row and rank.
  constexpr Numel kMostPieces = Numel{1} << 26;
  Numel pieces = 0;
  std::vector<Extent> extents;
  for (const std::vector<PieceRun>& runs : parts) {
    for (const PieceRun& run : runs) {
      pieces += run.count;
      if (pieces > kMostPieces) return fmt::format("more than {} pieces", kMostPieces);
    }
    const std::vector<Extent> more = extents_of(runs);
    extents.insert(extents.end(), more.begin(), more.end());
  }
  std::ranges::sort(extents, {}, &Extent::offset);
  const auto range = [](Numel first, Numel end) { return fmt::format("elements {} to {}", first, end - 1); };
  Numel at = 0;
  for (const Extent& extent : extents) {
    if (extent.offset > at) return range(at, extent.offset) + " are missing";
    if (extent.offset < at) return range(extent.offset, std::min(at, extent.end())) + " stand there twice";
    at = extent.end();
  }
  return at == whole ? "" : range(at, whole) + " are missing";
}

std::optional<std::vector<Extent>> held_extents(std::span<const StatePiece> pieces, Numel whole) {
  std::vector<Extent> sorted;
  for (const StatePiece& piece : pieces) {
    if (piece.numel < 0 || piece.global_offset < 0 || piece.numel > whole - piece.global_offset) return std::nullopt;
    if (piece.numel > 0) sorted.push_back({piece.global_offset, piece.numel});
  }
  std::ranges::sort(sorted, {}, &Extent::offset);
  std::vector<Extent> held;
  for (const Extent& extent : sorted) {
    if (!held.empty() && extent.offset < held.back().end()) return std::nullopt;
    append(held, extent);
  }
  return held;
}

Result<void> check_pieces(const TrainState& state) {
  for (const StateTensor& tensor : state.tensors) {
    const auto bad = [&tensor](std::string message, std::string expected) {
      Error error;
      error.place = tensor.slot + "/" + tensor.fqn;
      error.message = std::move(message);
      error.expected = std::move(expected);
      return fail(std::move(error));
    };
    const Numel held = tensor.local.defined() ? tensor.local.numel() : 0;
    if (held > 0 && (!tensor.local.is_contiguous() || !tensor.local.device().is_cpu())) {
      return bad("the local tensor cannot be read or written", "contiguous, in host memory");
    }
    if (!held_extents(tensor.pieces, numel_of(tensor.shape)) ||
        !std::ranges::is_sorted(tensor.pieces, {}, &StatePiece::global_offset)) {
      return bad("the pieces do not fit the whole tensor", "pieces inside it, apart, by offset");
    }
    for (const StatePiece& piece : tensor.pieces) {
      if (piece.local_offset < 0 || piece.numel > held - piece.local_offset) {
        return bad("a piece reaches beyond the local tensor", fmt::format("{} elements", held));
      }
    }
  }
  return {};
}

WriteShares share_out(std::span<const std::vector<Extent>> held, Numel whole, std::vector<Numel>& written) {
  WriteShares shares;
  shares.by_rank.resize(held.size());
  const std::vector<Border> borders = borders_of(held);
  std::vector<int> holders;                   // sorted
  std::map<std::vector<int>, int> writer_of;  // one writer for all that the same ranks hold: few pieces
  std::size_t next = 0;
  Numel at = 0;
  while (at < whole) {
    for (; next < borders.size() && borders[next].offset <= at; ++next) {
      const auto place = std::ranges::lower_bound(holders, borders[next].rank);
      const bool there = place != holders.end() && *place == borders[next].rank;
      // A rank's extents do not touch, so that no border ends one and begins another.
      if (borders[next].begins && !there) holders.insert(place, borders[next].rank);
      if (!borders[next].begins && there) holders.erase(place);
    }
    const Numel end = next < borders.size() ? std::min(borders[next].offset, whole) : whole;
    if (holders.empty()) {
      if (!shares.missing) shares.missing = Extent{at, end - at};
    } else {
      const auto [entry, fresh] = writer_of.try_emplace(holders, holders.front());
      if (fresh) {
        entry->second = *std::ranges::min_element(holders, {}, [&](int r) { return written[std::size_t(r)]; });
      }
      const auto writer = static_cast<std::size_t>(entry->second);
      append(shares.by_rank[writer], {at, end - at});
      written[writer] += end - at;
    }
    at = end;
  }
  return shares;
}

}  // namespace foreshard::exec
