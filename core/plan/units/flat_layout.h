// Flat parameters (rules H3..H6, H17): how the parameters of one fsdp1 unit are laid out, padded and cut into shards,
// and how many bytes each of the unit's buffers takes. Pure functions; sizes in elements unless the name says bytes.
#pragma once

#include <vector>

#include "core/dtype.h"
#include "core/ids.h"
#include "core/plan.h"
#include "core/units.h"

namespace foreshard {

struct FlatParam {
  ParamId param;
  Numel numel = 0;
};

struct FlatLayout {
  std::vector<FlatEntry> entries;
  Numel numel = 0;         // n: with every padding
  Numel shard_numel = 0;   // c; n when not sharded
  Numel padded_numel = 0;  // F = c x ranks; n when not sharded
  Numel align_padding = 0;
  Numel world_padding = 0;
  bool operator==(const FlatLayout&) const = default;
};

/// H3: elements that every parameter's start is aligned to; 0 without use_orig_params.
Numel flat_alignment(DType param_dtype, bool use_orig_params);

/// H3, H4. `ranks` is the size of the shard group; the world padding is inserted for it even when `sharded` is false.
FlatLayout flat_layout(const std::vector<FlatParam>& params, Numel alignment, std::int32_t ranks, bool sharded);

/// One rank's piece of a flat parameter (H4, H6).
struct RankShard {
  Numel numel = 0;                 // c, padding included
  Numel padding = 0;               // zeros at the right end that are no part of the flat parameter
  std::vector<ParamShard> params;  // by parameter, paddings left out
  bool operator==(const RankShard&) const = default;
};

/// H6 for the rank at position `position` of the shard group. REQUIRES 0 <= position < ranks of the layout.
RankShard rank_shard(const FlatLayout& layout, std::int32_t position, bool sharded);
RankShard rank_shard(const PlanUnit& unit, std::int32_t position);

/// H17: bytes of every buffer that one fsdp1 unit may have. 0 = the buffer is never made.
struct UnitLedger {
  Bytes shard = 0;       // resident parameters
  Bytes grad_shard = 0;  // .grad between backward and step (M4)
  Bytes moments = 0;     // two AdamW moments
  Bytes cast_copy = 0;   // low-precision shard during an unshard
  Bytes unsharded = 0;
  Bytes gradient = 0;         // flat, pool U
  Bytes gradient_pieces = 0;  // per parameter, pool D, until the concatenation has run (R26)
  Bytes reduce_copy = 0;      // only if e_r differs from e_c
  Bytes padded_copy = 0;      // only if F differs from n
  Bytes reduce_output = 0;
  Bytes reduce_output_cast = 0;  // after the cast back, only if e_r differs from e_o
  bool operator==(const UnitLedger&) const = default;
};
UnitLedger unit_ledger(const PlanUnit& unit);

}  // namespace foreshard
