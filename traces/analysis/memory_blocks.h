// Blocks of memory that live at a moment, by the frame that asked for them; and how two recordings differ in them.
// Of memory snapshots, whose allocations are slices of a lane "allocations". Pure functions; bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/timeline.h"

namespace foreshard {

struct BlockRow {
  std::string frame;  // "model.py:12 forward"; "" = allocated before the recording began, or by nobody named
  std::int64_t blocks = 0;
  Bytes bytes = 0, largest = 0;
  bool operator==(const BlockRow&) const = default;
};

struct BlockOptions {
  std::optional<std::int32_t> rank;  // else the lowest that has any
  std::optional<SimTime> at;         // else where most is allocated
};

struct LiveBlocks {
  std::int32_t rank = 0;
  SimTime at = 0;
  Bytes allocated = 0;         // of the allocator's counter at that moment
  std::vector<BlockRow> rows;  // one a frame, largest first; they add up to `allocated`
};

/// The row, of negative bytes, by which blocks are more than the allocator's counter says.
inline constexpr std::string_view kBeyondCounter = "(more than the counter says)";

/// nullopt where nothing says what was allocated: no snapshot, or one without history.
std::optional<LiveBlocks> live_blocks(const Timeline& timeline, const BlockOptions& options = {});

struct BlockDifference {
  std::string frame;
  BlockRow a, b;
  Bytes difference() const { return a.bytes - b.bytes; }
};
std::vector<BlockDifference> block_differences(const LiveBlocks& a, const LiveBlocks& b);  // largest first, by size

}  // namespace foreshard
