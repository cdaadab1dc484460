// Kind fsdp2-layouts: shards, all-gather, copy-out and reduce-scatter buffers with their contents. The buffers are
// filled as the recording's page says (parameter k holds 1000 k + 0, 1, ...) and moved by the offsets of
// core/plan/units/shard_layout.h alone.
#include <bit>
#include <cstring>
#include <numeric>

#include "core/plan/units/shard_layout.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {
namespace {

using Values = std::vector<double>;

double round_to(double value, DType dtype) {
  if (dtype != DType::BFloat16) return value;
  auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  bits += 0x7fffU + ((bits >> 16) & 1U);  // to nearest, ties to even
  return std::bit_cast<float>(bits & 0xffff0000U);
}

void rounded(Values& values, DType dtype) {
  for (double& value : values) value = round_to(value, dtype);
}

Values counted(double first, double step, Numel numel, DType dtype) {
  Values values(static_cast<std::size_t>(numel));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + step * static_cast<double>(i);
  rounded(values, dtype);
  return values;
}

/// Sizes of a tensor seen as [outer, dim, inner].
struct Axis {
  std::int64_t outer = 1, size = 1, inner = 1;
};

Axis axis_of(const Shape& shape, std::int32_t dim) {
  Axis axis;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    (static_cast<std::int32_t>(i) < dim    ? axis.outer
     : static_cast<std::int32_t>(i) == dim ? axis.size
                                           : axis.inner) *= shape[i];
  }
  return axis;
}

/// The rows of one rank, padded with zeros, contiguous.
Values slice(const Values& full, const Shape& shape, std::int32_t dim, std::int64_t world, std::int64_t rank) {
  const Axis axis = axis_of(shape, dim);
  const ShardExtent extent = shard_extent(axis.size, world, rank);
  Values part(static_cast<std::size_t>(axis.outer * extent.padded_length * axis.inner), 0.0);
  for (std::int64_t o = 0; o < axis.outer; ++o) {
    const auto from = full.begin() + (o * axis.size + extent.start) * axis.inner;
    std::copy_n(from, extent.length * axis.inner, part.begin() + o * extent.padded_length * axis.inner);
  }
  return part;
}

/// Puts the ranks' parts together along the sharded dimension: what a copy-out leaves in a parameter's storage.
Values joined(const std::vector<Values>& parts, const ShardedParam& param, const Shape& shape) {
  const Axis axis = axis_of(shape, param.shard_dim);
  const std::int64_t run = param.padded_local_shape[static_cast<std::size_t>(param.shard_dim)] * axis.inner;
  Values out;
  for (std::int64_t o = 0; o < axis.outer; ++o) {
    for (const Values& part : parts) out.insert(out.end(), part.begin() + o * run, part.begin() + (o + 1) * run);
  }
  return out;
}

Values as_bytes(const Values& values, DType dtype) {
  Values bytes;
  for (const double value : values) {
    const auto word = std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> (dtype == DType::BFloat16 ? 16 : 0);
    for (int i = 0; i < itemsize(dtype); ++i) bytes.push_back(static_cast<double>((word >> (8 * i)) & 0xffU));
  }
  return bytes;
}

struct Row {
  Model model;
  std::vector<std::int32_t> dims;
  std::vector<bool> trainable;
  std::int64_t world = 1;
  UnitPrecision precision;
};

std::optional<DType> dtype_or_none(const Json& value) {
  return value.is_string() ? parse_dtype(value.get<std::string>()) : std::nullopt;
}

Row read_row(const Json& json) {
  Row row;
  row.world = json.at("world");
  row.precision = {dtype_or_none(json.at("param_dtype")), dtype_or_none(json.at("reduce_dtype"))};
  row.model.modules.push_back({"", "Bag", {}, {}, {}, {}, {}});
  bool mixed = false;
  for (const Json& p : json.at("params")) mixed = mixed || p.at("dtype") != json.at("params")[0].at("dtype");
  for (const Json& p : json.at("params")) {
    const DType dtype = *parse_dtype(p.at("dtype").get<std::string>());
    row.model.params.push_back({p.at("name"), p.at("shape").get<Shape>(), dtype, true, ModuleId(0), {}});
    row.dims.push_back(p.at("shard_dim"));
    row.trainable.push_back(!mixed || dtype == DType::Float32);  // the recorder froze the bf16 ones of mixed rows
  }
  return row;
}

Json shards_of(const Row& row, std::vector<std::vector<Values>>& parts) {
  Json ranks = Json::array();
  for (std::int64_t rank = 0; rank < row.world; ++rank) {
    Json params = Json::array();
    for (std::size_t k = 0; k < row.model.params.size(); ++k) {
      const ParamInfo& info = row.model.params[k];
      const auto shard = shard_param(row.model, ParamId(k), row.dims[k], row.world, rank);
      if (!shard) throw std::runtime_error(to_text(shard.error()));
      const Values full = counted(1000.0 * static_cast<double>(k), 1.0, numel_of(info.shape), info.dtype);
      parts[k].push_back(slice(full, info.shape, shard->shard_dim, row.world, rank));
      params.push_back({{"local_shape", shard->local_shape},
                        {"padded_local_shape", shard->padded_local_shape},
                        {"local_stride", contiguous_strides(shard->local_shape)},
                        {"padded_data", parts[k].back()}});
    }
    ranks.push_back({{"rank", rank}, {"params", std::move(params)}});
  }
  return ranks;
}

Values gathered(const Row& row, const UnitLayout& layout, const std::vector<std::vector<Values>>& parts) {
  Values buffer(static_cast<std::size_t>(layout.gather_output_numel), -1.0);
  const Numel per_rank = layout.gather_output_numel / row.world;
  for (std::int64_t rank = 0; rank < row.world; ++rank) {
    Numel offset = rank * per_rank;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      Values part = parts[k][static_cast<std::size_t>(rank)];
      rounded(part, layout.copy_out[k].dtype);
      if (layout.gather_dtype == DType::UInt8) part = as_bytes(part, layout.copy_out[k].dtype);
      std::copy(part.begin(), part.end(), buffer.begin() + offset);
      offset += layout.input_split_sizes[k];
    }
  }
  return buffer;
}

Values reduce_input(const Row& row, const UnitLayout& layout, const std::vector<ShardedParam>& sharded) {
  Values buffer(static_cast<std::size_t>(layout.reduce.input_numel), -1.0);
  for (const GradView& view : layout.reduce.grads) {
    const auto k = static_cast<std::size_t>(view.index);
    const Shape& shape = row.model.params[k].shape;
    Values grad = counted(100.0 * static_cast<double>(k), 0.5, numel_of(shape), layout.copy_out[k].dtype);
    rounded(grad, layout.reduce.dtype);
    for (std::int64_t rank = 0; rank < row.world; ++rank) {
      const Values part = slice(grad, shape, sharded[k].shard_dim, row.world, rank);
      std::copy(part.begin(), part.end(), buffer.begin() + rank * layout.reduce.output_numel + view.offset_in_output);
    }
  }
  return buffer;
}

Json rebuild(const Row& row) {
  std::vector<std::vector<Values>> parts(row.model.params.size());
  Json out = {{"ranks", shards_of(row, parts)}};
  std::vector<ShardedParam> sharded;
  for (std::size_t k = 0; k < row.model.params.size(); ++k) {
    sharded.push_back(*shard_param(row.model, ParamId(k), row.dims[k], row.world, 0));
  }
  const UnitLayout layout = layout_unit(row.model, sharded, row.trainable, row.world, row.precision);
  out["all_gather_dtype"] = dtype_name(layout.gather_dtype);
  out["input_split_sizes"] = layout.input_split_sizes;
  out["all_gather_output_numel"] = layout.gather_output_numel;
  out["all_gather_output"] = gathered(row, layout, parts);
  out["copy_out"] = Json::array();
  for (std::size_t k = 0; k < sharded.size(); ++k) {
    for (Values& part : parts[k]) rounded(part, layout.copy_out[k].dtype);
    out["copy_out"].push_back({{"storage_numel", layout.copy_out[k].storage_numel},
                               {"view_numel", layout.copy_out[k].view_numel},
                               {"values", joined(parts[k], sharded[k], row.model.params[k].shape)}});
  }
  out["reduce_scatter_dtype"] = dtype_name(layout.reduce.dtype);
  out["reduce_scatter_input"] = reduce_input(row, layout, sharded);
  out["reduce_scatter_output_numel"] = layout.reduce.output_numel;
  out["grad_views"] = Json::array();
  for (const GradView& view : layout.reduce.grads) {
    out["grad_views"].push_back(
        {{"offset_in_output", view.offset_in_output}, {"padded_numel_per_rank", view.padded_numel_per_rank}});
  }
  return out;
}

RowResult compare(const Json& row) {
  const Json got = rebuild(read_row(row));
  RowResult result;
  for (const auto& [key, value] : got.items()) {
    if (row.at(key) == value) continue;
    result.verdict = Verdict::Fail;
    result.detail += key + ": expected " + row.at(key).dump() + "\n  got " + value.dump() + "\n";
    if (!result.place.empty()) continue;
    result.place = key;
    result.expected = row.at(key).dump().substr(0, 200);
    result.got = value.dump().substr(0, 200);
  }
  return result;
}

Report fsdp2_layouts(const std::vector<std::string>& files, const Options& options) {
  return for_each_row(files, options, compare);
}

ORACLE_KIND("fsdp2-layouts", fsdp2_layouts);

}  // namespace
}  // namespace foreshard::oracle
