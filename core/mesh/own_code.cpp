#include "core/mesh/own_code.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace foreshard::mesh {
namespace {

/// Which dimension of `shape` is the one that is cut in `given`: of the same size, else the same one. A dimension that
/// stays where it was is another one of that size (a batch of as many samples as there are heads).
std::int32_t dimension_like(const Shape& shape, const CutTensor& given, std::int64_t ranks) {
  const auto same = static_cast<std::size_t>(given.cut.dim);
  const std::int64_t size = given.shape[same];
  if (same < shape.size() && shape[same] == size) return given.cut.dim;
  for (std::size_t k = 0; k < shape.size(); ++k) {
    const bool stays = k < given.shape.size() && given.shape[k] == shape[k];
    if (shape[k] == size && !stays) return static_cast<std::int32_t>(k);
  }
  const bool divides = shape.size() == given.shape.size() && shape[same] % ranks == 0;
  return divides ? given.cut.dim : -1;
}

/// Rounded up: what is there stays there.
std::int64_t share_of(std::int64_t amount, std::int64_t ranks) { return (amount + ranks - 1) / ranks; }

/// What a function keeps or makes; its temporaries are counted in bytes.
Shape part_of_shape(const Shape& whole, DType dtype, const CutTensor& given, std::int64_t ranks) {
  Shape part = whole;
  const std::int32_t dim = dimension_like(whole, given, ranks);
  const bool bytes = whole.size() == 1 && dtype == DType::UInt8 && dim < 0;
  if (bytes) part.front() = share_of(part.front(), ranks);
  if (dim >= 0 && part[static_cast<std::size_t>(dim)] % ranks == 0) part[static_cast<std::size_t>(dim)] /= ranks;
  return part;
}

void send_parts(Op& op, std::int64_t ranks) {
  for (NamedArg& named : op.kwargs) {
    auto* rows = named.name.starts_with("meets") ? std::get_if<ArgList>(&named.arg.value) : nullptr;
    if (rows == nullptr) continue;
    for (Arg& row : *rows) {
      auto* one = std::get_if<ArgList>(&row.value);
      auto* bytes = one != nullptr && one->size() > 2 ? std::get_if<std::int64_t>(&(*one)[2].value) : nullptr;
      if (bytes != nullptr) *bytes = std::max<std::int64_t>(1, share_of(*bytes, ranks));
    }
  }
}

/// [kind, dimension, bytes, ...]
std::int64_t dimension_met(const Arg& row) {
  const auto* one = std::get_if<ArgList>(&row.value);
  const auto* dimension = one != nullptr && one->size() > 2 ? std::get_if<std::int64_t>(&(*one)[1].value) : nullptr;
  return dimension == nullptr ? -1 : *dimension;
}

constexpr std::size_t kNear = 8;  // operators behind the reshape

std::size_t dim_of(const Op& op, std::size_t position, std::size_t rank) {
  const std::int64_t dim = integer_argument(op, position, "dim", 0);
  return static_cast<std::size_t>(dim < 0 ? dim + static_cast<std::int64_t>(rank) : dim);
}

/// Where a result lies that is like `given`; nothing: the ranks' rows of it are not to be told.
std::optional<Cut> cut_like(const Shape& result, const CutTensor& given, std::int64_t ranks) {
  const std::int32_t dim = dimension_like(result, given, ranks);
  if (dim < 0) return Cut();
  const std::int64_t size = result[static_cast<std::size_t>(dim)];
  Cut cut;
  if (dim == given.cut.dim && size == given.shape[static_cast<std::size_t>(dim)]) {
    cut = given.cut;
    cut.replica = false;
  } else if (given.cut.before * given.cut.after != 1) {
    return std::nullopt;
  } else {
    cut.dim = dim;
    cut.whole = size;
    cut.apart = given.cut.apart;
  }
  return cut.whole % ranks == 0 ? std::optional(cut) : std::nullopt;
}

}  // namespace

void renumber_meetings(Op& op, const std::map<std::int64_t, std::int64_t>& now) {
  const auto meets = [](const NamedArg& arg) { return arg.name.starts_with("meets"); };
  for (NamedArg& named : op.kwargs) {
    auto* rows = meets(named) ? std::get_if<ArgList>(&named.arg.value) : nullptr;
    if (rows == nullptr) continue;
    std::erase_if(*rows, [&](const Arg& row) { return !now.contains(dimension_met(row)); });
    for (Arg& row : *rows) std::get<std::int64_t>(std::get<ArgList>(row.value)[1].value) = now.at(dimension_met(row));
  }
  std::erase_if(op.kwargs, [&](const NamedArg& named) {
    const auto* rows = meets(named) ? std::get_if<ArgList>(&named.arg.value) : nullptr;
    return rows != nullptr && rows->empty();
  });
}

std::optional<std::vector<Cut>> carry_opaque(Model& model, Op& op, const std::vector<CutTensor>& args,
                                             const std::vector<Shape>& results, const Group& group) {
  const auto given = std::find_if(args.begin(), args.end(), [](const CutTensor& x) { return x.cut.cut(); });
  if (op.opaque < 0 || given == args.end()) return std::nullopt;
  const bool alike = std::all_of(args.begin(), args.end(), [&](const CutTensor& x) {
    const bool activation = x.value >= 0 && x.cut.rows < 0;  // no experts
    return !x.cut.term && !x.cut.spread && (!x.cut.cut() || (activation && x.cut.dim == given->cut.dim));
  });
  const std::int64_t ranks = group.ranks;
  if (!alike || given->shape[static_cast<std::size_t>(given->cut.dim)] % ranks != 0) return std::nullopt;
  std::vector<Cut> cuts(results.size());
  for (std::size_t k = 0; k < results.size(); ++k) {
    const auto like = cut_like(results[k], *given, ranks);
    if (!like) return std::nullopt;
    cuts[k] = *like;
  }
  OpaqueOp part = model.opaques[static_cast<std::size_t>(op.opaque)];
  for (OpaqueOp::Saved& saved : part.saved) saved.shape = part_of_shape(saved.shape, saved.dtype, *given, ranks);
  for (std::size_t i = 0; i < part.backward.size(); ++i) {
    Shape& shape = part.backward[i].shape;
    const bool of_whole = i < args.size() && !args[i].cut.cut() && args[i].shape == shape;  // a norm's weight
    if (!of_whole) shape = part_of_shape(shape, part.backward[i].dtype, *given, ranks);
  }
  part.bytes_moved = share_of(part.bytes_moved, ranks);
  part.flops /= ranks;
  if (part.backward_flops >= 0) part.backward_flops /= ranks;
  part.workspace_bytes = share_of(part.workspace_bytes, ranks);
  op.opaque = static_cast<std::int32_t>(model.opaques.size());
  model.opaques.push_back(std::move(part));
  send_parts(op, ranks);
  return cuts;
}

std::vector<std::size_t> order_of(const Op& op, std::size_t rank) {
  std::vector<std::size_t> order(rank);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto place = [rank](std::int64_t dim) {
    return static_cast<std::size_t>(dim < 0 ? dim + static_cast<std::int64_t>(rank) : dim);
  };
  const std::string_view name = base_name(op.name);
  if (name != "permute") {
    const bool t = name == "t";
    const std::size_t a = place(t ? 0 : integer_argument(op, 1, "dim0", 0));
    const std::size_t b = place(t ? 1 : integer_argument(op, 2, "dim1", 1));
    if (a < rank && b < rank) std::swap(order[a], order[b]);
    return order;
  }
  const auto named =
      std::find_if(op.kwargs.begin(), op.kwargs.end(), [](const NamedArg& arg) { return arg.name == "dims"; });
  const Arg* given = named != op.kwargs.end() ? &named->arg : op.args.size() > 1 ? &op.args[1] : nullptr;
  const auto* dims = given == nullptr ? nullptr : std::get_if<ArgList>(&given->value);
  for (std::size_t d = 0; dims != nullptr && d < std::min(rank, dims->size()); ++d) {
    const auto* dim = std::get_if<std::int64_t>(&(*dims)[d].value);
    if (dim != nullptr && place(*dim) < rank) order[d] = place(*dim);
  }
  return order;
}

std::set<std::int32_t> parts_of_result(const Model& model, const Op& op, const std::vector<Op>& ops,
                                       std::size_t index) {
  constexpr std::array<std::string_view, 4> kReshapes{"view", "_unsafe_view", "reshape", "unflatten"};
  const auto is_list = [](const Arg& arg) { return std::holds_alternative<ArgList>(arg.value); };
  if (op.kwargs.empty() && std::none_of(op.args.begin(), op.args.end(), is_list)) return {};  // no sizes
  const bool reshapes = std::find(kReshapes.begin(), kReshapes.end(), base_name(op.name)) != kReshapes.end();
  std::set<std::int32_t> parts;
  if (!reshapes || op.out.empty() || !op.out.front().valid()) return parts;
  ValueId value = op.out.front();
  // Which dimension of the reshape each of the moved tensor's is.
  std::vector<std::size_t> places(model.values[value.index()].shape.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  for (std::size_t i = index + 1; i < std::min(ops.size(), index + 1 + kNear); ++i) {
    const Op& next = ops[i];
    const auto* read = next.args.empty() ? nullptr : std::get_if<ValueRef>(&next.args.front().value);
    if (read == nullptr || read->id != value) continue;
    const std::string_view name = base_name(next.name);
    if (name == "permute" || name == "transpose") {
      const std::vector<std::size_t> before = places;
      const std::vector<std::size_t> order = order_of(next, places.size());
      for (std::size_t k = 0; k < places.size(); ++k) places[k] = before[order[k]];
      value = next.out.front();
      continue;
    }
    const bool first = name == "unbind" || name == "select";
    if (!first && name != "split" && name != "split_with_sizes" && name != "chunk") continue;
    const std::size_t at = dim_of(next, first ? 1 : 2, places.size());
    if (at < places.size()) parts.insert(static_cast<std::int32_t>(places[at]));
  }
  return parts;
}

}  // namespace foreshard::mesh
