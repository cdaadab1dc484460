#include "core/plan/units/flat_layout.h"

#include <algorithm>

namespace foreshard {
namespace {

constexpr Bytes kAlignmentBytes = 16;  // H3

/// Inclusive ranges, as PyTorch keeps them: an empty parameter ends one element before it starts.
ParamShard cut(const FlatEntry& entry, Numel shard_begin, Numel shard_end) {
  const Numel begin = entry.offset, end = entry.offset + entry.numel - 1;
  if (shard_begin > end || shard_end < begin) return {};
  ParamShard piece;
  piece.in_shard = true;
  piece.start = std::max<Numel>(shard_begin - begin, 0);
  piece.offset_in_shard = std::max<Numel>(begin - shard_begin, 0);
  piece.end = std::min(end, shard_end) - begin;
  piece.numel_in_shard = piece.end - piece.start + 1;
  return piece;
}

RankShard cut_all(const std::vector<FlatEntry>& entries, Numel numel, Numel shard_numel, std::int32_t position,
                  bool sharded) {
  RankShard shard;
  shard.numel = shard_numel;
  const Numel begin = sharded ? position * shard_numel : 0;
  if (sharded) shard.padding = shard_numel - std::clamp<Numel>(numel - begin, 0, shard_numel);
  for (const FlatEntry& entry : entries) {
    if (entry.param.valid()) shard.params.push_back(cut(entry, begin, begin + shard_numel - 1));
  }
  return shard;
}

}  // namespace

Numel flat_alignment(DType param_dtype, bool use_orig_params) {
  return use_orig_params ? kAlignmentBytes / itemsize(param_dtype) : 0;
}

FlatLayout flat_layout(const std::vector<FlatParam>& params, Numel alignment, std::int32_t ranks, bool sharded) {
  FlatLayout layout;
  const auto pad_to = [&](Numel step, Numel& sum) {
    const Numel pad = round_up(layout.numel, step) - layout.numel;
    if (pad == 0) return;
    layout.entries.push_back({ParamId{}, layout.numel, pad});
    layout.numel += pad;
    sum += pad;
  };
  for (const FlatParam& param : params) {
    if (alignment > 0) pad_to(alignment, layout.align_padding);
    layout.entries.push_back({param.param, layout.numel, param.numel});
    layout.numel += param.numel;
  }
  if (alignment > 0) pad_to(ranks, layout.world_padding);
  layout.shard_numel = sharded ? ceil_div(layout.numel, ranks) : layout.numel;
  layout.padded_numel = sharded ? layout.shard_numel * ranks : layout.numel;
  return layout;
}

RankShard rank_shard(const FlatLayout& layout, std::int32_t position, bool sharded) {
  return cut_all(layout.entries, layout.numel, layout.shard_numel, position, sharded);
}

RankShard rank_shard(const PlanUnit& unit, std::int32_t position) {
  return cut_all(unit.flat, unit.flat_numel, unit.shard_numel, position, unit.strategy != Strategy::NoShard);
}

UnitLedger unit_ledger(const PlanUnit& unit) {
  const Bytes orig = itemsize(unit.orig_dtype), compute = itemsize(unit.param_dtype),
              reduce = itemsize(unit.reduce_dtype);
  const Numel n = unit.flat_numel, c = unit.shard_numel, padded = unit.padded_numel;
  const bool sharded = unit.strategy != Strategy::NoShard;
  UnitLedger ledger;
  ledger.shard = c * orig;
  if (unit.param_dtype != unit.orig_dtype) ledger.cast_copy = c * compute;
  // NO_SHARD computes on the shard itself, or on its low-precision copy (M9): nothing is gathered.
  if (sharded) ledger.unsharded = padded * compute;
  if (!unit.requires_grad) return ledger;
  ledger.grad_shard = c * (unit.keep_low_precision_grads ? compute : orig);
  ledger.moments = 2 * c * orig;
  ledger.gradient = n * compute;
  ledger.gradient_pieces = n * compute;
  if (unit.reduce_dtype != unit.param_dtype) ledger.reduce_copy = n * reduce;
  if (!sharded) return ledger;
  if (padded != n) ledger.padded_copy = padded * reduce;
  ledger.reduce_output = c * reduce;
  if (unit.reduce_dtype != unit.orig_dtype) ledger.reduce_output_cast = c * orig;
  return ledger;
}

}  // namespace foreshard
