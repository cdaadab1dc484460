// Which elements of a whole tensor lie where: runs of equal pieces, and who writes what where ranks hold the same.
// Plain values; elements of the flattened (row-major) whole tensor.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/units.h"
#include "exec/checkpoint/train_state.h"

namespace foreshard::exec {

struct Extent {
  Numel offset = 0;
  Numel numel = 0;
  Numel end() const { return offset + numel; }
  bool operator==(const Extent&) const = default;
};

/// `count` extents of `numel` elements, `stride` apart: a shard of rows is one, a shard of columns one with a count.
struct PieceRun {
  Numel offset = 0;
  Numel numel = 0;
  Numel count = 1;
  Numel stride = 0;
  bool operator==(const PieceRun&) const = default;
};

/// Sorted extents that do not overlap, touching ones joined, as few runs as a single pass finds.
std::vector<PieceRun> runs_of(std::span<const Extent> extents);
/// The extents again, in the order of the runs.
std::vector<Extent> extents_of(std::span<const PieceRun> runs);

/// Why the runs of all parts together are not each element of [0, whole) once: "elements 4 to 7 are missing", or twice.
/// Empty: they are. REQUIRES runs inside the whole, `whole` elements in all.
std::string coverage_flaw(std::span<const std::vector<PieceRun>> parts, Numel whole);

/// What a rank holds, by offset, joined where it touches. nullopt: pieces overlap or leave [0, whole).
std::optional<std::vector<Extent>> held_extents(std::span<const StatePiece> pieces, Numel whole);

/// Every piece lies inside its whole and inside its local tensor, by offset; locals are contiguous host memory.
Result<void> check_pieces(const TrainState& state);

/// Of one tensor: by rank what it writes, so that each element is written once. Where several ranks hold the same, the
/// one that has least to write so far does it; `written` (elements by rank) is brought up to date. `missing`: the first
/// extent that nobody holds.
struct WriteShares {
  std::vector<std::vector<Extent>> by_rank;
  std::optional<Extent> missing;
};
WriteShares share_out(std::span<const std::vector<Extent>> held, Numel whole, std::vector<Numel>& written);

}  // namespace foreshard::exec
